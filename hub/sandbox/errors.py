"""Refusals as kube-apiserver words them: an HTTP code, a reason that clients switch on, a message for people, details."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct


class FieldError(Struct, frozen=True):
    """One wrong field. `reason` is a metav1.CauseType, `field` a path as in `spec.containers[0].name`."""

    field: str
    reason: str
    message: str


class ApiError(Exception):
    """A request that was refused. `status()` is the body that goes to the client."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = details
        self.retry_after_s = retry_after_s

    def status(self) -> dict[str, Any]:
        """The metav1.Status document of this refusal."""
        body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def qualified(group: str, name: str) -> str:
    return f"{name}.{group}" if group else name


def _details(
    group: str, kind: str, name: str = "", causes: Sequence[dict[str, str]] = (), **more: Any
) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": kind, "causes": list(causes), **more}
    return {key: value for key, value in found.items() if value}


# --- field errors, in the words of apimachinery's field package ------------------------------------------------------


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))


def invalid_value(field: str, value: Any, detail: str) -> FieldError:
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}")


def not_supported(field: str, value: Any, supported: Sequence[str]) -> FieldError:
    words = ", ".join(json.dumps(s) for s in supported)
    return FieldError(field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {words}")


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def too_long(field: str, maximum: int) -> FieldError:
    return FieldError(field, "FieldValueTooLong", f"Too long: may not be more than {maximum} bytes")


# --- whole refusals --------------------------------------------------------------------------------------------------


def not_found(group: str, plural: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{qualified(group, plural)} "{name}" not found', _details(group, plural, name))


def already_exists(group: str, plural: str, name: str) -> ApiError:
    message = f'{qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(group, plural, name))


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = STALE) -> ApiError:
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(group, plural, name))


def invalid(group: str, kind: str, name: str, wrong: Sequence[FieldError]) -> ApiError:
    """422 with one cause per wrong field."""
    lines = [f"{e.field}: {e.message}" for e in wrong]
    listed = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    causes = [{"reason": e.reason, "message": e.message, "field": e.field} for e in wrong]
    message = f'{qualified(group, kind)} "{name}" is invalid: {listed}'
    return ApiError(422, "Invalid", message, _details(group, kind, name, causes))


def invalid_options(kind: str, wrong: FieldError) -> ApiError:
    """422 for a parameter of the request: kind is ListOptions, CreateOptions and so on."""
    return invalid("meta.k8s.io", kind, "", [wrong])


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[dict[str, str]] = ()) -> ApiError:
    named = f' "{name}"' if name else ""
    message = f"{qualified(group, plural)}{named} is forbidden: {why}"
    return ApiError(403, "Forbidden", message, _details(group, plural, name, causes))


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def no_such_resource() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def unsupported_media_type(accepted: Sequence[str], got: str) -> ApiError:
    message = f"the body of the request was in an unknown format ({got}) - accepted media types include: {', '.join(accepted)}"
    return ApiError(415, "UnsupportedMediaType", message, {})


def not_acceptable(accepted: Sequence[str]) -> ApiError:
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return ApiError(406, "NotAcceptable", message, {})


def expired(message: str = "The resourceVersion for the provided list is too old.") -> ApiError:
    return ApiError(410, "Expired", message)


def future_version(asked: int, current: int) -> ApiError:
    """The client knows a version this server has not reached: 504, and try again (a restarted server in practice)."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1}, retry_after_s=1)


def internal(message: str) -> ApiError:
    causes = [{"message": message}]
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": causes})


def too_large(limit: int) -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")
