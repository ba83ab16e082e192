"""What the management cluster's objects should say about a placement, and what they say about it already."""

import msgspec
import pytest

from hub.dispatch.capacity import Fleet
from hub.dispatch.clusters import Cluster, ClusterState
from hub.dispatch.decide import DispatchPolicy, Memo, Outcome, decide
from hub.dispatch.mirroring import Subject, mirror, not_copied, wants_a_cluster, wish_of
from hub.dispatch.overview import queue_row, workload_row
from hub.dispatch.placement import State
from hub.dispatch.possible import Judgement, draft_of, judge
from hub.dispatch.routes import BUILT_IN, Route, route_of, with_built_in_check
from hub.dispatch.standing import of_check, of_cluster
from hub.kueue.admission.messages import Position, QueueStatus
from hub.kueue.api.meta import format_time
from hub.kueue.api.v1beta2 import (
    AdmissionCheck,
    AdmissionCheckState,
    ClusterQueue,
    MultiKueueCluster,
    MultiKueueConfig,
    PodSet,
    Workload,
    decode_as,
    names,
)
from hub.kueue.integrations.batch_job import BATCH_JOB
from tests.fleet_builders import GPU, make_cluster, make_offer, make_request
from tests.job_builders import NOW, make_flavor, make_job, make_workload

ROUTE = Route(check=BUILT_IN)
JOB = make_job("train").queue("main").obj()
CHOICE = decide(
    make_request(),
    Fleet([make_cluster("east").flavor("h100", nodes=1, gpus=8).obj()]),
    [],
    {},
    0,
    DispatchPolicy(),
    Memo(),
).offers[0]


def make_placement(state=State.OFFERED, **changes):
    offered = make_offer(make_request(), CHOICE, placement_id="p1", now=NOW)
    return msgspec.structs.replace(offered, state=state, **changes)


def read(kind, name, **fields):
    """An object of ours from the YAML that a user would write."""
    manifest = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind.__name__, "metadata": {"name": name}, **fields}
    return decode_as(kind, manifest)


def checked(builder, state="Pending", **others):
    states = {BUILT_IN: state} | others
    return builder.status(
        admission_checks=[
            AdmissionCheckState(name=n, state=s, message="", last_transition_time=format_time(NOW))
            for n, s in states.items()
        ]
    )


RESERVED = checked(make_workload("train").reserved().owned_by(JOB))
ADMITTED = checked(make_workload("train").admitted().owned_by(JOB).status(cluster_name="east"), "Ready")
RECORD = decide(make_request(gpus=8), Fleet([make_cluster("east").flavor("h100", nodes=1, gpus=8, used=8).obj()]), [], {}, NOW,
                DispatchPolicy(), Memo()).record  # fmt: skip


def mirrored(workload, placement=None, *, record=None, judgement=None, route=ROUTE, job=JOB, integration=BATCH_JOB):
    subject = Subject(
        workload=workload.obj(),
        route=route,
        placement=placement,
        record=record,
        judgement=judgement or Judgement(),
        integration=integration,
        job=job,
    )
    return mirror(subject, NOW + 100)


def status_after(result):
    """Status body of the Workload patch."""
    return next(
        (o.body["status"] for o in result.operations if o.resource.kind == "Workload" and "status" in o.body), {}
    )


def told(result) -> dict[str, str]:
    return {c["type"]: f"{c['status']}/{c['reason']}" for c in status_after(result).get("conditions", [])}


