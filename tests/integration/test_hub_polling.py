"""The poll loop on a real database, against agents that answer from memory: what gets lost, hangs, restarts or returns."""

from collections.abc import AsyncIterator

import pytest

from hub.dispatch.clusters import ClusterState
from hub.dispatch.placement import State
from hub.kueue.wire import Action, Phase
from hub.loops.upkeep import HealthLoop, RegistryLoop, Retention, UpkeepLoop
from hub.store import clusters, history, ledger, placements
from tests.fake_agent import FakeAgent, overlapping
from tests.hub_rig import POLICY, Rig


@pytest.fixture
async def rig(database, clock) -> AsyncIterator[Rig]:
    made = Rig(database, clock, [FakeAgent("east", clock), FakeAgent("west", clock)])
    await made.register()
    await made.start()
    await made.until(lambda: all(c.state is ClusterState.ACTIVE for c in made.board.clusters.values()))
    yield made
    await made.stop()
    async with database.transaction() as connection:
        assert await ledger.drift(connection) == []
    runs = [run for agent in made.agents.values() for run in agent.runs if run.workload not in made.may_run_twice]
    assert overlapping(runs) == []


async def test_an_offer_becomes_a_run_and_a_finish_is_cleaned_up(rig):
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    stored = await rig.stored(placement)
    assert (stored.state, stored.confirmed, stored.job_status["active"]) == (State.RUNNING, True, 1)
    rig.agents["east"].finish(placement.id)
    await rig.until(lambda: rig.board.placements[placement.id].released)
    stored = await rig.stored(placement)
    assert (stored.state, stored.succeeded, stored.generation) == (State.FINISHED, True, 2)
    assert rig.agents["east"].copies == {}
    async with rig.database.transaction() as connection:
        story = [e.event for e in await history.for_workload(connection, placement.workload)]
    assert story == ["Offered", "Running", "Finished", "Released"]


async def test_an_intent_does_not_wait_for_the_answer_that_is_outstanding(rig):
    """The poll waits half a second for news; the offer is there long before that."""
    east = rig.polling.polls["east"]
    before = len(rig.transport.requests["east"])
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING, within_s=POLICY.wait_s * 0.9)
    requests = rig.transport.requests["east"][before:]
    assert [i.placement for r in requests for i in r.intents] == [placement.id], "sent once"
    assert east.status.failures_in_row == 0


async def test_a_refusal_frees_the_room_and_names_the_reason(rig):
    rig.agents["east"].refuse = lambda intent: "HoleTooSmall"
    placement = await rig.offer("train", cluster="east", gpus=8)
    await rig.until(lambda: rig.state(placement) is State.REFUSED)
    stored = await rig.stored(placement)
    assert (stored.reason, stored.released) == ("HoleTooSmall", True)
    assert rig.board.failures(rig.clock()) == {"east": 1.0}
    again = await rig.offer("train")
    assert again is not None
    assert (again.cluster, again.attempt, again.generation) == ("west", 2, 2)


async def test_a_lost_reply_costs_one_poll_and_no_second_copy(rig):
    """kueue-like systems leave such work in limbo until a lease expires (armada#101)."""
    rig.transport.faults["east"].drop_replies = 1
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    assert rig.agents["east"].created == 1
    assert rig.board.outbox("east") == []


async def test_an_agent_that_restarts_keeps_its_work(rig):
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    rig.agents["east"].restart()
    await rig.until(lambda: rig.board.clusters["east"].boot_id == rig.agents["east"].boot_id)
    await rig.until(lambda: not rig.polling.polls["east"].session.resync)
    assert rig.state(placement) is State.RUNNING
    assert rig.agents["east"].created == 1
    assert rig.transport.requests["east"][-1].term == rig.board.term


async def test_objects_that_vanished_while_the_agent_was_down_are_noticed(rig):
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING and not rig.board.outbox("east"))
    rig.agents["east"].lose(placement.id)
    rig.agents["east"].restart()
    await rig.until(lambda: rig.board.placements[placement.id].released)
    stored = await rig.stored(placement)
    assert (stored.state, stored.reason) == (State.EVICTED, "Disappeared")
    assert rig.agents["east"].created == 1, "an acknowledged Run is never sent again"


async def test_a_hub_killed_between_transaction_and_poll_sends_the_offer_when_it_is_back(rig):
    rig.transport.faults["east"].cut = True
    placement = await rig.offer("train", cluster="east")
    await rig.crash()
    rig.transport.faults["east"].cut = False
    await rig.start()
    assert rig.state(placement) is State.OFFERED
    assert rig.fleet.view("east").account_of("h100", "nvidia.com/gpu").free == 15
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    assert rig.agents["east"].created == 1


async def test_a_hub_killed_after_the_agent_acted_does_not_start_it_again(rig):
    rig.transport.faults["east"].drop_replies = 100
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.agents["east"].created == 1)
    await rig.crash()
    rig.transport.faults["east"].drop_replies = 0
    await rig.start()
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    assert rig.agents["east"].created == 1


async def test_what_was_withdrawn_while_the_cluster_was_away_stops_on_its_return(rig):
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    rig.transport.faults["east"].cut = True
    await rig.until(lambda: rig.board.clusters["east"].state is ClusterState.SUSPECT)
    await rig.withdraw(placement)
    assert not rig.board.placements[placement.id].released, "nobody has said that it is gone"
    rig.agents["east"].restart()
    rig.transport.faults["east"].cut = False
    await rig.until(lambda: rig.board.placements[placement.id].released)
    assert rig.agents["east"].copies == {}


