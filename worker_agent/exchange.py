"""Pure: both ends of the conversation with the hub, as the agent keeps them.

    PollRequest ──take──▶ intents by placement        what the mirror works on
    mirror, report ──tell──▶ reports by placement, each with the number of its last change
                             ──answer(cursor)──▶ PollAnswer with everything newer than the cursor

Nothing here survives the process: a new boot id tells the hub to send everything again, and until its inventory has
come, no copy may be taken for unwanted.
"""

from collections import OrderedDict
from collections.abc import Iterable

from msgspec import structs

from hub.kueue.api.meta import Instant
from hub.kueue.wire import (
    INTENTS_PER_POLL_MAX,
    REPORTS_PER_POLL_MAX,
    WIRE_VERSION,
    WIRE_VERSIONS,
    Acknowledgement,
    Action,
    CapacityReport,
    Intent,
    Phase,
    PlacementReport,
    PollAnswer,
    PollRequest,
    WireProblem,
)

#: After these nothing is left on the cluster, and the same generation is never begun again.
ENDED = frozenset({Phase.REFUSED, Phase.EVICTED, Phase.GONE})
#: Ended placements remembered, so that a late copy of an old intent starts nothing.
REMEMBERED_MAX = 20_000


class Exchange:
    """What the hub wants, what it was told, and what it has not heard yet."""

    def __init__(self, cluster: str, boot_id: str, agent_version: str = "") -> None:
        self.cluster = cluster
        self.boot_id = boot_id
        self.agent_version = agent_version
        #: (term, sequence) of the newest request; an older one was held up on its way and must not undo anything.
        self._newest = (0, 0)
        self.intents: dict[str, Intent] = {}
        #: placement -> generation of everything that may run here, as the hub said last; None until it has said so.
        self.inventory: dict[str, int] | None = None
        #: Number of the last change that the hub has stored.
        self._heard = 0
        self._number = 0
        self._reports: dict[str, tuple[int, PlacementReport]] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        self._capacity: tuple[int, CapacityReport | None] = (0, None)
        self._ended: OrderedDict[str, int] = OrderedDict()

    # --- from the hub ------------------------------------------------------------------------------------------------

    def refuse(self, request: PollRequest) -> WireProblem | None:
        """Why this request is not taken: another version, another cluster, a hub that is no longer the leader, too much."""
        low, high = WIRE_VERSIONS
        if not low <= request.wire_version <= high:
            detail = f"this agent speaks wire versions {low} to {high}, the hub asked for {request.wire_version}"
            return WireProblem(title="wire version not supported", status=426, detail=detail)
        if request.cluster != self.cluster:
            detail = f"this is the agent of cluster {self.cluster}, the hub asked for {request.cluster}"
            return WireProblem(title="another cluster", status=421, detail=detail)
        if request.term < self._newest[0]:
            detail = f"term {request.term} is over, this agent has seen term {self._newest[0]}"
            return WireProblem(title="a newer leader was here", status=409, detail=detail)
        if (request.term, request.sequence) <= self._newest:
            detail = f"request {request.sequence} of term {request.term} comes after request {self._newest[1]}"
            return WireProblem(title="a newer request was here", status=409, detail=detail)
        if len(request.intents) > INTENTS_PER_POLL_MAX:
            detail = f"{len(request.intents)} intents in one poll, at most {INTENTS_PER_POLL_MAX}"
            return WireProblem(title="too many intents", status=413, detail=detail)
        return None

    def take(self, request: PollRequest) -> set[str]:
        """Store the intents of an accepted request. Returns the placements that changed."""
        self._newest = (request.term, request.sequence)
        changed = self._hear(request)
        self._forget(request)
        changed |= {intent.placement for intent in request.intents if self._take_one(intent)}
        if request.inventory is not None:
            self.inventory = request.inventory
        elif self.inventory is not None:
            self.inventory = {**self.inventory, **_running(request.intents)}
        return changed | self._drop_unwanted(request)

    def _drop_unwanted(self, request: PollRequest) -> set[str]:
        """A Run intent that the inventory does not name is over: the hub would not offer it any more."""
        if request.inventory is None:
            return set()
        running = _running(self.intents.values())
        unwanted = running.keys() - request.inventory.keys()
        for placement in unwanted:
            del self.intents[placement]
        return unwanted

    def _hear(self, request: PollRequest) -> set[str]:
        """The hub stores an answer before it moves its cursor. Returns the placements of whose end it knows now."""
        if request.boot_id != self.boot_id:
            return set()
        before, self._heard = self._heard, max(self._heard, request.cursor)
        return {
            placement
            for placement, (number, report) in self._reports.items()
            if report.phase is Phase.FINISHED and before < number <= self._heard
        }

    def end_is_known(self, placement: str, generation: int) -> bool:
        """Has the hub stored that this placement finished? Before that, nothing of it may be removed.

        Only a report of this generation or a newer one counts: the hub drops what it hears of older ones.
        """
        number, report = self._reports.get(placement, (0, None))
        is_end = report is not None and report.phase is Phase.FINISHED and report.generation >= generation
        return is_end and number <= self._heard

    def is_unwanted(self, placement: str) -> bool:
        """May a copy of ours go? Only once the hub has said what may run here, and this is not in it."""
        known = self.inventory is not None and placement not in self.inventory
        return known and placement not in self.intents

    def _take_one(self, intent: Intent) -> bool:
        known = self.intents.get(intent.placement)
        newest = max(known.generation if known else 0, self._ended.get(intent.placement, 0))
        if intent.generation < newest or (known is not None and intent.generation == known.generation):
            return False
        if intent.generation == newest:
            self._say_again(intent)
            return False
        self.intents[intent.placement] = intent
        return True

    def _say_again(self, intent: Intent) -> None:
        """It ended already, and the hub asks as if it had not heard: tell it, and begin nothing a second time."""
        if intent.action is Action.WITHDRAW and intent.placement not in self._reports:
            self._number += 1
            gone = PlacementReport(placement=intent.placement, generation=intent.generation, phase=Phase.GONE)
            self._reports[intent.placement] = (self._number, gone)
        self._number += 1
        self._acknowledged[intent.placement] = (self._number, intent.generation)

    # --- from the loops ----------------------------------------------------------------------------------------------

    def tell(self, report: PlacementReport, now: Instant) -> bool:
        """Keep the report when it says something new. False: the hub has heard, or will hear, just this."""
        old = self._reports.get(report.placement)
        if old is not None and structs.replace(old[1], seen_at=0.0) == structs.replace(report, seen_at=0.0):
            return False
        self._number += 1
        self._reports[report.placement] = (self._number, structs.replace(report, seen_at=now))
        if report.phase is not Phase.PENDING:
            # An acknowledged intent is never sent again, so everything of it has to stand in the cluster by now.
            self._acknowledge(report.placement, report.generation)
        if report.phase in ENDED:
            self._end(report.placement, report.generation)
        return True

    def tell_capacity(self, capacity: CapacityReport) -> bool:
        old = self._capacity[1]
        if old is not None and structs.replace(old, seen_at=0.0) == structs.replace(capacity, seen_at=0.0):
            return False
        self._number += 1
        self._capacity = (self._number, capacity)
        return True

    def has_ended(self, placement: str, generation: int) -> bool:
        return self._ended.get(placement, 0) >= generation

    def _end(self, placement: str, generation: int) -> None:
        self.intents.pop(placement, None)
        self._ended[placement] = generation
        self._ended.move_to_end(placement)
        while len(self._ended) > REMEMBERED_MAX:
            self._ended.popitem(last=False)

    def _acknowledge(self, placement: str, generation: int) -> None:
        _, known = self._acknowledged.get(placement, (0, 0))
        if generation > known:
            self._number += 1
            self._acknowledged[placement] = (self._number, generation)

    # --- to the hub --------------------------------------------------------------------------------------------------

    def is_news(self, request: PollRequest) -> bool:
        return request.boot_id != self.boot_id or self._number > request.cursor

    def is_superseded(self, request: PollRequest) -> bool:
        """Has the hub asked again since?"""
        return (request.term, request.sequence) < self._newest

    def answer(self, request: PollRequest, now: Instant, *, starting: bool) -> PollAnswer:
        """Everything newer than the hub's cursor; everything there is for a hub that knows another boot of this agent."""
        full = request.boot_id != self.boot_id
        since = 0 if full else request.cursor
        changed = sorted((number, report) for number, report in self._reports.values() if number > since)
        page = changed if full else changed[:REPORTS_PER_POLL_MAX]
        cut = len(page) < len(changed)
        cursor = page[-1][0] if cut else self._number
        acknowledged = [
            Acknowledgement(placement=placement, generation=generation)
            for placement, (number, generation) in self._acknowledged.items()
            if since < number <= cursor
        ]
        number, capacity = self._capacity
        return PollAnswer(
            wire_version=WIRE_VERSION,
            boot_id=self.boot_id,
            cursor=cursor,
            full=full,
            placements=[report for _, report in page],
            acknowledged=acknowledged,
            capacity=capacity if since < number <= cursor else None,
            agent_version=self.agent_version,
            clock=now,
            starting=starting,
        )

    def _forget(self, request: PollRequest) -> None:
        """What ended and was heard need not be kept: the hub stores an answer before it moves its cursor past it."""
        if request.boot_id != self.boot_id:
            return
        for placement, (number, report) in list(self._reports.items()):
            if report.phase in ENDED and number <= request.cursor:
                del self._reports[placement]
        for placement, (number, _) in list(self._acknowledged.items()):
            if placement not in self._reports and placement not in self.intents and number <= request.cursor:
                del self._acknowledged[placement]


def _running(intents: Iterable[Intent]) -> dict[str, int]:
    return {intent.placement: intent.generation for intent in intents if intent.action is Action.RUN}
