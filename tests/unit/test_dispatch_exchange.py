"""Polls and answers: what is sent, what is dropped, and that nothing runs twice whatever gets lost, late or restarted."""

import random

import msgspec
import pytest

from hub.dispatch import placement as p
from hub.dispatch.capacity import Fleet
from hub.dispatch.clusters import Cluster, ClusterState, HealthPolicy
from hub.dispatch.decide import DispatchPolicy, Memo, decide
from hub.dispatch.exchange import ExchangePolicy, Session, fold, request_of
from hub.dispatch.losing import given_up
from hub.dispatch.placement import LIVE, State, blocks_another_start, intent_of
from hub.fleet.transport import Refused
from hub.kueue.wire import Acknowledgement, Action, CapacityReport, Phase, PlacementReport, PollAnswer
from tests.fake_agent import FakeAgent, overlapping
from tests.fleet_builders import make_cluster, make_offer, make_request

HEALTH = HealthPolicy(lease_s=20, lease_margin_s=5)
POLICY = ExchangePolicy(resend_after_s=2, inventory_every_s=1000)
EAST = Cluster(name="east", state=ClusterState.ACTIVE)
TALKING = Session(boot_id="b1", cursor=5, sequence=3, applied=3, resync=False, inventory_at=0)


def make_placement(name="train", state=State.OFFERED, **changes):

    request = make_request(name)
    fleet = Fleet([make_cluster("east").flavor("h100", nodes=2, gpus=8).obj()])
    offer = make_offer(
        request, decide(request, fleet, [], {}, 0, DispatchPolicy(), Memo()).offers[0], placement_id=name
    )
    return msgspec.structs.replace(offer, state=state, **changes)


def asked(outbox, session=TALKING, *, everything=(), now=10.0, wait_s=7.0, cluster=EAST):
    return request_of(
        cluster, outbox, everything, session, term=1, wait_s=wait_s, now=now, health=HEALTH, policy=POLICY
    )


def test_a_quiet_poll_waits_and_carries_the_lease():
    request, after = asked([])
    assert (request.wait_s, request.lease_s, request.cursor, request.sequence) == (7.0, 20, 5, 4)
    assert (request.intents, request.inventory, after.sequence) == ([], None, 4)


def test_withdrawals_go_first_and_nobody_waits_with_intents_on_board():
    stopping = make_placement("old", State.WITHDRAWN, generation=2)
    request, _ = asked([make_placement("new"), stopping])
    assert [(i.placement, i.action) for i in request.intents] == [("old", Action.WITHDRAW), ("new", Action.RUN)]
    assert request.wait_s == 0


@pytest.mark.parametrize(
    ("now", "generation", "want"),
    [(11.0, 1, []), (13.0, 1, ["train"]), (11.0, 2, ["train"])],
    ids=["just sent", "sent a while ago", "a newer intent"],
)
def test_an_unacknowledged_intent_is_sent_again(now, generation, want):
    session = msgspec.structs.replace(TALKING, sent={"train": (1, 10.0)})
    withdrawn = make_placement(state=State.WITHDRAWN, generation=generation)
    assert [i.placement for i in asked([withdrawn], session, now=now)[0].intents] == want


def test_after_a_restart_the_inventory_names_what_may_run_and_withdrawals_are_repeated():
    running = make_placement("running", State.RUNNING, acknowledged=1)
    stopping = make_placement("stopping", State.WITHDRAWN, generation=2, acknowledged=2)
    session = msgspec.structs.replace(TALKING, resync=True)
    request, _ = asked([], session, everything=[running, stopping])
    assert request.inventory == {"running": 1}
    assert [i.placement for i in request.intents] == ["stopping"], "an acknowledged Run is never sent again"


def answered(answer, placements=(), session=TALKING, *, sequence=4, cluster=EAST, inventory=None):
    request = msgspec.structs.replace(asked([], session, cluster=cluster)[0], sequence=sequence, inventory=inventory)
    known = {x.id: x for x in placements}
    return fold(cluster, known, placements, request, answer, session, now=20.0, health=HEALTH)