async def test_a_copy_that_nobody_knows_is_withdrawn(rig):
    """As after a restore of the database from a backup."""
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    async with rig.database.transaction() as connection:
        await connection.execute("DELETE FROM placements")
    await rig.crash()
    await rig.start()
    await rig.until(lambda: rig.agents["east"].copies == {})


async def test_a_hung_agent_is_suspect_after_three_polls_and_the_other_does_not_notice(rig):
    rig.transport.faults["east"].hang = True
    await rig.until(lambda: rig.board.clusters["east"].state is ClusterState.SUSPECT)
    assert rig.board.clusters["east"].reason == "Unreachable"
    assert (await rig.offer("train")).cluster == "west"
    placement = await rig.offer("other")
    await rig.until(lambda: rig.state(placement) is State.RUNNING, within_s=POLICY.wait_s * 0.9)
    async with rig.database.transaction() as connection:
        stored = await clusters.get_cluster(connection, "east")
    assert stored.state is ClusterState.SUSPECT


async def test_a_silent_cluster_is_lost_after_its_grace_and_its_work_waits(rig, clock):
    health = HealthLoop(rig.board, clock, POLICY.health)
    placement = await rig.offer("train", cluster="east")
    moving = await rig.offer("moving", cluster="east", lost_policy="MoveNow")
    await rig.until(lambda: rig.state(moving) is State.RUNNING and rig.state(placement) is State.RUNNING)
    rig.transport.faults["east"].cut = True
    await rig.until(lambda: rig.board.clusters["east"].state is ClusterState.SUSPECT)
    await health.run_once()
    assert rig.board.clusters["east"].state is ClusterState.SUSPECT
    clock.advance(31)
    await health.run_once()
    assert rig.board.clusters["east"].state is ClusterState.LOST
    assert (rig.state(placement), rig.state(moving)) == (State.RUNNING, State.LOST)
    assert (await rig.offer("moving")).cluster == "west"
    rig.agents["east"].settle_all = None
    rig.agents["east"]._withdraw(
        moving.id, 9
    )  # ends the overlap that MoveNow accepts, before the fixture looks for any
    rig.agents["east"].runs = [r for r in rig.agents["east"].runs if r.workload != "moving"]


async def test_when_most_are_silent_nobody_is_lost(rig, clock):
    health = HealthLoop(rig.board, clock, POLICY.health)
    for faults in rig.transport.faults.values():
        faults.cut = True
    await rig.until(lambda: all(c.state is ClusterState.SUSPECT for c in rig.board.clusters.values()))
    clock.advance(1000)
    await health.run_once()
    assert "2 of 2 clusters are silent at once" in health.alarm
    for faults in rig.transport.faults.values():
        faults.cut = False
    await rig.until(lambda: all(c.state is ClusterState.ACTIVE for c in rig.board.clusters.values()))
    await health.run_once()
    assert health.alarm == ""


async def test_people_cordon_and_remove_through_the_database(rig, database, clock):
    registry = RegistryLoop(rig.board, database, clock)
    health = HealthLoop(rig.board, clock, POLICY.health)
    placement = await rig.offer("train", cluster="east")
    await rig.until(lambda: rig.state(placement) is State.RUNNING)
    for state in (ClusterState.CORDONED, ClusterState.REMOVED):
        async with database.transaction() as connection:
            before = await clusters.get_cluster(connection, "east")
            after = type(before)(**{f: getattr(before, f) for f in before.__struct_fields__} | {"state": state})
            assert await clusters.save_cluster(connection, before, after)
        await registry.run_once()
        assert rig.board.clusters["east"].state is state
        assert rig.board.clusters["east"].capacity is not None
        assert await rig.offer("other", cluster="east") is None
    await health.run_once()
    await rig.until(lambda: rig.board.placements[placement.id].released)
    await registry.run_once()
    assert list(rig.board.clusters) == ["west"]


async def test_contact_times_reach_the_database_in_batches(rig, database, clock):
    upkeep = UpkeepLoop(rig.board, database, clock, Retention())
    clock.advance(50)
    await rig.until(lambda: all(c.capacity_at == clock() for c in rig.board.clusters.values()))
    await upkeep.run_once()
    async with database.transaction() as connection:
        assert [c.capacity_at for c in await clusters.list_clusters(connection)] == [clock(), clock()]


async def test_many_offers_at_once_all_run(rig):
    rig.agents["east"].nodes = rig.agents["west"].nodes = 20
    for agent in rig.agents.values():
        agent.news.set()
    await rig.until(
        lambda: all(rig.fleet.view(n).account_of("h100", "nvidia.com/gpu").capacity == 160 for n in rig.agents)
    )
    made = [await rig.offer(f"w{i}") for i in range(60)]
    await rig.until(lambda: all(rig.state(x) is State.RUNNING for x in made))
    assert sum(agent.created for agent in rig.agents.values()) == 60
    async with rig.database.transaction() as connection:
        assert len(await placements.load_live(connection)) == 60
    intents = [i for name in rig.agents for r in rig.transport.requests[name] for i in r.intents]
    assert len(intents) <= 1.05 * 60
    assert {i.action for i in intents} == {Action.RUN}
    assert all(c.phase is Phase.RUNNING for agent in rig.agents.values() for c in agent.copies.values())
