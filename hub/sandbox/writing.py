"""The way of a write: body ─▶ draft ─▶ (mutating webhooks) ─▶ check ─▶ (validating webhooks) ─▶ commit.

The steps are synchronous and never leave the process; the HTTP edge calls webhooks between them, controllers in the
process go straight through. A draft is a private copy that the steps may change; committed objects are not.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import format_time
from hub.sandbox.apply import Writer, apply, track_update
from hub.sandbox.documents import Document, copied
from hub.sandbox.errors import (
    ApiError,
    FieldError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_value,
    not_found,
    required,
)
from hub.sandbox.intake import check_declared, take_in
from hub.sandbox.metadata import SERVER_FIELDS, validate_metadata, validate_metadata_update
from hub.sandbox.served import Served
from hub.sandbox.storage import Collection, Key, Stored
from hub.sandbox.validation import validate

#: Letters of generated names: no vowels, no look-alikes.
SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH = 5
GENERATED_BASE_MAX = 63 - SUFFIX_LENGTH
#: How often a generated name that is taken is drawn again.
NAME_ATTEMPTS = 8


class WriteOptions(Struct, frozen=True, kw_only=True):
    dry_run: bool = False
    #: Who the fields belong to afterwards; "" for controllers in the process, whose fields nobody owns.
    field_manager: str = ""
    field_validation: str = "Ignore"
    #: Server-side apply: take over fields that others own.
    force: bool = False


IN_PROCESS = WriteOptions()


@dataclass(slots=True)
class Draft:
    """One write on its way. `new` and `old` are in the version of the request."""

    served: Served
    key: Key
    new: Document
    options: WriteOptions
    subresource: str = ""
    #: What the write replaces; None for a create.
    stored: Stored | None = None
    old: Document | None = None
    #: Made by server-side apply, which has noted the owners already.
    applied: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def operation(self) -> str:
        return "CREATE" if self.stored is None else "UPDATE"

    def refuse(self, wrong: list[FieldError]) -> None:
        if wrong:
            raise invalid(self.served.group, self.served.resource.kind, self.key[1], wrong)


def check_identity(served: Served, body: Any) -> Document:
    """The body must be an object of the kind that the path names. Raises ApiError 400."""
    if not isinstance(body, dict):
        raise bad_request("the request body must be one JSON object")
    resource = served.resource
    if not body.get("kind"):
        raise bad_request("Object 'Kind' is missing in the request body")
    if body.get("apiVersion") != served.api_version:
        got = body.get("apiVersion", "")
        raise bad_request(
            f"the API version in the data ({got}) does not match the expected API version ({served.api_version})"
        )
    if body["kind"] != resource.kind:
        raise bad_request(f"the kind in the data ({body['kind']}) does not match the expected kind ({resource.kind})")
    if not isinstance(body.setdefault("metadata", {}), dict):
        raise bad_request("metadata must be an object")
    return body["metadata"]


def check_namespace(served: Served, meta: Document, namespace: str) -> None:
    """The namespace of the path wins where the body has none, and contradicts it nowhere. Raises ApiError 400."""
    if not served.resource.namespaced:
        if meta.get("namespace"):
            raise bad_request("namespace may not be set on a cluster-scoped object")
        meta.pop("namespace", None)
        return
    if meta.setdefault("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


class NamePicker:
    """uids and name suffixes, from one generator so that a seed repeats them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uid(self) -> str:
        h = f"{self._rng.getrandbits(128):032x}"
        return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-a{h[17:20]}-{h[20:]}"

    def name(self, base: str, taken: Collection, namespace: str) -> str:
        """A free name that begins with `base`; after some attempts one that may be taken."""
        for _ in range(NAME_ATTEMPTS - 1):
            name = base[:GENERATED_BASE_MAX] + self._suffix()
            if (namespace, name) not in taken.objects:
                return name
        return base[:GENERATED_BASE_MAX] + self._suffix()

    def _suffix(self) -> str:
        return "".join(self._rng.choices(SUFFIX_LETTERS, k=SUFFIX_LENGTH))


def begin_create(served: Served, namespace: str, body: Any, options: WriteOptions) -> Draft:
    """A draft of a new object. The caller hands `body` over. Raises ApiError 400."""
    meta = check_identity(served, body)
    check_namespace(served, meta, namespace)
    draft = Draft(served, (meta.get("namespace", ""), meta.get("name") or ""), body, options)
    _shape(draft)
    return draft


