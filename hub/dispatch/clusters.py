"""One worker cluster as the hub knows it."""

from enum import StrEnum

from msgspec import Struct

from hub.kueue.api.meta import Instant
from hub.kueue.wire import CapacityReport


class ClusterState(StrEnum):
    INVITED = "Invited"  # registered; its agent has not joined yet
    ACTIVE = "Active"
    SUSPECT = "Suspect"  # polls fail: no new offers, nothing moves yet
    LOST = "Lost"  # silent for longer than the lost time-out
    CORDONED = "Cordoned"  # by the operator: no new offers
    DRAINING = "Draining"  # by the operator: no new offers and the work moves away
    REMOVED = "Removed"  # by the operator: gone as soon as nothing of ours is left there


class ClusterTaint(Struct, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Cluster(Struct, frozen=True, kw_only=True):
    name: str
    state: ClusterState = ClusterState.INVITED
    #: Why it is in this state, in a word and in a sentence.
    reason: str = ""
    message: str = ""
    #: Set by the operator, and kept beside `state` so that a cordoned cluster that is lost comes back cordoned.
    cordoned: bool = False
    labels: dict[str, str] = {}
    taints: tuple[ClusterTaint, ...] = ()
    address: str = ""
    certificate_pem: str = ""
    cluster_uid: str = ""
    agent_version: str = ""
    wire_version: int = 0
    boot_id: str = ""
    cursor: int = 0
    capacity: CapacityReport | None = None
    #: Hub's clock when the answer that carried this capacity, or confirmed that it still holds, was stored.
    capacity_at: Instant | None = None
    last_contact_at: Instant | None = None
    #: Hub's clock at the first failed poll of the present streak.
    failing_since: Instant | None = None
    created_at: Instant = 0.0
    join_expires_at: Instant | None = None
