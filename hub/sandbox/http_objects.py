"""The verbs over HTTP: one request in, one answer out, for every resource alike."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from hub.sandbox.access import User
from hub.sandbox.apiserver import ApiServer, DeleteOptions
from hub.sandbox.documents import Document, copied
from hub.sandbox.errors import (
    ApiError,
    bad_request,
    invalid_options,
    method_not_allowed,
    not_supported,
    required,
    too_large,
)
from hub.sandbox.faults import CutError, Faults
from hub.sandbox.http_webhooks import Admission
from hub.sandbox.negotiation import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    YAML,
    Output,
    decode_body,
    decode_patch,
    dump_yaml,
    media_type,
    negotiate,
)
from hub.sandbox.patches import json_patch, merge_patch, strategic_merge_patch
from hub.sandbox.reading import list_page, list_parameters, whole_number
from hub.sandbox.rendering import Rendering
from hub.sandbox.routing import Target
from hub.sandbox.served import Served
from hub.sandbox.storage import Key, Storage, Stored
from hub.sandbox.watch import BOOKMARK_S, Watcher, flag, watch_parameters
from hub.sandbox.writing import Draft, WriteOptions, begin_update

BODY_MAX_BYTES = 3 * 1024 * 1024
#: Answers above this size are compressed for clients that accept it, as kube-apiserver does.
GZIP_MIN_BYTES = 128 * 1024
#: How often a patch is tried again when somebody else wrote in between.
PATCH_ATTEMPTS = 5
OPTIONS_KINDS = {"PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
VALIDATION_LEVELS = ("Ignore", "Warn", "Strict")


@dataclass(slots=True)
class Call:
    """One request on its way."""

    request: web.Request
    api: ApiServer
    faults: Faults
    target: Target
    served: Served
    user: User
    admission: Admission
    query: Mapping[str, str]
    warnings: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return (self.target.namespace, self.target.name)

    @property
    def options_kind(self) -> str:
        return OPTIONS_KINDS.get(self.request.method, "CreateOptions")

    def rendering(self) -> Rendering:
        output = negotiate(self.request.headers.get("Accept", ""))
        return Rendering(self.served, output, self.api.clock, self.query.get("includeObject", ""))

    async def body(self) -> Any:
        return decode_body(await self._read(), self.request.headers.get("Content-Type", ""))

    async def _read(self) -> bytes:
        try:
            return await self.request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise too_large(BODY_MAX_BYTES) from error

    async def optional_body(self) -> Document:
        if not self.request.can_read_body:
            return {}
        body = await self._read()
        found = decode_body(body, self.request.headers.get("Content-Type", "")) if body else {}
        if not isinstance(found, dict):
            raise bad_request("the request body must be one JSON object")
        return found

    async def patch(self) -> tuple[str, Any]:
        media = media_type(self.request.headers.get("Content-Type", ""))
        return media, decode_patch(await self._read(), media)

    def write_options(self, *, force: bool = False) -> WriteOptions:
        """Raises ApiError 400."""
        level = self.query.get("fieldValidation", "") or "Warn"
        if level not in VALIDATION_LEVELS:
            raise invalid_options(self.options_kind, not_supported("fieldValidation", level, VALIDATION_LEVELS))
        manager = self.query.get("fieldManager", "") or self.request.headers.get("User-Agent", "").partition("/")[0]
        return WriteOptions(
            dry_run=is_dry_run(self.query.get("dryRun", ""), self.options_kind),
            field_manager=manager or "unknown",
            field_validation=level,
            force=force,
        )


def dry_run_asked(call: Call) -> bool:
    """The dryRun parameter of a request whose body is no object to store. Raises ApiError 400."""
    return is_dry_run(call.query.get("dryRun", ""), call.options_kind)


def is_dry_run(text: str, options_kind: str) -> bool:
    """Raises ApiError 422."""
    if text not in ("", "All"):
        raise invalid_options(options_kind, not_supported("dryRun", [text], ("All",)))
    return text == "All"


# --- answers ---------------------------------------------------------------------------------------------------------


def answer(call: Call, body: bytes, code: int = 200, output: Output | None = None) -> web.Response:
    headers = {"Cache-Control": "no-cache, private"}
    content_type = JSON
    if output is not None and output.yaml:
        body, content_type = dump_yaml(body), YAML
    elif "pretty" in call.query and call.query["pretty"] in ("1", "true"):
        body = orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2) + b"\n"
    if len(body) > GZIP_MIN_BYTES and "gzip" in call.request.headers.get("Accept-Encoding", ""):
        compressor = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        body = compressor.compress(body) + compressor.flush()
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    response = web.Response(body=body, status=code, headers=headers, content_type=content_type)
    for warning in call.warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response


def answer_object(call: Call, obj: Document, code: int = 200) -> web.Response:
    """A written object in the form the client accepts."""
    rendering = call.rendering()
    stored = call.api.stored(call.served, (obj["metadata"].get("namespace", ""), obj["metadata"].get("name", "")))
    if stored is None or call.served.read(stored.object) is not obj:
        stored = Stored(call.key, call.served.store(obj), 0)
    return answer(call, rendering.one(stored), code, rendering.output)


def answer_document(call: Call, document: Document, code: int = 200) -> web.Response:
    return answer(call, orjson.dumps(document), code, negotiate(call.request.headers.get("Accept", "")))


def deleted_status(served: Served, obj: Document) -> Document:
    meta = obj["metadata"]
    details = {"name": meta["name"], "group": served.group, "kind": served.plural, "uid": meta["uid"]}
    shown = {k: v for k, v in details.items() if v}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": shown}


# --- reads -----------------------------------------------------------------------------------------------------------


async def get(call: Call) -> web.StreamResponse:
    rendering = call.rendering()
    stored = call.api.require(call.served, call.key)
    return answer(call, rendering.one(stored), output=rendering.output)


async def list_or_watch(call: Call) -> web.StreamResponse:
    if call.query and flag(call.query, "watch"):
        return await watch(call)
    rendering = call.rendering()
    parameters = list_parameters(call.served, call.target.namespace, call.query)
    page = list_page(call.api.collection(call.served), parameters, call.api.storage.version)
    return answer(call, rendering.page(page), output=rendering.output)


async def watch(call: Call) -> web.StreamResponse:
    selection = list_parameters(call.served, call.target.namespace, call.query)
    parameters = watch_parameters(selection, call.query)
    watcher = Watcher(call.api.collection(call.served), parameters, call.rendering())
    watcher.start(call.api.storage.version)
    response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
    response.enable_chunked_encoding()
    timers = _Timers(call.api.storage, watcher, parameters.timeout_s, bookmarks=parameters.bookmarks)
    try:
        await response.prepare(call.request)
        await _pump(call, watcher, response)
        await response.write_eof()
    except (ConnectionResetError, CutError):
        if call.request.transport is not None:
            call.request.transport.abort()
    finally:
        timers.cancel()
        watcher.stop()
    return response


class _Timers:
    """End of the watch and bookmarks on the way, as two timers of the event loop."""

    def __init__(self, storage: Storage, watcher: Watcher, timeout_s: float, *, bookmarks: bool) -> None:
        self._storage, self._watcher, self._loop = storage, watcher, asyncio.get_running_loop()
        self._end = self._loop.call_later(timeout_s, self._finish, bookmarks)
        self._bookmark = self._loop.call_later(BOOKMARK_S, self._remind) if bookmarks else None

    def _remind(self) -> None:
        self._watcher.bookmark(self._storage.version)
        self._bookmark = self._loop.call_later(BOOKMARK_S, self._remind)

    def _finish(self, bookmarks: bool) -> None:
        if bookmarks:
            self._watcher.bookmark(self._storage.version)
        self._watcher.stop()

    def cancel(self) -> None:
        self._end.cancel()
        if self._bookmark is not None:
            self._bookmark.cancel()


async def _pump(call: Call, watcher: Watcher, response: web.StreamResponse) -> None:
    while True:
        ended = watcher.ended
        gathered = await watcher.lines()
        if call.faults.active:
            await call.faults.gate()
        if gathered:
            await response.write(gathered)
        if ended:
            return


# --- writes ----------------------------------------------------------------------------------------------------------


async def finish(call: Call, draft: Draft) -> Document:
    """Ask the webhooks, check and commit a draft; dry runs stop before the commit."""
    if call.api.webhooks:
        await call.admission.mutate(draft, call.user)
        call.api.check(draft)
        await call.admission.validate(draft, call.user)
    else:
        call.api.check(draft)
    obj = call.api.commit(draft)
    call.warnings.extend(draft.warnings)
    return obj


async def create(call: Call) -> web.StreamResponse:
    if call.target.name:
        raise method_not_allowed()
    body = await call.body()
    if call.faults.active and isinstance(body, dict):
        call.faults.mutate(call.served, body)
    draft = call.api.draft_create(call.served, call.target.namespace, body, call.write_options())
    obj = await finish(call, draft)
    return answer_object(call, obj, 201)


async def update(call: Call) -> web.StreamResponse:
    body = await call.body()
    options = call.write_options()
    stored = call.api.require(call.served, call.key)
    draft = begin_update(call.served, stored, body, call.target.subresource, options)
    return answer_object(call, await finish(call, draft))


def patched_document(call: Call, media: str, body: Any, old: Document) -> Document:
    """The whole object that a patch makes of `old`. Raises ApiError."""
    if media == MERGE_PATCH:
        if not isinstance(body, dict):
            raise bad_request("a merge patch must be one JSON object")
        return copied(merge_patch(old, body))
    if media == JSON_PATCH:
        return copied(json_patch(old, body))
    if call.served.custom:
        raise ApiError(415, "UnsupportedMediaType", "strategic merge patch is not supported for custom resources", {})
    return copied(strategic_merge_patch(old, body, call.served.shape))


async def patch(call: Call) -> web.StreamResponse:
    media, body = await call.patch()
    options = call.write_options(force=flag(call.query, "force"))
    if media == APPLY_PATCH:
        return await _apply(call, body, options)
    for attempt in range(PATCH_ATTEMPTS):
        stored = call.api.require(call.served, call.key)
        new = patched_document(call, media, body, call.served.read(stored.object))
        try:
            draft = begin_update(call.served, stored, new, call.target.subresource, options)
            return answer_object(call, await finish(call, draft))
        except ApiError as refusal:
            if refusal.reason != "Conflict" or attempt == PATCH_ATTEMPTS - 1 or _names_version(body):
                raise
    raise AssertionError("the last attempt returns or raises")


def _names_version(body: Any) -> bool:
    return isinstance(body, dict) and bool((body.get("metadata") or {}).get("resourceVersion"))


async def _apply(call: Call, body: Any, options: WriteOptions) -> web.StreamResponse:
    """Server-side apply: create the object, or merge into it what the applier says."""
    if not call.query.get("fieldManager"):
        raise invalid_options("PatchOptions", required("fieldManager", "is required for apply patch"))
    if not isinstance(body, dict):
        raise bad_request("an apply configuration must be one object")
    stored = call.api.stored(call.served, call.key)
    draft = call.api.draft_apply(call.served, call.key, body, call.target.subresource, options)
    return answer_object(call, await finish(call, draft), 200 if stored else 201)


# --- deletes ---------------------------------------------------------------------------------------------------------


def _propagation(body: Document, query: Mapping[str, str]) -> str | None:
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or None
    orphan = body.get("orphanDependents", query.get("orphanDependents"))
    if policy is None and orphan is not None:
        policy = "Orphan" if orphan in (True, "true") else "Background"
    if policy not in (None, "Background", "Foreground", "Orphan"):
        raise bad_request(f"propagationPolicy: {policy!r} is none of Background, Foreground, Orphan")
    return policy


async def delete_options(call: Call) -> DeleteOptions:
    """From the body and, where the body is silent, from the query. Raises ApiError 400."""
    body = await call.optional_body()
    grace = body.get("gracePeriodSeconds")
    if grace is None and call.query.get("gracePeriodSeconds"):
        grace = whole_number(call.query, "gracePeriodSeconds")
    preconditions = body.get("preconditions") or {}
    dry_run = ",".join(body.get("dryRun") or ()) or call.query.get("dryRun", "")
    return DeleteOptions(
        propagation=_propagation(body, call.query),
        grace_s=grace,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=is_dry_run(dry_run, call.options_kind),
    )


async def delete(call: Call) -> web.StreamResponse:
    options = await delete_options(call)
    await allow_delete(call, call.key, dry_run=options.dry_run)
    obj, gone = call.api.delete_served(call.served, call.key, options)
    if gone and not call.served.returns_deleted:
        return answer_document(call, deleted_status(call.served, obj))
    return answer_object(call, obj)


async def allow_delete(call: Call, key: Key, *, dry_run: bool) -> None:
    """Ask the webhooks whether the object may go. Raises ApiError."""
    if not call.api.webhooks:
        return
    stored = call.api.require(call.served, key)
    old = call.served.read(stored.object)
    draft = Draft(call.served, key, old, WriteOptions(dry_run=dry_run), call.target.subresource, stored, old)
    await call.admission.allow_delete(draft, call.user)
    call.warnings.extend(draft.warnings)


async def delete_collection(call: Call) -> web.StreamResponse:
    options = await delete_options(call)
    parameters = list_parameters(call.served, call.target.namespace, call.query)
    page = list_page(call.api.collection(call.served), parameters, call.api.storage.version)
    for stored in page.items:
        if call.api.stored(call.served, stored.key) is not None:
            await allow_delete(call, stored.key, dry_run=options.dry_run)
            call.api.delete_served(call.served, stored.key, options)
    rendering = call.rendering()
    return answer(call, rendering.page(page), output=rendering.output)


Handler = Callable[[Call], Awaitable[web.StreamResponse]]

HANDLERS: dict[str, Handler] = {
    "get": get,
    "list": list_or_watch,
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
    "deletecollection": delete_collection,
}
