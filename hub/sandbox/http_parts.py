"""Subresources over HTTP: status, scale, a pod's binding, eviction and log, tokens of service accounts; and reviews."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from hub.kueue.api.meta import format_time
from hub.sandbox.access import service_account
from hub.sandbox.apiserver import DeleteOptions
from hub.sandbox.documents import Document, copied, dig
from hub.sandbox.errors import ApiError, bad_request, conflict, method_not_allowed
from hub.sandbox.faults import CutError
from hub.sandbox.http_objects import HANDLERS, Call, answer_document, dry_run_asked, finish, patched_document
from hub.sandbox.negotiation import APPLY_PATCH
from hub.sandbox.reading import whole_number
from hub.sandbox.reviews import REVIEWS
from hub.sandbox.selectors import selector_text
from hub.sandbox.storage import Event, Stored
from hub.sandbox.watch import flag
from hub.sandbox.writing import begin_update, check_identity

TOKEN_BYTES = 24
TOKEN_LIFE_S = 3600


# --- reviews -------------------------------------------------------------------------------------------------------------


async def review(call: Call) -> web.StreamResponse:
    """Answer a question that came as an object; nothing is stored."""
    body = await call.body()
    check_identity(call.served, body)
    status = REVIEWS[call.served.collection](call.api.access, call.user, body, call.target.namespace)
    return answer_document(call, body | {"status": status}, 201)


# --- status and finalize -------------------------------------------------------------------------------------------------


async def status(call: Call, verb: str) -> web.StreamResponse:
    if verb not in ("get", "update", "patch"):
        raise method_not_allowed()
    return await HANDLERS[verb](call)


async def finalize(call: Call, verb: str) -> web.StreamResponse:
    """A namespace's spec.finalizers are changed here and nowhere else."""
    if verb != "update":
        raise method_not_allowed()
    body = await call.body()
    check_identity(call.served, body)
    wanted = {"finalizers": dig(body, "spec", "finalizers") or []}
    call.api.require(call.served, call.key)
    call.api.rewrite(call.served, call.key, lambda obj: {**obj, "spec": wanted if wanted["finalizers"] else {}})
    return answer_document(call, body)


# --- scale ---------------------------------------------------------------------------------------------------------------


def scale_of(call: Call, stored: Stored) -> Document:
    """autoscaling/v1 Scale of an object."""
    assert call.served.scale is not None
    paths, obj = call.served.scale, call.served.read(stored.object)
    meta = obj["metadata"]
    shown = {k: meta[k] for k in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp") if k in meta}
    found: Document = {"replicas": dig(obj, *paths.status_replicas.split(".")) or 0}
    selector = dig(obj, *paths.selector.split(".")) if paths.selector else dig(obj, "spec", "selector")
    if selector:
        found["selector"] = selector if isinstance(selector, str) else selector_text(selector)
    spec = {"replicas": dig(obj, *paths.replicas.split(".")) or 0}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": found}


async def scale(call: Call, verb: str) -> web.StreamResponse:
    if verb == "get":
        return answer_document(call, scale_of(call, call.api.require(call.served, call.key)))
    if verb not in ("update", "patch"):
        raise method_not_allowed()
    stored = call.api.require(call.served, call.key)
    wanted = await call.body() if verb == "update" else await _patched_scale(call, stored)
    if not isinstance(wanted, dict) or wanted.get("kind") != "Scale":
        raise bad_request("the request body must be an autoscaling/v1 Scale")
    return await _write_scale(call, stored, wanted)


async def _patched_scale(call: Call, stored: Stored) -> Any:
    media, body = await call.patch()
    if media == APPLY_PATCH:
        raise ApiError(
            415, "UnsupportedMediaType", "server-side apply of a scale is not served here; use a merge patch", {}
        )
    return patched_document(call, media, body, scale_of(call, stored))


async def _write_scale(call: Call, stored: Stored, wanted: Document) -> web.StreamResponse:
    if (version := dig(wanted, "metadata", "resourceVersion")) and version != str(stored.version):
        raise conflict(call.served.group, call.served.plural, stored.key[1])
    replicas = dig(wanted, "spec", "replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        raise bad_request(f"spec.replicas: {replicas!r} is not a whole number of 0 or more")
    new = copied(call.served.read(stored.object))
    assert call.served.scale is not None
    *parents, last = call.served.scale.replicas.split(".")
    target = new
    for step in parents:
        target = target.setdefault(step, {})
    target[last] = replicas
    draft = begin_update(call.served, stored, new, "scale", call.write_options())
    obj = await finish(call, draft)
    current = call.api.stored(call.served, call.key) or Stored(call.key, obj, stored.version)
    return answer_document(call, scale_of(call, current))


# --- pods ----------------------------------------------------------------------------------------------------------------


async def binding(call: Call, verb: str) -> web.StreamResponse:
    """Put a pod on a node, once."""
    if verb != "create":
        raise method_not_allowed()
    body = await call.body()
    node = dig(body, "target", "name")
    if not node:
        raise bad_request("Binding: target.name: Required value: the node that the pod is to run on")
    pod = call.api.require(call.served, call.key).object
    why = ""
    if pod["metadata"].get("deletionTimestamp"):
        why = f"pod {call.target.name} is being deleted, cannot be assigned to a host"
    elif bound := pod["spec"].get("nodeName"):
        why = f'pod {call.target.name} is already assigned to node "{bound}"'
    elif pod["spec"].get("schedulingGates"):
        why = f"pod {call.target.name} has non-empty .spec.schedulingGates"
    if why:
        raise conflict("", "pods/binding", call.target.name, why)
    if not dry_run_asked(call):
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(call.api.clock())}
        call.api.rewrite(call.served, call.key, lambda obj: _bound(obj, node, scheduled))
    return answer_document(
        call, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
    )


def _bound(pod: Document, node: str, scheduled: Document) -> Document:
    status = pod.get("status") or {}
    others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}}


