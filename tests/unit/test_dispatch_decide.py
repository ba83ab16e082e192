"""Where a workload is offered, in which words it waits, and what is said about one that can never run."""

import msgspec
import pytest

from hub.dispatch import placement as p
from hub.dispatch.capacity import Fleet
from hub.dispatch.clusters import ClusterState
from hub.dispatch.decide import DispatchPolicy, Memo, Outcome, decide
from hub.dispatch.filters import RetryPolicy
from hub.dispatch.scores import ScorePolicy, faded
from hub.kueue.api.core import Toleration
from hub.kueue.wire import QueueCapacity
from tests.fleet_builders import GPU, make_cluster, make_offer, make_request

POLICY = DispatchPolicy(retry=RetryPolicy(base_s=10, max_s=60))


def decided(request, clusters, *, past=(), failures=None, now=100.0, policy=POLICY):
    return decide(request, Fleet(clusters), list(past), failures or {}, now, policy, Memo())


def east(**flavor):
    return make_cluster("east").flavor("h100", **({"nodes": 2, "gpus": 8} | flavor))


@pytest.mark.parametrize(
    ("request_fields", "cluster", "want_rule", "want_words"),
    [
        pytest.param({"configured": ("west",)}, None, "registered", "in the config, but not registered", id="config names another"),
        pytest.param({"wanted": ("west",)}, east(), "allowed", "the workload asks for west", id="the user wants another"),
        pytest.param({}, east().with_state(ClusterState.CORDONED), "accepts_new_work", "cordoned", id="cordoned"),
        pytest.param({}, east().with_state(ClusterState.SUSPECT), "accepts_new_work", "does not answer", id="suspect"),
        pytest.param({}, east().taint("spot"), "tolerates_taints", "cluster taint spot:NoSchedule", id="cluster taint"),
        pytest.param({"kind": "ray.io/v1, RayJob"}, east(), "serves_kind", "does not serve ray.io/v1, RayJob", id="kind (R24)"),
        pytest.param({}, east().reporting(namespaces=["x"]), "namespace_there", "namespace team-a does not exist", id="namespace"),
        pytest.param({"local_queue": "other"}, east(), "local_queue_there", "LocalQueue team-a/other", id="local queue"),
        pytest.param(
            {"local_queue": "other", "cluster_queue": "none"}, east().reporting(creates_local_queues=True),
            "local_queue_there", "no ClusterQueue none", id="a local queue may be created, but points nowhere",
        ),
        pytest.param(
            {}, east().reporting(queues=[QueueCapacity(name="cq", active=False, reason="Stopped")]),
            "local_queue_there", "ClusterQueue cq is not active: Stopped", id="stopped cluster queue",
        ),
        pytest.param({"flavor": "a100"}, east(), "flavors_there", "no flavor a100", id="flavor (R1)"),
        pytest.param({"gpus": 8}, east(used=9), "room_by_flavor", "flavor h100 has 7 of 16 nvidia.com/gpu free, 8 needed", id="sum"),
        pytest.param(
            {"gpus": 8, "pods": 1}, east(nodes=2, used=1).flavor("x", nodes=1, gpus=8), None, "", id="one node is still whole"
        ),
        pytest.param(
            {"gpus": 5, "pods": 3}, east(), "room_on_nodes",
            "room for 2 of 3 pods of pod set main (5 nvidia.com/gpu, 1 cpu each); the largest hole is 8 nvidia.com/gpu, 64 cpu",
            id="holes, node by node",
        ),
        pytest.param(
            {"gpus": 4}, east().quota("h100", gpus=16, available=3), "quota_on_worker",
            "ClusterQueue cq has 3 of 16 nvidia.com/gpu of its quota of h100 left, 4 needed", id="worker quota",
        ),
    ],
)  # fmt: skip
def test_each_filter_says_why(request_fields, cluster, want_rule, want_words):
    whole = make_cluster("whole").flavor("h100", nodes=8, gpus=8).flavor("a100", nodes=8, gpus=8)
    possible = whole.reporting(kinds=["batch/v1, Job", "ray.io/v1, RayJob"]).with_state(ClusterState.CORDONED)
    clusters = [c.obj() for c in (cluster, possible) if c]
    plan = decided(make_request(**request_fields), clusters)
    verdict = next(v for v in plan.record.verdicts if v.cluster != "whole")
    assert want_words in verdict.why
    assert verdict.rule == (want_rule or "")


def test_a_missing_namespace_and_queue_may_be_created():
    cluster = east().reporting(namespaces=[], local_queues=[], creates_namespaces=True, creates_local_queues=True)
    assert decided(make_request(), [cluster.obj()]).offers[0].queue == "cq"


