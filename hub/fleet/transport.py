"""What the poll loop asks of a way to the agents. `direct` connects to the agent; a dial-out tunnel is another one."""

from typing import Protocol

from msgspec import Struct

from hub.kueue.wire import PollAnswer, PollRequest


class PollError(Exception):
    """The poll brought no answer that counts. The class name is the reason that people see in the cluster's state."""

    @property
    def reason(self) -> str:
        return type(self).__name__


class Unreachable(PollError):
    """No connection, or no answer in time."""


class WrongIdentity(PollError):
    """Somebody answers at the agent's address, but not with the certificate that the agent joined with."""


class VersionMismatch(PollError):
    """Hub and agent speak no common wire version."""


class Refused(PollError):
    """The agent answered, and said no to this request as a whole."""


class BadAnswer(PollError):
    """The answer is too large, or not what the wire version says it is."""


class Target(Struct, frozen=True, kw_only=True):
    """Where an agent is, and how it is recognised."""

    cluster: str
    address: str
    certificate_pem: str


class Transport(Protocol):
    async def poll(self, target: Target, request: PollRequest, *, timeout_s: float) -> PollAnswer:
        """One request, one answer, within `timeout_s` (which includes the time that the agent may wait). Raises PollError.

        Safe to cancel at any time: an answer that was not stored is asked for again with the old cursor.
        """
        ...

    async def forget(self, cluster: str) -> None:
        """The cluster is gone, or moved: close what is open to it."""
        ...

    async def close(self) -> None: ...