def _shape(draft: Draft) -> None:
    """Unknown fields go, or are refused; defaults come. Raises ApiError 400."""
    options = draft.options
    draft.new, warnings = take_in(
        draft.served, draft.new, options.field_validation, outside=bool(options.field_manager)
    )
    draft.warnings += warnings
    draft.served.rules.default(draft.new)


def reshape(draft: Draft) -> None:
    """Treat what a webhook made of the object as if it had come in like that. Raises ApiError 400."""
    check_identity(draft.served, draft.new)
    _shape(draft)
    if draft.old is not None and draft.subresource != "status":
        _keep_server_fields(draft.served, draft.new, draft.old)


def own_fields(draft: Draft, now: float) -> None:
    """Note in managedFields who wrote what. Controllers in the process own nothing and leave what is there."""
    meta, options, served = draft.new["metadata"], draft.options, draft.served
    if draft.applied:
        return
    if options.field_manager:
        resets = ("status",) if draft.subresource != "status" and "status" in served.subresources else ()
        writer = Writer(
            manager=options.field_manager,
            api_version=served.api_version,
            subresource=draft.subresource,
            resets=resets,
        )
        fields = track_update(draft.old, draft.new, served.shape, writer, now)
    else:
        fields = draft.old["metadata"].get("managedFields") if draft.old else None
    meta.pop("managedFields", None)
    if fields:
        meta["managedFields"] = fields


def _schema_errors(draft: Draft) -> list[FieldError]:
    schema = draft.served.schema
    return [] if schema is None else validate(draft.new, schema, draft.old)


def finish_create(draft: Draft, names: NamePicker, taken: Collection, now: float) -> None:
    """Stamp and validate a new object. Raises ApiError 422."""
    served, new = draft.served, draft.new
    meta = new["metadata"]
    own_fields(draft, now)
    if meta.get("resourceVersion"):
        raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
    if not meta.get("name"):
        if not (base := meta.get("generateName")):
            draft.refuse([required("metadata.name", "name or generateName is required")])
        meta["name"] = names.name(base, taken, meta.get("namespace", ""))
    draft.key = (meta.get("namespace", ""), meta["name"])
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "resourceVersion"):
        meta.pop(name, None)
    meta["uid"] = names.uid()
    meta["creationTimestamp"] = format_time(now)
    if served.generation:
        meta["generation"] = 1
    if "status" in served.subresources and not served.rules.status_on_create:
        new.pop("status", None)
    served.rules.prepare_create(new)
    draft.refuse([*validate_metadata(meta, served.collection), *_schema_errors(draft), *served.rules.validate(new)])


def begin_update(served: Served, stored: Stored, body: Any, subresource: str, options: WriteOptions) -> Draft:
    """A draft that replaces `stored`. Raises ApiError 400, and 409 when the body was made from another version."""
    meta = check_identity(served, body)
    key = stored.key
    check_namespace(served, meta, key[0])
    if meta.setdefault("name", key[1]) != key[1]:
        raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({key[1]})")
    old = served.read(stored.object)
    _check_versions(served, stored, meta)
    draft = Draft(served, key, body, options, subresource, stored, old)
    if subresource == "status":
        draft.new = _only_status(old, body)
    _shape(draft)
    if subresource != "status":
        _keep_server_fields(served, draft.new, old)
    return draft


def _check_versions(served: Served, stored: Stored, meta: Document) -> None:
    group, plural, name = served.group, served.plural, stored.key[1]
    if (uid := meta.get("uid")) and uid != stored.object["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.object['metadata']['uid']}"
        raise conflict(group, plural, name, why)
    if version := meta.get("resourceVersion"):
        if version != str(stored.version):
            raise conflict(group, plural, name)
    elif not served.unconditional_update:
        wrong = [invalid_value("metadata.resourceVersion", 0, "must be specified for an update")]
        raise invalid(group, served.resource.kind, name, wrong)


def _only_status(old: Document, body: Document) -> Document:
    """A status write changes the status and nothing else."""
    new = {**old, "metadata": dict(old["metadata"])}
    new.pop("status", None)
    if "status" in body:
        new["status"] = body["status"]
    if (fields := body["metadata"].get("managedFields")) is not None:
        new["metadata"]["managedFields"] = fields
    return new


def _keep_server_fields(served: Served, new: Document, old: Document) -> None:
    meta, old_meta = new["metadata"], old["metadata"]
    for name in SERVER_FIELDS:
        if name in old_meta:
            meta[name] = old_meta[name]
        else:
            meta.pop(name, None)
    if "status" in served.subresources:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]


