"""The mirror: what is known about placements, written to the management cluster, and copies for readers to the database.

    MirrorLoop    one Workload and its job at a time: checks, clusterName, Admitted, Finished, the job's status
    ConfigLoop    conditions of MultiKueueClusters and of MultiKueue's AdmissionChecks
    ViewsLoop     rows of workloads and queues, in batches

What should be written is decided in hub.dispatch.mirroring and hub.dispatch.standing. All of it follows from objects and
placements, so a hub that starts anew looks at everything once and writes what is missing.
"""

import logging
from collections.abc import Iterable

from hub.dispatch import standing
from hub.dispatch.mirroring import Mirrored, Subject, mirror, not_copied
from hub.dispatch.overview import queue_row, workload_row
from hub.kueue.admission.state import AdmissionState
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import WORKLOADS
from hub.kueue.api.v1beta2 import Workload
from hub.kueue.operations import Operation
from hub.kueue.runtime.controller import Controller
from hub.kueue.runtime.errors import Conflict, Invalid, KubernetesError
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.loop import Clock, Loop
from hub.loops.board import Board
from hub.loops.dispatch import DispatchLoop
from hub.loops.management import Management
from hub.store import views
from hub.store.database import Database
from hub.store.errors import StoreError

log = logging.getLogger(__name__)


WITHOUT_DATABASE_S = 0.5


class MirrorLoop(Controller[ObjectKey]):
    def __init__(
        self,
        board: Board,
        management: Management,
        dispatch: DispatchLoop,
        recorder: EventRecorder,
        clock: Clock,
        *,
        workers: int = 16,
    ) -> None:
        super().__init__("mirror", clock, workers=workers)
        #: Writes made since the start; for people and benchmarks.
        self.written = 0
        self._board = board
        self._management = management
        self._dispatch = dispatch
        self._recorder = recorder
        self._subscribed = False
        self._setup_version = 0
        board.listeners.workloads.append(self.queue.add)
        board.listeners.room.append(self._fleet_changed)

    async def run_once(self) -> None:
        if not self._subscribed:
            if not self._management.synced:
                await self.sleep_until_stopped(0.05)
                return
            await self._board.ready()
            self._subscribed = True
            self._management.on_job(self.queue.add)
            self._management.workloads.on_change(lambda key, old, new: self.queue.add(key))
        await super().run_once()

    def _fleet_changed(self) -> None:
        """What could never fit may fit now, or the other way round: look at all that wait for quota."""
        if not self._subscribed or self._board.fleet.setup_version == self._setup_version:
            return
        self._setup_version = self._board.fleet.setup_version
        for key, workload in self._management.workloads.objects.items():
            if workload.status.admission is None:
                self.queue.add(key)

    async def look_at(self, key: ObjectKey) -> float | None:
        """Without a database nothing is known for sure: look again when it is back; other loops complain already."""
        try:
            await self._board.ready()
        except StoreError:
            return WITHOUT_DATABASE_S
        await self._write_down(key)
        return None

    async def _write_down(self, key: ObjectKey) -> None:
        workload = self._management.workloads.get(key)
        if workload is None:
            return
        mirrored = self._decide(workload)
        if mirrored is None:
            return
        for operation in mirrored.operations:
            await self._write(workload, operation)
        self._recorder.record(mirrored.events)

    async def _write(self, workload: Workload, operation: Operation) -> None:
        """A job's status that the API server does not take must not hold up its Workload: that is told, once."""
        try:
            await self._management.informers.client.run(operation)
        except Invalid as error:
            if operation.resource == WORKLOADS:
                raise
            self._recorder.record([not_copied(workload, str(error))])
        self.written += 1

    def _decide(self, workload: Workload) -> Mirrored | None:
        key, uid = workload.metadata.key, workload.metadata.uid
        route = self._management.route_of(workload)
        if route is None:
            return None
        placements = self._board.of_workload(key, uid)
        record = self._dispatch.records.get(key)
        integration, job = self._management.job_of(workload)
        subject = Subject(
            workload=workload,
            route=route,
            placement=placements[-1] if placements else None,
            record=record if record is not None and record.uid == uid else None,
            judgement=self._management.judgement_of(workload, route, self._board.fleet),
            integration=integration,
            job=job,
        )
        return mirror(subject, self.clock())


