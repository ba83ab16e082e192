"""Who asks, and what they may: answers of the management cluster, remembered for a short while.

Only hashes of tokens are kept. A "yes" and a "no" live equally long, so that a revoked right ends within `REMEMBER_S`.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hub.kueue.api.meta import Resource
from hub.kueue.runtime.client import Client, UserInfo
from hub.kueue.runtime.loop import Clock

REMEMBER_S = 10.0
ENTRIES_MAX = 4_096

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Caller:
    user: UserInfo
    #: Their own credential, to act as them on the management cluster; never logged.
    token: str = field(repr=False)


class _Memory(Generic[V]):
    """Answers with an age, the oldest thrown out first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[object, tuple[float, V]] = OrderedDict()

    def get(self, key: object) -> tuple[V] | None:
        found = self._entries.get(key)
        return (found[1],) if found is not None and self._clock() - found[0] < REMEMBER_S else None

    def put(self, key: object, value: V) -> None:
        self._entries[key] = (self._clock(), value)
        self._entries.move_to_end(key)
        while len(self._entries) > ENTRIES_MAX:
            self._entries.popitem(last=False)


class Gate:
    def __init__(self, management: Client, clock: Clock) -> None:
        self._management = management
        self._users: _Memory[UserInfo | None] = _Memory(clock)
        self._rights: _Memory[bool] = _Memory(clock)

    async def identify(self, token: str) -> Caller | None:
        """Whose token it is; None when it is nobody's. Raises KubernetesError when the management cluster cannot say."""
        key = hashlib.sha256(token.encode()).digest()
        known = self._users.get(key)
        if known is None:
            known = (await self._management.authenticate(token),)
            self._users.put(key, known[0])
        return Caller(known[0], token) if known[0] is not None else None

    async def may(self, caller: Caller, verb: str, resource: Resource, namespace: str = "") -> bool:
        user = caller.user
        key = (user.username, tuple(user.groups), verb, resource, namespace)
        known = self._rights.get(key)
        if known is None:
            known = (await self._management.may(user, verb, resource, namespace),)
            self._rights.put(key, known[0])
        return known[0]