async def eviction(call: Call, verb: str) -> web.StreamResponse:
    """A polite delete; disruption budgets are not looked at."""
    if verb != "create":
        raise method_not_allowed()
    body = await call.body()
    options = dig(body, "deleteOptions") or {}
    wanted = DeleteOptions(
        grace_s=options.get("gracePeriodSeconds"),
        uid=dig(options, "preconditions", "uid"),
        dry_run=dry_run_asked(call) or bool(options.get("dryRun")),
    )
    call.api.delete_served(call.served, call.key, wanted)
    return answer_document(
        call, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
    )


async def pod_log(call: Call, verb: str) -> web.StreamResponse:
    """What a container wrote; with `follow` until it has ended."""
    if verb != "get":
        raise method_not_allowed()
    pod = call.api.require(call.served, call.key).object
    container = _container(call, pod)
    lines = call.api.logs(pod, container)
    if call.query.get("tailLines"):
        lines = lines[len(lines) - min(len(lines), whole_number(call.query, "tailLines")) :]
    if not flag(call.query, "follow"):
        return web.Response(text="".join(f"{line}\n" for line in lines), content_type="text/plain")
    return await _follow(call, container, lines)


def _container(call: Call, pod: Document) -> str:
    """The container that is meant. Raises ApiError 400 as kubectl users know it."""
    every = [c["name"] for group in ("initContainers", "containers") for c in pod["spec"].get(group) or ()]
    usual = [c["name"] for c in pod["spec"].get("containers") or ()]
    wanted = call.query.get("container", "")
    if wanted and wanted not in every:
        raise bad_request(f"container {wanted} is not valid for pod {call.target.name}")
    if not wanted and len(usual) > 1:
        choices = " ".join(usual)
        raise bad_request(f"a container name must be specified for pod {call.target.name}, choose one of: [{choices}]")
    return wanted or usual[0]


async def _follow(call: Call, container: str, lines: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    changed = asyncio.Event()
    collection = call.api.collection(call.served)
    listener = _wakes(changed, call.key)
    collection.listeners.append(listener)
    try:
        await response.prepare(call.request)
        written = 0
        while True:
            await response.write("".join(f"{line}\n" for line in lines[written:]).encode())
            written = len(lines)
            stored = call.api.stored(call.served, call.key)
            if stored is None or dig(stored.object, "status", "phase") in ("Succeeded", "Failed"):
                break
            await changed.wait()
            changed.clear()
            if call.faults.active:
                await call.faults.gate()
            lines = (
                call.api.logs(stored.object, container) if (stored := call.api.stored(call.served, call.key)) else lines
            )
        await response.write_eof()
    except (ConnectionResetError, CutError):
        pass
    finally:
        collection.listeners.remove(listener)
    return response


def _wakes(changed: asyncio.Event, key: tuple[str, str]) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if event.stored.key == key:
            changed.set()

    return listener


# --- service accounts ----------------------------------------------------------------------------------------------------


async def token(call: Call, verb: str) -> web.StreamResponse:
    """Issue a token for a service account. It is known to this cluster only, for as long as the process runs."""
    if verb != "create":
        raise method_not_allowed()
    body = await call.body()
    account = call.api.require(call.served, call.key).object["metadata"]
    life_s = dig(body, "spec", "expirationSeconds") or TOKEN_LIFE_S
    issued = secrets.token_urlsafe(TOKEN_BYTES)
    call.api.access.tokens[issued] = service_account(account["namespace"], account["name"], account["uid"])
    expires = format_time(call.api.clock() + life_s)
    return answer_document(call, body | {"status": {"token": issued, "expirationTimestamp": expires}}, 201)


SubresourceHandler = Callable[[Call, str], Awaitable[web.StreamResponse]]

SUBRESOURCES: dict[str, SubresourceHandler] = {
    "status": status,
    "finalize": finalize,
    "scale": scale,
    "binding": binding,
    "eviction": eviction,
    "log": pod_log,
    "token": token,
}
