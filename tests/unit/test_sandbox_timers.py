import asyncio

import pytest

from hub.sandbox.timers import LoopTimers, VirtualTimers
from hub.sandbox.worklist import Worklist


def test_time_passes_only_by_hand_and_in_order():
    timers, seen = VirtualTimers(start=100), []
    timers.after(5, lambda: seen.append(("late", timers.now)))
    timers.after(1, lambda: seen.append(("early", timers.now)))
    timers.after(1, lambda: timers.after(1, lambda: seen.append(("chained", timers.now))))
    timers.soon(lambda: seen.append(("soon", timers.now)))
    assert seen == []
    timers.advance(3)
    assert seen == [("soon", 100), ("early", 101), ("chained", 102)]
    timers.advance(10)
    assert seen[3:] == [("late", 105)]
    assert timers.now == 113


def test_a_cancelled_timer_does_not_run():
    timers, seen = VirtualTimers(), []
    timers.after(1, lambda: seen.append(1)).cancel()
    timers.advance(5)
    assert (seen, timers.next_due) == ([], None)


def test_a_worklist_looks_at_a_key_once_and_keeps_the_order():
    timers, seen = VirtualTimers(), []
    worklist = Worklist(timers, seen.append)
    for key in ("a", "b", "a", "c"):
        worklist.add(key)
    timers.settle()
    assert seen == ["a", "b", "c"]


def test_of_several_later_times_the_earliest_counts():
    timers, seen = VirtualTimers(start=0), []
    worklist = Worklist(timers, lambda key: seen.append((key, timers.now)))
    worklist.add_later("a", 5)
    worklist.add_later("a", 2)
    worklist.add_later("a", 9)
    timers.advance(20)
    assert seen == [("a", 2)]


def test_a_held_worklist_takes_in_and_does_nothing():
    timers, seen = VirtualTimers(), []
    worklist = Worklist(timers, seen.append)
    worklist.hold(True)
    worklist.add("a")
    timers.advance(60)
    assert seen == []
    worklist.hold(False)
    timers.settle()
    assert seen == ["a"]


def test_a_key_that_fails_does_not_stop_the_others():
    timers, seen = VirtualTimers(), []

    def handle(key):
        seen.append(key)
        if key == "bad":
            raise RuntimeError("no")

    worklist = Worklist(timers, handle)
    for key in ("bad", "good"):
        worklist.add(key)
    with pytest.raises(RuntimeError):
        timers.settle()
    timers.settle()
    assert seen == ["bad", "good"]


async def test_on_the_loop_actions_run_by_themselves_and_failures_are_logged(caplog):
    timers, done = LoopTimers(), asyncio.Event()
    timers.after(0.01, done.set)
    timers.start()
    timers.soon(lambda: 1 / 0)
    await asyncio.wait_for(done.wait(), 5)
    timers.stop()
    assert "a simulated event failed" in caplog.text


async def test_stopped_timers_run_nothing_more():
    timers, seen = LoopTimers(), []
    timers.start()
    timers.soon(lambda: seen.append(1))
    timers.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == []
