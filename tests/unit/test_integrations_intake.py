"""A job on its way in: what it is given, and what is refused with which words."""

import pytest

from hub.kueue.api.v1beta2 import names
from hub.kueue.integrations.batch_job import BATCH_JOB
from hub.kueue.integrations.intake import Surroundings, defaulted, errors_in
from tests.job_builders import make_job

NOTHING = Surroundings()
MANAGER = Surroundings(managed_by=names.MANAGED_BY_MULTIKUEUE)
FRESH = make_job("j").running()


@pytest.mark.parametrize(
    ("job", "around", "want_labels", "want_suspend"),
    [
        pytest.param(FRESH, NOTHING, {}, False, id="a job without a queue is left alone"),
        pytest.param(FRESH.queue("q"), NOTHING, {names.QUEUE_NAME: "q"}, True, id="a queued job waits"),
        pytest.param(
            FRESH,
            Surroundings(has_default_queue=True),
            {names.QUEUE_NAME: "default"},
            True,
            id="the namespace's default queue",
        ),
        pytest.param(
            FRESH.queue("q"),
            Surroundings(has_default_queue=True, has_default_priority_class=True),
            {names.QUEUE_NAME: "q", names.PRIORITY_CLASS: "default"},
            True,
            id="the default priority class",
        ),
        pytest.param(
            FRESH.queue("q").label(names.PRIORITY_CLASS, "high"),
            Surroundings(has_default_priority_class=True),
            {names.QUEUE_NAME: "q", names.PRIORITY_CLASS: "high"},
            True,
            id="a class that was chosen stays",
        ),
    ],
)
def test_defaults(job, around, want_labels, want_suspend):
    after = defaulted(BATCH_JOB, job.obj(), around)
    assert (after["metadata"]["labels"], after["spec"]["suspend"]) == (want_labels, want_suspend)


def test_on_a_management_cluster_the_job_is_managed_by_us_and_defaults_are_given_once():
    once = defaulted(BATCH_JOB, FRESH.queue("q").obj(), MANAGER)
    assert once["spec"]["managedBy"] == names.MANAGED_BY_MULTIKUEUE
    assert defaulted(BATCH_JOB, once, MANAGER) == once


QUEUED = make_job("j").queue("q")


def label(name: str) -> str:
    return f"metadata.labels[{name}]"


GATES = f"metadata.annotations[{names.ADMISSION_GATED_BY}]"


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(QUEUED, [], id="right"),
        pytest.param(make_job("j").label(names.MAX_EXEC_TIME_SECONDS, "x"), [], id="not queued: none of our business"),
        pytest.param(make_job("j").queue("Not_a_name"), [label(names.QUEUE_NAME)], id="no name of a queue"),
        pytest.param(make_job("j").queue("q" * 254), [label(names.QUEUE_NAME)], id="too long a name"),
        pytest.param(
            QUEUED.label(names.PREBUILT_WORKLOAD_NAME, "A"),
            [label(names.PREBUILT_WORKLOAD_NAME)],
            id="no name of a workload",
        ),
        *[
            pytest.param(
                QUEUED.label(names.MAX_EXEC_TIME_SECONDS, text),
                [label(names.MAX_EXEC_TIME_SECONDS)],
                id=f"a time of {text!r}",
            )
            for text in ("0", "-1", "1.5", "")
        ],
        pytest.param(QUEUED.note(names.ADMISSION_GATED_BY, "a.io/one,a.io/one"), [GATES], id="a gate twice"),
        pytest.param(QUEUED.note(names.ADMISSION_GATED_BY, "one"), [GATES], id="a gate without a domain"),
        pytest.param(
            QUEUED.note(names.JOB_MIN_PARALLELISM, "7"),
            [f"metadata.annotations[{names.JOB_MIN_PARALLELISM}]"],
            id="the kind's own rules",
        ),
    ],
)
def test_errors_of_a_new_job(job, want):
    assert [error.path for error in errors_in(BATCH_JOB, job.obj())] == want


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(QUEUED, make_job("j").queue("other"), [], id="a waiting job may change its queue"),
        pytest.param(
            QUEUED.running(),
            make_job("j").running().queue("other"),
            [label(names.QUEUE_NAME)],
            id="a running one may not",
        ),
        pytest.param(QUEUED.running(), make_job("j").running(), [label(names.QUEUE_NAME)], id="nor leave it"),
        pytest.param(
            QUEUED.running(),
            QUEUED.running().label(names.MAX_EXEC_TIME_SECONDS, "9"),
            [label(names.MAX_EXEC_TIME_SECONDS)],
            id="nor its time",
        ),
        pytest.param(QUEUED, QUEUED.running(), [], id="it is started"),
        pytest.param(QUEUED.running(), QUEUED, [], id="it is stopped"),
        pytest.param(
            QUEUED.running().label(names.PRIORITY_CLASS, "a"),
            QUEUED.running().label(names.PRIORITY_CLASS, "b"),
            [],
            id="another class at any time",
        ),
        pytest.param(
            QUEUED.label(names.PRIORITY_CLASS, "a"), QUEUED, [label(names.PRIORITY_CLASS)], id="no class any more"
        ),
        pytest.param(
            QUEUED.running(),
            QUEUED.running().label(names.PRIORITY_CLASS, "a"),
            [label(names.PRIORITY_CLASS)],
            id="a class for a running job",
        ),
        pytest.param(QUEUED, QUEUED.label(names.PRIORITY_CLASS, "a"), [], id="a class for a waiting job"),
        pytest.param(
            QUEUED.note(names.ADMISSION_GATED_BY, "a.io/x,a.io/y"),
            QUEUED.note(names.ADMISSION_GATED_BY, "a.io/y"),
            [],
            id="a gate less",
        ),
        pytest.param(QUEUED, QUEUED.note(names.ADMISSION_GATED_BY, "a.io/x"), [GATES], id="a gate more"),
    ],
)
def test_errors_of_a_change(old, new, want):
    assert [error.path for error in errors_in(BATCH_JOB, new.obj(), old.obj())] == want


def test_an_error_names_field_value_and_rule():
    (error,) = errors_in(BATCH_JOB, make_job("j").queue("q").label(names.MAX_EXEC_TIME_SECONDS, "soon").obj())
    assert str(error) == (
        'metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]: Invalid value: "soon": '
        "must be a whole number of seconds above 0"
    )
