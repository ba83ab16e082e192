"""POST /api/v1/apply and /submit: manifests go to the management cluster with the caller's own token.

All documents are read and checked before the first one is sent: a file with a mistake in it changes nothing.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import yaml
from aiohttp import web
from msgspec import Struct

from hub.kueue.api import resources, validation
from hub.kueue.api.meta import ObjectKey, Resource
from hub.kueue.api.v1beta2 import names
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.discovery import ServedKind
from hub.kueue.runtime.errors import AlreadyExists, Conflict, Forbidden, Invalid, KubernetesError, NotFound
from hub.web.context import context_of
from hub.web.middleware import CALLER
from hub.web.problems import FieldProblem, ProblemError
from hub.web.routes import Parameter, Route, json_answer

DOCUMENTS_MAX = 500
YAML, JSON = "application/yaml", "application/json"


class DocumentResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    kind: str = ""
    namespace: str = ""
    name: str = ""
    #: created, configured, unchanged or refused.
    result: str = ""
    warnings: list[str] = []
    errors: list[FieldProblem] = []


class ApplyAnswer(Struct, frozen=True, kw_only=True):
    results: list[DocumentResult]


class Document(Struct, frozen=True, kw_only=True):
    index: int
    resource: Resource
    manifest: dict[str, Any]

    @property
    def key(self) -> ObjectKey:
        meta = self.manifest["metadata"]
        return ObjectKey(meta.get("namespace", ""), meta.get("name") or meta.get("generateName", ""))


Send = Callable[[Client, Document], Awaitable[str]]


async def apply_manifests(request: web.Request) -> web.Response:
    return await _send_all(request, _apply, generated_names=False)


async def submit_manifests(request: web.Request) -> web.Response:
    return await _send_all(request, _create, generated_names=True)


async def _send_all(request: web.Request, send: Send, *, generated_names: bool) -> web.Response:
    context = context_of(request)
    documents = await _read(request, generated_names=generated_names)
    as_caller = context.management.with_token(request[CALLER].token)
    dry = request.query.get("dryRun") == "true"
    try:
        results = [await _one(as_caller, document, send, dry=dry) for document in documents]
    finally:
        await as_caller.close()
    return json_answer(ApplyAnswer(results=results))


# --- reading ---------------------------------------------------------------------------------------------------------


async def _read(request: web.Request, *, generated_names: bool) -> list[Document]:
    """Every document, complete and valid. Raises a 422 problem with all that is wrong, by document."""
    raw = _parse(await request.text(), request.content_type)
    served = {
        (kind.resource.api_version, kind.resource.kind): kind for kind in await context_of(request).management.served()
    }
    namespace = request.query.get("namespace") or "default"
    good: list[Document] = []
    bad: list[DocumentResult] = []
    for index, manifest in enumerate(raw):
        errors = _shape_errors(manifest, served, generated_names=generated_names)
        if not errors:
            resource = served[manifest["apiVersion"], manifest["kind"]].resource
            if resource.namespaced:
                manifest["metadata"].setdefault("namespace", namespace)
            errors = _content_errors(manifest)
            good.append(Document(index=index, resource=resource, manifest=manifest))
        if errors:
            bad.append(_result(index, manifest, "refused", errors))
    if bad:
        detail = f"{len(bad)} of {len(raw)} documents are wrong; nothing was sent"
        raise ProblemError(422, "manifest refused", detail, results=bad)
    return good


def _parse(text: str, content_type: str) -> list[Any]:
    try:
        found = [json.loads(text)] if content_type == JSON else list(yaml.safe_load_all(text))
    except (ValueError, yaml.YAMLError) as error:
        raise ProblemError(422, "manifest refused", f"this is not {content_type}: {error}") from None
    documents = [item for document in found if document is not None for item in _items(document)]
    if not documents:
        raise ProblemError(422, "manifest refused", "there is no document in it")
    if len(documents) > DOCUMENTS_MAX:
        raise ProblemError(422, "manifest refused", f"{len(documents)} documents at once, at most {DOCUMENTS_MAX}")
    return documents


def _items(document: Any) -> list[Any]:
    is_list = isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list)
    return document["items"] if is_list else [document]


def _shape_errors(
    manifest: Any, served: dict[tuple[str, str], ServedKind], *, generated_names: bool
) -> list[FieldProblem]:
    if not isinstance(manifest, dict):
        return [FieldProblem(field="", message="is not an object")]
    version, kind, meta = manifest.get("apiVersion"), manifest.get("kind"), manifest.get("metadata")
    if not isinstance(version, str) or not version:
        return [FieldProblem(field="apiVersion", message="is required")]
    if not isinstance(kind, str) or not kind:
        return [FieldProblem(field="kind", message="is required")]
    if (version, kind) not in served:
        return [FieldProblem(field="apiVersion", message=_not_served(version, kind, served))]
    if not isinstance(meta, dict) or not (meta.get("name") or (generated_names and meta.get("generateName"))):
        wanted = "name or metadata.generateName" if generated_names else "name"
        return [FieldProblem(field=f"metadata.{wanted}", message="is required")]
    return []


def _not_served(version: str, kind: str, served: dict[tuple[str, str], ServedKind]) -> str:
    others = sorted(v for v, k in served if k == kind)
    hint = f"; {kind} is served as {', '.join(others)}" if others else ""
    return f"the management cluster does not serve {kind} in {version}{hint}"


def _content_errors(manifest: dict[str, Any]) -> list[FieldProblem]:
    """Our own kinds are checked here, with Kueue's words; the rest is for the API server."""
    if manifest["apiVersion"] != resources.KUEUE_API_VERSION:
        return []
    return [FieldProblem(field=error.path, message=error.message) for error in validation.check(manifest)]


