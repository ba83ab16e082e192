"""What the administrator decided about admission, as one frozen value that the engine is given once.

Kueue spreads the same over its configuration file and its feature gates. Decisions read fields of this struct and
nothing else, so two engines with equal policies take equal decisions on equal events. Every default is Kueue's, save for
`rules`.
"""

from typing import Literal

from msgspec import Struct

#: The two guards of fair-sharing preemption, in Kueue's words.
FINAL_SHARE = "LessThanOrEqualToFinalShare"
INITIAL_SHARE = "LessThanInitialShare"


class Transformation(Struct, frozen=True, kw_only=True):
    """One resource counted as others (KEP-2937): `input` becomes `outputs`, perhaps times another resource."""

    input: str
    #: resource -> how many of it one unit of `input` is; a quantity, may be negative.
    outputs: dict[str, str] = {}
    replace: bool = False
    multiply_by: str = ""


class FairSharing(Struct, frozen=True, kw_only=True):
    """ClusterQueues and cohorts get capacity by their weights (KEP-1714)."""

    strategies: tuple[str, ...] = (FINAL_SHARE, INITIAL_SHARE)
    #: A preemptor within its nominal quota preempts without comparing shares.
    preempt_within_nominal: bool = True
    #: Whoever does not borrow what it asks for goes first, before shares are compared.
    prioritize_non_borrowing: bool = True


class AdmissionFairSharing(Struct, frozen=True, kw_only=True):
    """LocalQueues that used less go first inside a ClusterQueue that opted in (KEP-4136)."""

    #: Past usage counts half after so long. 0: only what is admitted now counts.
    half_life_s: float = 0.0
    sampling_interval_s: float = 300.0
    #: resource -> weight, 1 when absent. Amounts enter in base units: cores and bytes.
    resource_weights: dict[str, float] = {}


class PodsReady(Struct, frozen=True, kw_only=True):
    """waitForPodsReady: evict what was admitted and does not start (KEP-349)."""

    timeout_s: float = 1800.0
    #: 0: a workload that ran and lost pods may take for ever to recover.
    recovery_timeout_s: float = 1800.0
    block_admission: bool = False
    #: An evicted workload queues by its time of eviction, not of creation.
    requeue_by_eviction: bool = True
    backoff_base_s: float = 60.0
    backoff_max_s: float = 3600.0
    #: None: it is tried for ever.
    backoff_limit: int | None = None


class Topology(Struct, frozen=True, kw_only=True):
    """Topology-aware scheduling (KEP-2724)."""

    #: Placement without a topology wish takes the domains with the least free room first.
    mixed_profile: bool = True
    balanced: bool = False
    #: A placement that an earlier head of the cycle made impossible is searched anew in the same cycle.
    recompute_within_cycle: bool = True
    #: Nodes that several flavors select are counted once.
    overlapping_flavors: bool = True
    preferred_affinity: bool = False
    #: Evict when a failed node has no replacement at once, instead of trying again later.
    replacement_fails_fast: bool = True


class Policy(Struct, frozen=True, kw_only=True):
    #: "hub" settles where Kueue's own decisions go round in circles, never overfills a node and lets nobody starve;
    #: "kueue" takes Kueue's decisions, those included. docs/differences.md explains each rule.
    rules: Literal["hub", "kueue"] = "hub"
    fair_sharing: FairSharing | None = None
    admission_fair_sharing: AdmissionFairSharing | None = None
    pods_ready: PodsReady | None = PodsReady()
    #: None switches topology-aware scheduling off.
    topology: Topology | None = Topology()

    # Flavors
    flavor_fungibility: bool = True
    #: How far the search for flavors came survives changed quotas for one cycle.
    preserve_scan_progress: bool = True

    # The cycle
    #: Within a cohort, higher priority goes before earlier time.
    priority_sorting: bool = True
    prioritize_preemptors: bool = False
    #: A preemptor whose victims another one took looks for others in the same cycle.
    recompute_overlap: bool = True
    #: Workloads of one shape are parked together.
    shape_hashing: bool = True

    # What a workload asks for
    partial_admission: bool = True
    reclaimable_pods: bool = True
    priority_boost: bool = False
    elastic_slices: bool = True
    #: Resources that a ClusterQueue does not cover are free instead of a reason to refuse.
    ignore_undeclared: bool = False
    excluded_resource_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()
