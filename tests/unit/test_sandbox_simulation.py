"""One simulated cluster in virtual time: what a user would see through the API, without sockets or waiting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.kueue.api.core import Taint, Toleration
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import CORE_EVENTS, JOBS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.nodes import NodeGroup, eviction_delay_s
from hub.sandbox.script import PREFIX, Pace
from hub.sandbox.simulation import Simulation
from hub.sandbox.timers import VirtualTimers

GPU = "nvidia.com/gpu"


class World:
    """A cluster of 4 nodes with 8 GPUs each, and shorthands for what tests do to it."""

    def __init__(self, *, nodes=4, gpus=8, pace=None):
        self.timers = VirtualTimers()
        self.api = ApiServer("hopper", self.timers.clock, seed=7)
        self.sim = Simulation(self.api, self.timers, pace)
        self.sim.start()
        if nodes:
            self.sim.add_nodes(NodeGroup(name="node", count=nodes, gpus=gpus, product="H100"))
        self.after(0)

    def after(self, seconds):
        self.timers.advance(seconds)
        return self

    def submit(self, name="train", *, gpus=1, annotations=None, meta=None, pod=None, **spec):
        container = {"name": "main", "image": "trainer:1", "resources": {"limits": {GPU: str(gpus)}}}
        script = {PREFIX + key.replace("_", "-"): value for key, value in (annotations or {}).items()}
        template = {
            "metadata": {"annotations": script},
            "spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})},
        }
        made = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default", **(meta or {})},
            "spec": {"template": template, **spec},
        }
        return self.api.create(JOBS, made)

    def pods(self, phase=None):
        return [p for p in self.api.list(PODS) if phase in (None, p["status"]["phase"])]

    def job(self, name="train"):
        return self.api.get(JOBS, ObjectKey("default", name))

    def status(self, name="train"):
        """Counts of a Job that are not 0, and its True conditions."""
        status = self.job(name)["status"]
        counts = {k: status[k] for k in ("active", "ready", "succeeded", "failed", "terminating") if status.get(k)}
        return counts, [c["type"] for c in status.get("conditions", ()) if c["status"] == "True"]

    def patch_job(self, name="train", **spec):
        self.api.merge(JOBS, ObjectKey("default", name), {"spec": spec})

    def delete_pod(self, pod, **options):
        self.api.delete(PODS, ObjectKey("default", pod["metadata"]["name"]), **options)

    def reasons(self, name):
        return [e["reason"] for e in self.api.list(CORE_EVENTS) if e["involvedObject"]["name"] == name]

    def outcomes(self):
        return [r.outcome for r in self.sim.observer.runs]


@pytest.fixture
def world():
    return World()


def test_a_job_runs_from_start_to_end(world):
    world.submit(completions=2, parallelism=2)
    assert world.after(0).status() == ({"active": 2}, [])
    assert world.after(1).status() == ({"active": 2, "ready": 2}, [])
    pod = world.pods("Running")[0]
    assert pod["status"]["podIP"].startswith("10.")
    assert pod["status"]["hostIP"]
    assert [c["ready"] for c in pod["status"]["containerStatuses"]] == [True]
    assert world.after(2).status() == ({"succeeded": 2}, ["SuccessCriteriaMet", "Complete"])
    assert [p["status"]["phase"] for p in world.pods()] == ["Succeeded"] * 2
    assert all("finalizers" not in p["metadata"] for p in world.pods())
    assert world.reasons("train") == ["SuccessfulCreate", "SuccessfulCreate", "Completed"]
    assert world.outcomes() == ["Succeeded"] * 2


def test_the_statuses_of_a_job_come_in_the_order_of_a_real_cluster(world):
    seen = []
    world.api.subscribe(JOBS, lambda _, job: seen.append(dict(job.get("status") or {})))
    world.submit()
    world.after(5)
    uid = world.pods()[0]["metadata"]["uid"]
    told = [(s.get("active", 0), s.get("ready"), s.get("succeeded", 0), s.get("uncountedTerminatedPods")) for s in seen]
    assert told == [
        (0, None, 0, None),
        (1, 0, 0, {}),
        (1, 1, 0, {}),
        (0, 0, 0, {"succeeded": [uid]}),
        (0, 0, 1, {}),
    ]
    assert [[c["type"] for c in s.get("conditions", ())] for s in seen[3:]] == [
        ["SuccessCriteriaMet"],
        ["SuccessCriteriaMet", "Complete"],
    ]
    assert "completionTime" in seen[-1]


def test_a_pod_that_fits_nowhere_says_why_and_runs_when_there_is_room(world):
    world.submit("first", gpus=8, completions=4, parallelism=4)
    world.submit("second", gpus=8)
    world.after(1)
    (waiting,) = world.pods("Pending")
    (condition,) = waiting["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["message"] == "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    assert world.reasons(waiting["metadata"]["name"]) == ["FailedScheduling"]
    assert world.after(5).status("second")[1] == ["SuccessCriteriaMet", "Complete"]


def test_a_job_that_always_fails_reaches_its_back_off_limit(world):
    world.submit(backoffLimit=2, annotations={"exit_code": "3"})
    world.after(60)
    assert world.status() == ({"failed": 3}, ["FailureTarget", "Failed"])
    assert world.reasons("train")[-1] == "BackoffLimitExceeded"
    assert world.pods()[0]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_a_pod_may_fail_at_first(world):
    world.submit(annotations={"fail_times": "2"})
    assert world.after(60).status() == ({"succeeded": 1, "failed": 2}, ["SuccessCriteriaMet", "Complete"])


def test_a_pod_that_may_restart_does_so_in_its_place(world):
    world.submit(annotations={"fail_times": "1"}, pod={"restartPolicy": "OnFailure"})
    world.after(2.5)
    (pod,) = world.pods("Running")
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    world.after(10)
    assert world.status() == ({"succeeded": 1}, ["SuccessCriteriaMet", "Complete"])
    assert world.pods()[0]["status"]["containerStatuses"][0]["restartCount"] == 1
    assert world.outcomes() == ["Failed", "Succeeded"]


def test_an_indexed_job_gives_every_pod_its_own_script(world):
    script = {"durations": "0=1s,1=30s", "exit_codes": "2=7"}
    world.submit(completionMode="Indexed", completions=3, parallelism=3, backoffLimit=0, annotations=script)
    world.after(1.5)
    assert world.job()["status"]["completedIndexes"] == "0"
    assert world.after(2).status() == ({"succeeded": 1, "failed": 2}, ["FailureTarget", "Failed"])


def test_suspending_stops_pods_and_resuming_starts_new_ones(world):
    world.submit(completions=2, parallelism=2, annotations={"duration": "10s", "termination": "2s"})
    world.after(5).patch_job(suspend=True)
    assert world.after(1).status() == ({"terminating": 2}, ["Suspended"])
    assert "startTime" not in world.job()["status"]
    assert world.after(2).status() == ({}, ["Suspended"])
    assert world.pods() == []
    world.patch_job(suspend=False)
    assert world.after(1).status() == ({"active": 2, "ready": 2}, [])
    assert world.after(20).status() == ({"succeeded": 2}, ["SuccessCriteriaMet", "Complete"])
    assert world.outcomes() == ["Deleted", "Deleted", "Succeeded", "Succeeded"]


def test_a_pod_deleted_by_hand_counts_as_failed_and_is_replaced(world):
    world.submit(annotations={"duration": "10s"})
    world.delete_pod(world.after(1).pods()[0])
    assert world.after(3).status() == ({"active": 1, "ready": 1, "failed": 1}, [])


def test_a_deleted_job_takes_its_pods_with_it(world):
    world.submit(completions=3, parallelism=3, annotations={"duration": "60s"})
    world.after(1).api.delete(JOBS, ObjectKey("default", "train"))
    world.after(1)
    assert world.pods() == []
    assert world.outcomes() == ["Deleted"] * 3
    assert world.sim.scheduler.free("node-0")[GPU] == 8


def test_foreground_deletion_waits_for_the_pods(world):
    world.submit(annotations={"duration": "60s", "termination": "5s"})
    world.after(1).api.delete(JOBS, ObjectKey("default", "train"), "Foreground")
    assert world.after(1).job() is not None
    assert world.after(10).job() is None


def test_pods_that_are_orphaned_run_on_and_nobody_counts_them(world):
    world.submit(completions=2, parallelism=2)
    world.after(1).api.delete(JOBS, ObjectKey("default", "train"), "Orphan")
    world.after(10)
    assert world.job() is None
    assert [(p["status"]["phase"], "finalizers" in p["metadata"]) for p in world.pods()] == [("Succeeded", False)] * 2


def test_the_deadline_of_a_job_stops_it(world):
    world.submit(activeDeadlineSeconds=5, annotations={"duration": "60s"})
    assert world.after(10).status() == ({"failed": 1}, ["FailureTarget", "Failed"])
    assert world.reasons("train")[-1] == "DeadlineExceeded"


def test_a_finished_job_goes_when_its_time_to_live_is_over(world):
    world.submit(ttlSecondsAfterFinished=10)
    assert world.after(5).job() is not None
    assert world.after(10).job() is None
    assert world.pods() == []
    assert world.outcomes() == ["Succeeded"], "what ran is not forgotten"


def test_a_job_managed_by_another_controller_gets_no_pods(world):
    world.submit(managedBy="kueue.x-k8s.io/multikueue")
    assert world.after(10).pods() == []
    assert world.job()["status"] == {}


def test_a_dead_node_holds_its_pods_until_it_is_back(world):
    world.submit(gpus=8, annotations={"duration": "600s"})
    node = world.after(1).pods()[0]["spec"]["nodeName"]
    world.sim.nodes.lose(node)
    world.after(1)
    assert world.outcomes() == ["NodeLost"]
    assert world.status()[0] == {"active": 1}, "the node's pods are not ready"
    ready = next(c for c in world.api.get(NODES, ObjectKey("", node))["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "Unknown"
    world.after(303)
    assert [("deletionTimestamp" in p["metadata"], p["spec"]["nodeName"] == node) for p in world.pods()].count(
        (True, True)
    ) == 1
    assert world.status()[0] == {"active": 1, "ready": 1, "failed": 1, "terminating": 1}
    world.sim.restore_node(node)
    assert world.after(2).status()[0] == {"active": 1, "ready": 1, "failed": 1}
    assert len(world.pods()) == 1


def test_pods_of_a_node_that_is_cut_off_go_on_unheard(world):
    world.submit(annotations={"duration": "60s"})
    node = world.after(1).pods()[0]["spec"]["nodeName"]
    world.sim.nodes.lose(node, dead=False)
    world.after(100)
    assert world.outcomes() == ["Succeeded"], "it really ran to its end"
    assert world.status()[0] == {"active": 1}, "but nobody has heard"
    world.sim.restore_node(node)
    assert world.after(1).status() == ({"succeeded": 1}, ["SuccessCriteriaMet", "Complete"])


def test_pods_of_a_node_that_is_heard_from_again_are_ready_again(world):
    world.submit(annotations={"duration": "60s"})
    node = world.after(1).pods()[0]["spec"]["nodeName"]
    world.sim.nodes.lose(node, dead=False)
    world.submit("late", pod={"nodeName": node}, annotations={"duration": "60s"})
    assert world.after(5).status()[0] == {"active": 1}
    started = world.pods("Running")[0]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    world.sim.restore_node(node)
    assert world.after(1).status()[0] == world.status("late")[0] == {"active": 1, "ready": 1}
    assert started in {p["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for p in world.pods()}


def test_what_runs_on_a_node_that_is_cut_off_runs_on_when_its_object_is_gone(world):
    world.submit(annotations={"duration": "60s"})
    (pod,) = world.after(1).pods()
    world.sim.nodes.lose(pod["spec"]["nodeName"], dead=False)
    world.delete_pod(pod, grace_s=0)
    world.after(10)
    assert world.outcomes()[0] == "", "nobody told the node"
    world.sim.restore_node(pod["spec"]["nodeName"])
    assert world.after(1).outcomes()[0] == "Deleted"


def test_pods_of_a_node_that_never_was_are_collected(world):
    world.submit(pod={"nodeName": "nowhere"}, backoffLimit=0)
    assert world.after(5).status()[0] == {"active": 1}
    assert world.after(60).status() == ({"failed": 1}, ["FailureTarget", "Failed"])


def test_a_removed_node_takes_its_pods_with_it_after_a_while(world):
    world.submit(gpus=8, annotations={"duration": "600s"})
    node = world.after(1).pods()[0]["spec"]["nodeName"]
    world.sim.nodes.remove(node)
    assert world.after(1).status()[0] == {"active": 1, "ready": 1}
    assert world.after(30).status()[0] == {"active": 1, "ready": 1, "failed": 1}
    assert world.outcomes() == ["NodeLost", ""]


def test_a_node_may_be_removed_and_its_pods_stay_behind(world):
    world.submit(gpus=8, annotations={"duration": "600s"})
    node = world.after(1).pods()[0]["spec"]["nodeName"]
    world.sim.nodes.remove(node, keep_pods=True)
    assert world.after(3600).status()[0] == {"active": 1, "ready": 1}


def test_a_taint_set_by_hand_evicts_what_does_not_tolerate_it(world):
    world.submit(gpus=8, annotations={"duration": "600s"})
    node = world.after(1).pods()[0]["spec"]["nodeName"]
    world.api.merge(NODES, ObjectKey("", node), {"spec": {"taints": [{"key": "broken", "effect": "NoExecute"}]}})
    world.after(3)
    assert [p["spec"]["nodeName"] == node for p in world.pods()] == [False]


def test_a_cordoned_node_gets_nothing_new():
    world = World(nodes=1)
    world.sim.nodes.cordon("node-0")
    world.submit()
    (pod,) = world.after(1).pods()
    assert pod["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 node(s) were unschedulable."
    world.sim.nodes.cordon("node-0", on=False)
    assert world.after(5).status()[1] == ["SuccessCriteriaMet", "Complete"]


def test_gated_pods_wait_until_their_gates_are_taken_off(world):
    world.submit(pod={"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]})
    (pod,) = world.after(10).pods("Pending")
    assert pod["status"]["conditions"][0]["reason"] == "SchedulingGated"
    world.api.merge(PODS, ObjectKey("default", pod["metadata"]["name"]), {"spec": {"schedulingGates": None}})
    assert world.after(5).status()[1] == ["SuccessCriteriaMet", "Complete"]


def test_a_pod_put_by_hand_where_there_is_no_room_is_rejected_by_the_node():
    world = World(nodes=1, gpus=1)
    world.submit("first", pod={"nodeName": "node-0"})
    world.submit("second", pod={"nodeName": "node-0"}, backoffLimit=0)
    world.after(1)
    (rejected,) = world.pods("Failed")
    assert rejected["status"]["reason"] == "OutOfnvidia.com/gpu"


def test_an_annotation_that_cannot_be_read_fails_the_pod_and_is_named(world):
    world.submit(backoffLimit=0, annotations={"duration": "soon"})
    (pod,) = world.after(2).pods("Failed")
    assert pod["status"]["reason"] == "InvalidSandboxAnnotation"
    assert pod["status"]["message"].startswith(f"annotation {PREFIX}duration: 'soon' is not a duration")


def test_a_frozen_controller_changes_nothing_until_it_is_thawed(world):
    world.submit()
    world.after(1).sim.freeze("jobs")
    assert world.after(60).status() == ({"active": 1, "ready": 1}, [])
    world.sim.freeze("jobs", on=False)
    assert world.after(1).status()[1] == ["SuccessCriteriaMet", "Complete"]


def test_every_namespace_has_its_default_service_account(world):
    world.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    world.after(0)
    homes = [a["metadata"]["namespace"] for a in world.api.list(SERVICE_ACCOUNTS)]
    assert {"default", "kube-system", "team-a"} <= set(homes)


def test_runs_carry_the_marks_of_job_and_pod(world):
    marks = {
        "multikueue-hub.io/origin-uid": "w-1",
        "multikueue-hub.io/placement": "p-7",
        "multikueue-hub.io/generation": "3",
    }
    world.submit(gpus=2, meta={"annotations": marks})
    (run,) = world.after(1).sim.observer.runs
    assert (run.source.origin_uid, run.source.placement, run.source.generation) == ("w-1", "p-7", "3")
    assert (run.source.kind, run.source.name, run.source.cluster, run.gpus) == ("Job", "train", "hopper", 2)


def test_a_pods_log_tells_where_it_runs_and_in_which_environment(world):
    world.submit(completionMode="Indexed", completions=1, parallelism=1, backoffLimit=0, annotations={"exit_code": "3"})
    (pod,) = world.after(0).pods("Pending")
    assert world.api.logs(pod, "main") == []
    (pod,) = world.after(1).pods("Running")
    first, *environment = world.api.logs(pod, "main")
    assert first.endswith(f"main (trainer:1) started on node {pod['spec']['nodeName']}")
    assert environment == ["JOB_COMPLETION_INDEX=0"]
    (pod,) = world.after(5).pods("Failed")
    assert world.api.logs(pod, "main")[-1].endswith("exit code 3")


def test_an_end_is_noted_once(world):
    world.submit()
    world.submit("bad", backoffLimit=0, annotations={"exit_code": "1"})
    world.after(10)
    assert [(c.source.name, c.succeeded) for c in world.sim.observer.completions] == [("train", True), ("bad", False)]


@pytest.mark.parametrize(
    ("given_taints", "given_tolerations", "want_delay_s"),
    [
        pytest.param(
            [("node.kubernetes.io/unreachable", "NoExecute")], [], 300, id="a lost node: what everybody is granted"
        ),
        pytest.param([("broken", "NoExecute")], [], 0, id="any other taint: at once"),
        pytest.param([("broken", "NoSchedule")], [], None, id="only NoExecute evicts"),
        pytest.param([("broken", "NoExecute")], [("broken", None)], None, id="tolerated for good"),
        pytest.param(
            [("broken", "NoExecute")], [("broken", 20), ("broken", 60)], 20, id="the shortest toleration counts"
        ),
        pytest.param(
            [("broken", "NoExecute"), ("node.kubernetes.io/unreachable", "NoExecute")],
            [("broken", 20)],
            20,
            id="two taints",
        ),
        pytest.param(
            [("known", "NoExecute"), ("broken", "NoExecute")],
            [("known", None), ("broken", 20)],
            20,
            id="one of two tolerated for good",
        ),
    ],
)
def test_how_long_a_pod_may_stay_on_a_tainted_node(given_taints, given_tolerations, want_delay_s):
    taints = [Taint(key=key, effect=effect) for key, effect in given_taints]
    tolerations = [Toleration(key=key, operator="Exists", toleration_seconds=s) for key, s in given_tolerations]
    assert eviction_delay_s(taints, tolerations, 300) == want_delay_s


JOBS_STRATEGY = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.booleans(), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)
MISHAPS = st.lists(
    st.tuples(st.sampled_from(["delete", "suspend", "lose", "scale"]), st.integers(0, 7), st.integers(1, 4)),
    max_size=10,
)


@settings(max_examples=40, deadline=None)
@given(JOBS_STRATEGY, MISHAPS)
def test_whatever_happens_jobs_stay_within_their_limits_and_end(jobs, mishaps):
    world = World(nodes=2, gpus=4, pace=Pace(unreachable_s=5))
    most = {}
    for number, (completions, parallelism, gpus, indexed, fail_times) in enumerate(jobs):
        mode = "Indexed" if indexed else "NonIndexed"
        script = {"fail_times": str(fail_times), "duration": "4s"}
        spec = {"completions": completions, "parallelism": parallelism, "completionMode": mode, "backoffLimit": 1000}
        world.submit(f"j{number}", gpus=gpus, annotations=script, **spec)
        most[f"j{number}"] = parallelism

    def check():
        for name, parallelism in most.items():
            mine = [p for p in world.pods() if p["metadata"]["labels"]["job-name"] == name]
            active = [
                p
                for p in mine
                if p["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in p["metadata"]
            ]
            assert len(active) <= parallelism
            assert world.job(name)["status"].get("active", 0) <= parallelism
        for node in ("node-0", "node-1"):
            assert all(n >= 0 for n in world.sim.scheduler.free(node).values())

    for what, number, seconds in mishaps:
        name = f"j{number % len(jobs)}"
        if what == "delete" and world.pods():
            world.delete_pod(world.pods()[number % len(world.pods())])
        elif what == "suspend":
            world.patch_job(name, suspend=not world.job(name)["spec"]["suspend"])
        elif what == "lose":
            world.sim.nodes.lose(f"node-{number % 2}")
            world.after(seconds)
            check()
            world.sim.restore_node(f"node-{number % 2}")
        elif what == "scale":
            most[name] = max(most[name], seconds)
            world.patch_job(name, parallelism=seconds)
            world.after(0)
            most[name] = seconds
        world.after(seconds)
        check()
    for name in most:
        world.patch_job(name, suspend=False)
    world.after(2000)
    check()
    for number, (completions, *_) in enumerate(jobs):
        counts, conditions = world.status(f"j{number}")
        assert conditions == ["SuccessCriteriaMet", "Complete"], (counts, conditions)
        assert counts["succeeded"] == completions
        assert world.job(f"j{number}")["status"]["uncountedTerminatedPods"] == {}
    assert all(run.end is not None for run in world.sim.observer.runs)
