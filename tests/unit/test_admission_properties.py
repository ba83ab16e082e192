"""What must hold for every cluster, whatever it looks like and whatever happens to it."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.kueue.admission.config import Queue
from hub.kueue.admission.flavors import Fine, Grade, is_preferred
from hub.kueue.admission.quota import Cell, Node, add_usage, available, refresh, remove_usage
from hub.kueue.admission.what_if import WhatIf
from tests.admission_builders import Cluster

SEEDS = range(12)


def random_cluster(seed: int, *, rules: str = "hub") -> tuple[Cluster, random.Random]:
    """Queues in a tree of cohorts with every policy there is, and workloads that want more than there is."""
    dice = random.Random(seed)
    c = Cluster(fair=[] if seed % 3 == 0 else None, rules=rules)
    c.cohort("root")
    for name in ("left", "right"):
        c.cohort(name, "root", cpu=dice.choice([None, 2, (3, None, 1)]))
    for i in range(6):
        limits = dice.choice([4, (4, 3, None), (4, None, 2), (4, 0, 0)])
        c.queue(
            f"q{i}",
            dice.choice(["left", "right", "root"]),
            limits,
            queueingStrategy=dice.choice(["StrictFIFO", "BestEffortFIFO"]),
            preemption={
                "withinClusterQueue": dice.choice(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
                "reclaimWithinCohort": dice.choice(["LowerPriority", "Any"]),
                "borrowWithinCohort": {"policy": dice.choice(["Never", "LowerPriority"])},
            },
            fairSharing={"weight": dice.choice(["0", "1", "3"])},
        )
    return c, dice


def submit_some(c: Cluster, dice: random.Random, count: int, start: int = 0) -> None:
    for i in range(start, start + count):
        c.submit(
            f"w{i:03d}", f"q{dice.randrange(6)}", dice.choice([1, 2, 3, 5]), priority=dice.choice([0, 0, 5, 9]), at=i
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_with_nothing_arriving_every_state_comes_to_rest(seed: int) -> None:
    c, dice = random_cluster(seed)
    for step in range(4):
        submit_some(c, dice, 8, 8 * step)
        c.settle(limit=200)
        for name in sorted(c.admitted())[: dice.randrange(4)]:
            c.finish(name)
    c.settle(limit=200)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_quota_is_ever_above_its_limit(seed: int) -> None:
    c, dice = random_cluster(seed)
    submit_some(c, dice, 30)
    for _ in range(20):
        c.cycle()  # validates that usage is what is admitted
        for queue in c.engine.config.queues.values():
            assert all(available(cell) >= 0 for cell in queue.cells.values()), queue.name
            for cell in queue.cells.values():
                assert cell.borrowing_limit is None or cell.usage <= cell.nominal + cell.borrowing_limit
        for cell in c.engine.config.forest.cohorts["root"].cells.values():
            assert cell.usage <= cell.subtree


@pytest.mark.parametrize("seed", SEEDS)
def test_a_strict_queue_serves_equal_priorities_in_order_of_time(seed: int) -> None:
    dice = random.Random(seed)
    c = Cluster()
    c.queue("q", cpu=3, queueingStrategy="StrictFIFO")
    for i in range(8):
        c.submit(f"w{i}", "q", dice.choice([1, 2, 3]), at=i)
    served: list[str] = []
    for _ in range(40):
        served += [name for name, outcome in c.cycle().items() if outcome == "admitted"]
        if running := sorted(c.admitted() - c.world.finished):
            c.finish(dice.choice(running))
    assert served == [f"w{i}" for i in range(8)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_events_in_one_instant_does_not_matter(seed: int) -> None:
    def outcome(shuffle: int) -> dict[str, Any]:
        c, dice = random_cluster(seed)
        names = list(range(16))
        plan = [(i, dice.randrange(6), dice.choice([1, 2, 3, 5]), dice.choice([0, 5, 9])) for i in names]
        random.Random(shuffle).shuffle(plan)
        for i, queue, cpu, priority in plan:
            c.submit(f"w{i:03d}", f"q{queue}", cpu, priority=priority, at=i)
        c.settle(limit=200)
        return {name: c.flavors(name) for name in sorted(c.admitted())}

    assert outcome(1) == outcome(2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restart_forgets_nothing(seed: int) -> None:
    c, dice = random_cluster(seed)
    submit_some(c, dice, 20)
    c.settle(limit=200)
    again, _ = random_cluster(seed)
    for workload in c.world.workloads.values():
        again.world.change(workload)
    again.engine.validate()
    assert again.admitted() == c.admitted()
    assert {q: cells(again, q) for q in again.engine.config.queues} == {q: cells(c, q) for q in c.engine.config.queues}
    again.settle(limit=200)
    assert again.admitted() == c.admitted()


def cells(c: Cluster, queue: str) -> dict[Any, int]:
    return {key: cell.usage for key, cell in c.engine.config.queues[queue].cells.items()}


# --- quota and what-if -------------------------------------------------------------------------------------------------------

amounts = st.integers(min_value=0, max_value=12)
limits = st.none() | amounts


@st.composite
def trees(draw: st.DrawFn) -> tuple[Node, list[Cell]]:
    """A root with two cohorts and four queues, one resource. Returns the root and the cells of the queues."""
    root = Node("root", is_cohort=True)
    queues: list[Cell] = []
    for c in range(2):
        cohort = Node(f"c{c}", is_cohort=True)
        cohort.parent = root
        root.cohorts.append(cohort)
        for q in range(2):
            queue = Queue(f"q{c}{q}", hashing=True)
            queue.parent = cohort
            cohort.queues.append(queue)
            queues.append(_limited(draw, queue))
        _limited(draw, cohort)
    refresh(root)
    return root, queues


def _limited(draw: st.DrawFn, node: Node) -> Cell:
    cell = node.cells["f", "cpu"] = Cell(node, ("f", "cpu"))
    cell.nominal, cell.named = draw(amounts), True
    cell.borrowing_limit, cell.lending_limit = draw(limits), draw(limits)
    return cell


def picture(root: Node) -> list[int]:
    nodes = [root, *root.cohorts, *(q for c in root.cohorts for q in c.queues)]
    return [node.cells["f", "cpu"].usage for node in nodes]


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.tuples(st.integers(0, 3), amounts), max_size=12), st.randoms(use_true_random=False))
def test_removing_usage_in_any_order_undoes_adding_it(
    tree: tuple[Node, list[Cell]], uses: list[Any], dice: random.Random
) -> None:
    root, queues = tree
    before = picture(root)
    for i, amount in uses:
        add_usage(queues[i], amount)
    dice.shuffle(uses)
    for i, amount in uses:
        remove_usage(queues[i], amount)
    assert picture(root) == before


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.tuples(st.integers(0, 3), amounts), max_size=8))
def test_undoing_a_what_if_restores_every_cell(tree: tuple[Node, list[Cell]], uses: list[Any]) -> None:
    root, queues = tree
    add_usage(queues[0], 3)
    before = picture(root)
    with WhatIf() as trial:
        trial.charge({})
        for i, amount in uses:
            trial.charge({queues[i]: amount})
    assert picture(root) == before


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8), st.integers(0, 3))
def test_available_is_the_most_that_may_be_added(tree: tuple[Node, list[Cell]], uses: list[Any], at: int) -> None:
    root, queues = tree
    for i, amount in uses:
        if available(queues[i]) >= amount:
            add_usage(queues[i], amount)
    room = max(0, available(queues[at]))
    assert allowed(root, queues[at], room)
    assert not allowed(root, queues[at], room + 1)


def allowed(root: Node, cell: Cell, amount: int) -> bool:
    """Brute force: with that much more, is every node within its quota plus what it may borrow?"""
    add_usage(cell, amount)
    nodes = [root, *root.cohorts, *(q for c in root.cohorts for q in c.queues)]
    found = [n.cells["f", "cpu"] for n in nodes]
    ok = found[0].usage <= found[0].subtree and all(
        c.borrowing_limit is None or c.usage <= c.subtree + c.borrowing_limit for c in found[1:]
    )
    remove_usage(cell, amount)
    return ok


grades = st.builds(Grade, st.sampled_from(list(Fine)), st.integers(0, 3))


@given(grades, grades, grades, st.booleans())
def test_preference_between_flavors_is_an_order(a: Grade, b: Grade, c: Grade, less: bool) -> None:
    assert not (is_preferred(a, b, less_borrowing=less) and is_preferred(b, a, less_borrowing=less))
    if is_preferred(a, b, less_borrowing=less) and is_preferred(b, c, less_borrowing=less):
        assert is_preferred(a, c, less_borrowing=less)