def report(phase, placement="train", generation=1, **fields):
    return PlacementReport(placement=placement, generation=generation, phase=phase, **fields)


def test_reports_and_acknowledgements_move_placements():
    answer = PollAnswer(
        boot_id="b1",
        cursor=6,
        placements=[report(Phase.ADMITTED), report(Phase.RUNNING)],
        acknowledged=[Acknowledgement(placement="train", generation=1)],
    )
    folded = answered(answer, [make_placement()])
    (change,) = folded.changes
    assert (change.after.state, change.after.acknowledged, folded.session.cursor) == (State.RUNNING, 1, 6)
    assert [type(i) for i in change.instructions] == [p.Record, p.Mirror, p.Record, p.Mirror]


@pytest.mark.parametrize(
    ("answer", "sequence"),
    [
        pytest.param(
            PollAnswer(boot_id="b1", cursor=9, placements=[report(Phase.EVICTED)]), 3, id="to an older request"
        ),
        pytest.param(
            PollAnswer(boot_id="b1", cursor=4, placements=[report(Phase.EVICTED)]), 4, id="with an older cursor"
        ),
    ],
)
def test_late_answers_are_dropped(answer, sequence):
    folded = answered(answer, [make_placement(state=State.RUNNING)], sequence=sequence)
    assert (folded.dropped, folded.changes, folded.session) == (True, (), TALKING)


def test_a_full_answer_tells_what_is_missing():
    placements = [
        make_placement("seen", State.RUNNING, acknowledged=1),
        make_placement("vanished", State.RUNNING, acknowledged=1),
        make_placement("on-its-way", State.OFFERED),
        make_placement("stopped", State.WITHDRAWN, generation=2, acknowledged=2),
    ]
    full = PollAnswer(boot_id="b2", cursor=1, full=True, placements=[report(Phase.RUNNING, "seen")])
    folded = answered(full, placements)
    after = {c.after.id: (c.after.state, c.after.released) for c in folded.changes if c.after.id != "seen"}
    assert after == {"vanished": (State.EVICTED, False), "stopped": (State.WITHDRAWN, True)}
    assert (folded.session.boot_id, folded.session.resync) == ("b2", True)


def test_nothing_is_concluded_from_an_agent_that_is_starting():
    answer = PollAnswer(boot_id="b2", cursor=1, full=True, starting=True)
    folded = answered(answer, [make_placement(state=State.RUNNING, acknowledged=1)])
    assert (folded.changes, folded.session.boot_id, folded.cluster.last_contact_at) == ((), "b1", 20.0)


def test_an_unknown_copy_is_withdrawn_until_it_is_gone():
    folded = answered(PollAnswer(boot_id="b1", cursor=6, placements=[report(Phase.RUNNING, "who", 4)]))
    request, _ = asked([], folded.session)
    assert [(i.placement, i.generation, i.action) for i in request.intents] == [("who", 5, Action.WITHDRAW)]
    assert "east runs placement who" in folded.problems[0]
    gone = answered(
        PollAnswer(boot_id="b1", cursor=7, placements=[report(Phase.GONE, "who", 5)]),
        session=folded.session,
        sequence=5,
    )
    assert gone.session.strays == {}


def test_a_copy_that_was_released_and_runs_again_is_withdrawn_and_told():
    refused = make_placement(state=State.REFUSED, released=True)
    folded = answered(PollAnswer(boot_id="b1", cursor=6, placements=[report(Phase.RUNNING)]), [refused])
    assert folded.changes == ()
    assert "placement train of workload team-a/train on east" in folded.problems[0]
    assert list(folded.session.strays) == ["train"]


