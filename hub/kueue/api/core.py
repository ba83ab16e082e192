"""The slice of core/v1 that is read: pod templates, nodes, limit ranges, selectors; and how they match.

Pod templates stay raw documents in the objects that hold them, so that nothing of them is lost; `pod_template` gives a
typed view of the fields that matter. Operators are plain text here: one that this build does not know matches nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from hub.kueue.api.decoding import Part, limits, read
from hub.kueue.api.quantity import RawQuantity, amount_of_nanos, is_bytes, nanos

ResourceList = dict[str, RawQuantity]

# --- selectors, taints -------------------------------------------------------------------------------------------------


_ATOMIC = limits(**{"x-kubernetes-list-type": "atomic"})
_AtomicTexts = Annotated[list[str], _ATOMIC]


class SelectorRequirement(Part, frozen=True, kw_only=True):
    """Of labels: In, NotIn, Exists, DoesNotExist; of nodes also Gt and Lt."""

    key: str
    operator: str
    values: _AtomicTexts = []


class LabelSelector(Part, frozen=True, kw_only=True):
    """Selects everything when empty. A selector that is absent selects nothing; that is for `selects` to know."""

    match_labels: dict[str, str] = {}
    match_expressions: Annotated[list[SelectorRequirement], _ATOMIC] = []


_Key = Annotated[str, limits(maxLength=317)]
_Value = Annotated[str, limits(maxLength=63)]
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Taint(Part, frozen=True, kw_only=True):
    key: _Key
    value: _Value = ""
    effect: Annotated[str, limits(enum=[*EFFECTS])]
    time_added: Annotated[str, limits(format="date-time")] | None = None


class Toleration(Part, frozen=True, kw_only=True):
    #: Empty, with the operator Exists: every taint.
    key: _Key = ""
    #: Equal is the default.
    operator: Annotated[str, limits(enum=["", "Equal", "Exists"])] = ""
    value: _Value = ""
    #: Empty: every effect.
    effect: Annotated[str, limits(enum=["", *EFFECTS])] = ""
    toleration_seconds: Annotated[int, limits(format="int64")] | None = None


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    match_expressions: list[SelectorRequirement] = []
    match_fields: list[SelectorRequirement] = []


class NodeSelector(Part, frozen=True, kw_only=True):
    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Part, frozen=True, kw_only=True):
    weight: int
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Part, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredSchedulingTerm] = []


class Affinity(Part, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None


# --- pod templates -----------------------------------------------------------------------------------------------------


class ResourceClaimName(Part, frozen=True, kw_only=True):
    name: str
    request: str = ""


class ResourceRequirements(Part, frozen=True, kw_only=True):
    requests: ResourceList = {}
    limits: ResourceList = {}
    claims: list[ResourceClaimName] = []


class Container(Part, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    #: "Always" makes an init container a sidecar.
    restart_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        return self.restart_policy == "Always"


class NamedGate(Part, frozen=True, kw_only=True):
    name: str


class PodResourceClaim(Part, frozen=True, kw_only=True):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Part, frozen=True, kw_only=True):
    containers: list[Container] = []
    init_containers: list[Container] = []
    #: Resources of the pod as a whole.
    resources: ResourceRequirements | None = None
    overhead: ResourceList = {}
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    scheduling_gates: list[NamedGate] = []
    resource_claims: list[PodResourceClaim] = []
    priority_class_name: str = ""
    priority: int | None = None
    runtime_class_name: str | None = None
    restart_policy: str = ""
    node_name: str = ""
    scheduler_name: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None


class TemplateMeta(Part, frozen=True, kw_only=True):
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []


class PodTemplateSpec(Part, frozen=True, kw_only=True):
    metadata: TemplateMeta = TemplateMeta()
    spec: PodSpec = PodSpec()


#: A pod template as it was written, every field of it.
RawPodTemplate = Annotated[dict[str, Any], limits(**{"type": "object", "x-kubernetes-preserve-unknown-fields": True})]


def pod_template(raw: Mapping[str, Any], *, at: str = "template") -> PodTemplateSpec:
    """What matters of a raw pod template. Raises DecodeError; `at` is where the template is, for its path."""
    return read(PodTemplateSpec, raw, at=at)


# --- nodes, limit ranges -----------------------------------------------------------------------------------------------


class NodeSpec(Part, frozen=True, kw_only=True):
    taints: list[Taint] = []
    unschedulable: bool = False


class NodeCondition(Part, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeStatus(Part, frozen=True, kw_only=True):
    allocatable: ResourceList = {}
    capacity: ResourceList = {}
    conditions: list[NodeCondition] = []


class NodeMeta(Part, frozen=True, kw_only=True):
    name: str
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class Node(Part, frozen=True, kw_only=True):
    metadata: NodeMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


def node(raw: Mapping[str, Any]) -> Node:
    """Raises DecodeError."""
    return read(Node, raw)


class LimitRangeItem(Part, frozen=True, kw_only=True):
    #: Container, Pod or PersistentVolumeClaim.
    type: str
    default: ResourceList = {}
    default_request: ResourceList = {}
    max: ResourceList = {}
    min: ResourceList = {}


class LimitRangeSpec(Part, frozen=True, kw_only=True):
    limits: list[LimitRangeItem] = []


def limit_range(raw_spec: Mapping[str, Any]) -> LimitRangeSpec:
    """`spec` of a LimitRange. Raises DecodeError."""
    return read(LimitRangeSpec, raw_spec, at="spec")


# --- matching ----------------------------------------------------------------------------------------------------------


def _order(value: str | None, wanted: Sequence[str]) -> int | None:
    """How a label that is a whole number compares with the one value wanted: negative, 0, positive; None: not at all."""
    try:
        return int(value or "") - int(wanted[0]) if len(wanted) == 1 else None
    except ValueError:
        return None


_OPERATORS: dict[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, wanted: value is not None and value in wanted,
    "NotIn": lambda value, wanted: value is None or value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, wanted: (_order(value, wanted) or 0) > 0,
    "Lt": lambda value, wanted: (_order(value, wanted) or 0) < 0,
}


def satisfies(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    operator = _OPERATORS.get(requirement.operator)
    return operator is not None and operator(labels.get(requirement.key), requirement.values)


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Does a label selector (metav1.LabelSelector) select an object with these labels? None selects nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(satisfies(requirement, labels) for requirement in selector.match_expressions)


def term_matches(term: NodeSelectorTerm, labels: Mapping[str, str], node_name: str = "") -> bool:
    """An empty term matches no node, as the scheduler has it."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node_name}
    return all(satisfies(r, labels) for r in term.match_expressions) and all(
        satisfies(r, fields) for r in term.match_fields
    )


