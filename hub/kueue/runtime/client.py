"""A client of one API server: verbs on resources, manifests as dicts, errors that say what to do.

It never retries: a loop above decides again from what it sees. The one exception is a 401, after which credentials that
can be renewed are renewed once; a refused request has done nothing.
"""

import hashlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey, Resource, format_time, key_of
from hub.kueue.operations import Create, Delete, EmitEvent, Operation, Patch
from hub.kueue.runtime.discovery import ServedKind, list_served
from hub.kueue.runtime.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Invalid,
    KubernetesError,
    NotFound,
    NotServed,
    Request,
    Unauthorized,
    Unreachable,
    error_from,
)
from hub.kueue.runtime.loop import Clock
from hub.kueue.runtime.transport import APPLY_PATCH, JSON, MERGE_PATCH, Transport

log = logging.getLogger(__name__)

FIELD_MANAGER = "multikueue-hub"
PAGE_SIZE = 500

#: A watch is ended by the server after a random time in this range and opened again by us: short of the usual idle limits
#: of proxies (30 s and up), so that a quiet watch is not taken for a dead one, and short enough to notice one that is dead.
WATCH_S = (24.0, 28.0)
#: How long after that the end may take to arrive before the connection counts as half-open.
WATCH_GRACE_S = 5.0

_EVENTS = Resource("", "v1", "events", "Event")


class Page(Struct, frozen=True, kw_only=True):
    items: list[dict[str, Any]]
    resource_version: str
    #: Continue token; empty after the last page.
    token: str = ""