def test_capacity_is_stored_when_it_comes_and_confirmed_when_it_does_not():
    capacity = make_cluster("east").flavor("h100", nodes=1, gpus=8).obj().capacity
    first = answered(PollAnswer(boot_id="b1", cursor=6, capacity=capacity))
    again = answered(
        PollAnswer(boot_id="b1", cursor=6), cluster=msgspec.structs.replace(first.cluster, capacity_at=1.0)
    )
    assert (first.cluster.capacity, again.cluster.capacity_at) == (capacity, 20.0)


@pytest.mark.parametrize(
    ("policy", "state", "cluster_fields", "now", "want"),
    [
        pytest.param("Wait", State.RUNNING, {}, 999, [], id="wait: never by itself"),
        pytest.param(
            "Wait", State.RUNNING, {"reason": "DeclaredLost"}, 0, ["train"], id="wait: the operator knows better"
        ),
        pytest.param("MoveNow", State.RUNNING, {}, 0, ["train"], id="move now"),
        pytest.param("MoveNow", State.FINISHED, {}, 0, [], id="finished stays finished"),
        pytest.param("FenceThenMove", State.RUNNING, {}, 124.9, [], id="fence: the lease may still run"),
        pytest.param("FenceThenMove", State.RUNNING, {}, 125, ["train"], id="fence: lease and margin are over"),
        pytest.param("FenceThenMove", State.WITHDRAWN, {}, 125, ["train"], id="nobody waits for its word any more"),
        pytest.param(
            "FenceThenMove", State.RUNNING, {"capacity": CapacityReport()}, 999, [], id="fence: an agent without one"
        ),
        pytest.param("MoveNow", State.RUNNING, {"state": ClusterState.SUSPECT}, 999, [], id="not lost yet"),
    ],
)
def test_what_a_lost_clusters_work_does(policy, state, cluster_fields, now, want):
    lost = {"name": "east", "state": ClusterState.LOST, "failing_since": 100.0, "capacity": CapacityReport(fences=True)}
    cluster = Cluster(**(lost | cluster_fields))
    placement = make_placement(state=state)
    placement = msgspec.structs.replace(placement, intent=msgspec.structs.replace(placement.intent, lost_policy=policy))
    assert [x.id for x, _ in given_up(cluster, [placement], HEALTH, now)] == want


# --- hub and agent, with everything that can go wrong between them -----------------------------------------------------


