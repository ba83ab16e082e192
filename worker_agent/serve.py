"""The API that the hub polls: POST /v1/poll over mutual TLS, and /healthz, /readyz for probes on the same port.

The hub shows a client certificate of the CA that it named when the agent joined; nobody else gets past the handshake.
"""

import asyncio
import gzip
import socket
import ssl
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from hub.kueue.runtime.loop import Clock
from hub.kueue.wire import MESSAGE_BYTES_MAX, WAIT_S_MAX, PollAnswer, PollRequest, WireProblem
from worker_agent.exchange import Exchange

COMPRESS_FROM_BYTES = 4_096


class PollServer:
    """Answers polls from the exchange; a poll without news waits until there is some or its time is up."""

    def __init__(self, exchange: Exchange, clock: Clock, *, starting: Callable[[], bool]) -> None:
        self._exchange = exchange
        self._clock = clock
        #: Called with the placements whose intents a poll has changed.
        self.on_intents: Callable[[set[str]], None] = lambda changed: None
        self._starting = starting
        self._news = asyncio.Condition()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MESSAGE_BYTES_MAX)
        app.router.add_post("/v1/poll", self._poll)
        app.router.add_get("/healthz", _ok)
        app.router.add_get("/readyz", self._ready)
        return app

    async def announce(self) -> None:
        """Something new was told to the exchange: wake the polls that wait for it."""
        async with self._news:
            self._news.notify_all()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503, text="caches are filling") if self._starting() else web.Response(text="ok")

    async def _poll(self, request: web.Request) -> web.Response:
        try:
            poll = msgspec.json.decode(await request.read(), type=PollRequest)
        except msgspec.DecodeError as error:
            return _problem(WireProblem(title="not a poll request", status=400, detail=str(error)))
        if problem := self._exchange.refuse(poll):
            return _problem(problem)
        if changed := self._exchange.take(poll):
            self.on_intents(changed)
        await self.announce()  # whoever waits for news with an older request is answered now
        await self._wait_for_news(poll)
        return _json(self._exchange.answer(poll, self._clock(), starting=self._starting()))

    async def _wait_for_news(self, poll: PollRequest) -> None:
        try:
            async with asyncio.timeout(min(poll.wait_s, WAIT_S_MAX)), self._news:
                await self._news.wait_for(lambda: self._exchange.is_news(poll) or self._exchange.is_superseded(poll))
        except TimeoutError:
            pass


async def _ok(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _problem(problem: WireProblem) -> web.Response:
    body = msgspec.json.encode(problem)
    return web.Response(status=problem.status, body=body, content_type="application/problem+json")


def _json(answer: PollAnswer) -> web.Response:
    body = msgspec.json.encode(answer)
    headers = {}
    if len(body) > COMPRESS_FROM_BYTES:
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers=headers, content_type="application/json")


async def serve(
    app: web.Application, listener: socket.socket, context: ssl.SSLContext
) -> Callable[[], Awaitable[None]]:
    """Serve on a bound listener. Returns what ends it."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=context).start()
    return runner.cleanup
