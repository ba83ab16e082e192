"""Ledger, holes and the view of a cluster: what is free, and that nothing is subtracted twice."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.dispatch import placement as p
from hub.dispatch.capacity import Fleet, fold, view_of
from hub.dispatch.clusters import ClusterState
from hub.dispatch.decide import DispatchPolicy, Memo, decide
from hub.dispatch.holes import Holes, pack
from hub.dispatch.ledger import Account, Ledger, entries
from hub.kueue.wire import Amount, Hole
from tests.fleet_builders import GPU, make_cluster, make_offer, make_request


@pytest.mark.parametrize(
    ("holes", "gpus", "count", "want_missing", "want_holes"),
    [
        pytest.param([(8, 2)], 8, 2, 0, [(0, 2)], id="whole nodes"),
        pytest.param([(4, 2)], 8, 1, 1, [(4, 2)], id="the sum would fit, no node does"),
        pytest.param([(8, 1), (2, 1)], 2, 1, 0, [(0, 1), (8, 1)], id="the tightest node first"),
        pytest.param([(8, 3)], 3, 3, 0, [(2, 1), (5, 1), (8, 1)], id="equal nodes are split"),
        pytest.param([(8, 2)], 5, 4, 2, [(3, 2)], id="what does not fit is counted"),
        pytest.param([], 1, 1, 1, [], id="no nodes"),
        pytest.param([(8, 1)], 0, 5, 0, [(8, 1)], id="pods that ask for nothing go anywhere"),
    ],
)
def test_pack(holes, gpus, count, want_missing, want_holes):
    packed = pack(Holes.of([Hole(free={GPU: free}, nodes=nodes) for free, nodes in holes]), {GPU: gpus}, count)
    assert packed.missing == want_missing
    assert sorted((free[0], nodes) for free, nodes in packed.holes.groups.items()) == want_holes


def test_a_node_takes_only_so_many_pods():
    assert pack(Holes.of([Hole(free={"cpu": 64_000, "pods": 3})]), {"cpu": 100}, 5).missing == 2


def test_what_no_node_has_fits_nowhere():
    assert pack(Holes.of([Hole(free={"cpu": 64_000}, nodes=9)]), {"cpu": 100, GPU: 1}, 2).missing == 2


@pytest.mark.parametrize(
    ("account", "want_free"),
    [
        pytest.param(Account(capacity=8, assumed=3), 5, id="assumed counts before any report"),
        pytest.param(
            Account(capacity=8, ours=3, confirmed=3), 5, id="reported as ours and charged is one and the same"
        ),
        pytest.param(Account(capacity=8, ours=3, confirmed=3, assumed=2), 3, id="the newest offer comes on top"),
        pytest.param(Account(capacity=8, ours=4, confirmed=1), 4, id="released here, still running there"),
        pytest.param(Account(capacity=8, others=6, assumed=2), 0, id="others"),
        pytest.param(Account(capacity=4, others=3, assumed=4), 0, id="nodes that went away never make it negative"),
    ],
)
def test_free(account, want_free):
    assert account.free == want_free


def offered(name="train", *, gpus=2, now=0.0):
    cluster = make_cluster("east").flavor("h100", nodes=2, gpus=8).obj()
    request = make_request(name, gpus=gpus)
    plan = decide(request, Fleet([cluster]), [], {}, now, DispatchPolicy(), Memo())
    return make_offer(request, plan.offers[0], now=now)


def test_an_entry_is_assumed_until_the_agent_says_so_and_gone_when_it_says_so():
    placement = offered()
    admitted, _ = p.step(placement, p.Admitted(generation=1, now=1))
    withdrawn, _ = p.step(admitted, p.Withdraw(generation=1, now=2))
    gone, _ = p.step(withdrawn, p.Gone(generation=2, now=3))
    finished, _ = p.step(admitted, p.Finished(generation=1, now=2))
    assert [e.confirmed for e in entries(placement)] == [False, False]
    assert [e.confirmed for e in entries(admitted)] == [True, True]
    assert len(entries(withdrawn)) == 2, "a copy that is still stopping holds its room"
    assert entries(gone) == ()
    assert entries(finished) == (), "a finished job holds nothing"


def test_a_placement_is_counted_once_however_often_it_is_put():
    fleet = Fleet([make_cluster("east").flavor("h100", nodes=2, gpus=8).obj()])
    placement = offered(gpus=2)
    assert fleet.put(placement)
    assert not fleet.put(placement)
    assert fleet.view("east").account_of("h100", GPU).free == 14


def gpus_free(view) -> list[int]:
    """GPUs free on each node that has its own figure."""
    holes = view.flavors["h100"].holes
    return sorted(free[holes.resources.index(GPU)] for free in holes.groups)


def test_a_report_that_counts_it_changes_nothing():
    """Neither the sum nor the free room node by node is corrected twice once the report has the placement."""
    placement = offered(gpus=2)
    before = make_cluster("east").flavor("h100", nodes=2, gpus=8)
    assumed = view_of(before.obj(), Ledger([placement]).on("east"))
    report = before.obj().capacity
    flavor = msgspec.structs.replace(
        report.flavors[0],
        resources={**report.flavors[0].resources, GPU: Amount(capacity=16, ours=2)},
        holes=[Hole(free={GPU: 8, "cpu": 64_000}), Hole(free={GPU: 6, "cpu": 63_000})],
    )
    seen = msgspec.structs.replace(report, flavors=[flavor], counted=[placement.id])
    after = view_of(msgspec.structs.replace(before.obj(), capacity=seen), Ledger([placement]).on("east"))
    free = [(v.account_of("h100", GPU).free, gpus_free(v)) for v in (assumed, after)]
    assert free[0] == free[1] == (14, [6, 8])


def test_a_view_kept_up_to_date_equals_one_made_anew():
    fleet = Fleet([make_cluster("east").flavor("h100", nodes=2, gpus=8).obj()])
    fleet.view("east")
    one, two = offered("one", gpus=3), offered("two", gpus=4)
    admitted, _ = p.step(one, p.Admitted(generation=1, now=1))
    for version in (one, two, admitted):
        fleet.put(version)
    kept, anew = fleet.view("east"), view_of(fleet.clusters["east"], fleet.ledger.on("east"))
    assert kept.queues == anew.queues
    assert kept.flavors["h100"].accounts == anew.flavors["h100"].accounts
    assert kept.flavors["h100"].holes.groups == anew.flavors["h100"].holes.groups
    gone, _ = p.step(p.step(two, p.Withdraw(generation=1, now=2))[0], p.Gone(generation=2, now=3))
    fleet.put(gone)
    assert fleet.view("east").account_of("h100", GPU).free == 13


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), max_size=25))
def test_offers_never_exceed_capacity(asks):
    """Whatever is asked for in whatever order, what is offered fits: in sum, in quota and node by node (R22)."""
    clusters = [
        make_cluster("east").flavor("h100", nodes=2, gpus=8, used=3).obj(),
        make_cluster("west").flavor("h100", nodes=3, gpus=4).quota("h100", gpus=10).obj(),
    ]
    fleet, memo, placed = Fleet(clusters), Memo(), []
    for index, (gpus, pods) in enumerate(asks):
        request = make_request(f"w{index}", gpus=gpus, pods=pods)
        plan = decide(request, fleet, [], {}, 0, DispatchPolicy(), memo)
        for choice in plan.offers:
            placed.append(make_offer(request, choice))
            fleet.put(placed[-1])
    for name, most in (("east", 13), ("west", 10)):
        assert sum(c.amount for x in placed if x.cluster == name for c in x.charges if c.resource == GPU) <= most
        assert fleet.view(name).account_of("h100", GPU).free >= 0
        assert all(n >= 0 for free in fleet.view(name).flavors["h100"].holes.groups for n in free)


@given(
    st.lists(st.sampled_from(["admitted", "running", "withdraw", "gone", "finished", "evicted", "stale"]), max_size=8)
)
def test_the_ledger_follows_the_placement(words):
    """After any history the ledger holds exactly what the placement holds, whoever repeats or loses what."""
    events = {
        "admitted": p.Admitted,
        "running": p.Running,
        "gone": p.Gone,
        "finished": p.Finished,
        "evicted": p.Evicted,
    }
    placement, ledger = offered(), Ledger()
    for now, word in enumerate(words):
        kind = p.Withdraw if word == "withdraw" else events.get(word, p.Admitted)
        generation = placement.generation - 1 if word == "stale" else placement.generation
        try:
            placement, _ = p.step(placement, kind(generation=generation, now=now))
        except p.InvalidTransition:
            continue
        ledger.put(placement)
        ledger.put(placement)
        assert tuple(ledger.entries("east")) == entries(placement)


def test_people_see_age_and_stale_rows_are_left_out_of_totals():
    fresh = make_cluster("east").flavor("h100", nodes=2, gpus=8, used=3)
    fresh.capacity_at = 98.0
    old = make_cluster("west").flavor("h100", nodes=1, gpus=8).with_state(ClusterState.SUSPECT)
    old.capacity_at = 40.0
    fleet = Fleet([fresh.obj(), old.obj(), make_cluster("new").reporting(flavors=[]).obj()])
    fleet.put(offered(gpus=2))
    table = fold(fleet.views(), now=100.0, stale_after_s=10.0)
    assert [(c.cluster, c.age_s, c.stale) for c in table.clusters] == [
        ("east", 2.0, False),
        ("west", 60.0, True),
        ("new", 100.0, True),
    ]
    total = next(row for row in table.totals if row.resource == GPU)
    assert (total.capacity, total.others, total.ours, total.assumed, total.free, total.largest_hole) == (
        16,
        3,
        0,
        2,
        11,
        8,
    )