class Hub:
    """The hub's side in memory: what the loops do with these decisions, for one workload and two clusters."""

    def __init__(self) -> None:
        self.now = 0.0
        self.term = 1
        self.placements: dict[str, p.Placement] = {}
        self.agents = {name: FakeAgent(name, clock=lambda: self.now) for name in ("east", "west")}
        self.sessions = {name: Session() for name in self.agents}
        self.held: list = []
        self.held_reply: tuple | None = None

    def live(self):
        return [x for x in self.placements.values() if x.state in LIVE]

    def offer(self, cluster):
        past = list(self.placements.values())
        if not any(blocks_another_start(x) for x in past):
            made = make_placement(f"p{len(past)}")
            generation = max([x.generation for x in past], default=0) + 1
            intent = msgspec.structs.replace(made.intent, generation=generation, workload="train")
            self.placements[made.id] = msgspec.structs.replace(
                made, cluster=cluster, generation=generation, intent=intent
            )

    def withdraw(self):
        for x in self.live():
            self.placements[x.id] = p.step(x, p.Withdraw(generation=x.generation, now=self.now))[0]

    def request(self, name):
        mine = [x for x in self.placements.values() if x.cluster == name and not x.released]
        outbox = [x for x in mine if x.acknowledged < x.generation and intent_of(x)]
        request, self.sessions[name] = request_of(
            Cluster(name=name, state=ClusterState.ACTIVE),
            outbox,
            mine,
            self.sessions[name],
            term=self.term,
            wait_s=0,
            now=self.now,
            health=HEALTH,
            policy=ExchangePolicy(resend_after_s=0),
        )
        return request

    def deliver(self, name, request, *, reply=True):
        agent = self.agents[name]
        try:
            agent.take(request)
        except Refused:
            return
        if reply:
            self.fold(name, request, agent.answer(request))

    def fold(self, name, request, answer):
        mine = [x for x in self.placements.values() if x.cluster == name and not x.released]
        cluster = Cluster(name=name, state=ClusterState.ACTIVE)
        folded = fold(cluster, self.placements, mine, request, answer, self.sessions[name], now=self.now, health=HEALTH)
        self.sessions[name] = folded.session
        for change in folded.changes:
            self.placements[change.after.id] = change.after

    def restart(self):
        self.term += 1
        self.held_reply = None  # it was on its way to a process that is no more
        self.sessions = {name: Session() for name in self.agents}

    def do(self, word, name):
        agent = self.agents[name]
        copies = [k for k, c in agent.copies.items() if not c.withdrawing]
        running = [k for k in copies if agent.copies[k].phase is Phase.RUNNING]
        match word:
            case "offer":
                self.offer(name)
            case "withdraw":
                self.withdraw()
            case "poll":
                self.deliver(name, self.request(name))
            case "lose request":
                self.request(name)
            case "lose reply":
                self.deliver(name, self.request(name), reply=False)
            case "hold request":
                self.held.append((name, self.request(name)))
            case "late request":
                if self.held:
                    late, request = self.held.pop(0)
                    self.deliver(late, request, reply=request.term == self.term)
            case "hold reply":
                request = self.request(name)
                agent.take(request)
                self.held_reply = (name, request, agent.answer(request))
            case "late reply":
                if self.held_reply:
                    self.fold(*self.held_reply)
            case "restart agent":
                agent.restart()
                self.held = [h for h in self.held if h[0] != name]  # its connections are gone with it
            case "restart hub":
                self.restart()
            case "finish" if running:
                agent.finish(running[0])
            case "evict" if running:
                agent.evict(running[0])
            case "delete objects" if copies:
                agent.lose(copies[0])
            case "slow":
                agent.slow_to_stop = True
            case "fast":
                agent.slow_to_stop = False
            case "settle":
                for k in [k for k, c in agent.copies.items() if c.withdrawing]:
                    agent.settle(k)
        self.now += 1


WEIGHTS = {
    "offer": 6, "withdraw": 3, "poll": 10, "lose request": 2, "lose reply": 3, "hold request": 3, "late request": 3,
    "hold reply": 2, "late reply": 2, "restart agent": 1, "restart hub": 1, "finish": 1, "evict": 1, "delete objects": 1,
    "slow": 2, "settle": 2, "fast": 1,
}  # fmt: skip


def story(seed, steps):
    """What happens, at random but the same for the same seed."""
    chance = random.Random(seed)
    words = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=steps)
    return [(word, chance.choice(["east", "west"])) for word in words]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_runs_twice_and_everything_settles(seed):
    hub = Hub()
    for number, (word, name) in enumerate(story(seed, 250)):
        hub.do(word, name)
        runs = [r for agent in hub.agents.values() for r in agent.runs]
        assert overlapping(runs) == [], f"after step {number}: {word} {name}"
        assert len(hub.live()) <= 1
        if any(x.state is State.FINISHED for x in hub.placements.values()):
            before = len(hub.placements)
            hub.offer("east")
            assert len(hub.placements) == before, "a finished job is never started again"
            break
    hub.withdraw()
    for _ in range(6):
        for name, agent in hub.agents.items():
            agent.slow_to_stop = False
            hub.do("settle", name)
            hub.do("poll", name)
    assert [x for x in hub.placements.values() if not x.released] == []
    assert [c for agent in hub.agents.values() for c in agent.copies] == [], "no orphan is left"


def test_the_stories_are_long_enough_to_mean_something():
    hubs = []
    for seed in range(20):
        hub = Hub()
        for word, name in story(seed, 250):
            hub.do(word, name)
        hubs.append(hub)
    assert sum(len(h.placements) for h in hubs) > 100
    assert sum(len(a.runs) for h in hubs for a in h.agents.values()) > 70
