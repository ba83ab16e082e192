"""What the handlers need, made once in the composition root."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from hub.kueue.runtime.client import Client
from hub.kueue.runtime.loop import Clock, LoopStatus
from hub.store.database import Database
from hub.web.access import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class WebContext:
    database: Database
    #: The management cluster, with the hub's own credentials.
    management: Client
    gate: Gate
    clock: Clock
    version: str
    #: CA of the hub's client certificates, handed to agents that join.
    hub_ca_pem: str
    #: Where agents reach this hub, and the CA of that address ("" for http).
    public_url: str
    public_ca_pem: str = ""
    #: Signs the dashboard's session cookies; made anew at every start.
    session_key: bytes
    #: A report older than this is shown as stale.
    stale_after_s: float = 10.0
    loops: Callable[[], Sequence[LoopStatus]] = list
    #: A cluster was registered, joined or changed by an operator: whoever polls should look.
    on_cluster: Callable[[str], None] = lambda name: None
    is_leader: Callable[[], bool] = lambda: True


CONTEXT = web.AppKey("context", WebContext)


def context_of(request: web.Request) -> WebContext:
    return request.app[CONTEXT]
