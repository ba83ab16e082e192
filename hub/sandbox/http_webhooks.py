"""Admission webhooks, the calling half: over HTTPS, in time, and with the failure policy of each."""

import asyncio
import base64
import binascii
import ssl
import uuid
from collections.abc import Sequence

import aiohttp
import msgspec
import orjson

from hub.kueue.api.meta import Resource
from hub.kueue.runtime import tls
from hub.sandbox.access import User
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.documents import Document, copied, dig
from hub.sandbox.webhooks import (
    MUTATING,
    VALIDATING,
    Question,
    Webhook,
    WebhookFailure,
    admission_review,
    denial,
    failure,
    no_dry_run,
    patched,
    read_answer,
)
from hub.sandbox.writing import Draft, WriteOptions

#: What configures webhooks is never shown to webhooks, so that a bad one can be removed.
EXEMPT = (MUTATING, VALIDATING)
ANSWER_MAX_BYTES = 8 * 1024 * 1024


class Admission:
    """Asks the webhooks of one cluster. Close it with the server."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def mutate(self, draft: Draft, user: User) -> None:
        """Let the mutating webhooks change the draft. Raises ApiError when one refuses."""
        if draft.served.collection in EXEMPT or not self._api.webhooks.mutating:
            return
        changed_after: dict[str, bool] = {}
        for hook in self._api.webhooks.mutating:
            if await self._mutate_once(hook, draft, user, changed_after):
                changed_after = dict.fromkeys(changed_after, True) | {hook.name: False}
        for hook in self._api.webhooks.mutating:
            if hook.reinvoked and changed_after.get(hook.name):
                await self._mutate_once(hook, draft, user, changed_after)

    async def _mutate_once(self, hook: Webhook, draft: Draft, user: User, asked: dict[str, bool]) -> bool:
        question = self._question(draft, user)
        if (seen_as := hook.concerns(question, self._versions(draft))) is None:
            return False
        asked.setdefault(hook.name, False)
        response = await self._ask(hook, question, seen_as, draft.warnings)
        operations = _operations(response)
        if not operations:
            return False
        try:
            draft.new = copied(patched(question, operations))
        except WebhookFailure as error:
            raise failure(hook, str(error)) from error
        self._api.reshape(draft)
        return True

    async def validate(self, draft: Draft, user: User) -> None:
        """Raises ApiError when a validating webhook refuses."""
        await self._validate(
            self._question(draft, user), self._versions(draft), draft.served.collection, draft.warnings
        )

    async def allow_delete(self, draft: Draft, user: User) -> None:
        """Ask about a delete: `draft.old` is what is to go. Raises ApiError when a webhook refuses."""
        question = msgspec.structs.replace(self._question(draft, user), operation="DELETE", obj=None)
        versions = self._versions(draft)
        if draft.served.collection not in EXEMPT:
            for hook in self._api.webhooks.mutating:
                if (seen_as := hook.concerns(question, versions)) is not None:
                    await self._ask(hook, question, seen_as, draft.warnings)
        await self._validate(question, versions, draft.served.collection, draft.warnings)

    async def _validate(self, q: Question, versions: Sequence[str], collection: str, warnings: list[str]) -> None:
        if collection in EXEMPT:
            return
        concerned = [(h, seen) for h in self._api.webhooks.validating if (seen := h.concerns(q, versions))]
        answers = (self._ask(hook, q, seen_as, warnings) for hook, seen_as in concerned)
        for outcome in await asyncio.gather(*answers, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    # --- one question ------------------------------------------------------------------------------------------------

    def _versions(self, draft: Draft) -> list[str]:
        return [s.resource.version for s in self._api.registry if s.collection == draft.served.collection]

    def _question(self, draft: Draft, user: User) -> Question:
        served, (namespace, name) = draft.served, draft.key
        labels = draft.new["metadata"].get("labels") if served.collection == "namespaces" else None
        if served.resource.namespaced:
            home = self._api.storage.collection("namespaces").objects.get(("", namespace))
            labels = home.object["metadata"].get("labels") if home else None
        scoped = served.resource.namespaced or served.collection == "namespaces"
        return Question(
            operation="CREATE" if draft.stored is None else "UPDATE",
            resource=served.resource,
            subresource=draft.subresource,
            namespace=name if served.collection == "namespaces" else namespace,
            name=name,
            user=user,
            obj=draft.new,
            old=draft.old,
            dry_run=draft.options.dry_run,
            namespace_labels=(labels or {}) if scoped else None,
            options=_options(draft.stored is None, draft.options),
        )

    async def _ask(self, hook: Webhook, q: Question, seen_as: Resource, warnings: list[str]) -> Document:
        """The webhook's response, {} when it failed and may. Raises ApiError when it refuses or must not fail."""
        if q.dry_run and not hook.dry_run_safe:
            raise no_dry_run(hook)
        uid = str(uuid.uuid4())
        try:
            response = read_answer(hook, await self._post(hook, admission_review(q, seen_as, uid)), uid)
        except WebhookFailure as error:
            if hook.may_fail:
                return {}
            raise failure(hook, f"failed to call webhook: {error}") from error
        warnings.extend(response.get("warnings") or ())
        if not response["allowed"]:
            raise denial(hook, response)
        return response

    async def _post(self, hook: Webhook, review: Document) -> Document:
        """Raises WebhookFailure."""
        url, server_name = self._address(hook)
        try:
            async with self._client().post(
                url,
                params={"timeout": f"{hook.timeout_s}s"},
                data=orjson.dumps(review),
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                ssl=self._context(hook.client.get("caBundle") or ""),
                server_hostname=server_name,
                timeout=aiohttp.ClientTimeout(total=hook.timeout_s),
            ) as answer:
                body = await answer.content.read(ANSWER_MAX_BYTES)
                if answer.status != 200:
                    raise WebhookFailure(f'Post "{url}": the server answered {answer.status}')
                return orjson.loads(body)
        except TimeoutError as error:
            raise WebhookFailure(f'Post "{url}": context deadline exceeded after {hook.timeout_s} s') from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookFailure(f'Post "{url}": {error}') from error

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    def _context(self, bundle: str) -> ssl.SSLContext:
        """Trust in a caBundle (base64 of PEM), or in the system's authorities without one."""
        if (known := self._contexts.get(bundle)) is None:
            try:
                pem = base64.b64decode(bundle).decode()
                known = tls.client_context(pem) if bundle else ssl.create_default_context()
            except (binascii.Error, UnicodeDecodeError, tls.TlsError) as error:
                raise WebhookFailure(f"its caBundle cannot be used: {error}") from error
            self._contexts[bundle] = known
        return known

    def _address(self, hook: Webhook) -> tuple[str, str | None]:
        """Where a webhook answers, and the name its certificate must have when that is another one."""
        if url := hook.client.get("url"):
            return url, None
        service = hook.client.get("service") or {}
        namespace, name, port = service.get("namespace", ""), service.get("name", ""), service.get("port") or 443
        host, target = self._endpoint(namespace, name, port)
        path = "/" + (service.get("path") or "").lstrip("/")
        return f"https://{host}:{target}{path}", f"{name}.{namespace}.svc"

    def _endpoint(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        """An address behind a Service: the sandbox has no network of its own, so endpoints are real addresses."""
        services, endpoints = self._api.storage.collection("services"), self._api.storage.collection("endpoints")
        if (service := services.objects.get((namespace, name))) is None:
            raise WebhookFailure(f'service "{name}" not found')
        if dig(service.object, "spec", "type") == "ExternalName":
            return dig(service.object, "spec", "externalName"), port
        found = endpoints.objects.get((namespace, name))
        for subset in (found.object.get("subsets") or ()) if found else ():
            for address in subset.get("addresses") or ():
                return address["ip"], (subset.get("ports") or [{"port": port}])[0]["port"]
        raise WebhookFailure(f'no endpoints available for service "{name}"')


def _options(creates: bool, options: WriteOptions) -> Document:
    kind = "CreateOptions" if creates else "UpdateOptions"
    found: Document = {"kind": kind, "apiVersion": "meta.k8s.io/v1", "fieldManager": options.field_manager}
    return found | ({"dryRun": ["All"]} if options.dry_run else {})


def _operations(response: Document) -> list[Document]:
    """The JSON patch in a response, which carries it as base64."""
    if not (text := response.get("patch")):
        return []
    try:
        return orjson.loads(base64.b64decode(text))
    except (binascii.Error, ValueError):
        return [{"op": "unreadable"}]
