"""What a workload asks for, in the form that decisions read: its shape.

    spec.podSets ──▶ effective requests of one pod ──▶ times effective count ──▶ Shape, shared by all that look alike

Effective requests follow Kubernetes' pod formula and then the policy: LimitRange defaults, excluded prefixes,
transformations (KEP-2937). Two workloads of one shape and one priority are interchangeable to the scheduler, which is what
lets the queues park them together. A million waiting workloads have a few thousand shapes.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec

from hub.kueue.admission.policy import Policy
from hub.kueue.api.core import Container, LimitRangeItem, PodSpec, pod_requests, pod_template
from hub.kueue.api.errors import ApiError
from hub.kueue.api.quantity import amount_of_nanos, multiply, nanos
from hub.kueue.api.v1beta2 import PodSet, PodSetTopologyRequest

_FNV_OFFSET, _FNV_PRIME, _U64 = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_NANO = 10**9


class PodSetNeed:
    """One pod set of a shape."""

    __slots__ = ("count", "group", "min_count", "name", "per_pod", "raw_per_pod", "spec", "spec_count", "topology")

    def __init__(
        self, pod_set: PodSet, count: int, spec: PodSpec, per_pod: dict[str, int], raw_per_pod: dict[str, int]
    ) -> None:
        self.name = pod_set.name
        #: Pods to count: those of the spec less the reclaimable ones.
        self.count = count
        self.spec_count = pod_set.count
        self.min_count = pod_set.min_count
        self.spec = spec
        #: resource -> amount of one pod, after the policy, in the order in which flavors are searched.
        self.per_pod = per_pod
        #: resource -> amount of one pod as its spec says: what a node must have.
        self.raw_per_pod = raw_per_pod
        self.topology: PodSetTopologyRequest | None = pod_set.topology_request
        #: Pod sets of one group get one flavor and, with topology, one domain.
        self.group: str | None = pod_set.topology_request.pod_set_group_name if pod_set.topology_request else None


#: Pod sets, and pods given back by pod set.
Source = tuple[Sequence[PodSet], Mapping[str, int]]


class Shape:
    """All that a decision reads of what a workload asks for."""

    __slots__ = ("allowed", "id", "like", "pod_sets", "problem", "source")

    def __init__(
        self,
        identity: int,
        like: int,
        pod_sets: tuple[PodSetNeed, ...],
        allowed: frozenset[str] | None,
        problem: str,
        source: "Source",
    ) -> None:
        self.id = identity
        #: The same for shapes that Kueue's scheduling equivalence hash takes for equal: it does not see limits.
        self.like = like
        self.pod_sets = pod_sets
        #: Only these flavors may be assigned; None: any.
        self.allowed = allowed
        #: Why such a workload can never be admitted as it is; empty: nothing wrong.
        self.problem = problem
        #: What it was made from, to make it again when limits change.
        self.source = source

    @property
    def may_shrink(self) -> bool:
        """Could it be admitted with fewer pods?"""
        return any(p.min_count is not None and p.spec_count > p.min_count for p in self.pod_sets)

    @property
    def wants_topology(self) -> bool:
        """Does any pod set ask for a place by itself?"""
        return any(wants_topology(p.topology) for p in self.pod_sets)


def wants_topology(request: PodSetTopologyRequest | None) -> bool:
    """Does a pod set with this request ask for a place in the topology, whatever the flavors are?"""
    return request is not None and bool(
        request.required
        or request.preferred
        or request.unconstrained
        or request.pod_set_slice_required_topology
        or request.podset_slice_required_topology_constraints
    )


@lru_cache(maxsize=4096)
def search_rank(resource: str) -> int:
    """Resources are searched for in the order of this hash (FNV-1a, 64 bits), so that the order is the same everywhere."""
    value = _FNV_OFFSET
    for byte in resource.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _U64
    return value


class Shapes:
    """Turns pod sets into shapes, and gives equal ones the same object."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._by_document: dict[bytes, Shape] = {}
        self._by_content: dict[tuple[bytes, str], Shape] = {}
        self._likes: dict[bytes, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    def __len__(self) -> int:
        return len(self._by_content)

    def of(
        self,
        pod_sets: Sequence[PodSet],
        reclaimable: Mapping[str, int],
        limits: Sequence[LimitRangeItem],
        allowed: frozenset[str] | None,
    ) -> Shape:
        """The shape of these pod sets. `reclaimable`: pod set -> pods given back. Never raises: bad input has a `problem`."""
        document = self._encode((pod_sets, reclaimable, limits, sorted(allowed) if allowed is not None else None))
        shape = self._by_document.get(document)
        if shape is None:
            shape = self._by_document[document] = self._made(pod_sets, reclaimable, limits, allowed)
        return shape

    def again(self, shape: Shape, limits: Sequence[LimitRangeItem]) -> Shape:
        """The shape under other limits."""
        pod_sets, reclaimable = shape.source
        return self.of(pod_sets, reclaimable, limits, shape.allowed)

    def _made(
        self,
        pod_sets: Sequence[PodSet],
        reclaimable: Mapping[str, int],
        limits: Sequence[LimitRangeItem],
        allowed: frozenset[str] | None,
    ) -> Shape:
        problem = _bad_names(pod_sets)
        needs: list[PodSetNeed] = []
        for pod_set in pod_sets:
            gone = reclaimable.get(pod_set.name, 0) if self._policy.reclaimable_pods else 0
            try:
                spec, own_problem = _defaulted(pod_template(pod_set.template).spec, limits, pod_set.name)
                raw = pod_requests(spec)
                per_pod = _ordered(transformed(raw, self._policy))
            except ApiError as error:
                spec, raw, per_pod, own_problem = PodSpec(), {}, {}, f"pod set {pod_set.name}: {error}"
            problem = problem or own_problem
            needs.append(PodSetNeed(pod_set, max(0, pod_set.count - gone), spec, per_pod, raw))
        listed = sorted(allowed) if allowed is not None else None
        content = self._encode([[self._content(need, p) for need, p in zip(needs, pod_sets, strict=True)], listed])
        like = self._likes.setdefault(content, len(self._likes))
        shape = self._by_content.get((content, problem))
        if shape is None:
            shape = Shape(len(self._by_content), like, tuple(needs), allowed, problem, (pod_sets, reclaimable))
            self._by_content[content, problem] = shape
        return shape

    def _content(self, need: PodSetNeed, pod_set: PodSet) -> list[Any]:
        """What makes two pod sets differ to the scheduler; images, commands and volumes do not."""
        raw: Any = pod_set.template.get("spec") or {}
        kept = {k: raw[k] for k in ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "priority",
                "topologySpreadConstraints", "resourceClaims") if raw.get(k)}  # fmt: skip
        containers = [_container_content(c) for c in (*need.spec.init_containers, *need.spec.containers)]
        return [
            need.name,
            need.count,
            need.min_count,
            pod_set.topology_request,
            need.per_pod,
            need.raw_per_pod,
            containers,
            kept,
        ]


