import pytest

from hub.sandbox.job_policies import INDEX
from hub.sandbox.logs import logs
from hub.sandbox.pod_status import crashed, ended, running, unschedulable
from hub.sandbox.script import PREFIX, Pace, Script, ScriptError, parse_duration, script_of

NOW = 1_767_225_600.0
PACE = Pace(run_s=2, stop_s=0.1, stop_most_s=60)


def make_pod(*, index=None, annotations=None, **spec):
    script = {PREFIX + name: value for name, value in (annotations or {}).items()}
    own = {} if index is None else {INDEX: str(index)}
    containers = [{"name": "main", "image": "trainer:1"}]
    meta = {"name": "p", "namespace": "team-a", "uid": "u", "annotations": script | own}
    return {"metadata": meta, "spec": {"restartPolicy": "Never", "containers": containers, **spec}, "status": {}}


@pytest.mark.parametrize(
    ("given_text", "want_s"),
    [("2s", 2), ("500ms", 0.5), ("1m30s", 90), ("1.5h", 5400), ("1h2m3s4ms", 3723.004), ("0s", 0)],
)
def test_durations(given_text, want_s):
    assert parse_duration(given_text) == pytest.approx(want_s)


@pytest.mark.parametrize("given_text", ["", "2", "soon", "-1s", "s", "1s1m"])
def test_what_is_no_duration_is_refused(given_text):
    with pytest.raises(ValueError, match="is not a duration: write 500ms, 2s, 1m30s"):
        parse_duration(given_text)


@pytest.mark.parametrize(
    ("given_pod", "want"),
    [
        pytest.param(make_pod(), (2, 0, 0.1), id="the cluster's pace where the pod says nothing"),
        pytest.param(make_pod(annotations={"duration": "9s", "exit-code": "3"}), (9, 3, 0.1), id="as the pod says"),
        pytest.param(make_pod(annotations={"duration": "forever"}), (None, 0, 0.1), id="for ever"),
        pytest.param(make_pod(restartPolicy="Always"), (None, 0, 0.1), id="a service runs until it is deleted"),
        pytest.param(make_pod(annotations={"termination": "90s"}), (2, 0, 30), id="no longer than its grace period"),
        pytest.param(
            make_pod(annotations={"termination": "90s"}, terminationGracePeriodSeconds=600),
            (2, 0, 60),
            id="nor than the cluster allows",
        ),
        pytest.param(
            make_pod(index=1, annotations={"duration": "9s", "durations": "1=4s,2=5s"}), (4, 0, 0.1), id="its index"
        ),
        pytest.param(
            make_pod(index=3, annotations={"duration": "9s", "durations": "1=4s"}), (9, 0, 0.1), id="other indexes"
        ),
        pytest.param(make_pod(index=1, annotations={"exit-codes": "1=42"}), (2, 42, 0.1), id="exit code of an index"),
    ],
)
def test_what_a_pod_does(given_pod, want):
    script = script_of(given_pod, PACE)
    assert (script.duration_s, script.exit_code, script.stop_s) == want


@pytest.mark.parametrize(
    ("given_annotations", "want_error"),
    [
        ({"duration": "soon"}, "duration: 'soon' is not a duration"),
        ({"exit-code": "one"}, "exit-code: invalid literal"),
        ({"durations": "1:2s"}, "durations: '1:2s' is not a list such as 0=VALUE,3=VALUE"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(given_annotations, want_error):
    with pytest.raises(ScriptError) as caught:
        script_of(make_pod(index=0, annotations=given_annotations), PACE)
    assert str(caught.value).startswith(f"annotation {PREFIX}{want_error}")


@pytest.mark.parametrize(
    ("given_code", "given_times", "want_codes"),
    [(0, 0, [0, 0, 0]), (7, 0, [7, 7, 7]), (0, 2, [1, 1, 0]), (7, 1, [7, 0, 0])],
)
def test_exit_codes_of_one_try_after_the_other(given_code, given_times, want_codes):
    script = Script(duration_s=1, exit_code=given_code, fail_times=given_times, stop_s=0)
    assert [script.code_of_try(number) for number in range(3)] == want_codes


def conditions(status):
    return {c["type"]: c["status"] for c in status["conditions"]}


def with_status(pod, status):
    return pod | {"status": status, "spec": pod["spec"] | {"nodeName": "n"}}


def test_the_status_of_a_pod_from_stage_to_stage():
    waiting = with_status(make_pod(), unschedulable(make_pod(), "no room", NOW))
    assert conditions(waiting["status"]) == {"PodScheduled": "False"}
    up = with_status(waiting, running(waiting, "10.0.0.1", "10.64.0.1", NOW + 5, NOW + 5))
    assert set(conditions(up["status"]).values()) == {"True"}
    assert up["status"]["startTime"] == "2026-01-01T00:00:05Z"
    down = with_status(up, crashed(up, 3, NOW + 9, wait_s=10))
    assert conditions(down["status"]) == conditions(up["status"]) | {"Ready": "False", "ContainersReady": "False"}
    (container,) = down["status"]["containerStatuses"]
    assert (container["restartCount"], container["lastState"]["terminated"]["exitCode"]) == (1, 3)
    again = with_status(down, running(down, "10.0.0.1", "10.64.0.1", NOW + 19, NOW + 19))
    over = ended(again, 0, NOW + 30)
    assert over["phase"] == "Succeeded"
    assert conditions(over) == {
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "Ready": "False",
        "ContainersReady": "False",
        "PodScheduled": "True",
    }
    end = over["containerStatuses"][0]["state"]["terminated"]
    assert (end["startedAt"], end["finishedAt"]) == ("2026-01-01T00:00:19Z", "2026-01-01T00:00:30Z")
    assert over["startTime"] == "2026-01-01T00:00:05Z"


def test_a_condition_keeps_its_time_while_its_status_does():
    first = unschedulable(make_pod(), "no room", NOW)
    later = unschedulable(make_pod() | {"status": first}, "still none", NOW + 60)
    assert later["conditions"][0]["message"] == "still none"
    assert later["conditions"][0]["lastTransitionTime"] == first["conditions"][0]["lastTransitionTime"]


def test_the_log_of_an_init_container_and_of_one_that_waits():
    spec = {"initContainers": [{"name": "fetch", "image": "curl:1", "env": [{"name": "URL", "value": "x"}]}]}
    pod = make_pod(**spec)
    assert logs(pod, "fetch") == []
    up = with_status(pod, running(pod, "10.0.0.1", "10.64.0.1", NOW, NOW))
    assert logs(up, "fetch") == [
        "2026-01-01T00:00:00Z fetch (curl:1) started on node n",
        "URL=x",
        "2026-01-01T00:00:00Z exit code 0",
    ]
    down = with_status(up, crashed(up, 3, NOW + 9, wait_s=10))
    assert logs(down, "main")[-1] == "2026-01-01T00:00:09Z exit code 3"


@pytest.mark.parametrize(
    ("given_entry", "want_line"),
    [
        ({"name": "A", "value": "1"}, "A=1"),
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}, "A=team-a"),
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, "A=n"),
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, "A=10.64.0.1"),
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}, "A=4"),
        ({"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, "A="),
    ],
)
def test_environment_in_the_log(given_entry, want_line):
    pod = make_pod(index=4, containers=[{"name": "main", "env": [given_entry]}])
    up = with_status(pod, running(pod, "10.0.0.1", "10.64.0.1", NOW, NOW))
    assert logs(up, "main")[1] == want_line
