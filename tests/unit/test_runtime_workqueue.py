"""Keys that want attention: once at a time, in order, later after failures; and the controller that drains them."""

import asyncio

import pytest

from hub.kueue.runtime.controller import Controller
from hub.kueue.runtime.errors import Request, TooManyRequests
from hub.kueue.runtime.workqueue import WorkQueue


async def taken(queue: WorkQueue) -> list:
    """Everything that is ready now, in order, left in work."""
    keys = []
    while queue._urgent or queue._ready:
        keys.append(await queue.get())
    return keys


async def test_a_key_is_handed_out_once_and_urgent_ones_first():
    queue = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    queue.add("c", urgent=True)
    queue.add("b", urgent=True)
    assert await taken(queue) == ["c", "b", "a"]


async def test_a_key_added_while_in_work_comes_again_after_that():
    queue = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert await taken(queue) == []
    queue.done("a")
    assert await taken(queue) == ["a"]


async def test_of_two_delays_the_shorter_counts_and_adding_ends_the_waiting():
    queue = WorkQueue()
    queue.add_after("a", 60.0)
    queue.add_after("a", 0.001)
    queue.add_after("a", 60.0)
    async with asyncio.timeout(5):
        assert await queue.get() == "a"
    queue.done("a")
    queue.add_after("b", 60.0)
    queue.add("b")
    assert await taken(queue) == ["b"]
    assert not queue._waiting


async def test_failures_wait_longer_and_longer_until_one_goes_well():
    queue = WorkQueue(retry_min_s=1.0, retry_max_s=8.0)
    delays = [queue.retry("a") for _ in range(6)]
    for delay, most in zip(delays, (1, 2, 4, 8, 8, 8), strict=True):
        assert 0.75 * most <= delay <= most
    queue.forget("a")
    assert queue.retry("a") <= 1.0
    assert queue.retry("a", least_s=30.0) == 30.0
    queue.close()


async def test_a_closed_queue_hands_out_nothing():
    queue = WorkQueue()
    queue.add("a")
    queue.close()
    queue.add("b")
    assert await queue.get() is None


class Scripted(Controller[str]):
    """Looks at keys as the script says: an error to raise, or seconds until the next look."""

    def __init__(self, script: dict, workers: int = 2) -> None:
        super().__init__("scripted", lambda: 0.0, workers=workers, queue=WorkQueue(retry_min_s=0.001))
        self.script = script
        self.looks: list[str] = []
        self.in_work: list[str] = []
        self.most = 0
        self.begun = asyncio.Event()

    async def look_at(self, key: str) -> float | None:
        self.in_work.append(key)
        self.begun.set()
        assert len(self.in_work) == len(set(self.in_work)), "two looks at one key"
        self.most = max(self.most, len(self.in_work))
        for _ in range(3):
            await asyncio.sleep(0)
        self.in_work.remove(key)
        self.looks.append(key)
        found = self.script.get(key, [None])
        step = found.pop(0) if found else None
        if isinstance(step, Exception):
            raise step
        return step


async def drained(controller: Controller) -> None:
    async with asyncio.timeout(10):
        while len(controller.queue) or controller.queue._waiting:
            await controller.idle.wait()


@pytest.fixture
async def controller(request):
    made = Scripted(request.param)
    made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("controller", [{}], indirect=True)
async def test_several_keys_at_a_time_and_never_more_than_there_are_workers(controller):
    for key in "abcdef":
        controller.queue.add(key)
    await drained(controller)
    assert sorted(controller.looks) == list("abcdef")
    assert controller.most == 2


@pytest.mark.parametrize(
    ("controller", "want"),
    [
        pytest.param({"a": [ValueError("no"), None]}, 2, id="a failed look is taken again"),
        pytest.param({"a": [0.001, None]}, 2, id="a look that asks for another one gets it"),
        pytest.param(
            {"a": [TooManyRequests(Request(verb="get", resource="x"), "slow down", retry_after_s=0.01), None]},
            2,
            id="a server that asks to wait is waited for",
        ),
    ],
    indirect=["controller"],
)
async def test_looks_again(controller, want):
    controller.queue.add("a")
    await drained(controller)
    assert controller.looks == ["a"] * want


async def test_stopping_waits_for_what_has_begun():
    controller = Scripted({})
    controller.start()
    controller.queue.add("a")
    await controller.begun.wait()
    await controller.stop()
    assert controller.looks == ["a"]
