"""When the hub stops trusting a cluster, when it trusts it again, and when it suspects itself."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.dispatch import clusters as c
from hub.dispatch.clusters import Cluster, ClusterState, HealthPolicy, step

POLICY = HealthPolicy(suspect_after=3, recover_after=2, lost_timeout_s=30, lease_s=20, lease_margin_s=5)


def after_events(cluster: Cluster, *events: c.ClusterEvent) -> Cluster:
    for event in events:
        cluster = step(cluster, event, POLICY)
    return cluster


def failures(*times: float) -> list[c.PollFailed]:
    return [c.PollFailed(now=t, reason="Unreachable", message="connection refused") for t in times]


def answers(*times: float) -> list[c.Answered]:
    return [c.Answered(now=t) for t in times]


def cluster_in(state: ClusterState, **changes) -> Cluster:
    flags = {"cordoned": state is ClusterState.CORDONED, "draining": state is ClusterState.DRAINING}
    return Cluster(name="east", state=state, **(flags | changes))


def silent(name: str, since: float, state: ClusterState = ClusterState.SUSPECT) -> Cluster:
    return Cluster(name=name, state=state, failing_since=since, grace_since=since, failures_in_row=3)


@pytest.mark.parametrize(
    ("given_cluster", "events", "want_state"),
    [
        pytest.param(Cluster(name="east"), answers(1), ClusterState.ACTIVE, id="the first answer makes it active"),
        pytest.param(
            Cluster(name="east", cordoned=True), answers(1), ClusterState.CORDONED, id="cordoned before it joined"
        ),
        pytest.param(cluster_in(ClusterState.ACTIVE), failures(1, 2), ClusterState.ACTIVE, id="two failures are not enough"),
        pytest.param(cluster_in(ClusterState.ACTIVE), failures(1, 2, 3), ClusterState.SUSPECT, id="three in a row are"),
        pytest.param(
            cluster_in(ClusterState.ACTIVE), [*failures(1, 2), *answers(3), *failures(4, 5)], ClusterState.ACTIVE,
            id="an answer between them starts the count again",
        ),
        pytest.param(
            cluster_in(ClusterState.SUSPECT), answers(1), ClusterState.SUSPECT, id="one answer does not bring it back"
        ),
        pytest.param(cluster_in(ClusterState.SUSPECT), answers(1, 2), ClusterState.ACTIVE, id="two in a row do"),
        pytest.param(
            cluster_in(ClusterState.LOST), answers(1), ClusterState.SUSPECT, id="a lost one that answers is a suspect"
        ),
        pytest.param(cluster_in(ClusterState.LOST), answers(1, 2), ClusterState.ACTIVE, id="and comes home"),
        pytest.param(
            cluster_in(ClusterState.LOST, draining=True), answers(1, 2), ClusterState.DRAINING,
            id="home is where the operator wants it",
        ),
        pytest.param(
            cluster_in(ClusterState.SUSPECT), [c.Cordon(now=1), *answers(2, 3)], ClusterState.CORDONED,
            id="cordoned while silent takes effect on return",
        ),
        pytest.param(cluster_in(ClusterState.ACTIVE), [c.Drain(now=1)], ClusterState.DRAINING, id="drain"),
        pytest.param(
            cluster_in(ClusterState.DRAINING), [c.Uncordon(now=1)], ClusterState.ACTIVE, id="uncordon takes back a drain"
        ),
        pytest.param(cluster_in(ClusterState.DRAINING), [c.Cordon(now=1)], ClusterState.CORDONED, id="stop draining only"),
        pytest.param(cluster_in(ClusterState.CORDONED), [c.DeclareLost(now=1)], ClusterState.LOST, id="declared lost"),
        pytest.param(
            cluster_in(ClusterState.REMOVED), [*failures(1, 2, 3), *answers(4)], ClusterState.REMOVED,
            id="removed stays removed whatever its agent does",
        ),
    ],
)  # fmt: skip
def test_step(given_cluster, events, want_state):
    assert after_events(given_cluster, *events).state is want_state


def test_the_grace_runs_from_the_first_failure_of_the_streak():
    cluster = after_events(cluster_in(ClusterState.ACTIVE), *failures(10, 11), *answers(12), *failures(40, 41, 42))
    assert (cluster.failing_since, cluster.grace_since, cluster.reason) == (40, 40, "Unreachable")


def test_a_rejoin_keeps_state_and_work_but_not_the_cursor():
    before = cluster_in(ClusterState.CORDONED, boot_id="b1", cursor=7, certificate_pem="old")
    after = after_events(before, c.Joined(now=1, address="https://a:1", certificate_pem="new"))
    assert (after.state, after.certificate_pem, after.boot_id, after.cursor) == (ClusterState.CORDONED, "new", "", 0)


def test_an_impossible_event_tells_the_story():
    removed = cluster_in(ClusterState.REMOVED, reason="Removed", message="by anna")
    with pytest.raises(c.InvalidClusterTransition, match=r"cluster east is Removed \(Removed: by anna\): Cordon"):
        step(removed, c.Cordon(now=1), POLICY)


def test_the_docstring_shows_the_table():
    drawn = [line.strip() for line in (c.__doc__ or "").splitlines()]
    assert [line.strip() for line in c.diagram().splitlines() if line.strip() not in drawn] == []


@pytest.mark.parametrize(
    ("given_fleet", "now", "want_overdue", "want_alarm"),
    [
        pytest.param(
            [silent("a", 0), *[cluster_in(ClusterState.ACTIVE)] * 3], 29, (), False, id="within the grace nobody is lost"
        ),
        pytest.param([silent("a", 0), *[cluster_in(ClusterState.ACTIVE)] * 3], 30, ("a",), False, id="after it, the silent one"),
        pytest.param([silent("a", 0), silent("b", 0), cluster_in(ClusterState.ACTIVE)], 99, (), True, id="most silent: nobody"),
        pytest.param([silent("a", 0), cluster_in(ClusterState.ACTIVE)], 30, ("a",), False, id="one of two is not most"),
        pytest.param([silent("a", 0)], 99, (), True, id="the only one silent: there is nowhere else to go either"),
        pytest.param(
            [silent("a", 0, ClusterState.LOST), silent("b", 0), cluster_in(ClusterState.ACTIVE)], 30, ("b",), False,
            id="those lost long ago do not hold the brake",
        ),
        pytest.param(
            [Cluster(name="i"), Cluster(name="j"), silent("a", 0), cluster_in(ClusterState.ACTIVE)], 30, ("a",), False,
            id="those that never joined do not count",
        ),
    ],
)  # fmt: skip
def test_who_is_lost(given_fleet, now, want_overdue, want_alarm):
    look = c.look_for_silence(given_fleet, POLICY, now)
    assert (look.overdue, bool(look.alarm)) == (want_overdue, want_alarm)


def test_the_brake_starts_every_grace_again():
    fleet = [silent("a", 0), silent("b", 0), cluster_in(ClusterState.ACTIVE)]
    held = [c.hold_back(x, 100) for x in fleet]
    assert [x.grace_since for x in held] == [100, 100, None]
    one_back = [held[0], cluster_in(ClusterState.ACTIVE), cluster_in(ClusterState.ACTIVE)]
    assert c.look_for_silence(one_back, POLICY, 129).overdue == ()
    assert c.look_for_silence(one_back, POLICY, 130).overdue == ("a",)


def test_grace_over_says_how_long_and_why():
    event = c.grace_over(msgspec.structs.replace(silent("a", 10), message="connection refused"), 50)
    assert event.message == "no answer for 40 s; last error: connection refused"


def test_no_poll_extends_the_lease_once_polls_fail():
    """The agent may hear polls whose answers are lost, so its lease must end by `fenced_at` all the same."""
    failing = after_events(cluster_in(ClusterState.ACTIVE), *failures(100))
    assert c.lease_to_grant(cluster_in(ClusterState.ACTIVE), POLICY, 100) == 20
    grants = {t: c.lease_to_grant(failing, POLICY, t) for t in (100, 105, 119, 120, 150)}
    assert grants == {100: 20, 105: 15, 119: 1, 120: 0, 150: 0}
    assert c.fenced_at(failing, POLICY) == 125
    assert c.fenced_at(cluster_in(ClusterState.ACTIVE), POLICY) is None


KINDS = (c.Answered, c.PollFailed, c.GraceOver, c.DeclareLost, c.Cordon, c.Uncordon, c.Drain, c.Remove)


@given(st.lists(st.sampled_from(KINDS), max_size=30))
def test_any_order_of_events(history):
    """Every step stays in the table (asserted by `step`), offers need a streak of health, and removed is for good."""
    cluster = Cluster(name="east")
    for now, kind in enumerate(history):
        try:
            after = step(cluster, kind(now=float(now)), POLICY)
        except c.InvalidClusterTransition:
            continue
        if cluster.state is ClusterState.REMOVED:
            assert after.state is ClusterState.REMOVED
        if cluster.state is ClusterState.SUSPECT and after.state is ClusterState.ACTIVE:
            assert after.answers_in_row >= POLICY.recover_after
        if after.state is ClusterState.ACTIVE:
            assert after.failures_in_row < POLICY.suspect_after
            assert not after.cordoned
            assert not after.draining
        cluster = after