def test_a_created_queue_falls_back_to_the_default_cluster_queue():
    cluster = east().reporting(local_queues=[], creates_local_queues=True, default_cluster_queue="cq")
    assert decided(make_request(cluster_queue="team-queue"), [cluster.obj()]).offers[0].queue == "cq"


def test_a_flavor_is_found_by_its_node_labels_and_charged_under_the_workers_name():
    labels = {"gpu": "h100"}
    cluster = make_cluster("east").flavor("hopper", nodes=1, gpus=8, labels=labels).obj()
    plan = decided(make_request(flavor="h100", flavor_labels={"h100": labels}), [cluster])
    assert plan.offers[0].pod_sets[0].flavors == {GPU: "hopper", "cpu": "hopper"}
    assert {c.flavor for c in plan.offers[0].charges} == {"hopper"}


def test_tolerated_taints_do_not_object():
    spot = make_request(tolerations=(Toleration(key="spot", operator="Exists"),))
    assert decided(spot, [east().taint("spot").obj()]).offers


@pytest.mark.parametrize(
    ("clusters", "request_fields", "policy", "failures", "want"),
    [
        pytest.param(
            [east(), make_cluster("full").flavor("h100", nodes=2, gpus=8, used=12)], {}, POLICY, {}, "full",
            id="pack: the fuller one keeps large holes elsewhere",
        ),
        pytest.param(
            [east(), make_cluster("full").flavor("h100", nodes=2, gpus=8, used=12)], {},
            DispatchPolicy(score=ScorePolicy(pack=False)), {}, "east", id="spread",
        ),
        pytest.param(
            [east(), make_cluster("full").flavor("h100", nodes=2, gpus=8, used=12).waiting(3)], {}, POLICY, {}, "east",
            id="nobody waiting outweighs packing",
        ),
        pytest.param(
            [make_cluster(n).flavor("h100", nodes=2, gpus=8) for n in ("aws", "gcp", "onprem")],
            {"configured": ("onprem", "aws", "gcp")}, POLICY, {}, "onprem", id="order in the config, not the alphabet (R34)",
        ),
        pytest.param(
            [make_cluster(n).flavor("h100", nodes=2, gpus=8) for n in ("aws", "gcp")], {}, POLICY, {"aws": 2.0}, "gcp",
            id="recent failures decide between equals",
        ),
        pytest.param(
            [make_cluster(n).flavor("h100", nodes=2, gpus=8) for n in ("b", "a")], {}, POLICY, {}, "a", id="ties go by name"
        ),
    ],
)  # fmt: skip
def test_scores(clusters, request_fields, policy, failures, want):
    plan = decided(make_request(**request_fields), [c.obj() for c in clusters], policy=policy, failures=failures)
    assert [o.cluster for o in plan.offers] == [want]
    assert plan.record.outcome is Outcome.OFFERED


def refused(cluster="east", *, times=1, at=95.0):
    placements = []
    for index in range(times):
        choice = decided(make_request(), [make_cluster(cluster).flavor("h100", nodes=2, gpus=8).obj()]).offers[0]
        offer = make_offer(make_request(), choice, past=placements, placement_id=f"p{index}")
        no = p.Refused(generation=offer.generation, now=at, reason="HoleTooSmall", message="someone was faster")
        placements.append(p.step(offer, no)[0])
    return placements


def test_a_refusal_sends_it_to_the_next_cluster_at_once():
    plan = decided(
        make_request(), [east().obj(), make_cluster("west").flavor("h100", nodes=2, gpus=8).obj()], past=refused()
    )
    assert [o.cluster for o in plan.offers] == ["west"]
    said = next(v for v in plan.record.verdicts if v.cluster == "east")
    assert said.why == "said HoleTooSmall 5 s ago: someone was faster; asked again in 5 s"


@pytest.mark.parametrize(
    ("times", "want_retry_at"),
    [(1, 105.0), (2, 115.0), (3, 135.0), (9, 155.0)],
    ids=["once", "twice", "three times", "bounded"],
)
def test_refusals_decay(times, want_retry_at):
    past = refused(times=times)
    plan = decided(make_request(), [east().obj()], past=past)
    assert (plan.offers, plan.retry_at, plan.record.outcome) == ((), want_retry_at, Outcome.WAITING)
    assert decided(make_request(), [east().obj()], past=past, now=want_retry_at).offers


def test_the_generation_rises_over_all_placements_of_a_workload():
    past = refused(times=2)
    assert [x.generation for x in past] == [1, 2]
    again = make_offer(make_request(), decided(make_request(), [east().obj()]).offers[0], past=past)
    assert (again.generation, again.attempt, again.previous_cluster) == (3, 3, "east")


