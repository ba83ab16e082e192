"""The admission webhook of a cluster: AdmissionReview v1 over HTTPS for jobs and for our own kinds.

    POST /mutate-batch-v1-job        queue and priority defaults, suspended, managedBy      (creation only)
    POST /validate-batch-v1-job      what people may write about queues
    POST /validate-kueue-x-k8s-io-v1beta2-clusterqueue ...                                  (every kind of ours)

Paths are Kueue's. `configurations` makes the two objects that tell an API server to call us.
"""

import base64
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jsonpatch
import orjson
from aiohttp import web
from msgspec import Struct

from hub.kueue.api import validation
from hub.kueue.api.meta import ObjectKey, Resource
from hub.kueue.api.resources import (
    LOCAL_QUEUES,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
)
from hub.kueue.api.rules.field_errors import FieldError
from hub.kueue.api.v1beta2 import KINDS, LocalQueue, WorkloadPriorityClass, names
from hub.kueue.integrations import compose
from hub.kueue.integrations.intake import Surroundings, defaulted, errors_in
from hub.kueue.integrations.interface import Integration, Manifest
from hub.kueue.runtime.informers import Informers

log = logging.getLogger(__name__)

NAME = "multikueue-hub"
BODY_MAX_BYTES = 8 * 1024 * 1024
TIMEOUT_S = 10
DEFAULT_EXCLUDED = ("kube-system",)
#: Workloads are written by controllers, at every step: for them the rules in their CustomResourceDefinition have to do.
CHECKED_KINDS = tuple(info.resource for info in KINDS.values() if info.resource != WORKLOADS)


class ReviewRequest(Struct, frozen=True, kw_only=True):
    """What is read of an AdmissionReview's request."""

    uid: str
    operation: str
    object: dict[str, Any]
    old: dict[str, Any] | None
    namespace: str


class Webhooks:
    """Answers of one cluster's webhook; `make_app` serves them."""

    def __init__(self, informers: Informers, integrations: Iterable[Integration], *, managed_by: str = "") -> None:
        """`managed_by`: kueue.x-k8s.io/multikueue on a management cluster."""
        self._integrations = {webhook_path("mutate", i.resource): i for i in integrations}
        self._validated = {webhook_path("validate", i.resource): i for i in self._integrations.values()}
        self._kinds = frozenset(webhook_path("validate", resource) for resource in CHECKED_KINDS)
        self._managed_by = managed_by
        self._queues = informers.of(LOCAL_QUEUES)
        self._locals = informers.typed(LOCAL_QUEUES, LocalQueue)
        self._classes = informers.typed(WORKLOAD_PRIORITY_CLASSES, WorkloadPriorityClass)

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_post("/{path:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.Response:
        path = request.path
        try:
            asked = _read(orjson.loads(await request.read()))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            return web.Response(status=400, text=f"this is no admission.k8s.io/v1 AdmissionReview: {error!r}")
        if (integration := self._integrations.get(path)) is not None:
            if not compose.queue_name(asked.object) and not self._queues.synced:
                return web.Response(status=503, text="the hub has not read the queues yet; try again in a moment")
            answer = self.mutate(integration, asked)
        elif (integration := self._validated.get(path)) is not None:
            answer = self.validate_job(integration, asked)
        elif path in self._kinds:
            answer = _verdict(asked, [] if _same_content(asked) else validation.check(asked.object, asked.old))
        else:
            return web.Response(status=404, text=f"nothing is served at {path}")
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return web.Response(body=orjson.dumps(review), content_type="application/json")

    def mutate(self, integration: Integration, asked: ReviewRequest) -> dict[str, Any]:
        """The response for a job that is being created: a JSON patch with its defaults."""
        if asked.operation != "CREATE":
            return {"uid": asked.uid, "allowed": True}
        around = Surroundings(
            has_default_queue=ObjectKey(asked.namespace, names.DEFAULT_LOCAL_QUEUE) in self._queues.objects,
            has_default_priority_class=names.DEFAULT_PRIORITY_CLASS in self._classes.by_name,
            managed_by=self._managed_by,
        )
        patch = jsonpatch.make_patch(asked.object, defaulted(integration, asked.object, around))
        answer: dict[str, Any] = {"uid": asked.uid, "allowed": True}
        if patch:
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.to_string().encode()).decode()}
        return answer

    def validate_job(self, integration: Integration, asked: ReviewRequest) -> dict[str, Any]:
        """Yes or no, with every error; and warnings about what will keep the job waiting."""
        deleted = bool((asked.object.get("metadata") or {}).get("deletionTimestamp"))
        answer = _verdict(asked, [] if deleted else errors_in(integration, asked.object, asked.old))
        if answer["allowed"] and asked.operation == "CREATE" and (warnings := self._warnings(integration, asked)):
            answer["warnings"] = warnings
        return answer

    def _warnings(self, integration: Integration, asked: ReviewRequest) -> list[str]:
        queue, found = compose.queue_name(asked.object), []
        if not queue:
            return []
        if self._queues.synced and self._locals.get(ObjectKey(asked.namespace, queue)) is None:
            found.append(
                f"there is no LocalQueue {queue} in namespace {asked.namespace}: the job waits until there is one"
            )
        manager = integration.managed_by(asked.object)
        if self._managed_by and manager != self._managed_by:
            found.append(f"spec.managedBy is {manager!r}: the job is not dispatched to other clusters")
        return found


