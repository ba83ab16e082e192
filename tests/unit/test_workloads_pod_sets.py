"""What pods get from an admission, and that a template is afterwards as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hub.kueue.admission.topology_encoding import encode
from hub.kueue.api.core import Toleration
from hub.kueue.api.meta import format_time
from hub.kueue.api.v1beta2 import AdmissionCheckState, PodSet, PodSetUpdate, names
from hub.kueue.workloads.pod_sets import (
    Clash,
    MissingFlavor,
    PodSetInfo,
    infos_of_admission,
    infos_of_spec,
    merged,
    restored,
    totals,
)
from tests.job_builders import NOW, make_flavor, make_workload

SPOT = make_flavor(
    "spot", node_labels={"tier": "spot"}, tolerations=[Toleration(key="spot", operator="Exists", effect="NoSchedule")]
)
TEMPLATE = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
}
ADMITTED = make_workload("w").spec(pod_sets=[PodSet(name="main", template=TEMPLATE, count=3)]).admitted(flavor="spot")


def ready_check(**update) -> AdmissionCheckState:
    return AdmissionCheckState(
        name="prov",
        state="Ready",
        message="",
        last_transition_time=format_time(NOW),
        pod_set_updates=[PodSetUpdate(name="main", **update)],
    )


def test_totals_add_up_over_pods_and_pod_sets():
    pod_sets = [PodSet(name="a", template=TEMPLATE, count=3), PodSet(name="b", template=TEMPLATE, count=1)]
    assert totals(pod_sets) == {"cpu": 2000, "memory": 4 * 1024**3}


def test_an_admitted_pod_gets_what_its_flavor_and_checks_say():
    workload = ADMITTED.status(
        admission_checks=[ready_check(annotations={"note": "1"}, node_selector={"pool": "p"})]
    ).obj()
    (info,), problems = infos_of_admission(workload, {"spot": SPOT})
    assert not problems
    assert info == PodSetInfo(
        name="main",
        count=3,
        labels={names.POD_SET: "main", names.CLUSTER_QUEUE_NAME: "cq", names.LOCAL_QUEUE_NAME: "main"},
        annotations={"note": "1"},
        node_selector={"tier": "spot", "pool": "p"},
        tolerations=[{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    )


def test_pods_of_a_copy_are_marked_as_such():
    workload = ADMITTED.meta(labels={names.MULTIKUEUE_ORIGIN: "multikueue"}).obj()
    (info,), _ = infos_of_admission(workload, {"spot": SPOT})
    assert info.labels[names.MULTIKUEUE_WORKER_WORKLOAD_POD] == "true"


def test_the_admitted_count_is_the_number_of_pods():
    workload = (
        make_workload("w").spec(pod_sets=[PodSet(name="main", template=TEMPLATE, count=3)]).admitted(count=2).obj()
    )
    (info,), _ = infos_of_admission(workload, {"default": make_flavor()})
    assert info.count == 2


def test_pods_with_a_place_name_their_workload_so_that_they_are_not_counted_twice():
    workload = ADMITTED.obj()
    admission = workload.status.admission
    assert admission is not None
    (assigned,) = admission.pod_set_assignments
    there = encode([names.HOSTNAME_LABEL], [(("n1",), 3)])
    admission = structs.replace(admission, pod_set_assignments=[structs.replace(assigned, topology_assignment=there)])
    workload = structs.replace(workload, status=structs.replace(workload.status, admission=admission))
    (info,), _ = infos_of_admission(workload, {"spot": SPOT})
    assert info.annotations == {names.WORKLOAD: "w"}


def test_a_queue_name_too_long_for_a_label_is_left_out():
    workload = ADMITTED.spec(queue_name="q" * 64).obj()
    (info,), _ = infos_of_admission(workload, {"spot": SPOT})
    assert names.LOCAL_QUEUE_NAME not in info.labels


@pytest.mark.parametrize(
    ("workload", "flavors", "want"),
    [
        pytest.param(ADMITTED.obj(), {}, [MissingFlavor(pod_set="main", flavor="spot")], id="a flavor that is gone"),
        pytest.param(
            structs.replace(
                ADMITTED.obj(),
                status=structs.replace(
                    ADMITTED.obj().status, admission_checks=[ready_check(node_selector={"tier": "x"})]
                ),
            ),
            {"spot": SPOT},
            [Clash(pod_set="main", field="nodeSelector", key="tier", have="spot", want="x")],
            id="a check that wants another value than the flavor",
        ),
    ],
)
def test_problems_are_data(workload, flavors, want):
    assert infos_of_admission(workload, flavors)[1] == want


def test_a_template_that_wants_another_node_clashes_and_says_how():
    template = {"spec": {"nodeSelector": {"tier": "ondemand"}}}
    _, (clash,) = merged(template, PodSetInfo(name="main", count=1, node_selector={"tier": "spot"}))
    assert str(clash) == "pod set main: nodeSelector tier is 'ondemand' already, the admission needs 'spot'"


def test_equal_values_and_tolerations_are_not_added_twice():
    toleration = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    template = {"spec": {"nodeSelector": {"tier": "spot"}, "tolerations": [toleration]}}
    info = PodSetInfo(name="main", count=1, node_selector={"tier": "spot"}, tolerations=[toleration])
    assert merged(template, info) == (template, [])


texts = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), max_size=3)


@given(labels=texts, notes=texts, selector=texts, added=texts)
def test_restoring_takes_a_template_back_to_what_the_user_wrote(labels, notes, selector, added):
    meta = {k: v for k, v in {"labels": labels, "annotations": notes}.items() if v}
    template = {
        "metadata": {"name": "t", **meta},
        "spec": {"containers": [], **({"nodeSelector": selector} if selector else {})},
    }
    workload = make_workload("w").spec(pod_sets=[PodSet(name="main", template=template, count=1)]).obj()
    info = PodSetInfo(name="main", count=1, labels=added, annotations=added, node_selector=added)
    after, _ = merged(template, info)
    assert restored(after, infos_of_spec(workload)[0]) == template
