"""Every message between hub and agent, wire version 1. JSON, camelCase, unknown fields ignored, sizes bounded.

    agent ──JoinRequest──▶ hub            once, with a one-time token; certificates are exchanged
    hub ──PollRequest──▶ agent            heartbeat + lease + intents the agent has not acknowledged
    hub ◀──PollAnswer── agent             acknowledgements + what changed since the cursor + capacity when it changed

Intents are level-triggered: "placement p, generation g: Run" or "Withdraw". They are idempotent and may arrive twice or
late; the agent drops one that is older than what it has. Generation is the fencing token: a report names the generation
that it describes, and the hub drops reports of older ones.

A new boot id, or a cursor that the agent does not know, makes the answer a full one (`full=True`): it lists every
placement that the agent has, so that the hub can tell what is missing. `PollRequest.inventory` is the same in the other
direction: what it does not name must go. An acknowledged Run intent is not sent again, not even after a restart of the
agent: if its copy is gone by then, the hub hears so from the full answer and decides, instead of a finished job running twice.

Two requests of one hub may be under way at once: one waits for news when the next one brings intents. The agent then answers
the one that waits at once, with what there is.
"""

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

WIRE_VERSION = 1
#: Versions this build can speak, oldest and newest.
WIRE_VERSIONS = (1, 1)

#: Bounds that both sides enforce: whoever gets more refuses the message and names the bound.
MESSAGE_BYTES_MAX = 32 * 1024 * 1024
INTENTS_PER_POLL_MAX = 500
REPORTS_PER_POLL_MAX = 2_000
WAIT_S_MAX = 25.0  # below the idle limit of common proxies


