"""One placement: one workload offered to one worker cluster."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import Instant, ObjectKey
from hub.kueue.wire import Intent, PodSetFlavors


class State(StrEnum):
    OFFERED = "Offered"
    ADMITTED = "Admitted"
    RUNNING = "Running"
    FINISHED = "Finished"
    WITHDRAWN = "Withdrawn"  # the hub wants it gone; `released` turns true when the agent says that nothing is left
    REFUSED = "Refused"
    EVICTED = "Evicted"
    LOST = "Lost"


#: A workload has at most one placement in these states; the database enforces it too.
LIVE = frozenset({State.OFFERED, State.ADMITTED, State.RUNNING})
TERMINAL = frozenset({State.FINISHED, State.WITHDRAWN, State.REFUSED, State.EVICTED, State.LOST})


class Charge(Struct, frozen=True, kw_only=True):
    """What one placement takes from one flavor of its cluster, in engine units."""

    flavor: str
    resource: str
    amount: int


class Placement(Struct, frozen=True, kw_only=True):
    id: str
    workload: ObjectKey
    workload_uid: str
    cluster: str
    #: Rises with every change of intent; the fencing token.
    generation: int = 1
    state: State = State.OFFERED
    reason: str = ""
    message: str = ""
    #: What is sent to the agent while the placement is live; Withdraw intents are derived from the key and generation.
    intent: Intent
    #: Highest generation that the agent has acknowledged.
    acknowledged: int = 0
    #: Ledger: assumed at the offer, confirmed by the agent's word for this generation.
    charges: tuple[Charge, ...] = ()
    confirmed: bool = False
    #: The agent said that nothing of it is left on the cluster (or it was never there).
    released: bool = False
    attempt: int = 1
    previous_cluster: str = ""
    job_status: dict[str, Any] | None = None
    pod_sets: tuple[PodSetFlavors, ...] = ()
    succeeded: bool | None = None
    offered_at: Instant = 0.0
    admitted_at: Instant | None = None
    running_at: Instant | None = None
    ended_at: Instant | None = None