def node_selector_matches(selector: NodeSelector, labels: Mapping[str, str], node_name: str = "") -> bool:
    """Terms are alternatives; a selector without terms matches no node."""
    return any(term_matches(term, labels, node_name) for term in selector.node_selector_terms)


def required_node_selector(spec: PodSpec) -> NodeSelector | None:
    affinity = spec.affinity and spec.affinity.node_affinity
    return affinity.required_during_scheduling_ignored_during_execution if affinity else None


def fits_node_labels(spec: PodSpec, labels: Mapping[str, str], node_name: str = "") -> bool:
    """May the pod run on a node with these labels: its node selector and its required node affinity."""
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    required = required_node_selector(spec)
    return required is None or node_selector_matches(required, labels, node_name)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """core/v1's rule: an empty effect means all effects; an empty key with Exists means every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


#: Effects that keep a pod off a node; PreferNoSchedule only advises.
REPELLING = ("NoSchedule", "NoExecute")


def untolerated(
    taints: Iterable[Taint], tolerations: Sequence[Toleration], effects: Sequence[str] = REPELLING
) -> Taint | None:
    """The first taint with one of these effects that nothing tolerates."""
    return next((t for t in taints if t.effect in effects and not any(tolerates(o, t) for o in tolerations)), None)


# --- requests ----------------------------------------------------------------------------------------------------------

_Nanos = dict[str, int]


def pod_requests(spec: PodSpec) -> dict[str, int]:
    """What one pod asks for, in engine units. Limits without a request count as requests. Raises QuantityError.

    The scheduler's formula: init containers run one after the other beside the sidecars started before them, so the
    most of that and of the running containers counts; requests of the pod as a whole replace those of its containers for
    cpu, memory and huge pages; the runtime's overhead comes on top.
    """
    total = _sum(_requests(c.resources) for c in spec.containers)
    if spec.init_containers:
        sidecars, starting = _starting(spec.init_containers)
        total = _most(_sum([total, sidecars]), starting)
    if spec.resources:
        total |= {name: value for name, value in _requests(spec.resources).items() if _is_pod_level(name)}
    if spec.overhead:
        total = _sum([total, {name: nanos(q) for name, q in spec.overhead.items()}])
    return {name: amount_of_nanos(name, value) for name, value in total.items()}


def _starting(init_containers: Iterable[Container]) -> tuple[_Nanos, _Nanos]:
    """What the sidecars keep, and the most that is needed at one time before the containers start."""
    sidecars: _Nanos = {}
    most: _Nanos = {}
    for container in init_containers:
        together = _sum([sidecars, _requests(container.resources)])
        most = _most(most, together)
        if container.is_sidecar:
            sidecars = together
    return sidecars, most


def _requests(resources: ResourceRequirements) -> _Nanos:
    merged = {**resources.limits, **resources.requests}
    return {name: nanos(quantity) for name, quantity in merged.items()}


def _is_pod_level(resource: str) -> bool:
    return resource == "cpu" or (is_bytes(resource) and resource != "ephemeral-storage")


def _sum(lists: Iterable[_Nanos]) -> _Nanos:
    total: _Nanos = {}
    for one in lists:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total


def _most(left: _Nanos, right: _Nanos) -> _Nanos:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in [*left, *(n for n in right if n not in left)]}
