"""Who decides: one hub process at a time, by a lease in the database.

    follow ──acquire──▶ lead (term n) ──renew──renew──▶ ... ──trust window over, or somebody else's term──▶ follow

The trust window is `ttl_s` less a margin, counted from *before* the last renewal was asked for, on this process's own
monotonic clock: the database counts from later, so this process stops first. What goes wrong, and what happens then:

    the database does not answer     renewals fail; when the window is over the loops are stopped and everything in memory
                                     is dropped. A lease that nobody took meanwhile is acquired again, with a new term
    this process was paused          the window is over when it wakes: the same
    it does not notice in time       its writes carry the old term and are refused (Stale); agents refuse the old term, too
    it is killed                     the next one waits until the lease runs out
    it stops                         it gives the lease back, and the next one leads at once
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from hub.kueue.runtime.loop import Clock, Loop
from hub.store import leases
from hub.store.database import LEADER, Database
from hub.store.errors import StoreError
from hub.store.leases import Lease

log = logging.getLogger(__name__)

TTL_S = 15.0
#: Part of the lease's time in which its holder does not trust it any more.
MARGIN_SHARE = 0.2
#: Renewals and attempts per lease time.
TRIES = 5


class Leading(Protocol):
    """What a leader does. Made for one term."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class LeaderLoop(Loop):
    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        holder: str,
        lead: Callable[[int], Leading],
        ttl_s: float = TTL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lead(term)` makes what runs while this process leads. `holder` must differ between processes."""
        super().__init__("leader", clock)
        self.interval_s = ttl_s / TRIES
        self.leading: Leading | None = None
        self._database = database
        self._holder = holder
        self._lead = lead
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._lease: Lease | None = None
        self._trusted_until = 0.0

    @property
    def term(self) -> int | None:
        """The term in which this process leads; None: it does not, or cannot be sure any more."""
        trusted = self._lease is not None and self._monotonic() < self._trusted_until
        return self._lease.term if self._lease is not None and trusted else None

    async def run_once(self) -> None:
        if self._lease is None:
            await self._follow()
        else:
            await self._hold(self._lease)

    async def _follow(self) -> None:
        asked_at = self._monotonic()
        async with self._database.transaction() as connection:
            lease = await leases.acquire(connection, LEADER, self._holder, self._ttl_s)
        if lease is None:
            return
        self._lease = lease
        self._trust_from(asked_at)
        log.info("leading with term %d", lease.term)
        self.leading = self._lead(lease.term)
        try:
            await self.leading.start()
        except BaseException:
            await self._step_down("what a leader runs could not be started")
            raise

    async def _hold(self, lease: Lease) -> None:
        asked_at = self._monotonic()
        try:
            async with asyncio.timeout(max(0.05, self._trusted_until - asked_at)):
                async with self._database.transaction() as connection:
                    renewed = await leases.renew(connection, lease, self._ttl_s)
        except (StoreError, TimeoutError) as error:
            if self._monotonic() >= self._trusted_until:
                await self._step_down(f"the lease could not be renewed in time: {error or 'no answer'}")
            raise
        if renewed is None:
            await self._step_down("somebody else leads")
            return
        self._lease = renewed
        self._trust_from(asked_at)

    def _trust_from(self, asked_at: float) -> None:
        self._trusted_until = asked_at + self._ttl_s * (1.0 - MARGIN_SHARE)

    async def _step_down(self, why: str) -> None:
        log.warning("no longer leading: %s", why)
        self._lease = None
        leading, self.leading = self.leading, None
        if leading is not None:
            await leading.stop()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop leading in an orderly way and give the lease back."""
        await super().stop(grace_s)
        lease = self._lease
        if lease is None:
            return
        await self._step_down("the hub stops")
        try:
            async with asyncio.timeout(grace_s):
                async with self._database.transaction() as connection:
                    await leases.resign(connection, lease)
        except (StoreError, TimeoutError) as error:
            log.warning("the lease was not given back and will run out: %s", error or "no answer")
