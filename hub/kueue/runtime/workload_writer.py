"""Writes decisions of the engine to Workloads: one patch for all that is decided about one, many Workloads at a time.

instructions ──▶ waiting, by Workload ──▶ patch of its newest version ──▶ events
                       ▲                        │ changed meanwhile: read it again, still possible?
                       └── later, if the server is in trouble          │ no
                                                                        ▼
                                                             failed(key, message) ──▶ the engine takes it back
"""

import logging
from collections.abc import Callable

from msgspec import Struct

from hub.kueue.admission.messages import Instruction, ReserveQuota
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import WORKLOADS
from hub.kueue.api.v1beta2 import Workload, WorkloadSpec, decode_as
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.controller import Controller
from hub.kueue.runtime.errors import (
    Conflict,
    KubernetesError,
    NotFound,
    Request,
    ServerFault,
    TooManyRequests,
    Unreachable,
)
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.instructions import URGENT, events_for, writes_for
from hub.kueue.runtime.loop import Clock
from hub.kueue.runtime.typed import TypedView
from hub.kueue.workloads.lifecycle import InvalidTransition

log = logging.getLogger(__name__)

#: A patch that met a changed object is made anew so often before the decision is given up.
CONFLICTS_MAX = 5
#: A server in trouble is asked again so often.
TROUBLES_MAX = 6
#: After a refusal the engine is told so late, doubling with every refusal in a row: it would decide the same at once.
REFUSED_MIN_S = 0.25
REFUSED_MAX_S = 60.0

_DECIDE = Request(verb="decide about", resource="workloads")


class _Decided(Struct, frozen=True):
    instruction: Instruction
    #: What it was decided for.
    spec: WorkloadSpec


class WorkloadWriter(Controller[ObjectKey]):
    def __init__(
        self,
        client: Client,
        workloads: TypedView[Workload],
        recorder: EventRecorder,
        clock: Clock,
        failed: Callable[[ObjectKey, str], None],
        *,
        workers: int = 32,
    ) -> None:
        """`failed(key, message)` is called when an instruction will not be carried out."""
        super().__init__("workload writer", clock, workers=workers)
        #: Patches written, for people and benchmarks.
        self.written = 0
        self._client = client
        self._workloads = workloads
        self._recorder = recorder
        self._failed = failed
        self._waiting: dict[ObjectKey, list[_Decided]] = {}
        #: What we wrote last, until the cache shows it or something newer.
        self._own: dict[ObjectKey, Workload] = {}
        self._troubles: dict[ObjectKey, int] = {}
        self._refusals: dict[ObjectKey, int] = {}
        #: Refused, and the engine not told yet.
        self._to_tell: dict[ObjectKey, str] = {}
        self._unsubscribe = workloads.on_change(self._seen)

    def submit(self, instruction: Instruction) -> None:
        """Carry it out soon. Several for one Workload become one write, in their order."""
        key = instruction.key
        workload = self._newest(key)
        if workload is None:
            return  # gone: the engine hears of it in its own time
        self._waiting.setdefault(key, []).append(_Decided(instruction, workload.spec))
        self.queue.add(key, urgent=isinstance(instruction, URGENT))

    async def stop(self, grace_s: float = 5.0) -> None:
        self._unsubscribe()
        await super().stop(grace_s)

    async def look_at(self, key: ObjectKey) -> float | None:
        if (message := self._to_tell.pop(key, None)) is not None:
            self._waiting.pop(key, None)
            self._failed(key, message)
            return None
        decided = self._waiting.pop(key, None)
        workload = self._newest(key)
        if not decided or workload is None:
            return None
        try:
            await self._write(key, workload, decided)
        except (Unreachable, ServerFault, TooManyRequests) as error:
            return self._trouble(key, decided, error)
        except NotFound:
            return None
        except (InvalidTransition, KubernetesError) as error:
            return self._refuse(key, str(error))
        self._troubles.pop(key, None)
        self._refusals.pop(key, None)
        return None

    async def _write(self, key: ObjectKey, workload: Workload, decided: list[_Decided]) -> None:
        """Raises InvalidTransition when the Workload is in no state for it any more, and KubernetesError."""
        instructions = [d.instruction for d in decided]
        for attempt in range(CONFLICTS_MAX):
            now = self.clock()
            try:
                _check_spec(workload, decided)
                for operation in writes_for(workload, instructions, now):
                    manifest = await self._client.run(operation)
                    self.written += 1
                    if manifest is not None:
                        self._own[key] = decode_as(Workload, manifest)
            except (Conflict, InvalidTransition):
                if attempt == CONFLICTS_MAX - 1:
                    raise
                fresh = await self._read(key)
                if fresh == workload:
                    raise
                workload = fresh
            else:
                events = [event for i in instructions for event in events_for(workload, i, now)]
                self._recorder.record(events)
                return

    async def _read(self, key: ObjectKey) -> Workload:
        manifest = await self._client.get(WORKLOADS, key)
        if manifest is None:
            self._own.pop(key, None)
            raise NotFound(_DECIDE, f"Workload {key} is gone")
        workload = self._own[key] = decode_as(Workload, manifest)
        return workload

    def _trouble(self, key: ObjectKey, decided: list[_Decided], error: KubernetesError) -> float | None:
        """The server does not answer well. The same write again, and again; then the decision is given up."""
        count = self._troubles[key] = self._troubles.get(key, 0) + 1
        if count >= TROUBLES_MAX:
            self._troubles.pop(key)
            return self._refuse(key, str(error))
        self._waiting[key] = [*decided, *self._waiting.get(key, [])]
        wait_s = error.retry_after_s if isinstance(error, TooManyRequests) else 0.0
        return max(wait_s, 0.1 * 2**count)

    def _refuse(self, key: ObjectKey, message: str) -> float:
        count = self._refusals[key] = self._refusals.get(key, 0) + 1
        log.info("a decision about Workload %s cannot be written: %s", key, message)
        self._to_tell[key] = message
        return min(REFUSED_MAX_S, REFUSED_MIN_S * 2 ** min(count - 1, 10))

    def _newest(self, key: ObjectKey) -> Workload | None:
        return self._own.get(key) or self._workloads.get(key)

    def _seen(self, key: ObjectKey, old: Workload | None, new: Workload | None) -> None:
        own = self._own.get(key)
        if own is not None and (new is None or _version(new) >= _version(own) or new.metadata.uid != own.metadata.uid):
            del self._own[key]
        if new is None:
            for memory in (self._troubles, self._refusals, self._to_tell, self._waiting):
                memory.pop(key, None)


def _check_spec(workload: Workload, decided: list[_Decided]) -> None:
    """Quota is reserved for the pods that were looked at, not for what they have become meanwhile."""
    for d in decided:
        changed = (workload.spec.pod_sets, workload.spec.queue_name) != (d.spec.pod_sets, d.spec.queue_name)
        if isinstance(d.instruction, ReserveQuota) and (changed or not workload.spec.active):
            raise Conflict(_DECIDE, f"Workload {workload.metadata.key} was changed after it had been looked at")


def _version(workload: Workload) -> int:
    """ResourceVersions of one resource are numbers that grow (Kubernetes 1.35 promises it)."""
    text = workload.metadata.resource_version
    return int(text) if text.isdigit() else 0
