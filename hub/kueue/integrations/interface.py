"""What an integration knows about its kind of job. Every method is a pure function of manifests as the API server has them.

The common course of a job (build the Workload, start, stop, finish) is in reconcile.py and asks nothing but this. A new
kind is one module that implements the protocol, one line in the registry and one in the import contract.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from hub.kueue.api.meta import Resource
from hub.kueue.api.rules.field_errors import FieldError
from hub.kueue.api.v1beta2 import PodSet
from hub.kueue.operations import Patch
from hub.kueue.workloads.pod_sets import Clash, PodSetInfo

Manifest = dict[str, Any]


class Outcome(Struct, frozen=True, kw_only=True):
    """How a job ended."""

    succeeded: bool
    message: str


class Integration(Protocol):
    #: Name of the framework in Kueue's configuration, e.g. batch/job.
    framework: str
    resource: Resource
    #: Value of `managedBy` that stands for the kind's own controller; replaced like an empty one.
    native_manager: str

    def suspended(self, job: Manifest) -> bool:
        """Is it suspended, with nothing of a stop left to do?"""
        ...

    def stopping(self, job: Manifest) -> bool:
        """Has a stop begun that is not over yet?"""
        ...

    def pod_sets(self, job: Manifest) -> list[PodSet]:
        """The pods that it would run, as the user wrote them. Raises DecodeError."""
        ...

    def priority_class(self, job: Manifest) -> str:
        """Name of the PriorityClass that the kind says counts; "" when it says nothing."""
        ...

    def started(self, job: Manifest, infos: Sequence[PodSetInfo]) -> tuple[Manifest, list[Clash]]:
        """The job with its pods adapted to the admission and no longer suspended."""
        ...

    def stop(self, job: Manifest, infos: Sequence[PodSetInfo]) -> Patch | None:
        """The next write on the way to `suspended`, with the templates as they were; None when there is none left."""
        ...

    def active(self, job: Manifest) -> bool:
        """Do any of its pods run, or may they, as far as its controller says?"""
        ...

    def finished(self, job: Manifest) -> Outcome | None: ...

    def pods_ready(self, job: Manifest) -> bool:
        """Have all pods that should run become ready, or succeeded?"""
        ...

    def reclaimable(self, job: Manifest) -> dict[str, int]:
        """Pods that are not needed any more, by pod set."""
        ...

    def managed_by(self, job: Manifest) -> str: ...

    def defaulted(self, job: Manifest, *, managed_by: str = "") -> Manifest:
        """The job as it should be created: suspended, and managed by that controller if nobody else was named."""
        ...

    def clean_for_worker(self, job: Manifest) -> Manifest:
        """The job as another cluster can create it: without anything that this cluster or its controllers put in.

        It stays suspended; marks of the copy are for the caller to add.
        """
        ...

    def status_for_manager(self, job: Manifest, remote: Manifest) -> Manifest | None:
        """The status that the management cluster's job should have, given the remote one's; None: leave it as it is."""
        ...

    def withdrawn(self, job: Manifest) -> Patch | None:
        """What takes pods on another cluster out of the status, now that there are none; None when it tells of none."""
        ...

    def validate(self, job: Manifest, old: Manifest | None) -> list[FieldError]:
        """What is wrong with this kind's own annotations and fields; `old` None on creation."""
        ...