@pytest.mark.parametrize(
    ("workload", "placement", "want_conditions", "want_check", "want_cluster"),
    [
        pytest.param(RESERVED, make_placement(), {}, None, None, id="offered: nobody has said anything yet"),
        pytest.param(
            RESERVED, make_placement(State.ADMITTED), {"Admitted": "True/Admitted", "QuotaReserved": "True/QuotaReserved"},
            "Ready", "east", id="the agent's yes admits, in one write",
        ),
        pytest.param(
            checked(make_workload("train").reserved(), budget="Pending"), make_placement(State.RUNNING), {}, "Ready", "east",
            id="other checks are waited for",
        ),
        pytest.param(ADMITTED, make_placement(State.RUNNING), {}, None, None, id="what is said already is not written again"),
        pytest.param(ADMITTED, make_placement(State.EVICTED, reason="Preempted", message="by a local one"), {}, "Retry", None,
                     id="evicted on the worker: evict, requeue, place again"),
        pytest.param(ADMITTED, make_placement(State.LOST), {}, "Retry", None, id="given up"),
        pytest.param(ADMITTED, None, {}, "Retry", None, id="the database knows nothing of it"),
        pytest.param(RESERVED, make_placement(State.REFUSED), {}, None, None, id="refused before anybody was told: next cluster"),
        pytest.param(
            ADMITTED, make_placement(State.FINISHED, reason="Succeeded", message="all done", succeeded=True),
            {"Finished": "True/Succeeded", "Admitted": "True/Admitted", "QuotaReserved": "True/QuotaReserved"}, None, None,
            id="finished with the worker's reason",
        ),
        pytest.param(
            RESERVED, make_placement(State.FINISHED, reason="", message="", succeeded=False),
            {"Finished": "True/Failed", "QuotaReserved": "True/QuotaReserved"}, None, "east",
            id="finished before anybody knew that it ran",
        ),
        pytest.param(ADMITTED.finished(), make_placement(State.RUNNING), {}, None, None, id="the end is the end"),
        pytest.param(ADMITTED.evicted(), make_placement(State.WITHDRAWN), {}, None, None, id="an eviction takes its course"),
    ],
)  # fmt: skip
def test_the_workload_says_what_is_known(workload, placement, want_conditions, want_check, want_cluster):
    result = mirrored(workload, placement)
    checks = {c["name"]: c["state"] for c in status_after(result).get("admissionChecks", [])}
    assert (told(result), checks.get(BUILT_IN), status_after(result).get("clusterName")) == (
        want_conditions, want_check, want_cluster,
    )  # fmt: skip
    assert bool(result.events) == bool(status_after(result)), "every change is told by an event, and nothing else is"


def test_mirroring_twice_writes_once():
    first = mirrored(RESERVED, make_placement(State.ADMITTED))
    status = read(Workload, "train", status=status_after(first)).status
    merged = msgspec.structs.replace(RESERVED.obj().status, **{
        name: getattr(status, name) for name in ("conditions", "admission_checks", "cluster_name")
    })  # fmt: skip
    again = mirror(
        Subject(
            workload=msgspec.structs.replace(RESERVED.obj(), status=merged),
            route=ROUTE,
            placement=make_placement(State.ADMITTED),
        ),
        NOW + 500,
    )
    assert again.operations == ()


def test_why_it_waits_stands_in_the_check():
    result = mirrored(RESERVED, record=RECORD)
    (check,) = status_after(result)["admissionChecks"]
    assert (check["state"], check["message"]) == ("Pending", RECORD.message)
    broken = mirrored(RESERVED, route=Route(check=BUILT_IN, clusters=(), problem="MultiKueueConfig x does not exist"))
    assert status_after(broken)["admissionChecks"][0]["message"] == "MultiKueueConfig x does not exist"


NEVER = msgspec.structs.replace(RECORD, outcome=Outcome.NEVER_FITS, message="can never fit: too large")
HOPELESS = Judgement(possible=(), message="can never fit, not even on an empty cluster: east: too small")


@pytest.mark.parametrize(
    ("workload", "record", "judgement", "want"),
    [
        pytest.param(RESERVED, NEVER, HOPELESS, "False/OnHold", id="no flavor can ever do: on hold, its quota is free"),
        pytest.param(
            RESERVED.meta(annotations={names.ALLOWED_RESOURCE_FLAVORS: "b", names.POSSIBLE_FLAVORS: "b"}), NEVER,
            Judgement(possible=("b",)), "False/PendingEvaluation", id="not with this flavor, but with another one",
        ),
        pytest.param(make_workload("train"), None, HOPELESS, "False/OnHold", id="told at submit, before it has any quota"),
        pytest.param(make_workload("train"), None, Judgement(), None, id="waits for quota like anybody"),
        pytest.param(
            make_workload("train").condition(names.QUOTA_RESERVED, "False", "OnHold"), None, Judgement(),
            "False/PendingEvaluation", id="the fleet has grown: back into the queue",
        ),
        pytest.param(make_workload("train").spec(active=False), None, HOPELESS, None, id="one that is switched off is left alone"),
    ],
)  # fmt: skip
def test_what_can_never_fit_holds_no_quota(workload, record, judgement, want):
    assert told(mirrored(workload, record=record, judgement=judgement)).get("QuotaReserved") == want