# --- sending ---------------------------------------------------------------------------------------------------------


async def _one(client: Client, document: Document, send: Send, *, dry: bool) -> DocumentResult:
    try:
        warnings = await _warnings(client, document.manifest)
        word = "unchanged" if dry else await send(client, document)
        return _result(document.index, document.manifest, word, warnings=warnings)
    except Invalid as error:
        causes = [FieldProblem(field=field, message=message) for field, message in error.causes]
        return _result(
            document.index, document.manifest, "refused", causes or [FieldProblem(field="", message=error.detail)]
        )
    except (AlreadyExists, Conflict, Forbidden, NotFound) as error:
        return _result(document.index, document.manifest, "refused", [FieldProblem(field="", message=error.detail)])


async def _apply(client: Client, document: Document) -> str:
    before = await client.get(document.resource, document.key)
    after = await client.apply(document.resource, document.manifest)
    if before is None:
        return "created"
    same = before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    return "unchanged" if same else "configured"


async def _create(client: Client, document: Document) -> str:
    created = await client.create(document.resource, document.manifest)
    document.manifest["metadata"]["name"] = created["metadata"]["name"]
    return "created"


async def _warnings(client: Client, manifest: dict[str, Any]) -> list[str]:
    """A job that names a queue that is not there is accepted, as Kubernetes does; but it would wait for ever, unexplained."""
    meta = manifest["metadata"]
    queue = (meta.get("labels") or {}).get(names.QUEUE_NAME)
    if not queue:
        return []
    try:
        if await client.get(resources.LOCAL_QUEUES, ObjectKey(meta.get("namespace", ""), queue)) is None:
            return [
                f"metadata.labels[{names.QUEUE_NAME}]: there is no LocalQueue {queue} in namespace {meta.get('namespace')}; it waits until there is"
            ]
    except KubernetesError:
        return []  # may not read queues: then there is nothing to say about them
    return []


def _result(
    index: int, manifest: Any, word: str, errors: list[FieldProblem] | None = None, warnings: list[str] | None = None
) -> DocumentResult:
    manifest = manifest if isinstance(manifest, dict) else {}
    meta = manifest.get("metadata") if isinstance(manifest.get("metadata"), dict) else {}
    return DocumentResult(
        index=index,
        kind=str(manifest.get("kind") or ""),
        namespace=str((meta or {}).get("namespace") or ""),
        name=str((meta or {}).get("name") or (meta or {}).get("generateName") or ""),
        result=word,
        warnings=warnings or [],
        errors=errors or [],
    )


_QUERY = {
    "namespace": Parameter(description="for documents that name none; default: default"),
    "dryRun": Parameter(description="true: check only", type="boolean"),
}
ROUTES = [
    Route(
        method="POST",
        path="/api/v1/apply",
        handler=apply_manifests,
        summary="Create or change objects of the management cluster, as the caller",
        query=_QUERY,
        body_types=(YAML, JSON),
        answer=ApplyAnswer,
        tag="submit",
    ),
    Route(
        method="POST",
        path="/api/v1/submit",
        handler=submit_manifests,
        summary="Create objects, as the caller; generateName may be used",
        query=_QUERY,
        body_types=(YAML, JSON),
        answer=ApplyAnswer,
        tag="submit",
    ),
]