def test_nothing_is_offered_while_an_older_copy_may_run():
    offer = make_offer(make_request(), decided(make_request(), [east().obj()]).offers[0])
    withdrawn, _ = p.step(offer, p.Withdraw(generation=1, now=99))
    held = decided(make_request(), [east().obj()], past=[withdrawn])
    assert (held.record.outcome, held.offers) == (Outcome.HELD, ())
    assert "on east is Withdrawn and not confirmed gone yet" in held.record.message
    gone, _ = p.step(withdrawn, p.Gone(generation=2, now=100))
    assert decided(make_request(), [east().obj()], past=[gone]).offers


def test_what_fits_nowhere_now_does_not_block_what_fits():
    """Two clusters of 10; 7, 7, 6 and 3 in this order (kueue#10145): the 6 waits, the 3 runs."""
    fleet = Fleet([make_cluster(n).flavor("h100", nodes=1, gpus=10).obj() for n in ("a", "b")])
    memo, outcomes = Memo(), []
    for index, gpus in enumerate((7, 7, 6, 3)):
        request = make_request(f"w{index}", gpus=gpus)
        plan = decide(request, fleet, [], {}, 0, POLICY, memo)
        for choice in plan.offers:
            fleet.put(make_offer(request, choice))
        outcomes.append(plan.record.outcome)
    assert outcomes == [Outcome.OFFERED, Outcome.OFFERED, Outcome.WAITING, Outcome.OFFERED]


@pytest.mark.parametrize(
    ("clusters", "request_fields", "want_outcome", "want_words"),
    [
        pytest.param([east()], {"gpus": 9}, Outcome.NEVER_FITS, "the largest hole is 8 nvidia.com/gpu", id="larger than any node"),
        pytest.param([east()], {"gpus": 8, "pods": 3}, Outcome.NEVER_FITS, "24 needed", id="larger than the cluster"),
        pytest.param([east(used=16)], {"gpus": 8}, Outcome.WAITING, "0 of 16", id="full is not never"),
        pytest.param(
            [east(), make_cluster("big").flavor("h100", nodes=9, gpus=9).with_state(ClusterState.CORDONED)], {"gpus": 9},
            Outcome.WAITING, "big: cordoned", id="cordoned capacity counts as possible (R33)",
        ),
        pytest.param(
            [east(), make_cluster("big").flavor("h100", nodes=9, gpus=9).with_state(ClusterState.LOST)], {"gpus": 9},
            Outcome.WAITING, "big: lost", id="so does a lost cluster's last known capacity",
        ),
        pytest.param([east()], {"flavor": "b200"}, Outcome.NO_CLUSTER, "no flavor b200", id="no cluster has the flavor"),
        pytest.param([], {}, Outcome.WAITING, "no cluster is registered", id="no cluster at all"),
    ],
)  # fmt: skip
def test_never_is_told_apart_from_not_now(clusters, request_fields, want_outcome, want_words):
    plan = decided(make_request(**request_fields), [c.obj() for c in clusters])
    assert plan.record.outcome is want_outcome
    assert want_words in plan.record.message


def test_never_ends_when_a_cluster_joins():
    fleet, memo = Fleet([east().obj()]), Memo()
    request = make_request(gpus=9)
    assert decide(request, fleet, [], {}, 0, POLICY, memo).record.outcome is Outcome.NEVER_FITS
    fleet.update(make_cluster("big").flavor("h100", nodes=1, gpus=9).obj())
    assert decide(request, fleet, [], {}, 0, POLICY, memo).offers


def test_an_equal_workload_gets_the_remembered_answer_and_a_changed_cluster_a_new_one():
    fleet, memo = Fleet([east(nodes=1).obj()]), Memo()
    first = decide(make_request("one", gpus=5), fleet, [], {}, 0, POLICY, memo)
    fleet.put(make_offer(make_request("one", gpus=5), first.offers[0]))
    second = decide(make_request("two", gpus=5), fleet, [], {}, 0, POLICY, memo)
    assert (second.offers, second.record.outcome) == ((), Outcome.WAITING)
    assert second.record.workload.name == "two"
    fleet.update(msgspec.structs.replace(east(nodes=2).obj(), name="east"))
    assert decide(make_request("two", gpus=5), fleet, [], {}, 0, POLICY, memo).offers


def test_the_record_of_a_large_fleet_is_bounded():
    clusters = [make_cluster(f"c{i:03}").flavor("h100", nodes=1, gpus=8, used=8).obj() for i in range(80)]
    record = decided(make_request(), clusters, policy=DispatchPolicy(verdicts_max=10)).record
    assert (len(record.verdicts), record.others) == (10, {"room_by_flavor": 70})
    assert record.message.endswith("; and 75 more")


@pytest.mark.parametrize(
    ("count", "age_s", "want"),
    [(4.0, 0, 4.0), (4.0, 300, 2.0), (1.0, 3000, 0.0)],
    ids=["fresh", "half after its half-life", "forgotten"],
)
def test_failures_fade(count, age_s, want):
    assert faded(count, age_s) == want