@pytest.mark.parametrize(
    ("annotations", "judgement", "want"),
    [
        pytest.param(
            {}, Judgement(possible=("h100",)), "h100", id="flavors that can never do are taken out of the choice"
        ),
        pytest.param(
            {names.ALLOWED_RESOURCE_FLAVORS: "l4"}, Judgement(possible=("h100",)), None, id="the user's list stays"
        ),
        pytest.param(
            {names.ALLOWED_RESOURCE_FLAVORS: "h100", names.POSSIBLE_FLAVORS: "h100"},
            Judgement(possible=("h100",)),
            None,
            id="written already",
        ),
        pytest.param({}, Judgement(), None, id="nothing to object to"),
    ],
)
def test_the_engine_assigns_only_flavors_that_could_do(annotations, judgement, want):
    result = mirrored(make_workload("train").meta(annotations=annotations), judgement=judgement)
    written = [o.body["metadata"]["annotations"] for o in result.operations if "metadata" in o.body]
    assert written == ([{names.ALLOWED_RESOURCE_FLAVORS: want, names.POSSIBLE_FLAVORS: want}] if want else [])


def test_our_restriction_goes_when_it_is_no_longer_needed():
    ours = {names.ALLOWED_RESOURCE_FLAVORS: "h100", names.POSSIBLE_FLAVORS: "h100"}
    result = mirrored(make_workload("train").meta(annotations=ours), judgement=Judgement())
    assert result.operations[0].body["metadata"]["annotations"] == dict.fromkeys(ours)


def test_the_job_gets_the_workers_status():
    running = make_placement(State.RUNNING, job_status={"active": 2, "ready": 1})
    started = make_job("train").queue("main").running().obj()
    (patch,) = [o for o in mirrored(ADMITTED, running, job=started).operations if o.resource.kind == "Job"]
    assert (patch.body, patch.subresource) == ({"status": {"active": 2, "ready": 1}}, "status")
    same = {**started, "status": {"active": 2, "ready": 1}}
    assert mirrored(ADMITTED, running, job=same).operations == ()
    assert (
        mirrored(ADMITTED.evicted(), make_placement(State.WITHDRAWN, job_status={"active": 2}), job=started).operations
        == ()
    )


def test_the_jobs_last_status_comes_before_the_workloads_end():
    done = make_placement(State.FINISHED, succeeded=True, job_status={"succeeded": 1})
    kinds = [o.resource.kind for o in mirrored(ADMITTED, done, job=make_job("train").running().obj()).operations]
    assert kinds == ["Job", "Workload"]
    assert not_copied(ADMITTED.obj(), "no").type == "Warning"


@pytest.mark.parametrize(
    ("workload", "want_reason"),
    [
        pytest.param(None, "Deleted", id="gone"),
        pytest.param(RESERVED.meta(uid="another"), "Deleted", id="a namesake that came later"),
        pytest.param(RESERVED.meta(deletion_timestamp="2027-01-01T00:00:00Z"), "Deleted", id="being deleted"),
        pytest.param(ADMITTED.finished(), "Finished", id="finished by somebody else"),
        pytest.param(ADMITTED.spec(active=False), "Deactivated", id="switched off"),
        pytest.param(ADMITTED.evicted("Preempted"), "Preempted", id="evicted"),
        pytest.param(make_workload("train"), "NoReservation", id="without quota"),
        pytest.param(ADMITTED, "", id="wanted"),
    ],
)
def test_what_is_wanted(workload, want_reason):
    wish = wish_of(workload and workload.obj(), "uid-train")
    assert (wish.wanted, wish.reason) == (not want_reason, want_reason)


