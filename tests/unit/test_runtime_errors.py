"""Every answer of an API server becomes an error that says what was asked and what to do; paths and events are exact."""

import pytest

from hub.kueue.api.meta import ObjectKey, Resource
from hub.kueue.operations import EmitEvent
from hub.kueue.runtime.client import event_manifest, path_of
from hub.kueue.runtime.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    NotServed,
    Request,
    ServerFault,
    TooManyRequests,
    Unreachable,
    error_from,
)

JOBS = Resource("batch", "v1", "jobs", "Job")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
LONG = ObjectKey("a", "x" * 253)
CREATE = Request.on("create", JOBS, ObjectKey("a", "x"))


def status(reason: str = "", *, name: str = "x", **details) -> dict:
    return {"kind": "Status", "reason": reason, "message": "no", "details": {"name": name, **details}}


@pytest.mark.parametrize(
    ("code", "body", "want"),
    [
        pytest.param(404, status("NotFound"), NotFound, id="an object that is not there"),
        pytest.param(404, "404 page not found", NotServed, id="a kind that is not served"),
        pytest.param(404, status("NotFound", name=""), NotServed, id="a kind that is not served, said in a Status"),
        pytest.param(409, status("AlreadyExists"), AlreadyExists, id="a name that is taken"),
        pytest.param(409, status("Conflict"), Conflict, id="an object that changed since"),
        pytest.param(410, status("Expired"), Expired, id="a resourceVersion that is too old"),
        pytest.param(422, status("Invalid"), Invalid, id="content that is refused"),
        pytest.param(415, "use JSON", Invalid, id="a media type that is refused"),
        pytest.param(403, status("Forbidden"), Forbidden, id="a right that is missing"),
        pytest.param(500, status("InternalError"), ServerFault, id="a webhook that failed"),
        pytest.param(503, "upstream down", Unreachable, id="a proxy without a server behind it"),
        pytest.param(524, "", Unreachable, id="a proxy that gave up waiting"),
        pytest.param(429, status("TooManyRequests"), TooManyRequests, id="too many requests"),
    ],
)
def test_error_class(code, body, want):
    error = error_from(CREATE, code, body)
    assert type(error) is want
    assert str(error).startswith("create jobs.batch a/x: ")


@pytest.mark.parametrize(
    ("header", "details", "want_wait_s"),
    [
        ("7", {}, 7.0),
        (None, {"retryAfterSeconds": 3}, 3.0),
        (None, {}, 1.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, 1.0),
    ],
)
def test_too_many_requests_says_how_long_to_wait(header, details, want_wait_s):
    error = error_from(CREATE, 429, status("TooManyRequests", **details), retry_after=header)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after_s == want_wait_s


def test_refused_fields_are_named():
    body = status("Invalid", causes=[{"field": "spec.parallelism", "message": "must not be negative"}])
    assert error_from(CREATE, 422, body).causes == [("spec.parallelism", "must not be negative")]


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ((JOBS, None, "", ""), "/apis/batch/v1/jobs"),
        ((JOBS, None, "a", ""), "/apis/batch/v1/namespaces/a/jobs"),
        ((JOBS, ObjectKey("a", "x"), "", "status"), "/apis/batch/v1/namespaces/a/jobs/x/status"),
        ((NODES, ObjectKey("", "n/1"), "", ""), "/api/v1/nodes/n%2F1"),
    ],
)
def test_paths(given, want):
    resource, key, namespace, subresource = given
    assert path_of(resource, key, namespace=namespace, subresource=subresource) == want


def test_the_same_event_has_the_same_name_and_another_message_another():
    def named(message: str, key: ObjectKey = LONG) -> dict:
        event = EmitEvent(resource=JOBS, key=key, type="Normal", reason="Started", message=message, uid="u")
        return event_manifest(event, now=0.0)

    assert named("one") == named("one")
    assert named("one")["metadata"]["name"] != named("two")["metadata"]["name"]
    assert len(named("one")["metadata"]["name"]) <= 253
    assert named("one", ObjectKey("", "n"))["metadata"]["namespace"] == "default"
