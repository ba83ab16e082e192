"""The life of one placement: table rows, the diagram in the docstring, and what must hold for any order of events."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.dispatch import placement as p
from hub.dispatch.placement import LIVE, State, step
from hub.kueue.api.meta import ObjectKey
from hub.kueue.wire import Action, Intent, Phase, PlacementReport

KEY = ObjectKey("team-a", "job-train")


def make_placement(state: State = State.OFFERED, *, generation: int = 1, released: bool = False) -> p.Placement:
    intent = Intent(
        placement="p1", generation=generation, action=Action.RUN, namespace="team-a", workload="job-train", job={"a": 1}
    )
    return p.Placement(
        id="p1",
        workload=KEY,
        workload_uid="u1",
        cluster="east",
        generation=generation,
        state=state,
        intent=intent,
        charges=(p.Charge(flavor="h100", resource="nvidia.com/gpu", amount=8),),
        released=released,
    )


def kinds(instructions) -> list[type]:
    return [type(i) for i in instructions]


@pytest.mark.parametrize(
    ("given_placement", "event", "want_state", "want_generation", "want_released"),
    [
        pytest.param(
            make_placement(), p.Admitted(generation=1, now=5), State.ADMITTED, 1, False, id="the agent's yes confirms"
        ),
        pytest.param(
            make_placement(), p.Finished(generation=1, now=5), State.FINISHED, 2, False, id="the first report may be the last"
        ),
        pytest.param(
            make_placement(), p.Refused(generation=1, now=5), State.REFUSED, 1, True, id="a refusal leaves nothing behind"
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Evicted(generation=1, now=5), State.EVICTED, 2, False,
            id="evicted on the worker is withdrawn there before anything else",
        ),
        pytest.param(
            make_placement(State.ADMITTED), p.Pending(generation=1, now=5), State.EVICTED, 2, False,
            id="pending after admitted is an eviction between two polls",
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Admitted(generation=1, now=5), State.RUNNING, 1, False,
            id="pods that are being replaced do not turn Running back",
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Missing(generation=1, now=5), State.EVICTED, 2, False,
            id="missing from a complete inventory is withdrawn, and waits for the agent's word",
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Gone(generation=1, now=5), State.EVICTED, 2, True,
            id="gone while it should run is over and released",
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Withdraw(generation=1, now=5), State.WITHDRAWN, 2, False,
            id="withdrawn while running is not released before the agent says so",
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2), p.Running(generation=2, now=5), State.WITHDRAWN, 2, False,
            id="still stopping",
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2), p.Gone(generation=2, now=5), State.WITHDRAWN, 2, True,
            id="gone releases",
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2), p.Finished(generation=2, now=5), State.FINISHED, 2, False,
            id="finished before the withdrawal reached it stays finished",
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2), p.ClusterLost(generation=2, now=5), State.LOST, 2, False,
            id="nobody waits for a lost cluster's word, but it is not released either",
        ),
        pytest.param(
            make_placement(State.FINISHED, generation=2), p.ClusterLost(generation=2, now=5), State.FINISHED, 2, False,
            id="finished stays finished when its cluster is lost",
        ),
        pytest.param(
            make_placement(State.OFFERED, generation=3), p.Admitted(generation=2, now=5), State.OFFERED, 3, False,
            id="a stale report changes nothing",
        ),
        pytest.param(
            make_placement(State.RUNNING, generation=3), p.Running(generation=7, now=5), State.EVICTED, 8, False,
            id="a generation that was never given is out-numbered and withdrawn",
        ),
    ],
)  # fmt: skip
def test_step(given_placement, event, want_state, want_generation, want_released):
    after, _ = step(given_placement, event)
    assert (after.state, after.generation, after.released) == (want_state, want_generation, want_released)


@pytest.mark.parametrize(
    ("given_placement", "event", "want_instructions"),
    [
        pytest.param(make_placement(), p.Admitted(generation=1, now=5), [p.Record, p.Mirror], id="admitted is told"),
        pytest.param(
            make_placement(), p.Refused(generation=1, now=5), [p.Record, p.Mirror, p.DispatchAgain], id="refused: next cluster"
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Finished(generation=1, now=5),
            [p.Record, p.Send, p.Mirror, p.DispatchAgain], id="finished: withdraw the copy, and the room is free",
        ),
        pytest.param(
            make_placement(State.RUNNING), p.Withdraw(generation=1, now=5),
            [p.Record, p.Send, p.Mirror, p.DispatchAgain], id="withdrawn: tell the agent",
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2), p.Gone(generation=2, now=5),
            [p.Mirror, p.DispatchAgain], id="released: offer it elsewhere",
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2), p.Running(generation=2, now=5), [], id="still stopping is no news"
        ),
    ],
)  # fmt: skip
def test_step_says_what_follows(given_placement, event, want_instructions):
    assert kinds(step(given_placement, event)[1]) == want_instructions


def test_the_first_report_keeps_the_times_apart():
    admitted, _ = step(make_placement(), p.Admitted(generation=1, now=5))
    running, _ = step(admitted, p.Running(generation=1, now=7, job_status={"active": 1}))
    later, _ = step(running, p.Running(generation=1, now=9))
    assert (later.admitted_at, later.running_at, later.job_status) == (5, 7, {"active": 1})
    assert later.confirmed


def test_an_acknowledgement_never_goes_back():
    once, _ = step(make_placement(generation=2), p.Acknowledged(generation=2, now=5))
    again, _ = step(once, p.Acknowledged(generation=1, now=6))
    assert again.acknowledged == 2


@pytest.mark.parametrize(
    ("given_placement", "event"),
    [
        pytest.param(
            make_placement(State.REFUSED, released=True), p.Admitted(generation=1, now=5), id="no, and then yes"
        ),
        pytest.param(
            make_placement(State.WITHDRAWN, generation=2, released=True),
            p.Running(generation=2, now=5),
            id="gone, and then there",
        ),
    ],
)
def test_an_impossible_event_tells_the_story(given_placement, event):
    with pytest.raises(p.InvalidTransition, match=r"placement p1 of workload team-a/job-train on east, attempt 1"):
        step(given_placement, event)


def test_the_docstring_shows_the_table():
    drawn = [line.strip() for line in (p.__doc__ or "").splitlines()]
    assert [line.strip() for line in p.diagram().splitlines() if line.strip() not in drawn] == []


def test_every_row_goes_where_it_says():
    for (state, kind), row in p.TRANSITIONS.items():
        after, _ = step(make_placement(state), kind(generation=1, now=5))
        assert after.state is row.to, f"{state} + {kind.__name__}"


def test_every_phase_has_an_event():
    for phase in Phase:
        report = PlacementReport(placement="p1", generation=4, phase=phase, reason="R", message="m")
        event = p.event_of(report, now=5)
        assert (type(event).__name__, event.generation, event.reason) == (phase.value, 4, "R")


@pytest.mark.parametrize(
    ("given_placement", "want_action"),
    [
        pytest.param(make_placement(State.RUNNING), Action.RUN, id="live: run"),
        pytest.param(make_placement(State.FINISHED), Action.WITHDRAW, id="finished: clean up"),
        pytest.param(make_placement(State.LOST), Action.WITHDRAW, id="lost: stop it when the cluster returns"),
        pytest.param(make_placement(State.EVICTED, released=True), None, id="released: nothing to do"),
        pytest.param(make_placement(State.REFUSED, released=True), None, id="refused: nothing was left there"),
    ],
)
def test_intent_follows_from_the_state(given_placement, want_action):
    intent = p.intent_of(given_placement)
    assert (intent and intent.action) == want_action
    assert intent is None or intent.action is Action.RUN or not intent.job, "a withdrawal carries no manifest"


@pytest.mark.parametrize(
    ("given_placement", "want"),
    [
        pytest.param(make_placement(State.OFFERED), True, id="live"),
        pytest.param(make_placement(State.WITHDRAWN), True, id="still stopping"),
        pytest.param(make_placement(State.WITHDRAWN, released=True), False, id="gone"),
        pytest.param(make_placement(State.REFUSED, released=True), False, id="refused"),
        pytest.param(make_placement(State.LOST), False, id="lost, which the policy allowed"),
        pytest.param(make_placement(State.FINISHED, released=True), True, id="finished is never started again"),
    ],
)
def test_what_blocks_another_start(given_placement, want):
    assert p.blocks_another_start(given_placement) is want


EVENTS = (*p.REPORTED.values(), p.Missing, p.Withdraw, p.ClusterLost, p.Acknowledged)


@st.composite
def histories(draw):
    return draw(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 6)), max_size=12))


@given(histories())
def test_any_order_of_events(history):
    """Generation and release never go back, a stale event changes nothing, and what ended never lives again."""
    placement = make_placement()
    for now, (kind, generation) in enumerate(history):
        try:
            after, instructions = step(placement, kind(generation=generation, now=now))
        except p.InvalidTransition:
            continue
        assert after.generation >= placement.generation
        assert after.acknowledged >= placement.acknowledged
        if generation < placement.generation:
            assert (after, instructions) == (placement, ())
        if placement.state not in LIVE:
            assert after.state not in LIVE
        if placement.released and generation == placement.generation:
            assert after.released
        if (p.intent_of(after) or placement.intent).action is not (p.intent_of(placement) or placement.intent).action:
            assert after.generation > placement.generation or after.released, "a change of intent has a new generation"
        placement = after


def test_history_is_written_only_when_the_state_changes():
    running = msgspec.structs.replace(make_placement(State.RUNNING), reason="", message="")
    after, instructions = step(running, p.Running(generation=1, now=5, job_status={"active": 3}))
    assert (after.job_status, kinds(instructions)) == ({"active": 3}, [p.Mirror])
    assert step(after, p.Running(generation=1, now=6, job_status={"active": 3}))[1] == ()
