"""The table of kinds, and how a manifest becomes one of them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct

from hub.kueue.api import resources
from hub.kueue.api.decoding import document, mapping_of, read, text_of
from hub.kueue.api.errors import DecodeError
from hub.kueue.api.meta import Resource
from hub.kueue.api.v1beta2.checks import AdmissionCheck, MultiKueueCluster, MultiKueueConfig, ProvisioningRequestConfig
from hub.kueue.api.v1beta2.queues import ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Topology
from hub.kueue.api.v1beta2.workload import Workload, WorkloadPriorityClass

AnyKind = (
    Workload
    | ClusterQueue
    | LocalQueue
    | Cohort
    | ResourceFlavor
    | Topology
    | WorkloadPriorityClass
    | AdmissionCheck
    | ProvisioningRequestConfig
    | MultiKueueConfig
    | MultiKueueCluster
)
K = TypeVar("K", bound=AnyKind)


class Column(Struct, frozen=True):
    """A printer column of kubectl get; `wide` ones come with -o wide."""

    name: str
    json_path: str
    description: str
    type: str = "string"
    wide: bool = False


class KindInfo(Struct, frozen=True, kw_only=True):
    type: type[AnyKind]
    resource: Resource
    short_names: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    has_status: bool = False


def _condition(kind: str) -> str:
    return f".status.conditions[?(@.type=='{kind}')].status"


_AGE = Column("Age", ".metadata.creationTimestamp", "Time since it was created", "date")
_PENDING = Column("Pending Workloads", ".status.pendingWorkloads", "Workloads that wait for quota", "integer")
_ADMITTED = Column(
    "Admitted Workloads", ".status.admittedWorkloads", "Admitted workloads that have not finished", "integer"
)


def _wide(column: Column) -> Column:
    return Column(column.name, column.json_path, column.description, column.type, wide=True)


KINDS: dict[str, KindInfo] = {
    "Workload": KindInfo(
        type=Workload,
        resource=resources.WORKLOADS,
        short_names=("kwl", "kueueworkload", "kueueworkloads"),
        has_status=True,
        columns=(
            Column("Queue", ".spec.queueName", "LocalQueue it was submitted to"),
            Column("Reserved in", ".status.admission.clusterQueue", "ClusterQueue that holds quota for it"),
            Column("Admitted", _condition("Admitted"), "Whether it may run"),
            Column("Finished", _condition("Finished"), "Whether it has ended"),
            _AGE,
        ),
    ),
    "ClusterQueue": KindInfo(
        type=ClusterQueue,
        resource=resources.CLUSTER_QUEUES,
        short_names=("cq",),
        has_status=True,
        columns=(
            Column("Cohort", ".spec.cohortName", "Cohort it borrows from and lends to"),
            Column("Strategy", ".spec.queueingStrategy", "Order of its workloads", wide=True),
            _PENDING,
            _wide(_ADMITTED),
        ),
    ),
    "LocalQueue": KindInfo(
        type=LocalQueue,
        resource=resources.LOCAL_QUEUES,
        short_names=("lq", "queue", "queues"),
        has_status=True,
        columns=(
            Column("ClusterQueue", ".spec.clusterQueue", "ClusterQueue behind it"),
            _PENDING,
            _ADMITTED,
        ),
    ),
    "Cohort": KindInfo(type=Cohort, resource=resources.COHORTS, short_names=("co",), has_status=True),
    "ResourceFlavor": KindInfo(
        type=ResourceFlavor, resource=resources.RESOURCE_FLAVORS, short_names=("rf", "flavor", "flavors")
    ),
    "Topology": KindInfo(type=Topology, resource=resources.TOPOLOGIES, short_names=("topo",)),
    "WorkloadPriorityClass": KindInfo(
        type=WorkloadPriorityClass,
        resource=resources.WORKLOAD_PRIORITY_CLASSES,
        short_names=("wpc",),
        columns=(Column("Value", ".value", "Priority of workloads that name it", "integer"),),
    ),
    "AdmissionCheck": KindInfo(
        type=AdmissionCheck, resource=resources.ADMISSION_CHECKS, short_names=("ac",), has_status=True
    ),
    "ProvisioningRequestConfig": KindInfo(
        type=ProvisioningRequestConfig, resource=resources.PROVISIONING_REQUEST_CONFIGS, short_names=("prc",)
    ),
    "MultiKueueConfig": KindInfo(
        type=MultiKueueConfig, resource=resources.MULTI_KUEUE_CONFIGS, short_names=("mkconf",)
    ),
    "MultiKueueCluster": KindInfo(
        type=MultiKueueCluster,
        resource=resources.MULTI_KUEUE_CLUSTERS,
        short_names=("mkc",),
        has_status=True,
        columns=(Column("Connected", _condition("Active"), "Whether the worker cluster answers"), _AGE),
    ),
}

_KIND_OF: dict[type[AnyKind], str] = {info.type: name for name, info in KINDS.items()}


def decode(manifest: Mapping[str, Any]) -> AnyKind:
    """A manifest of any of our kinds. Raises DecodeError with the path of the first field that is wrong."""
    return decode_as(_info(manifest).type, manifest)


def decode_as(kind: type[K], manifest: Mapping[str, Any]) -> K:
    """A manifest that has to be of this kind. Raises DecodeError."""
    want, subject = _KIND_OF[kind], _subject(manifest)
    _expect(manifest, "apiVersion", resources.KUEUE_API_VERSION, subject)
    _expect(manifest, "kind", want, subject)
    return read(kind, manifest, subject=subject)


def encode(obj: AnyKind) -> dict[str, Any]:
    """The manifest of an object, ready for an API server. Empty fields are left out."""
    return {"apiVersion": resources.KUEUE_API_VERSION, "kind": _KIND_OF[type(obj)], **document(obj)}


def kind_of(obj: AnyKind) -> str:
    return _KIND_OF[type(obj)]


def _info(manifest: Mapping[str, Any]) -> KindInfo:
    subject = _subject(manifest)
    _expect(manifest, "apiVersion", resources.KUEUE_API_VERSION, subject)
    info = KINDS.get(text_of(manifest, "kind"))
    if info is None:
        raise DecodeError("kind", f"is {manifest.get('kind')!r}; known are {', '.join(KINDS)}", subject=subject)
    return info


def _expect(manifest: Mapping[str, Any], field: str, want: str, subject: str) -> None:
    if (found := manifest.get(field)) != want:
        raise DecodeError(field, f"is {found!r} and must be {want!r}", subject=subject)


def _subject(manifest: Mapping[str, Any]) -> str:
    """How the manifest is called in an error: Workload team-a/train."""
    where = mapping_of(manifest, "metadata")
    name, namespace = text_of(where, "name"), text_of(where, "namespace")
    return " ".join(part for part in (text_of(manifest, "kind"), f"{namespace}/{name}" if namespace else name) if part)
