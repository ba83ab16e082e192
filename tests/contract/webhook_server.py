"""An admission webhook over HTTPS that does what the test says."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from hub.kueue.runtime import tls
from tests.contract.client import sockets_closed

Reply = dict[str, Any]


def allow(**more: Any) -> Reply:
    return {"allowed": True, **more}


def deny(message: str, **status: Any) -> Reply:
    return {"allowed": False, "status": {"message": message, **status}}


def patch(*operations: dict[str, Any]) -> Reply:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


class WebhookServer:
    """Listens on a free port. `asked` has every request it got; `answer` decides what it says."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Reply] = lambda request: allow()
        self._ca = tls.make_ca("webhook", time.time())
        hosts = ["127.0.0.1", "localhost", "hook.default.svc"]
        self._identity = tls.make_certificate("webhook", time.time(), ca=self._ca, hosts=hosts)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/admit", self._admit)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls.server_context(self._identity))
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *error: object) -> None:
        server = self._runner.server
        for connection in server.connections if isinstance(server, web.Server) else ():
            connection.transport.abort()
        await self._runner.cleanup()
        await sockets_closed()

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self._ca.certificate_pem.encode()).decode()

    @property
    def client_config(self) -> dict[str, Any]:
        return {"url": f"https://127.0.0.1:{self.port}/admit", "caBundle": self.ca_bundle}

    async def _admit(self, request: web.Request) -> web.Response:
        review = await request.json()
        asked = review["request"]
        self.asked.append(asked)
        response = {"uid": asked["uid"], **self.answer(asked)}
        return web.json_response({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})