class Message(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of everything on the wire."""


# --- join ------------------------------------------------------------------------------------------------------------


class JoinRequest(Message, frozen=True, kw_only=True):
    """POST /agent/v1/join. The token is the only secret; it works once and expires."""

    token: str
    wire_min: int = WIRE_VERSIONS[0]
    wire_max: int = WIRE_VERSIONS[1]
    agent_version: str = ""
    #: Where the hub reaches the agent (direct transport), e.g. https://10.0.0.7:8443.
    address: str
    #: The agent's serving certificate, PEM. The hub accepts this one and no other.
    certificate_pem: str
    #: uid of the kube-system namespace: tells two clusters of one name apart.
    cluster_uid: str = ""


class JoinAnswer(Message, frozen=True, kw_only=True):
    cluster: str
    wire_version: int
    #: Certificate authority of the hub's client certificates, PEM. The agent serves nobody else.
    hub_ca_pem: str


# --- intents: what the hub wants --------------------------------------------------------------------------------------


class Action(StrEnum):
    RUN = "Run"
    WITHDRAW = "Withdraw"


class PodSetFlavors(Message, frozen=True, kw_only=True):
    """What the hub charged: resource -> flavor, for so many pods of this pod set."""

    name: str
    count: int
    flavors: dict[str, str]
    #: What one pod takes from a node, in engine units. From the hub only.
    per_pod: dict[str, int] = {}


class Intent(Message, frozen=True, kw_only=True):
    placement: str
    generation: int
    action: Action
    namespace: str
    #: Name of the Workload, the same on both clusters.
    workload: str
    #: uid of the management cluster's Workload: part of the origin mark.
    workload_uid: str = ""
    # The rest is empty for Withdraw.
    local_queue: str = ""
    #: A ClusterQueue of this name is preferred when a LocalQueue must be created.
    cluster_queue: str = ""
    #: `spec` of the Workload to create.
    workload_spec: dict[str, Any] = {}
    workload_annotations: dict[str, str] = {}
    #: The job as the user submitted it, cleaned of everything that belongs to the management cluster.
    job: dict[str, Any] = {}
    pod_sets: list[PodSetFlavors] = []
    lost_policy: Literal["Wait", "FenceThenMove", "MoveNow"] = "Wait"
    #: 1 for the first run; rises with every move. Reaches the job with the previous cluster and checkpoint.
    attempt: int = 1
    previous_cluster: str = ""
    checkpoint: str = ""


# --- reports: what the agent saw --------------------------------------------------------------------------------------


class Phase(StrEnum):
    """What became of an intent on the worker cluster."""

    PENDING = "Pending"  # objects are there, local admission has not decided yet
    ADMITTED = "Admitted"  # local admission reserved real capacity
    RUNNING = "Running"  # pods run
    FINISHED = "Finished"  # the job ended; `finished` says how
    REFUSED = "Refused"  # will not run here, `reason` says why; nothing of it is left
    EVICTED = "Evicted"  # ran or was admitted here, and local admission took it back
    GONE = "Gone"  # withdrawn: no object of it is left on this cluster


class Refusal(StrEnum):
    """Why an agent says no. A fixed list, so that the hub can count, remember and explain."""

    KIND_NOT_SERVED = "KindNotServed"
    NAMESPACE_MISSING = "NamespaceMissing"
    LOCAL_QUEUE_MISSING = "LocalQueueMissing"
    FLAVOR_MISSING = "FlavorMissing"
    HOLE_TOO_SMALL = "HoleTooSmall"
    NO_QUOTA = "NoQuota"
    NOT_ADMITTED_IN_TIME = "NotAdmittedInTime"
    NAME_TAKEN = "NameTaken"  # a foreign object of this name is there and will not be touched
    INVALID_OBJECT = "InvalidObject"  # the API server refused it
    CHANGED_BY_POLICY = "ChangedByPolicy"  # a policy engine rewrote what we created
    DISAPPEARED = "Disappeared"  # somebody deleted our objects before the job finished
    FENCED = "Fenced"  # the agent's lease ran out


class PlacementReport(Message, frozen=True, kw_only=True):
    placement: str
    #: The generation of the intent that this describes.
    generation: int
    phase: Phase
    #: A Refusal, or Kueue's reason of the Evicted or Finished condition.
    reason: str = ""
    message: str = ""
    #: `status` of the job on the worker, copied to the management cluster as it is.
    job_status: dict[str, Any] | None = None
    #: resource -> flavor per pod set, as local admission assigned them.
    pod_sets: list[PodSetFlavors] = []
    #: Did the job succeed? Only with Finished.
    succeeded: bool | None = None
    #: The agent's clock when it saw this. For people; never compared with another clock.
    seen_at: float = 0.0


class Acknowledgement(Message, frozen=True, kw_only=True):
    """The agent has this generation of the intent, or a newer one, in its cluster."""

    placement: str
    generation: int


class Amount(Message, frozen=True, kw_only=True):
    """One resource of one flavor, in engine units (milli-CPU for cpu, else the resource's own)."""

    #: What ready, schedulable nodes offer to pods.
    capacity: int = 0
    #: Used by copies that carry our origin mark.
    ours: int = 0
    #: Used by everybody else.
    others: int = 0

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.ours - self.others)


class Hole(Message, frozen=True, kw_only=True):
    """So many nodes with exactly this much: free in `holes`, at all in `shapes`."""

    free: dict[str, int]
    nodes: int = 1


class FlavorCapacity(Message, frozen=True, kw_only=True):
    name: str
    node_labels: dict[str, str] = {}
    resources: dict[str, Amount] = {}
    #: Free room node by node, equal nodes folded, largest first. Bounded; the smallest are left out first.
    holes: list[Hole] = []
    #: Every node of the flavor as it would be empty, ready or not, cordoned or not: tells "never" from "not now".
    shapes: list[Hole] = []
    nodes: int = 0
    nodes_ready: int = 0


class QuotaRoom(Message, frozen=True, kw_only=True):
    """What a worker's ClusterQueue could still admit of one resource of one flavor, and the most it could ever."""

    available: int
    limit: int
    #: Part of what is reserved that copies with our origin mark hold.
    ours: int = 0


class QueueCapacity(Message, frozen=True, kw_only=True):
    name: str
    active: bool = True
    reason: str = ""
    pending: int = 0
    #: flavor -> resource -> room.
    rooms: dict[str, dict[str, QuotaRoom]] = {}


class LocalQueueReport(Message, frozen=True, kw_only=True):
    namespace: str
    name: str
    cluster_queue: str
    active: bool = True


class CapacityReport(Message, frozen=True, kw_only=True):
    flavors: list[FlavorCapacity] = []
    queues: list[QueueCapacity] = []
    local_queues: list[LocalQueueReport] = []
    namespaces: list[str] = []
    #: Job kinds served here, as "apiVersion, Kind" of a manifest, e.g. "batch/v1, Job".
    kinds: list[str] = []
    creates_namespaces: bool = False
    creates_local_queues: bool = False
    #: The agent stops FenceThenMove work by itself when its lease runs out. Without this word such work waits like any other.
    fences: bool = False
    #: Placements whose pods are all bound and so already missing from `holes` and counted in `ours`: the hub must not
    #: deduct them a second time.
    counted: list[str] = []
    #: ClusterQueue that created LocalQueues point to, when none is named like the manager's.
    default_cluster_queue: str = ""
    kubernetes_version: str = ""
    #: The agent's clock when it looked.
    seen_at: float = 0.0


# --- poll ------------------------------------------------------------------------------------------------------------


class PollRequest(Message, frozen=True, kw_only=True):
    """POST /v1/poll."""

    wire_version: int = WIRE_VERSION
    cluster: str
    #: Leader term. An agent that has seen a higher one refuses a lower one.
    term: int
    #: How long the agent may go on without another poll before FenceThenMove work must stop.
    lease_s: float
    #: Wait so long for news before answering with nothing.
    wait_s: float = 0.0
    #: boot id and cursor of the last answer that the hub has stored; empty at first.
    boot_id: str = ""
    cursor: int = 0
    intents: list[Intent] = []
    #: placement -> generation of everything that may run here, whether its intent was acknowledged before or is still to
    #: come. Sent after a restart of either side and now and then; copies of ours that it does not name must go.
    inventory: dict[str, int] | None = None
    #: Rises with every request of one term. The agent refuses a (term, sequence) that is not above the last one it has
    #: seen, so that a request which was held up on its way cannot bring a withdrawn placement back.
    sequence: int = 0


class PollAnswer(Message, frozen=True, kw_only=True):
    wire_version: int = WIRE_VERSION
    boot_id: str
    cursor: int
    #: `placements` lists everything the agent has, not only what changed.
    full: bool = False
    placements: list[PlacementReport] = []
    acknowledged: list[Acknowledgement] = []
    #: None: unchanged since the request's cursor. A change of capacity moves the cursor like a change of a placement.
    capacity: CapacityReport | None = None
    agent_version: str = ""
    #: The agent's clock, to show skew.
    clock: float = 0.0
    #: The agent's caches are not complete yet: nothing may be concluded from what is missing.
    starting: bool = False


class WireProblem(Message, frozen=True, kw_only=True):
    """Body of every refusal: RFC 9457 problem+json."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"
    #: For a version mismatch: what this side speaks.
    wire_min: int = WIRE_VERSIONS[0]
    wire_max: int = WIRE_VERSIONS[1]
