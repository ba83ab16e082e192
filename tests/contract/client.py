"""A bare HTTP client for contract cases: paths and documents, and answers that can be asked about."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Self

import aiohttp

from tests.api_servers import ADMIN_TOKEN, Api

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
WAIT_S = 20.0


async def sockets_closed() -> None:
    """Aborted transports close their sockets within some turns of the loop; the test's loop ends right after."""
    for _ in range(4):
        await asyncio.sleep(0)


class Answer:
    def __init__(self, code: int, headers: Any, text: str) -> None:
        self.code, self.headers, self.text = code, headers, text

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def refusal(self) -> tuple[int, str]:
        """(code, reason) of a Status."""
        assert self.json["kind"] == "Status", self.text
        return self.code, self.json.get("reason", "")


class Client:
    """Raises AssertionError for an answer that is no success, unless the call expects a refusal."""

    def __init__(self, api: Api, token: str = ADMIN_TOKEN) -> None:
        self.api = api
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(
            base_url=api.url, headers=headers, connector=aiohttp.TCPConnector(ssl=api.ssl)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()
        await sockets_closed()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        accept: str = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        headers = (headers or {}) | ({"Accept": accept} if accept else {})
        data = None
        if body is not None:
            data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
            headers["Content-Type"] = media
        async with self._session.request(method, path, data=data, headers=headers) as answer:
            return Answer(answer.status, answer.headers, await answer.text())

    async def get(self, path: str, *, accept: str = "") -> Any:
        return self._good(await self.call("GET", path, accept=accept))

    async def post(self, path: str, body: Any) -> Any:
        return self._good(await self.call("POST", path, body))

    async def put(self, path: str, body: Any) -> Any:
        return self._good(await self.call("PUT", path, body))

    async def patch(self, path: str, body: Any, media: str = MERGE) -> Any:
        return self._good(await self.call("PATCH", path, body, media=media))

    async def delete(self, path: str, body: Any = None) -> Any:
        return self._good(await self.call("DELETE", path, body))

    def _good(self, answer: Answer) -> Any:
        assert answer.code < 300, answer.text
        return answer.json

    async def watch(self, path: str, accept: str = "application/json") -> AsyncGenerator[dict[str, Any], None]:
        """The events of a watch until the server ends it."""
        async with self._session.get(path, headers={"Accept": accept}) as answer:
            assert answer.status == 200, await answer.text()
            try:
                async for line in answer.content:
                    yield json.loads(line)
            finally:
                # Left early: no polite end of TLS, for which the test's loop would have to live on.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()

    async def gone(self, collection: str, name: str) -> None:
        """Wait until the object is not there any more."""
        await self.until(collection, name, lambda event: event["type"] == "DELETED")

    async def until(self, collection: str, name: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for an event of the object that `holds` accepts; an object that is not there counts as DELETED."""
        selector = f"fieldSelector=metadata.name%3D{name}"
        found = await self.get(f"{collection}?{selector}")
        events = [{"type": "ADDED", "object": item} for item in found["items"]]
        if any(map(holds, events or [{"type": "DELETED", "object": {}}])):
            return
        version = found["metadata"]["resourceVersion"]
        watch = self.watch(f"{collection}?watch=1&{selector}&resourceVersion={version}")
        async with asyncio.timeout(WAIT_S), aclosing(watch) as changes:
            async for event in changes:
                if holds(event):
                    return
        raise AssertionError(f"the watch of {collection}/{name} ended too soon")