def _container_content(container: Container) -> list[Any]:
    resources = container.resources
    return [
        container.is_sidecar,
        {name: str(nanos(q)) for name, q in sorted({**resources.limits, **resources.requests}.items())},
    ]


def _ordered(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, amounts[name]) for name in sorted(amounts, key=search_rank)}


def _bad_names(pod_sets: Iterable[PodSet]) -> str:
    seen: set[str] = set()
    for pod_set in pod_sets:
        if pod_set.name in seen:
            return f"two pod sets are called {pod_set.name}: give each its own name"
        if pod_set.count < 0:
            return f"pod set {pod_set.name} has a count of {pod_set.count}: it must be 0 or more"
        seen.add(pod_set.name)
    return ""


def scaled(per_pod: Mapping[str, int], count: int) -> dict[str, int]:
    """Resource -> amount of so many pods, saturating."""
    return {name: multiply(value, count) for name, value in per_pod.items()}


# --- policy ------------------------------------------------------------------------------------------------------------


def transformed(requests: Mapping[str, int], policy: Policy) -> dict[str, int]:
    """Requests of one pod after exclusions and transformations, in engine units.

    Outputs are not transformed again; negative outputs lower only what transformations produced, never below 0.
    """
    left = (
        {n: v for n, v in requests.items() if not n.startswith(policy.excluded_resource_prefixes)}
        if policy.excluded_resource_prefixes
        else dict(requests)
    )
    if not policy.transformations:
        return left
    rules = {t.input: t for t in policy.transformations}
    kept: dict[str, int] = {}
    made: dict[str, Fraction] = {}
    for name, value in left.items():
        rule = rules.get(name)
        if rule is None or not rule.replace:
            kept[name] = value
        if rule is None:
            continue
        base = _units(name, value)
        if rule.multiply_by and rule.multiply_by in left:
            base *= _units(rule.multiply_by, left[rule.multiply_by])
        for output, factor in rule.outputs.items():
            made[output] = made.get(output, Fraction(0)) + base * Fraction(nanos(factor), _NANO)
    for name, value in made.items():
        exact = max(Fraction(0), value) * _NANO
        kept[name] = kept.get(name, 0) + amount_of_nanos(name, -(-exact.numerator // exact.denominator))
    return kept


def _units(resource: str, value: int) -> Fraction:
    return Fraction(value, 1000) if resource == "cpu" else Fraction(value)


# --- limit ranges and validity ------------------------------------------------------------------------------------------


def _defaulted(spec: PodSpec, limits: Sequence[LimitRangeItem], name: str) -> tuple[PodSpec, str]:
    """The pod spec with LimitRange defaults of its namespace, and what is wrong with its resources."""
    defaults = next(
        (item for item in limits if item.type == "Container" and (item.default or item.default_request)), None
    )
    if defaults is not None:
        spec = msgspec.structs.replace(
            spec,
            containers=[_with_defaults(c, defaults) for c in spec.containers],
            init_containers=[_with_defaults(c, defaults) for c in spec.init_containers],
        )
    containers = [*spec.init_containers, *spec.containers]
    problem = next((p for c in containers if (p := _above_limits(c, name))), "")
    return spec, problem or _out_of_range(spec, containers, limits, name)


def _with_defaults(container: Container, item: LimitRangeItem) -> Container:
    own = container.resources
    merged_limits = {**item.default, **own.limits}
    merged = {**merged_limits, **item.default_request, **own.limits, **own.requests}
    return msgspec.structs.replace(
        container, resources=msgspec.structs.replace(own, limits=merged_limits, requests=merged)
    )


def _above_limits(container: Container, pod_set: str) -> str:
    for name, request in container.resources.requests.items():
        limit = container.resources.limits.get(name)
        if name == "pods":
            return f"pod set {pod_set}: containers may not ask for the resource pods"
        if nanos(request) < 0:
            return f"pod set {pod_set}: a container asks for a negative amount of {name}"
        if limit is not None and nanos(request) > nanos(limit):
            return f"pod set {pod_set}: a container requests {request} of {name}, more than its limit of {limit}"
    return ""


def _out_of_range(
    spec: PodSpec, containers: Sequence[Container], limits: Sequence[LimitRangeItem], pod_set: str
) -> str:
    pod: dict[str, int] | None = None
    for item in limits:
        if item.type == "Container":
            amounts = [
                {n: nanos(q) for n, q in {**c.resources.limits, **c.resources.requests}.items()} for c in containers
            ]
        elif item.type == "Pod":
            pod = pod if pod is not None else {n: _as_nanos(n, v) for n, v in pod_requests(spec).items()}
            amounts = [pod]
        else:
            continue
        for asked in amounts:
            for name, value in asked.items():
                if name in item.max and value > nanos(item.max[name]):
                    return f"pod set {pod_set}: a {item.type.lower()} asks for more {name} than the LimitRange allows ({item.max[name]})"
                if name in item.min and value < nanos(item.min[name]):
                    return f"pod set {pod_set}: a {item.type.lower()} asks for less {name} than the LimitRange demands ({item.min[name]})"
    return ""


def _as_nanos(resource: str, value: int) -> int:
    return value * (10**6 if resource == "cpu" else _NANO)
