"""The sandbox's API over HTTP: creates, reads and watch fan-out. The server has a process of its own, as have clients.

`cpu_us` is the server process's CPU time per request or event: it holds on a busy machine, where rates do not.
"""

import asyncio
import gc
import json
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import aiohttp

from hub.sandbox.__main__ import GC_THRESHOLDS
from hub.sandbox.access import ADMIN
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.http import make_app, serve

TOKEN = "bench"
REQUESTS = 10_000
CONNECTIONS = 32
WATCHERS = 100
EVENTS = 2_000
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CONFIGS = "/api/v1/namespaces/default/configmaps"


def make_job() -> bytes:
    amounts = {"cpu": "1", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "trainer:1", "resources": {"requests": amounts, "limits": amounts}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"generateName": "job-", "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    spec = {"suspend": True, "managedBy": "kueue.x-k8s.io/multikueue", "template": template}
    return json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}).encode()


def make_config() -> bytes:
    meta = {"generateName": "c-"}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "x" * 500}}).encode()


# --- the server's process ------------------------------------------------------------------------------------------------


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _serve(pipe: Connection) -> None:
    api = ApiServer("bench", time.time)
    api.access.tokens[TOKEN] = ADMIN
    serving = await serve(make_app(api))
    pipe.send(serving.url)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, pipe.recv):
        pipe.send(_cpu_s())
    await serving.close()


def _server(pipe: Connection) -> None:
    gc.set_threshold(*GC_THRESHOLDS)
    asyncio.run(_serve(pipe))


# --- the clients ---------------------------------------------------------------------------------------------------------


async def _many(total: int, one: Callable[[], Awaitable[None]]) -> None:
    turns = iter(range(total))

    async def worker() -> None:
        for _ in turns:
            await one()

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))


def _session(url: str) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return aiohttp.ClientSession(base_url=url, headers=headers, connector=aiohttp.TCPConnector(limit=0))


async def _create(session: aiohttp.ClientSession, path: str, body: bytes) -> None:
    async with session.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 201, await answer.text()
        await answer.read()


async def _read(session: aiohttp.ClientSession, path: str) -> None:
    async with session.get(path) as answer:
        assert answer.status == 200
        await answer.read()


async def _watch(session: aiohttp.ClientSession, events: int) -> None:
    """Read so many events. A line is one event; nothing is parsed, so that the client is not what is measured."""
    seen = 0
    async with session.get(f"{CONFIGS}?watch=1&resourceVersion={await _version(session)}") as answer:
        _ready.release()
        async for chunk in answer.content.iter_any():
            seen += chunk.count(b"\n")
            if seen >= events:
                return


async def _version(session: aiohttp.ClientSession) -> str:
    async with session.get(f"{CONFIGS}?limit=1") as answer:
        return (await answer.json())["metadata"]["resourceVersion"]


_ready = multiprocessing.get_context("spawn").Semaphore(0)


def _watchers(url: str, ready: Any, count: int, events: int) -> None:
    global _ready  # noqa: PLW0603 - a spawned process gets its semaphore this way
    _ready = ready

    async def run() -> None:
        async with _session(url) as session:
            await asyncio.gather(*(_watch(session, events) for _ in range(count)))

    asyncio.run(run())


class Server:
    """The server's process, and what it has used of the CPU."""

    def __init__(self) -> None:
        self.spawn = multiprocessing.get_context("spawn")
        self._pipe, other = self.spawn.Pipe()
        self._process = self.spawn.Process(target=_server, args=(other,))
        self._process.start()
        self.url: str = self._pipe.recv()

    def cpu_s(self) -> float:
        self._pipe.send(True)
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(False)
        self._process.join()


def _measured(server: Server, count: int, what: str, work: Callable[[], None]) -> dict[str, Any]:
    cpu, wall = server.cpu_s(), time.perf_counter()
    work()
    wall, cpu = time.perf_counter() - wall, server.cpu_s() - cpu
    return {"case": what, "count": count, "per_s": round(count / wall), "cpu_us": round(cpu / count * 1e6, 1)}


def _requests(url: str, total: int, make: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def run() -> None:
        async with _session(url) as session:
            await _many(total, lambda: make(session))

    asyncio.run(run())


def _fan_out(server: Server) -> dict[str, Any]:
    ready = server.spawn.Semaphore(0)
    watching = server.spawn.Process(target=_watchers, args=(server.url, ready, WATCHERS, EVENTS))
    watching.start()
    for _ in range(WATCHERS):
        ready.acquire()
    body = make_config()

    def work() -> None:
        _requests(server.url, EVENTS, lambda session: _create(session, CONFIGS, body))
        watching.join()

    found = _measured(server, EVENTS * WATCHERS, f"watch fan-out, {WATCHERS} watchers, creates included", work)
    assert watching.exitcode == 0
    return found


def figures() -> Iterator[dict[str, Any]]:
    server = Server()
    job, config = make_job(), make_config()
    try:
        yield _measured(
            server, REQUESTS, "create Job", lambda: _requests(server.url, REQUESTS, lambda s: _create(s, JOBS, job))
        )
        yield _measured(
            server,
            REQUESTS,
            "create ConfigMap",
            lambda: _requests(server.url, REQUESTS, lambda s: _create(s, CONFIGS, config)),
        )
        floor = "GET /readyz, what HTTP alone costs here"
        yield _measured(server, REQUESTS, floor, lambda: _requests(server.url, REQUESTS, lambda s: _read(s, "/readyz")))
        path = "/api/v1/namespaces/default"
        yield _measured(server, REQUESTS, "get", lambda: _requests(server.url, REQUESTS, lambda s: _read(s, path)))
        yield _fan_out(server)
    finally:
        server.stop()


if __name__ == "__main__":
    for figure in figures():
        print(json.dumps(figure), flush=True)