def finish_update(draft: Draft, now: float) -> None:
    """Validate an update against what it replaces, and count the generation. Raises ApiError 422."""
    served, new, old = draft.served, draft.new, draft.old
    assert old is not None
    rules = served.rules
    own_fields(draft, now)
    if draft.subresource == "status":
        draft.refuse(_schema_errors(draft) + rules.validate_status(new, old))
        return
    rules.prepare_update(new, old)
    meta = new["metadata"]
    wrong = validate_metadata(meta, served.collection)
    wrong += validate_metadata_update(meta, old["metadata"])
    draft.refuse(wrong + _schema_errors(draft) + rules.validate(new) + rules.validate_update(new, old))
    if served.generation and _spec_changed(new, old):
        meta["generation"] = old["metadata"].get("generation", 0) + 1


def begin_apply(
    served: Served, place: Key, stored: Stored | None, config: Any, subresource: str, options: WriteOptions, now: float
) -> Draft:
    """A draft of what server-side apply makes of the object at `place`. Raises ApiError 400, 404 and 409."""
    meta = check_identity(served, config)
    meta.setdefault("name", place[1])
    check_namespace(served, meta, place[0])
    if stored is None and subresource:
        raise not_found(served.group, served.plural, place[1])
    check_declared(served, config)
    live = served.read(stored.object) if stored else None
    resets = ("status",) if not subresource and "status" in served.subresources else ()
    writer = Writer(
        manager=options.field_manager, api_version=served.api_version, subresource=subresource, resets=resets
    )
    merged = copied(apply(live, config, served.shape, writer, now, force=options.force))
    if stored is None:
        draft = begin_create(served, place[0], merged, options)
    else:
        merged["metadata"].setdefault("resourceVersion", str(stored.version))
        draft = begin_update(served, stored, merged, subresource, options)
    draft.applied = True
    return draft


def _spec_changed(new: Document, old: Document) -> bool:
    if new.get("spec") != old.get("spec"):
        return True
    skip = ("metadata", "status", "spec")
    return {k: v for k, v in new.items() if k not in skip} != {k: v for k, v in old.items() if k not in skip}


def unchanged(draft: Draft) -> bool:
    """An update that changes nothing is not written: no new resourceVersion, no event."""
    assert draft.old is not None
    old, new = draft.old, draft.new
    if any(new.get(k) != old.get(k) for k in new.keys() | old.keys() if k != "metadata"):
        return False
    return _comparable(old["metadata"]) == _comparable(new["metadata"])


def _comparable(meta: Document) -> Document:
    """Metadata without what moves by itself: the version, and the times at which fields were written."""
    kept = {k: v for k, v in meta.items() if k not in ("resourceVersion", "managedFields")}
    owners = [{k: v for k, v in entry.items() if k != "time"} for entry in meta.get("managedFields") or ()]
    return kept | {"managedFields": owners}


def check_current(draft: Draft, current: Stored | None) -> None:
    """Nobody may have written since the draft was begun: a webhook call may have taken its time. Raises ApiError."""
    served, name = draft.served, draft.key[1]
    if draft.stored is None:
        if current is not None:
            raise already_exists(served.group, served.plural, name)
    elif current is None:
        raise not_found(served.group, served.plural, name)
    elif current.version != draft.stored.version:
        raise conflict(served.group, served.plural, name)


def missing_namespace(served: Served, namespace: Stored | None, key: Key) -> None:
    """New objects need a namespace that is there and stays. Raises ApiError 404 or 403."""
    if namespace is None:
        raise not_found("", "namespaces", key[0])
    if namespace.object["metadata"].get("deletionTimestamp"):
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {key[0]} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {key[0]} because it is being terminated"
        raise forbidden(served.group, served.plural, key[1], why, [cause])
