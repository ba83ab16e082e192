"""The agent's side of the poll protocol, without a socket."""

import itertools

import pytest

from hub.kueue.wire import (
    INTENTS_PER_POLL_MAX,
    REPORTS_PER_POLL_MAX,
    Action,
    CapacityReport,
    Intent,
    Phase,
    PlacementReport,
    PollRequest,
)
from worker_agent.exchange import Exchange

NOW = 1_000.0
SEQUENCE = itertools.count(1)


def intent(placement: str = "p1", generation: int = 1, action: Action = Action.RUN) -> Intent:
    return Intent(placement=placement, generation=generation, action=action, namespace="ns", workload="w")


def poll(*intents: Intent, boot_id: str = "", cursor: int = 0, term: int = 1, **fields) -> PollRequest:
    fields.setdefault("sequence", next(SEQUENCE))
    return PollRequest(
        cluster="east", term=term, lease_s=30, boot_id=boot_id, cursor=cursor, intents=list(intents), **fields
    )


def said(placement: str = "p1", generation: int = 1, phase: Phase = Phase.RUNNING, reason: str = "") -> PlacementReport:
    return PlacementReport(placement=placement, generation=generation, phase=phase, reason=reason)


@pytest.fixture
def exchange() -> Exchange:
    return Exchange("east", "boot-1")


@pytest.mark.parametrize(
    ("request_", "want_status", "want_words"),
    [
        pytest.param(
            poll(wire_version=0), 426, "wire versions 1 to 1", id="an older wire version is told what is spoken"
        ),
        pytest.param(poll(wire_version=9), 426, "asked for 9", id="a newer one too"),
        pytest.param(
            PollRequest(cluster="west", term=1, lease_s=1), 421, "west", id="another cluster's poll is misdirected"
        ),
        pytest.param(
            poll(*(intent(f"p{i}") for i in range(INTENTS_PER_POLL_MAX + 1))),
            413,
            "at most",
            id="too many intents at once",
        ),
    ],
)
def test_refuses(exchange: Exchange, request_: PollRequest, want_status: int, want_words: str):
    problem = exchange.refuse(request_)
    assert problem is not None
    assert (problem.status, want_words in problem.detail) == (want_status, True)


def test_a_hub_whose_term_is_over_is_refused(exchange: Exchange):
    exchange.take(poll(term=5))
    assert exchange.refuse(poll(term=5)) is None
    problem = exchange.refuse(poll(term=4))
    assert problem is not None
    assert problem.status == 409


@pytest.mark.parametrize(
    ("first", "second", "want_generation", "want_changed"),
    [
        pytest.param(intent(generation=1), intent(generation=2), 2, True, id="a newer generation replaces the old"),
        pytest.param(intent(generation=2), intent(generation=1), 2, False, id="an older one is dropped"),
        pytest.param(intent(generation=1), intent(generation=1), 1, False, id="the same one changes nothing"),
        pytest.param(
            intent(), intent(generation=2, action=Action.WITHDRAW), 2, True, id="withdraw is a newer generation"
        ),
    ],
)
def test_generation_is_the_fence(
    exchange: Exchange, first: Intent, second: Intent, want_generation: int, want_changed: bool
):
    exchange.take(poll(first))
    changed = exchange.take(poll(second))
    assert (exchange.intents["p1"].generation, bool(changed)) == (want_generation, want_changed)


def test_an_ended_placement_is_not_begun_again_by_a_late_copy_of_its_intent(exchange: Exchange):
    exchange.take(poll(intent()))
    exchange.tell(said(phase=Phase.REFUSED, reason="NoQuota"), NOW)
    assert exchange.take(poll(intent())) == set()
    assert "p1" not in exchange.intents


def test_a_withdraw_whose_answer_was_lost_is_answered_again(exchange: Exchange):
    exchange.take(poll(intent(generation=2, action=Action.WITHDRAW)))
    exchange.tell(said(generation=2, phase=Phase.GONE), NOW)
    first = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    exchange.take(poll(boot_id="boot-1", cursor=first.cursor))
    exchange.take(poll(intent(generation=2, action=Action.WITHDRAW), boot_id="boot-1", cursor=first.cursor))
    again = exchange.answer(poll(boot_id="boot-1", cursor=first.cursor), NOW, starting=False)
    assert [(r.phase, r.generation) for r in again.placements] == [(Phase.GONE, 2)]
    assert [(a.placement, a.generation) for a in again.acknowledged] == [("p1", 2)]