class ConfigLoop(Loop):
    interval_s = 1.0

    def __init__(self, board: Board, management: Management, clock: Clock) -> None:
        super().__init__("config mirror", clock)
        self._board = board
        self._management = management
        board.listeners.clusters.append(self.wake)

    async def run_once(self) -> None:
        if not self._management.synced:
            return
        await self._board.ready()
        m, now = self._management, self.clock()
        operations = [standing.of_cluster(c, self._board.clusters, now) for c in m.clusters.by_name.values()]
        operations += [
            standing.of_check(check, m.configs.by_name, self._board.clusters, now)
            for check in m.checks.by_name.values()
        ]
        for operation in operations:
            if operation is not None:
                try:
                    await m.informers.client.run(operation)
                except Conflict:
                    self.wake()  # it changed meanwhile: decide again
                except KubernetesError as error:
                    log.warning("%s of %s: %s", self.name, operation.key, error)


#: So many places of a queue are kept up to date in the rows of its workloads.
POSITIONS_MAX = 500


class ViewsLoop(Loop):
    interval_s = 0.5
    #: Queue positions and figures change with every admission; they are counted this often.
    QUEUES_EVERY_S = 1.0

    def __init__(
        self, board: Board, management: Management, state: AdmissionState, database: Database, clock: Clock
    ) -> None:
        super().__init__("views", clock)
        self._board = board
        self._management = management
        self._state = state
        self._database = database
        self._changed: dict[ObjectKey, None] = {}
        self._queues_at = 0.0
        self._queues: set[tuple[str, ObjectKey]] = set()
        self._lines: dict[str, list[ObjectKey]] = {}
        self._subscribed = False
        board.listeners.workloads.append(self._touch)

    def _touch(self, key: ObjectKey) -> None:
        self._changed[key] = None

    async def run_once(self) -> None:
        if not self._management.synced:
            return
        await self._board.ready()
        if not self._subscribed:
            self._subscribed = True
            self._management.workloads.on_change(lambda key, old, new: self._touch(key))
            await self._drop_leftovers()
        changed, self._changed = self._changed, {}
        try:
            await self._write_workloads(changed)
            if self.clock() - self._queues_at >= self.QUEUES_EVERY_S:
                await self._write_queues()
                self._queues_at = self.clock()
        except BaseException:
            self._changed = changed | self._changed
            raise

    async def _drop_leftovers(self) -> None:
        """Rows of what went away while nobody looked."""
        async with self._database.transaction(term=self._board.term) as connection:
            known = await views.list_workload_keys(connection)
            gone = [key for key in known if key not in self._management.workloads.objects]
            if gone:
                await views.delete_workloads(connection, gone)
            self._queues = {
                (row.kind, ObjectKey(row.namespace, row.name)) for row in await views.list_queues(connection)
            }

    async def _write_workloads(self, changed: Iterable[ObjectKey]) -> None:
        rows, gone = [], []
        for key in changed:
            workload = self._management.workloads.get(key)
            if workload is None:
                gone.append(key)
                continue
            placements = self._board.of_workload(key, workload.metadata.uid)
            rows.append(workload_row(workload, placements, self._state.position(key), self.clock()))
        if not rows and not gone:
            return
        async with self._database.transaction(term=self._board.term) as connection:
            if rows:
                await views.upsert_workloads(connection, rows)
            if gone:
                await views.delete_workloads(connection, gone)

    async def _write_queues(self) -> None:
        m, now = self._management, self.clock()
        rows = [queue_row(q, self._state.queue_status("ClusterQueue", k), now) for k, q in m.queues.objects.items()]
        rows += [
            queue_row(q, self._state.queue_status("LocalQueue", k), now) for k, q in m.local_queues.objects.items()
        ]
        there = {(row.kind, ObjectKey(row.namespace, row.name)) for row in rows}
        async with self._database.transaction(term=self._board.term) as connection:
            await views.upsert_queues(connection, rows)
            for kind, key in self._queues - there:
                await views.delete_queues(connection, kind, [key])
        self._queues = there
        for queue in m.queues.by_name:
            self._positions_changed(queue, self._state.positions(queue)[:POSITIONS_MAX])

    def _positions_changed(self, queue: str, line: list[ObjectKey]) -> None:
        before = self._lines.get(queue, [])
        if line != before:
            moved = (key for place, key in enumerate(line) if place >= len(before) or before[place] != key)
            self._changed.update(dict.fromkeys(moved))
            self._lines[queue] = line
