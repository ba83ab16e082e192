"""Admission webhooks, the deciding half: which of them a write concerns, what they are asked, what their answer means.

    MutatingWebhookConfiguration   ──▶ in order of name, each sees what the one before it made of the object
    ValidatingWebhookConfiguration ──▶ after all else, at once; any may refuse

`http_webhooks.py` does the calling. Nothing here waits or opens a connection.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from hub.kueue.api.meta import Resource
from hub.sandbox.access import User
from hub.sandbox.documents import Document
from hub.sandbox.errors import ApiError, bad_request, internal
from hub.sandbox.patches import json_patch
from hub.sandbox.selectors import matches_selector
from hub.sandbox.storage import Collection, Storage

GROUP = "admissionregistration.k8s.io"
MUTATING, VALIDATING = f"mutatingwebhookconfigurations.{GROUP}", f"validatingwebhookconfigurations.{GROUP}"
Operation = Literal["CREATE", "UPDATE", "DELETE"]
TIMEOUT_S = 10


class Question(Struct, frozen=True, kw_only=True):
    """One write as webhooks see it. `obj` is None for a delete, `old` for a create."""

    operation: Operation
    resource: Resource
    subresource: str
    namespace: str
    name: str
    user: User
    obj: Document | None
    old: Document | None
    dry_run: bool
    #: Labels of the namespace the object is in; None for objects in no namespace.
    namespace_labels: Mapping[str, str] | None
    options: Document


class Webhook(Struct, frozen=True, kw_only=True):
    """One entry of a configuration."""

    name: str
    rules: Sequence[Mapping[str, Any]]
    client: Mapping[str, Any]
    namespace_selector: Mapping[str, Any]
    object_selector: Mapping[str, Any]
    exact: bool
    may_fail: bool
    timeout_s: int
    reinvoked: bool
    dry_run_safe: bool

    def concerns(self, q: Question, versions: Sequence[str]) -> Resource | None:
        """The resource as this webhook wants to see it (perhaps in another of the served versions), or None."""
        if not self._selects(q):
            return None
        wanted = [q.resource.version] if self.exact else [q.resource.version, *versions]
        for version in wanted:
            if any(_rule_covers(rule, q, version) for rule in self.rules):
                resource = q.resource
                return Resource(resource.group, version, resource.plural, resource.kind, resource.namespaced)
        return None

    def _selects(self, q: Question) -> bool:
        labels = q.namespace_labels
        if labels is not None and not matches_selector(self.namespace_selector, labels):
            return False
        objects = [o for o in (q.obj, q.old) if o is not None]
        return any(matches_selector(self.object_selector, o["metadata"].get("labels") or {}) for o in objects)


def _rule_covers(rule: Mapping[str, Any], q: Question, version: str) -> bool:
    scope = rule.get("scope") or "*"
    if scope != "*" and (scope == "Namespaced") is not q.resource.namespaced:
        return False
    return (
        _listed(rule.get("operations"), q.operation)
        and _listed(rule.get("apiGroups"), q.resource.group)
        and _listed(rule.get("apiVersions"), version)
        and any(_names_resource(r, q.resource.plural, q.subresource) for r in rule.get("resources") or ())
    )


def _listed(names: Sequence[str] | None, wanted: str) -> bool:
    return bool(names) and (wanted in names or "*" in names)


def _names_resource(pattern: str, plural: str, subresource: str) -> bool:
    resource, slash, sub = pattern.partition("/")
    if resource not in ("*", plural):
        return False
    return sub in ("*", subresource) if slash else not subresource


def read_webhooks(configuration: Document) -> Iterator[Webhook]:
    for entry in configuration.get("webhooks") or ():
        yield Webhook(
            name=entry.get("name", ""),
            rules=entry.get("rules") or (),
            client=entry.get("clientConfig") or {},
            namespace_selector=entry.get("namespaceSelector") or {},
            object_selector=entry.get("objectSelector") or {},
            exact=entry.get("matchPolicy") == "Exact",
            may_fail=entry.get("failurePolicy") == "Ignore",
            timeout_s=entry.get("timeoutSeconds") or TIMEOUT_S,
            reinvoked=entry.get("reinvocationPolicy") == "IfNeeded",
            dry_run_safe=entry.get("sideEffects") in ("None", "NoneOnDryRun"),
        )


class WebhookIndex:
    """The webhooks of a cluster, read again when a configuration changes. False when there are none."""

    def __init__(self, storage: Storage) -> None:
        self._mutating, self._validating = storage.collection(MUTATING), storage.collection(VALIDATING)
        self._known: dict[str, list[Webhook]] = {}
        for collection in (self._mutating, self._validating):
            collection.listeners.append(lambda event: self._known.clear())

    def __bool__(self) -> bool:
        return bool(self._mutating.objects or self._validating.objects)

    @property
    def mutating(self) -> list[Webhook]:
        return self._read(self._mutating)

    @property
    def validating(self) -> list[Webhook]:
        return self._read(self._validating)

    def _read(self, collection: Collection) -> list[Webhook]:
        if (found := self._known.get(collection.name)) is None:
            stored = [collection.objects[key].object for key in collection.ordered()]
            found = self._known[collection.name] = [hook for obj in stored for hook in read_webhooks(obj)]
        return found


# --- question and answer -------------------------------------------------------------------------------------------------


def admission_review(q: Question, seen_as: Resource, uid: str) -> Document:
    """The AdmissionReview (admission.k8s.io/v1) that asks about `q` in the version of `seen_as`."""
    resource = q.resource
    asked: Document = {
        "uid": uid,
        "kind": {"group": seen_as.group, "version": seen_as.version, "kind": seen_as.kind},
        "resource": {"group": seen_as.group, "version": seen_as.version, "resource": seen_as.plural},
        "requestKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "requestResource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "name": q.name,
        "operation": q.operation,
        "userInfo": q.user.as_document(),
        "object": _in_version(q.obj, seen_as),
        "oldObject": _in_version(q.old, seen_as),
        "dryRun": q.dry_run,
        "options": q.options,
    }
    if q.subresource:
        asked |= {"subResource": q.subresource, "requestSubResource": q.subresource}
    if q.namespace:
        asked["namespace"] = q.namespace
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}


def _in_version(obj: Document | None, resource: Resource) -> Document | None:
    return None if obj is None else {**obj, "apiVersion": resource.api_version}


class WebhookFailure(Exception):  # noqa: N818 - the failure of a webhook, which its policy may forgive
    """A webhook could not be asked, or did not answer as it must."""


def read_answer(hook: Webhook, document: Any, uid: str) -> Document:
    """The `response` of an AdmissionReview. Raises WebhookFailure."""
    response = document.get("response") if isinstance(document, dict) else None
    if not isinstance(response, dict):
        raise WebhookFailure("webhook response is not an AdmissionReview with a response")
    if response.get("uid") != uid:
        raise WebhookFailure(f"expected response.uid={uid!r}, got {response.get('uid')!r}")
    if not isinstance(response.get("allowed"), bool):
        raise WebhookFailure("response.allowed is neither true nor false")
    return response


def denial(hook: Webhook, response: Document) -> ApiError:
    """The refusal that the client sees."""
    status = response.get("status") or {}
    said = status.get("message") or status.get("reason")
    explained = f"denied the request: {said}" if said else "denied the request without explanation"
    code = max(status.get("code") or 400, 400)
    return ApiError(
        code, status.get("reason") or "", f'admission webhook "{hook.name}" {explained}', status.get("details")
    )


def failure(hook: Webhook, why: str) -> ApiError:
    return internal(f'failed calling webhook "{hook.name}": {why}')


def no_dry_run(hook: Webhook) -> ApiError:
    return bad_request(f'admission webhook "{hook.name}" does not support dry run')


def patched(q: Question, operations: Any) -> Document:
    """The object after a mutating webhook's JSON patch. Raises WebhookFailure for a patch that does not apply."""
    assert q.obj is not None
    try:
        changed = json_patch(q.obj, operations)
    except ApiError as error:
        raise WebhookFailure(f"its patch cannot be applied: {error.message}") from error
    if not isinstance(changed, dict) or not isinstance(changed.get("metadata"), dict):
        raise WebhookFailure("its patch leaves no object")
    return {**changed, "apiVersion": q.resource.api_version}