def test_only_what_is_newer_than_the_cursor_is_told(exchange: Exchange):
    exchange.tell(said("p1"), NOW)
    first = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    exchange.tell(said("p2"), NOW)
    second = exchange.answer(poll(boot_id="boot-1", cursor=first.cursor), NOW, starting=False)
    assert [r.placement for r in second.placements] == ["p2"]
    assert not second.full


def test_a_lost_answer_is_told_again(exchange: Exchange):
    exchange.tell(said("p1"), NOW)
    lost = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    again = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    assert again == lost


def test_a_hub_that_knows_another_boot_is_told_everything(exchange: Exchange):
    exchange.tell(said("p1"), NOW)
    exchange.tell_capacity(CapacityReport(kinds=["batch/v1, Job"]))
    answer = exchange.answer(poll(boot_id="boot-0", cursor=99), NOW, starting=False)
    assert (answer.full, [r.placement for r in answer.placements], answer.capacity is not None) == (True, ["p1"], True)


def test_the_same_word_twice_is_no_news(exchange: Exchange):
    assert exchange.tell(said(), NOW)
    assert not exchange.tell(said(), NOW + 5)
    assert exchange.tell_capacity(CapacityReport(seen_at=1.0))
    assert not exchange.tell_capacity(CapacityReport(seen_at=2.0))


def test_a_long_list_of_reports_is_cut_and_continued(exchange: Exchange):
    for i in range(REPORTS_PER_POLL_MAX + 5):
        exchange.tell(said(f"p{i}"), NOW)
    first = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    rest = exchange.answer(poll(boot_id="boot-1", cursor=first.cursor), NOW, starting=False)
    assert (len(first.placements), len(rest.placements)) == (REPORTS_PER_POLL_MAX, 5)


def test_a_request_that_was_held_up_on_its_way_undoes_nothing(exchange: Exchange):
    exchange.take(poll(sequence=7))
    problem = exchange.refuse(poll(intent(), sequence=6))
    assert problem is not None
    assert problem.status == 409
    assert exchange.refuse(poll(intent(), sequence=1, term=2)) is None, "a new term counts from the start"


def test_nothing_is_unwanted_before_the_hub_has_said_what_may_run_here(exchange: Exchange):
    exchange.take(poll(intent("p1")))
    assert not exchange.is_unwanted("p9")
    exchange.take(poll(intent("p2"), inventory={"p1": 1, "p2": 1}))
    assert (exchange.is_unwanted("p1"), exchange.is_unwanted("p9")) == (False, True)


def test_an_inventory_ends_intents_that_it_does_not_name(exchange: Exchange):
    exchange.take(poll(intent("p1"), intent("p2"), intent("p3", 2, Action.WITHDRAW)))
    changed = exchange.take(poll(inventory={"p2": 1}))
    assert (sorted(exchange.intents), changed) == (["p2", "p3"], {"p1"})


def test_an_intent_after_the_inventory_is_wanted_too(exchange: Exchange):
    exchange.take(poll(inventory={}))
    exchange.take(poll(intent("p1")))
    assert not exchange.is_unwanted("p1")


def test_memory_of_what_ended_is_given_back_once_the_hub_has_stored_it(exchange: Exchange):
    for i in range(100):
        exchange.take(poll(intent(f"p{i}")))
        exchange.tell(said(f"p{i}", phase=Phase.GONE), NOW)
    answer = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    exchange.take(poll(boot_id="boot-1", cursor=answer.cursor))
    assert exchange.answer(poll(boot_id="boot-0"), NOW, starting=False).placements == []


def test_an_end_is_known_only_when_the_hubs_cursor_has_passed_it(exchange: Exchange):
    exchange.take(poll(intent("p1")))
    exchange.tell(said("p1", phase=Phase.FINISHED), NOW)
    answer = exchange.answer(poll(boot_id="boot-1"), NOW, starting=False)
    assert not exchange.end_is_known("p1", 1), "the answer may be lost on its way"
    changed = exchange.take(poll(boot_id="boot-1", cursor=answer.cursor))
    assert (exchange.end_is_known("p1", 1), changed) == (True, {"p1"})
    assert not exchange.end_is_known("p1", 2), "of an older generation the hub has heard nothing"