def _read(review: Mapping[str, Any]) -> ReviewRequest:
    request = review["request"]
    return ReviewRequest(
        uid=request["uid"],
        operation=request["operation"],
        object=request.get("object") or {},
        old=request.get("oldObject") or None,
        namespace=request.get("namespace") or "",
    )


def _same_content(asked: ReviewRequest) -> bool:
    """Only metadata or status changed: an object that breaks a younger rule must still get rid of its finalizer."""
    if asked.old is None:
        return False
    new, old = ({k: v for k, v in o.items() if k not in ("metadata", "status")} for o in (asked.object, asked.old))
    return new == old


def _verdict(asked: ReviewRequest, errors: Sequence[FieldError]) -> dict[str, Any]:
    if not errors:
        return {"uid": asked.uid, "allowed": True}
    kind = asked.object.get("kind", "object")
    name = (asked.object.get("metadata") or {}).get("name", "")
    status = {
        "code": 422,
        "reason": "Invalid",
        "message": f'{kind} "{name}" is invalid: ' + "; ".join(str(error) for error in errors),
        "details": {
            "kind": kind,
            "name": name,
            "causes": [{"reason": "FieldValueInvalid", "field": e.path, "message": e.message} for e in errors],
        },
    }
    return {"uid": asked.uid, "allowed": False, "status": status}


# --- telling the API server ------------------------------------------------------------------------------------------------


class Target(Struct, frozen=True, kw_only=True):
    """Where an API server reaches the webhook: at `url`, or through a Service."""

    ca_pem: str
    url: str = ""
    service_namespace: str = ""
    service_name: str = ""
    service_port: int = 443

    def client_config(self, path: str) -> Manifest:
        bundle = base64.b64encode(self.ca_pem.encode()).decode()
        if self.url:
            return {"url": self.url.rstrip("/") + path, "caBundle": bundle}
        service = {"namespace": self.service_namespace, "name": self.service_name, "port": self.service_port}
        return {"service": {**service, "path": path}, "caBundle": bundle}


def configurations(
    target: Target, integrations: Iterable[Integration], *, excluded_namespaces: Iterable[str] = DEFAULT_EXCLUDED
) -> list[tuple[Resource, Manifest]]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration to apply, with their resources."""
    jobs = [integration.resource for integration in integrations]
    selector = {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": sorted(set(excluded_namespaces))}
        ]
    }
    mutating = [_webhook(target, "mutate", job, ["CREATE"], selector) for job in jobs]
    validating = [_webhook(target, "validate", job, ["CREATE", "UPDATE"], selector) for job in jobs]
    validating += [_webhook(target, "validate", resource, ["CREATE", "UPDATE"], None) for resource in CHECKED_KINDS]
    return [
        (MUTATING_WEBHOOKS, _configuration("MutatingWebhookConfiguration", mutating)),
        (VALIDATING_WEBHOOKS, _configuration("ValidatingWebhookConfiguration", validating)),
    ]


def webhook_path(verb: str, resource: Resource) -> str:
    """Kueue's form: /mutate-batch-v1-job; dots of a group become dashes."""
    return f"/{verb}-{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"


def _webhook(
    target: Target, verb: str, resource: Resource, operations: list[str], selector: Manifest | None
) -> Manifest:
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "resources": [resource.plural],
        "operations": operations,
        "scope": "*",
    }
    return {
        "name": f"{verb[0]}{resource.kind.lower()}.{NAME}.io",
        "clientConfig": target.client_config(webhook_path(verb, resource)),
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": TIMEOUT_S,
        **({"namespaceSelector": selector} if selector else {}),
    }


def _configuration(kind: str, webhooks: list[Manifest]) -> Manifest:
    return {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": kind,
        "metadata": {"name": NAME},
        "webhooks": webhooks,
    }
