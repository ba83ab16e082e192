"""From a Workload to its request and its offer, and the sentence that explains where it is."""

import msgspec
import pytest

from hub.dispatch import placement as p
from hub.dispatch.capacity import Fleet
from hub.dispatch.decide import DispatchPolicy, Memo, decide
from hub.dispatch.offer import Wish, payload, withdrawals
from hub.dispatch.request import lost_policy_of, request_of, wanted_clusters
from hub.dispatch.why import why
from hub.kueue.admission.messages import Position
from hub.kueue.api.meta import ObjectKey, ObjectMeta
from hub.kueue.api.v1beta2 import (
    Admission,
    PodSet,
    PodSetAssignment,
    ResourceFlavor,
    ResourceFlavorSpec,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    names,
)
from tests.fleet_builders import GPU, make_cluster, make_offer, make_request

KEY = ObjectKey("team-a", "train")


def make_workload(*, count=4, admitted=4, annotations=None, tolerations=()) -> Workload:
    resources = {"requests": {"cpu": "500m", GPU: "2"}}
    template = {"spec": {"containers": [{"name": "c", "resources": resources}], "tolerations": list(tolerations)}}
    assignment = PodSetAssignment(
        name="main",
        flavors={"cpu": "h100", GPU: "h100"},
        resource_usage={"cpu": f"{500 * admitted}m", GPU: str(2 * admitted)},
        count=admitted,
    )
    return Workload(
        metadata=ObjectMeta(name="train", namespace="team-a", uid="u1", annotations=annotations or {}),
        spec=WorkloadSpec(
            pod_sets=[PodSet(name="main", count=count, template=template)], queue_name="main", priority=7
        ),
        status=WorkloadStatus(admission=Admission(cluster_queue="cq", pod_set_assignments=[assignment])),
    )


def requested(workload, **fields):
    flavors = {
        "h100": ResourceFlavor(metadata=ObjectMeta(name="h100"), spec=ResourceFlavorSpec(node_labels={"g": "h"}))
    }
    known = {"kind": "batch/v1, Job", "flavors": flavors, "configured": ["east", "west"]} | fields
    return request_of(workload, **known)


def test_a_request_says_what_the_workload_needs_and_where_it_may_go():
    toleration = {"key": "spot", "operator": "Exists"}
    request = requested(
        make_workload(annotations={names.CLUSTERS: "west, east"}, tolerations=[toleration]), lost_policy="MoveNow"
    )
    need = request.pod_sets[0]
    assert (need.count, need.per_pod, need.total) == (4, {"cpu": 500, GPU: 2}, {"cpu": 2000, GPU: 8})
    assert (request.configured, request.wanted) == (("east", "west"), ("west", "east"))
    assert (request.flavor_labels, request.priority, request.lost_policy) == ({"h100": {"g": "h"}}, 7, "MoveNow")
    assert [t.key for t in request.tolerations] == ["spot"]


def test_workloads_that_differ_in_name_and_priority_only_have_one_shape():
    one, two = make_request("one", priority=1), make_request("two", priority=2)
    assert one.shape() == two.shape()
    assert one.shape() != make_request("one", gpus=2).shape()


@pytest.mark.parametrize(
    ("text", "want"),
    [(None, None), ("", ()), ("a", ("a",)), (" a , b,", ("a", "b"))],
    ids=["none", "empty", "one", "two"],
)
def test_wanted_clusters(text, want):
    assert wanted_clusters({} if text is None else {names.CLUSTERS: text}) == want


@pytest.mark.parametrize(("text", "want"), [("FenceThenMove", "FenceThenMove"), ("fence", "Wait"), ("", "Wait")])
def test_an_unknown_lost_policy_is_no_wish(text, want):
    assert lost_policy_of({names.LOST_POLICY: text}, "Wait") == want


def test_an_offer_carries_the_count_that_was_admitted_and_no_annotation_of_ours():
    workload = make_workload(count=8, admitted=3, annotations={names.CLUSTERS: "east", "team": "x"})
    what = payload(workload, {"main": 3}, {"kind": "Job"})
    assert what.workload_spec["podSets"][0]["count"] == 3
    assert (what.annotations, what.job) == ({"team": "x"}, {"kind": "Job"})


@pytest.mark.parametrize(
    ("wish", "want"),
    [(Wish(wanted=True), []), (Wish(wanted=False, reason="Deleted", message="the job was deleted"), ["Deleted"])],
    ids=["wanted", "deleted"],
)
def test_what_nobody_wants_is_withdrawn(wish, want):
    live = make_placement()
    ended, _ = p.step(live, p.Refused(generation=1, now=1))
    assert [event.reason for _, event in withdrawals([ended, live], wish, 5)] == want


def make_record(gpus=1, **cluster):
    east = make_cluster("east").flavor("h100", **({"nodes": 1, "gpus": 8} | cluster)).obj()
    return decide(make_request(gpus=gpus), Fleet([east]), [], {}, 90, DispatchPolicy(), Memo())


def make_placement():
    return make_offer(make_request(), make_record().offers[0], now=90)


RUNNING = p.step(make_placement(), p.Running(generation=1, now=40))[0]


@pytest.mark.parametrize(
    ("position", "record", "placements", "want_sentence", "want_reason"),
    [
        pytest.param(
            Position(reason="WaitingForQuota", message="insufficient quota", cluster_queue="cq", position=2), None, [],
            "in ClusterQueue cq, number 3 in line: insufficient quota", "WaitingForQuota", id="queued",
        ),
        pytest.param(None, None, [], "quota is reserved; a cluster is being looked for", "Dispatching", id="just reserved"),
        pytest.param(
            None, make_record(gpus=4, used=8).record, [],
            "no cluster has room now: east: flavor h100 has 0 of 8 nvidia.com/gpu free, 4 needed", "WaitingForRoom", id="no room",
        ),
        pytest.param(
            None, make_record(gpus=4, used=8).record, [p.step(RUNNING, p.Evicted(generation=1, now=50, message="preempted"))[0]],
            "no cluster has room now: east: flavor h100 has 0 of 8 nvidia.com/gpu free, 4 needed; "
            "before that evicted on east (preempted)", "WaitingForRoom", id="evicted, and no room elsewhere (R7)",
        ),
        pytest.param(
            None, None, [make_placement()],
            "offered to east 10s ago, waiting for its agent's word: offered to east, ClusterQueue cq", "Offered", id="offered",
        ),
        pytest.param(None, None, [RUNNING], "running on east for 1m", "Running", id="running"),
        pytest.param(
            None, None, [p.step(RUNNING, p.Finished(generation=1, now=95, message="Job finished successfully"))[0]],
            "finished on east 5s ago: Job finished successfully", "Finished", id="finished",
        ),
    ],
)  # fmt: skip
def test_why(position, record, placements, want_sentence, want_reason):
    told = why(KEY, position, record, placements, now=100)
    assert (told.sentence, told.reason) == (want_sentence, want_reason)


def test_a_record_survives_json():
    record = make_record(gpus=4, used=8).record
    assert msgspec.json.decode(msgspec.json.encode(record), type=type(record)) == record
