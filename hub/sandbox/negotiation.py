"""What form the client wants its answer in, and what form its body is in."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import orjson
import yaml
from msgspec import Struct

from hub.sandbox.errors import bad_request, not_acceptable, unsupported_media_type

Form = Literal["Object", "Table", "PartialObjectMetadata", "APIGroupDiscoveryList"]

JSON = "application/json"
YAML = "application/yaml"
SERVED_TYPES = (JSON, YAML)

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

#: `as=` parameter -> form. A client that wants the metadata of a list asks for PartialObjectMetadataList.
_FORMS: dict[str, Form] = {
    "": "Object",
    "Table": "Table",
    "PartialObjectMetadata": "PartialObjectMetadata",
    "PartialObjectMetadataList": "PartialObjectMetadata",
    "APIGroupDiscoveryList": "APIGroupDiscoveryList",
}
#: Versions of meta.k8s.io and apidiscovery.k8s.io that are answered.
_VERSIONS = {"", "v1", "v2"}


class Output(Struct, frozen=True):
    form: Form = "Object"
    yaml: bool = False


def _parsed(entry: str) -> tuple[str, dict[str, str]]:
    media, *parameters = (part.strip() for part in entry.split(";"))
    pairs = (p.partition("=") for p in parameters)
    return media.lower(), {name.strip(): value.strip() for name, _, value in pairs}


def _acceptable(entry: str) -> Output | None:
    media, parameters = _parsed(entry)
    if parameters.get("v", "") not in _VERSIONS or parameters.get("as", "") not in _FORMS:
        return None
    form = _FORMS[parameters.get("as", "")]
    if media in (JSON, "*/*", "application/*"):
        return Output(form)
    return Output(form, yaml=True) if media == YAML else None


@lru_cache(maxsize=256)
def negotiate(accept: str) -> Output:
    """The first entry of an Accept header that this server can give. Raises ApiError 406 when there is none."""
    if not accept:
        return Output()
    for entry in accept.split(","):
        if (found := _acceptable(entry)) is not None:
            return found
    raise not_acceptable(SERVED_TYPES)


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _load_yaml(body: bytes) -> Any:
    return yaml.load(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders


_LOADERS: dict[str, Callable[[bytes], Any]] = {"": orjson.loads, JSON: orjson.loads, YAML: _load_yaml}


def decode_body(body: bytes, content_type: str) -> Any:
    """A request body as a document. Raises ApiError 415 for an encoding that is not spoken here, 400 for bad text."""
    media = media_type(content_type)
    if (load := _LOADERS.get(media)) is None:
        raise unsupported_media_type(SERVED_TYPES, media)
    return _loaded(load, body)


def decode_patch(body: bytes, media: str) -> Any:
    """Apply configurations may be YAML; JSON is YAML too, but read much faster as JSON."""
    if media not in PATCH_TYPES:
        raise unsupported_media_type(PATCH_TYPES, media)
    if media == APPLY_PATCH and not body.lstrip().startswith(b"{"):
        return _loaded(_load_yaml, body)
    return _loaded(orjson.loads, body)


def _loaded(load: Callable[[bytes], Any], body: bytes) -> Any:
    if not body.strip():
        raise bad_request("the request has no body")
    try:
        return load(body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"the request body cannot be read: {error}") from error


def dump_yaml(document: bytes) -> bytes:
    """JSON text as YAML."""
    return yaml.safe_dump(orjson.loads(document), sort_keys=False, allow_unicode=True).encode()