class UserInfo(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """authentication.k8s.io/v1 UserInfo."""

    username: str
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class Client:
    def __init__(self, transport: Transport, clock: Clock = time.time) -> None:
        self._transport = transport
        self._clock = clock

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        context: str | None = None,
        user_agent: str = "multikueue-hub",
        clock: Clock = time.time,
    ) -> "Client":
        """`kubeconfig` None: the pod's service account, else the default kubeconfig. Raises Unreachable; sends nothing yet."""
        return cls(await Transport.open(kubeconfig, context, user_agent), clock)

    def with_token(self, token: str) -> "Client":
        """The same API server as the holder of this bearer token. Close it after use."""
        return Client(self._transport.with_token(token), self._clock)

    @property
    def host(self) -> str:
        """The API server's address."""
        return self._transport.host

    async def close(self) -> None:
        await self._transport.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, key: ObjectKey) -> dict[str, Any] | None:
        """The object, or None when there is none. Raises NotServed when the kind itself is unknown."""
        request = Request.on("get", resource, key)
        try:
            return (await self._transport.call(request, "GET", path_of(resource, key))).body
        except NotServed:
            raise
        except NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE_SIZE,
    ) -> tuple[list[dict[str, Any]], str]:
        """All objects and the resourceVersion to watch from, page by page; one expired continue token starts it again."""
        for attempt in (1, 2):
            items: list[dict[str, Any]] = []
            token = ""
            try:
                while True:
                    answer = await self.list_page(
                        resource,
                        namespace,
                        label_selector=label_selector,
                        field_selector=field_selector,
                        limit=page,
                        token=token,
                    )
                    items += answer.items
                    token = answer.token
                    if not token:
                        return items, answer.resource_version
            except Expired:
                if attempt == 2:
                    raise
        raise AssertionError

    async def list_page(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE_SIZE,
        token: str = "",
    ) -> Page:
        query = _query(labelSelector=label_selector, fieldSelector=field_selector, limit=str(limit))
        if token:
            query["continue"] = token
        request = Request.on("list", resource, ObjectKey(namespace, "") if namespace else None)
        body = (await self._transport.call(request, "GET", path_of(resource, namespace=namespace), query=query)).body
        meta = (body.get("metadata") or {}) if isinstance(body, dict) else {}
        if not meta.get("resourceVersion") or "items" not in body:
            # Taken for an empty list, this would make everything look gone.
            raise Unreachable(request, f"the answer is not a list: {str(body)[:200]}")
        items = body["items"] or []
        for item in items:  # items of built-in kinds come without these two
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return Page(items=items, resource_version=meta["resourceVersion"], token=meta.get("continue", ""))

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """(type, object) as it happens: ADDED, MODIFIED, DELETED and BOOKMARK. Ends after WATCH_S: open the next one then.

        Raises Expired when `resource_version` is too old, Unreachable when the connection broke or fell silent.
        """
        limit_s = random.uniform(*WATCH_S)  # noqa: S311 - jitter
        query = _query(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(int(limit_s)),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        request = Request.on("watch", resource, ObjectKey(namespace, "") if namespace else None)
        path = path_of(resource, namespace=namespace)
        async for event in self._transport.stream(request, path, query=query, idle_s=limit_s + WATCH_GRACE_S):
            if event.get("type") == "ERROR":
                status = event.get("object") or {}
                raise error_from(request, int(status.get("code") or 500), status)
            yield event["type"], event["object"]

    async def served(self) -> Sequence[ServedKind]:
        """Every kind that the server offers now, in its preferred version."""
        return await list_served(self._transport)

    async def served_kinds(self) -> Sequence[str]:
        """As "apiVersion, Kind", e.g. "batch/v1, Job"."""
        return [str(kind) for kind in await self.served()]

    # --- writing -----------------------------------------------------------------------------------------------------

    async def create(
        self, resource: Resource, manifest: dict[str, Any], *, field_validation: str = ""
    ) -> dict[str, Any]:
        """`field_validation`: Strict, Warn or Ignore; empty: the server's default. Raises AlreadyExists."""
        meta = manifest.get("metadata") or {}
        key = ObjectKey(meta.get("namespace", ""), meta.get("name") or meta.get("generateName", ""))
        query = _query(fieldManager=FIELD_MANAGER, fieldValidation=field_validation)
        path = path_of(resource, namespace=key.namespace)
        request = Request.on("create", resource, key)
        return (await self._transport.call(request, "POST", path, query=query, body=manifest)).body

    async def replace(self, resource: Resource, manifest: dict[str, Any], *, subresource: str = "") -> dict[str, Any]:
        """PUT of the whole object. With metadata.resourceVersion in it, raises Conflict when it changed since."""
        key = key_of(manifest)
        request = Request.on("replace", resource, key, subresource=subresource)
        path = path_of(resource, key, subresource=subresource)
        return (
            await self._transport.call(request, "PUT", path, query={"fieldManager": FIELD_MANAGER}, body=manifest)
        ).body

    async def patch(
        self,
        resource: Resource,
        key: ObjectKey,
        body: dict[str, Any],
        *,
        subresource: str = "",
        resource_version: str | None = None,
        uid: str | None = None,
    ) -> dict[str, Any]:
        """A merge patch. Raises Conflict when the object has another resourceVersion or uid than the one given."""
        guard = {k: v for k, v in (("resourceVersion", resource_version), ("uid", uid)) if v is not None}
        if guard:
            body = {**body, "metadata": {**body.get("metadata", {}), **guard}}
        request = Request.on("patch", resource, key, subresource=subresource)
        path = path_of(resource, key, subresource=subresource)
        query = {"fieldManager": FIELD_MANAGER}
        try:
            return (
                await self._transport.call(request, "PATCH", path, query=query, body=body, content_type=MERGE_PATCH)
            ).body
        except Invalid as error:
            # A patch with a foreign uid is refused as a change of an immutable field.
            if uid is not None and any(field == "metadata.uid" for field, _ in error.causes):
                raise Conflict(request, f"the name belongs to another object than uid {uid}", code=409) from error
            raise

    async def apply(
        self, resource: Resource, manifest: dict[str, Any], *, force: bool = True, subresource: str = ""
    ) -> dict[str, Any]:
        """Server-side apply. Raises Conflict when not `force` and another manager owns a field."""
        key = key_of(manifest)
        request = Request.on("apply", resource, key, subresource=subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
        path = path_of(resource, key, subresource=subresource)
        return (
            await self._transport.call(request, "PATCH", path, query=query, body=manifest, content_type=APPLY_PATCH)
        ).body

    async def delete(
        self, resource: Resource, key: ObjectKey, *, uid: str | None = None, propagation: str = "Background"
    ) -> bool:
        """False: no such object was there, or with `uid`, only a namesake that came later and was left alone."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._transport.call(Request.on("delete", resource, key), "DELETE", path_of(resource, key), body=body)
        except NotServed:
            raise
        except NotFound:
            return False
        except Conflict:
            if uid:
                return False
            raise
        return True

    async def run(self, operation: Operation) -> dict[str, Any] | None:
        """Carry out what a decision returned. Doing it twice does no harm; None: there was nothing (left) to do.

        Raises Conflict for a Patch whose resourceVersion or uid does not match any more: decide again.
        """
        match operation:
            case Create():
                try:
                    return await self.create(operation.resource, operation.manifest)
                except AlreadyExists:
                    return None
            case Patch():
                try:
                    return await self.patch(
                        operation.resource,
                        operation.key,
                        operation.body,
                        subresource=operation.subresource,
                        resource_version=operation.resource_version,
                        uid=operation.uid,
                    )
                except NotServed:
                    raise
                except NotFound:
                    return None
            case Delete():
                await self.delete(
                    operation.resource, operation.key, uid=operation.uid, propagation=operation.propagation
                )
                return None
            case EmitEvent():
                return await self._emit(operation)
        raise TypeError(f"no way to carry out {type(operation).__name__}")

    async def _emit(self, event: EmitEvent) -> dict[str, Any] | None:
        """An event that cannot be written is logged and lost: no decision fails for it."""
        manifest = event_manifest(event, self._clock())
        try:
            return await self.create(_EVENTS, manifest)
        except AlreadyExists:
            return await self._count_again(manifest)
        except KubernetesError as error:
            log.info("event %s about %s is lost: %s", event.reason, event.key, error)
        return None

    async def _count_again(self, manifest: dict[str, Any]) -> dict[str, Any] | None:
        key = key_of(manifest)
        try:
            old = await self.get(_EVENTS, key)
            if old is None:
                return None
            body = {"count": int(old.get("count") or 1) + 1, "lastTimestamp": manifest["lastTimestamp"]}
            return await self.patch(_EVENTS, key, body)
        except KubernetesError as error:
            log.info("event %s is not counted again: %s", key, error)
        return None

    # --- asking ------------------------------------------------------------------------------------------------------

    async def post_raw(self, path: str, body: dict[str, Any], *, verb: str = "post") -> Any:
        """POST to a path that is no object's, such as a review."""
        return (await self._transport.call(Request(verb=verb, resource=path), "POST", path, body=body)).body

    async def get_raw(self, path: str, *, accept: str = JSON) -> Any:
        return (await self._transport.call(Request(verb="get", resource=path), "GET", path, accept=accept)).body

    async def authenticate(self, token: str) -> UserInfo | None:
        """Who holds this bearer token, by TokenReview; None when nobody does."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        answer = await self.post_raw("/apis/authentication.k8s.io/v1/tokenreviews", review, verb="review token")
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            return None
        user = status.get("user") or {}
        return UserInfo(
            username=user.get("username", ""),
            uid=user.get("uid", ""),
            groups=list(user.get("groups") or []),
            extra=dict(user.get("extra") or {}),
        )

    async def may(self, user: UserInfo, verb: str, resource: Resource, namespace: str = "", *, name: str = "") -> bool:
        """Does the API server's RBAC let this user do that? By SubjectAccessReview; namespace "" asks about all."""
        attributes = _query(
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            verb=verb,
            namespace=namespace,
            name=name,
        )
        spec: dict[str, Any] = {"user": user.username, "groups": user.groups, "resourceAttributes": attributes}
        spec |= {k: v for k, v in (("uid", user.uid), ("extra", user.extra)) if v}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self.post_raw("/apis/authorization.k8s.io/v1/subjectaccessreviews", review, verb="review access")
        return bool((answer.get("status") or {}).get("allowed"))

    async def who_am_i(self) -> UserInfo:
        """Whom the API server takes us for, by SelfSubjectReview. Raises Unauthorized."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        user = ((await self.post_raw(path, review, verb="review self")).get("status") or {}).get("userInfo") or {}
        if not user:
            raise Unauthorized(Request(verb="review self", resource=path), "the server does not say who we are")
        return UserInfo(username=user.get("username", ""), uid=user.get("uid", ""), groups=user.get("groups") or [])


def path_of(resource: Resource, key: ObjectKey | None = None, *, namespace: str = "", subresource: str = "") -> str:
    """URL path of a collection or, with `key`, of one object."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    namespace = key.namespace if key else namespace
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace and resource.namespaced else ""
    name = f"/{quote(key.name, safe='')}" if key else ""
    return f"{root}{inside}/{resource.plural}{name}" + (f"/{subresource}" if subresource else "")


def event_manifest(event: EmitEvent, now: float) -> dict[str, Any]:
    """A core/v1 Event. The name is made of what it says, so that saying it again counts up instead of piling up."""
    when = format_time(now)
    said = (event.resource.kind, event.uid, event.type, event.reason, event.message)
    digest = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
    namespace = event.key.namespace or "default"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{event.key.name[:230]}.{digest}"},
        "involvedObject": {
            "apiVersion": event.resource.api_version,
            "kind": event.resource.kind,
            "name": event.key.name,
            **_query(namespace=event.key.namespace, uid=event.uid),
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": "",
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _query(**words: str) -> dict[str, str]:
    return {k: v for k, v in words.items() if v}
