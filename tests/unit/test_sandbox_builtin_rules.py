"""Rules of built-in kinds: what is filled in, and what is refused in kube-apiserver's words."""

import copy

import pytest

from hub.sandbox.builtin_rules import (
    cluster_role_errors,
    cron_job_errors,
    default_cron_job,
    default_limit_range,
    default_node,
    lease_errors,
    node_errors,
    quota_errors,
    role_errors,
)
from hub.sandbox.job_status_checks import job_status_errors
from hub.sandbox.metadata import LABEL_RULE, QUALIFIED_RULE
from hub.sandbox.pod_checks import template_errors, validate_pod_spec
from hub.sandbox.pod_defaults import default_pod_spec, default_tolerations

C = {"name": "a", "image": "i:1"}


def texts(errors) -> list[str]:
    return [f"{e.field}: {e.message}" for e in errors]


def pod(container: dict | None = None, **spec) -> dict:
    defaulted = {"containers": [{**C, **copy.deepcopy(container or {})}], **copy.deepcopy(spec)}
    default_pod_spec(defaulted)
    return defaulted


# --- pods ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "at", "want"),
    [
        pytest.param({}, ["restartPolicy"], "Always", id="restart policy"),
        pytest.param({}, ["terminationGracePeriodSeconds"], 30, id="grace"),
        pytest.param({"containers": [C]}, ["containers", 0, "resources"], {}, id="resources of a container"),
        pytest.param({"containers": [C]}, ["containers", 0, "imagePullPolicy"], "IfNotPresent", id="pull policy of a tagged image"),
        pytest.param({"containers": [{"image": "r:5000/i"}]}, ["containers", 0, "imagePullPolicy"], "Always", id="pull policy without tag"),
        pytest.param({"containers": [{"livenessProbe": {"httpGet": {"port": 1}}}]}, ["containers", 0, "livenessProbe"], {"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}, id="a probe"),
        pytest.param({"volumes": [{"name": "v"}]}, ["volumes", 0], {"name": "v", "emptyDir": {}}, id="a volume without source is empty"),
        pytest.param({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, ["volumes", 0, "secret", "defaultMode"], 420, id="mode of files"),
    ],
)  # fmt: skip
def test_pod_defaults(spec, at, want):
    found: object = copy.deepcopy(spec)
    default_pod_spec(found)
    again = copy.deepcopy(found)
    default_pod_spec(again)
    assert again == found, "filling in twice changes nothing"
    for step in at:
        found = found[step]
    assert found == want


def test_a_pod_waits_five_minutes_for_a_silent_node_unless_it_says_otherwise():
    spec = {"tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 9}]}
    default_tolerations(spec)
    assert [(t["key"], t["tolerationSeconds"]) for t in spec["tolerations"]] == [
        ("node.kubernetes.io/unreachable", 9),
        ("node.kubernetes.io/not-ready", 300),
    ]
    tolerant = {"tolerations": [{"operator": "Exists"}]}
    default_tolerations(tolerant)
    assert tolerant == {"tolerations": [{"operator": "Exists"}]}


TERMS = "s.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def affinity(*expressions: dict) -> dict:
    terms = [{"matchExpressions": list(expressions)}] if expressions else []
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param(pod(), [], id="nothing"),
        pytest.param({**pod(), "containers": []}, ["s.containers: Required value"], id="no container"),
        pytest.param(pod(restartPolicy="X"), ['s.restartPolicy: Unsupported value: "X": supported values: "Always", "OnFailure", "Never"'], id="restart policy"),
        pytest.param(pod(dnsPolicy="X"), ['s.dnsPolicy: Unsupported value: "X": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"'], id="dns policy"),
        pytest.param(pod({"name": "A_"}), [f's.containers[0].name: Invalid value: "A_": {LABEL_RULE}'], id="name of a container"),
        pytest.param(pod(initContainers=[C]), ['s.initContainers[0].name: Duplicate value: "a"'], id="name twice"),
        pytest.param(pod({"image": " x"}), ['s.containers[0].image: Invalid value: " x": must not have leading or trailing whitespace'], id="image"),
        pytest.param(pod({"ports": [{"containerPort": 70000}]}), ["s.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"], id="port"),
        pytest.param(pod({"env": [{"name": "a=b"}]}), ["s.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only of printable ASCII characters other than '='"], id="variable"),
        pytest.param(pod({"volumeMounts": [{"name": "z", "mountPath": "/z"}]}), ['s.containers[0].volumeMounts[0].name: Not found: "z"'], id="mount without volume"),
        pytest.param(pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]), ["s.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"], id="two sources"),
        pytest.param(pod({"resources": {"requests": {"cpu": "-1"}}}), ['s.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0'], id="negative request"),
        pytest.param(pod(nodeSelector={"a b": "c"}), [f's.nodeSelector: Invalid value: "a b": {QUALIFIED_RULE}'], id="node selector"),
        pytest.param(pod(tolerations=[{"key": "a", "operator": "Exists", "value": "v"}]), ["s.tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'"], id="toleration with needless value"),
        pytest.param(pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "X"}]), ['s.tolerations[0].effect: Unsupported value: "X": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'], id="toleration of an unknown effect"),
        pytest.param(pod(affinity=affinity()), [f"{TERMS}: Required value: must have at least one node selector term"], id="affinity to nothing"),
        pytest.param(pod(affinity=affinity({"key": "a", "operator": "In"})), [f"{TERMS}[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"], id="affinity to no value"),
        pytest.param(pod(schedulingGates=[{"name": "g"}, {"name": "g"}]), ['s.schedulingGates[1]: Duplicate value: "g"'], id="gate twice"),
        pytest.param(pod(schedulingGates=[{"name": "g"}], nodeName="n"), ["s.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"], id="gated pod on a node"),
        pytest.param(pod(activeDeadlineSeconds=0), ["s.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"], id="deadline"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_pod_spec(spec, want):
    assert texts(validate_pod_spec(spec, "s")) == want


def test_labels_of_a_template_are_checked():
    (error,) = template_errors({"metadata": {"labels": {"a b": "c"}}, "spec": pod()}, "spec.template")
    assert error.field == "spec.template.labels"


# --- the status of jobs ----------------------------------------------------------------------------------------------------

T, LATER = "2024-01-01T00:00:00Z", "2024-01-01T00:01:00Z"
NONE: dict = {}


def true(*kinds: str) -> list[dict]:
    return [{"type": kind, "status": "True"} for kind in kinds]


COMPLETE = {
    "startTime": T,
    "completionTime": LATER,
    "succeeded": 2,
    "conditions": true("SuccessCriteriaMet", "Complete"),
}


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        pytest.param(NONE, {"startTime": T, "active": 2, "ready": 1}, [], id="pods at work"),
        pytest.param(NONE, COMPLETE, [], id="complete"),
        pytest.param(COMPLETE, COMPLETE, [], id="still complete"),
        pytest.param(NONE, {"active": 1, "ready": 2}, ["ready: Invalid value: 2: cannot set more ready pods than active"], id="more ready than active"),
        pytest.param(NONE, {**COMPLETE, "conditions": true("Complete")}, ["conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition"], id="complete out of the blue"),
        pytest.param(NONE, {**COMPLETE, "conditions": true("SuccessCriteriaMet", "Complete", "Failed")}, ["conditions: Invalid value: cannot set Complete=True and Failed=true conditions", "conditions: Invalid value: cannot set SuccessCriteriaMet=True and Failed=true conditions", "conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition"], id="complete and failed"),
        pytest.param(NONE, {**COMPLETE, "active": 1}, ["active: Invalid value: 1: active>0 is invalid for finished job"], id="complete with pods at work"),
        pytest.param(NONE, {"conditions": true("FailureTarget", "Failed")}, ["startTime: Required value: startTime is required for finished job"], id="failed without having started"),
        pytest.param(NONE, {"startTime": LATER, "completionTime": T, "conditions": true("SuccessCriteriaMet", "Complete")}, [f'completionTime: Invalid value: "{T}": must be equal to or after `startTime`'], id="ended before it started"),
        pytest.param(NONE, {"startTime": T, "completedIndexes": "0-1"}, ['completedIndexes: Invalid value: "0-1": cannot set non-empty completedIndexes when non-indexed completion mode'], id="indexes of a job without"),
        pytest.param(NONE, {"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["a"]}}, ['uncountedTerminatedPods.failed[0]: Duplicate value: "a"'], id="a pod that succeeded and failed"),
        pytest.param({"startTime": T}, {"startTime": LATER}, [f'startTime: Invalid value: "{LATER}": field is immutable for unsuspended job once set'], id="another start"),
        pytest.param({"succeeded": 2}, {"succeeded": 1}, ["succeeded: Invalid value: 1: cannot decrease the succeeded counter"], id="fewer successes"),
        pytest.param(COMPLETE, {**COMPLETE, "completionTime": T}, [f'completionTime: Invalid value: "{T}": field is immutable'], id="another end"),
    ],
)  # fmt: skip
def test_job_status(before, after, want):
    spec = {"completions": 2, "parallelism": 2}
    found = texts(job_status_errors({"spec": spec, "status": after}, {"spec": spec, "status": before}))
    assert [text.removeprefix("status.") for text in found] == want


@pytest.mark.parametrize(
    ("text", "want"),
    [("0-1", ""), ("0,2", ""), ("7", 'too large index: "7"'), ("1,0", "non-increasing order, previous: 1, current: 0"), ("x", 'cannot convert string to integer for index: "x"')],
)  # fmt: skip
def test_completed_indexes(text, want):
    job = {"spec": {"completions": 3, "completionMode": "Indexed"}, "status": {"completedIndexes": text}}
    found = texts(job_status_errors(job, {"spec": job["spec"]}))
    shown = f'status.completedIndexes: Invalid value: "{text}": error parsing completedIndexes: {want}'
    assert found == ([shown] if want else [])


# --- everything else -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "draft", "want"),
    [
        pytest.param(node_errors, {"spec": {"taints": [{"key": "a", "effect": "X"}]}}, ['metadata.taints[0].effect: Unsupported value: "X": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'], id="a node with an unknown effect"),
        pytest.param(node_errors, {"status": {"capacity": {"cpu": "-1", "nvidia.com/gpu": "1500m"}}}, ['status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0', 'status.capacity.nvidia.com/gpu: Invalid value: "1500m": must be an integer'], id="a node with less than nothing"),
        pytest.param(lease_errors, {"spec": {"leaseDurationSeconds": 0}}, ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"], id="a lease without duration"),
        pytest.param(quota_errors, {"spec": {"hard": {"cpu": "-1"}}}, ['spec.hard[cpu]: Invalid value: "-1": must be greater than or equal to 0'], id="a negative quota"),
        pytest.param(cluster_role_errors, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}, [], id="a cluster role for a path"),
        pytest.param(role_errors, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}, ['rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs'], id="a role for a path"),
        pytest.param(role_errors, {"rules": [{"resources": ["pods"]}]}, ["rules[0].verbs: Required value: verbs must contain at least one value", "rules[0].apiGroups: Required value: resource rules must supply at least one api group"], id="a role without verbs"),
        pytest.param(cron_job_errors, {"spec": {"schedule": "x", "concurrencyPolicy": "Allow"}}, ['spec.schedule: Invalid value: "x": expected exactly 5 fields, found 1: [x]'], id="a schedule of one word"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_other_kinds(check, draft, want):
    assert texts(check(draft)) == want


@pytest.mark.parametrize(
    ("fill", "draft", "want"),
    [
        pytest.param(default_node, {"status": {"capacity": {"cpu": 4}}}, {"status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}}, id="a node offers all it has"),
        pytest.param(default_limit_range, {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}, {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}]}}, id="the most is the default"),
        pytest.param(default_cron_job, {"spec": {"schedule": "@daily"}}, {"spec": {"schedule": "@daily", "concurrencyPolicy": "Allow", "suspend": False, "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}}, id="a cron job"),
    ],
)  # fmt: skip
def test_defaults_of_other_kinds(fill, draft, want):
    fill(draft)
    assert draft == want
