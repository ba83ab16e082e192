"""Field types that several kinds share: names, lists with keys, times."""

from typing import Annotated, Literal

from msgspec import Meta

from hub.kueue.api.decoding import limits

DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN_PATTERN = rf"^{DNS_LABEL}(\.{DNS_LABEL})*$"

#: Name of a ClusterQueue, Cohort, ResourceFlavor, LocalQueue or Topology that is referred to.
Reference = Annotated[str, limits(maxLength=253, pattern=SUBDOMAIN_PATTERN)]
PodSetName = Annotated[str, limits(maxLength=63, pattern=rf"^{DNS_LABEL}$")]
AdmissionCheckName = Annotated[str, limits(minLength=1, maxLength=316)]
#: Name of a MultiKueueCluster, as lists of workers hold it.
WorkerName = Annotated[str, limits(maxLength=256)]
QUALIFIED_NAME_PATTERN = rf"^({DNS_LABEL}(\.{DNS_LABEL})*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
#: A node label that names a level of a topology.
NodeLabel = Annotated[str, limits(minLength=1, maxLength=316, pattern=QUALIFIED_NAME_PATTERN)]
#: A level that a pod set asks for.
TopologyLevel = Annotated[str, limits(maxLength=63)]
#: RFC 3339.
Time = Annotated[str, limits(format="date-time")]
Int32 = Annotated[int, limits(format="int32")]
Int64 = Annotated[int, limits(format="int64")]
#: int32, not negative.
Count = Annotated[int, limits(format="int32", minimum=0)]
PositiveCount = Annotated[int, limits(format="int32", minimum=1)]

StopPolicy = Literal["None", "Hold", "HoldAndDrain"]


def keyed_by(*keys: str, **others: object) -> Meta:
    """A list whose items have a key: server-side apply merges them item by item, and no key may occur twice."""
    return limits(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}, **others)


def unique(**others: object) -> Meta:
    """A list of scalars, none of them twice."""
    return limits(**{"x-kubernetes-list-type": "set"}, **others)


def atomic_map(**others: object) -> Meta:
    """A map that is replaced as a whole."""
    return limits(**{"x-kubernetes-map-type": "atomic"}, **others)


def atomic(**others: object) -> Meta:
    """A list that is replaced as a whole; its order matters."""
    return limits(**{"x-kubernetes-list-type": "atomic"}, **others)
