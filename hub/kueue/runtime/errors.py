"""What can go wrong between us and an API server. Every message names the verb, the resource and the object.

The class tells the caller what to do next:

| class | the answer means | do |
|---|---|---|
| NotFound, NotServed | no such object; no such kind here | decide again without it |
| AlreadyExists | the name is taken | read it, see whose it is |
| Conflict | it changed since it was read | read again, decide again |
| Invalid | the server refuses the content | tell the user, do not repeat |
| Unauthorized, Forbidden | who we are, what we may | fix credentials or RBAC |
| Expired | the resourceVersion or continue token is too old | list again |
| TooManyRequests | come back after `retry_after_s` | wait that long |
| ServerFault | the server or one of its webhooks failed | try again with back-off |
| Unreachable | no usable answer; a write may have happened all the same | try again with back-off, level-triggered |
"""

from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey, Resource


class Request(Struct, frozen=True, kw_only=True):
    """What was asked, for people."""

    verb: str
    resource: str
    key: str = ""

    @staticmethod
    def on(verb: str, resource: Resource, key: ObjectKey | None = None, *, subresource: str = "") -> "Request":
        group = f".{resource.group}" if resource.group else ""
        part = f"/{subresource}" if subresource else ""
        return Request(verb=verb, resource=f"{resource.plural}{group}{part}", key=str(key) if key else "")

    def __str__(self) -> str:
        return " ".join(word for word in (self.verb, self.resource, self.key) if word)


class KubernetesError(Exception):
    """A request to an API server did not succeed."""

    def __init__(
        self, request: Request, detail: str, *, code: int = 0, causes: list[tuple[str, str]] | None = None
    ) -> None:
        super().__init__(f"{request}: {detail}")
        self.request = request
        self.detail = detail
        #: HTTP status; 0 when there was no answer.
        self.code = code
        #: (field path, message) of every refused field.
        self.causes = causes or []


class NotFound(KubernetesError): ...


class NotServed(NotFound):
    """The server does not know the resource: its CRD is not installed, or its group is not enabled."""


class AlreadyExists(KubernetesError): ...


class Conflict(KubernetesError): ...


class Invalid(KubernetesError): ...


class Unauthorized(KubernetesError): ...


class Forbidden(KubernetesError): ...


class Expired(KubernetesError): ...


class ServerFault(KubernetesError): ...


class Unreachable(KubernetesError): ...


class TooManyRequests(KubernetesError):
    def __init__(self, request: Request, detail: str, *, retry_after_s: float, code: int = 429) -> None:
        super().__init__(request, f"{detail}; asked to wait {retry_after_s:g} s", code=code)
        self.retry_after_s = retry_after_s


_BY_REASON: dict[str, type[KubernetesError]] = {
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Invalid": Invalid,
    "BadRequest": Invalid,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "Expired": Expired,
    "Gone": Expired,
    "InternalError": ServerFault,
    "ServiceUnavailable": Unreachable,
    "Timeout": Unreachable,
    "ServerTimeout": Unreachable,
}

_BY_CODE: dict[int, type[KubernetesError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotServed,
    405: Invalid,
    406: Invalid,
    409: Conflict,
    410: Expired,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    500: ServerFault,
    501: Invalid,
}

RETRY_AFTER_DEFAULT_S = 1.0


def error_from(request: Request, code: int, status: Any, *, retry_after: str | None = None) -> KubernetesError:
    """The error for an HTTP answer of 400 and above. `status` is its decoded metav1.Status, or the text that came instead."""
    is_status = isinstance(status, dict) and status.get("kind") == "Status"
    detail = str(status.get("message", "")) if is_status else str(status or "")[:500].strip()
    details = (status.get("details") or {}) if is_status else {}
    if code == 429 or (code in (500, 503, 504) and retry_after is not None):
        wait_s = _seconds(retry_after) or float(details.get("retryAfterSeconds") or 0) or RETRY_AFTER_DEFAULT_S
        return TooManyRequests(request, detail or "too many requests", retry_after_s=wait_s, code=code)
    reason = status.get("reason", "") if is_status else ""
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code) or (Unreachable if code >= 500 else Invalid)
    if kind is NotFound and not details.get("name"):
        kind = NotServed
    causes = [(c.get("field", ""), c.get("message", "")) for c in details.get("causes") or []]
    return kind(request, f"{detail or reason or 'refused'} ({code})", code=code, causes=causes)


def _seconds(header: str | None) -> float:
    """Retry-After in seconds; the date form is not used by API servers and counts as absent."""
    try:
        return float(header or 0)
    except ValueError:
        return 0.0