@pytest.mark.parametrize(
    ("workload", "want"),
    [
        pytest.param(RESERVED, True, id="quota reserved and our check pending"),
        pytest.param(checked(make_workload("train").reserved(), budget="Ready"), True, id="the others are ready"),
        pytest.param(
            checked(make_workload("train").reserved(), budget="Pending"), False, id="an approval is outstanding (R31)"
        ),
        pytest.param(checked(make_workload("train").reserved(), "Ready"), False, id="placed already"),
        pytest.param(make_workload("train").reserved(), False, id="the engine has not called for our check"),
        pytest.param(RESERVED.evicted(), False, id="evicted"),
    ],
)
def test_when_to_dispatch(workload, want):
    assert wants_a_cluster(workload.obj(), ROUTE) is want


# --- routes, standing, judgement, rows -----------------------------------------------------------------------------------

PARAMETERS = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "gpus"}
CHECK = read(AdmissionCheck, "workers", spec={"controllerName": names.CONTROLLER_MULTIKUEUE, "parameters": PARAMETERS})
BUDGET = read(AdmissionCheck, "budget", spec={"controllerName": "example.com/budget"})
CONFIG = read(MultiKueueConfig, "gpus", spec={"clusters": ["west", "east"]})
CHECKS = {"workers": CHECK, "budget": BUDGET}


def make_queue(*checks, flavors=("h100",)) -> ClusterQueue:
    quotas = [{"name": GPU, "nominalQuota": 8}, {"name": "cpu", "nominalQuota": 100}]
    spec = {
        "resourceGroups": [
            {"coveredResources": [GPU, "cpu"], "flavors": [{"name": f, "resources": quotas} for f in flavors]}
        ],
        "admissionChecksStrategy": {"admissionChecks": [{"name": name} for name in checks]},
    }
    return read(ClusterQueue, "cq", spec=spec)


@pytest.mark.parametrize(
    ("queue", "configs", "want"),
    [
        pytest.param(make_queue(), {}, Route(check=BUILT_IN), id="no check: every registered cluster"),
        pytest.param(make_queue("budget"), {}, Route(check=BUILT_IN), id="checks of others do not count"),
        pytest.param(
            make_queue("budget", "workers"), {"gpus": CONFIG}, Route(check="workers", clusters=("west", "east")), id="a config"
        ),
        pytest.param(
            make_queue("workers"), {}, Route(check="workers", clusters=(), problem="MultiKueueConfig gpus does not exist"),
            id="a config that is missing",
        ),
    ],
)  # fmt: skip
def test_routes(queue, configs, want):
    assert route_of(queue, CHECKS, configs) == want
    rules = [r.name for r in with_built_in_check(queue, CHECKS).spec.admission_checks_strategy.admission_checks]
    assert (BUILT_IN in rules) is (want.check == BUILT_IN)


def active(patch) -> str:
    (condition,) = patch.body["status"]["conditions"]
    return f"{condition['status']}/{condition['reason']}: {condition.get('message', '')}"


@pytest.mark.parametrize(
    ("states", "want"),
    [
        ({"west": "Active", "east": "Cordoned"}, "True/Active: The admission check is active"),
        ({"west": "Active", "east": "Lost"}, "True/SomeActiveClusters: Inactive clusters: east"),
        ({"east": "Suspect"}, "True/SomeActiveClusters: Missing clusters: west"),
        ({"east": "Lost"}, "False/NoUsableClusters: Missing clusters: west; Inactive clusters: east"),
    ],
    ids=["all", "some", "one missing", "none"],
)
def test_an_admission_check_says_whether_it_has_clusters(states, want):
    clusters = {name: Cluster(name=name, state=ClusterState(state)) for name, state in states.items()}
    assert active(of_check(CHECK, {"gpus": CONFIG}, clusters, NOW)) == want
    assert active(of_check(CHECK, {}, clusters, NOW)) == "False/BadConfig: MultiKueueConfig gpus does not exist"
    assert of_check(BUDGET, {}, clusters, NOW) is None


def test_a_multikueuecluster_says_whether_it_is_connected():
    obj = read(MultiKueueCluster, "east", spec={"clusterSource": {}})
    lost = Cluster(name="east", state=ClusterState.LOST, message="silent")
    assert active(of_cluster(obj, {}, NOW)).startswith("False/NotRegistered")
    assert (
        active(of_cluster(obj, {"east": Cluster(name="east", state=ClusterState.ACTIVE)}, NOW))
        == "True/Active: Connected"
    )
    assert active(of_cluster(obj, {"east": lost}, NOW)) == "False/Lost: silent"


def pods(*, gpus: int, count: int = 1):
    resources = {"requests": {"cpu": "1", GPU: str(gpus)}}
    template = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    return make_workload("train").spec(pod_sets=[PodSet(name="main", count=count, template=template)])


CLUSTERS = [
    make_cluster("big").flavor("h100", nodes=2, gpus=8).with_state(ClusterState.CORDONED),
    make_cluster("small").flavor("l4", nodes=8, gpus=1, used=8),
]


@pytest.mark.parametrize(
    ("gpus", "count", "allowed", "want_possible", "want_words"),
    [
        pytest.param(1, 1, None, None, "", id="anything would do, full or cordoned"),
        pytest.param(2, 1, None, ("h100",), "", id="too large for the small nodes"),
        pytest.param(9, 1, None, (), "can never fit, not even on an empty cluster: big: nodes of flavor h100 have room for 0 of 1 pods", id="too large for all"),
        pytest.param(2, 1, frozenset({"l4"}), (), "small: nodes of flavor l4", id="too large for what the user allows"),
        pytest.param(8, 3, None, (), "24 needed", id="more pods than the cluster has nodes"),
    ],
)  # fmt: skip
def test_which_flavors_could_ever_do(gpus, count, allowed, want_possible, want_words):
    workload = pods(gpus=gpus, count=count).obj()
    draft = draft_of(workload, kind="batch/v1, Job", queue="cq", route=ROUTE)
    flavors = {"h100": make_flavor("h100"), "l4": make_flavor("l4")}
    found = judge(
        draft, make_queue(flavors=("h100", "l4")), flavors, list(Fleet(c.obj() for c in CLUSTERS).views()), allowed
    )
    assert found.possible == want_possible
    assert want_words in found.message


def test_nothing_is_judged_before_any_cluster_has_reported():
    draft = draft_of(pods(gpus=99).obj(), kind="batch/v1, Job", queue="cq", route=ROUTE)
    assert judge(draft, make_queue(), {}, []).possible is None


def test_rows_for_readers():
    running = make_placement(State.RUNNING, running_at=NOW + 1)
    row = workload_row(checked(pods(gpus=2, count=4).admitted().owned_by(JOB)).obj(), [running], None, NOW)
    assert (row.state, row.cluster, row.gpus, row.job_name, row.running_at) == ("Running", "east", 8, "train", NOW + 1)
    waiting = Position(reason="WaitingForQuota", message="no quota", cluster_queue="cq", position=3)
    row = workload_row(pods(gpus=2).obj(), [], waiting, NOW)
    assert (row.state, row.reason, row.cluster_queue, row.position) == ("Pending", "WaitingForQuota", "cq", 3)
    done = make_placement(State.FINISHED, succeeded=True)
    row = workload_row(pods(gpus=2).admitted().finished().obj(), [done], None, NOW)
    assert (row.state, row.cluster, row.succeeded, row.finished_at) == ("Finished", "east", True, NOW)


def test_a_queue_row_has_figures_by_flavor():
    status = QueueStatus(
        pending=1, nominal={"h100": {GPU: 8}}, reservation={"h100": {GPU: (9, 1)}}, usage={"h100": {GPU: (4, 0)}}
    )
    row = queue_row(make_queue(), status, NOW)
    assert (row.kind, row.pending, row.usage) == (
        "ClusterQueue", 1, {"h100": {GPU: {"nominal": 8, "reserved": 9, "used": 4, "borrowed": 1}}},
    )  # fmt: skip
