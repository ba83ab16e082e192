"""The sandbox process's own HTTP interface: what really ran, and switches for faults and nodes. Loopback, one token.

GET  /sandbox/v1/clusters                          every cluster: address, nodes with free amounts, pods, faults
GET  /sandbox/v1/runs                              runs and completions, double runs, a tally per cluster
POST /sandbox/v1/clusters/{cluster}/faults         the faults that are on from now, e.g. {"cut": true}; {} ends them
POST /sandbox/v1/clusters/{cluster}/restart        close connections, forget history: watches get 410 Gone
POST /sandbox/v1/clusters/{cluster}/nodes          more nodes: a node group as in the spec file
POST /sandbox/v1/clusters/{cluster}/nodes/{node}   {"action": lose | cut | restore | remove | abandon | cordon | uncordon}
POST /sandbox/v1/clusters/{cluster}/freeze         {"part": scheduler | kubelet | jobs, "on": true}
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from hub.sandbox.errors import ApiError
from hub.sandbox.faults import FaultSettings
from hub.sandbox.fleet import Fleet, SandboxCluster
from hub.sandbox.nodes import NodeGroup
from hub.sandbox.observer import double_runs, per_cluster

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

FLEET = web.AppKey("fleet", Fleet)
TOKEN = web.AppKey("token", str)


class NodeAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """lose: the machine is dead; cut: it goes on unheard; abandon: remove it and leave its pods' objects behind."""

    action: Literal["lose", "cut", "restore", "remove", "abandon", "cordon", "uncordon"]


class Freeze(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    part: Literal["scheduler", "kubelet", "jobs"]
    on: bool = True


def make_control_app(fleet: Fleet, token: str) -> web.Application:
    app = web.Application(middlewares=[_guard])
    app[FLEET], app[TOKEN] = fleet, token
    one = "/sandbox/v1/clusters/{cluster}"
    app.add_routes(
        [
            web.get("/sandbox/v1/clusters", _clusters),
            web.get("/sandbox/v1/runs", _runs),
            web.post(f"{one}/faults", _set_faults),
            web.post(f"{one}/restart", _restart),
            web.post(f"{one}/nodes", _add_nodes),
            web.post(f"{one}/nodes/{{node}}", _act_on_node),
            web.post(f"{one}/freeze", _freeze),
        ]
    )
    return app


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), request.app[TOKEN].encode()):
        return _answer({"error": "send the token of fleet.json: Authorization: Bearer ..."}, 401)
    try:
        return await handler(request)
    except KeyError as error:
        return _answer({"error": str(error.args[0])}, 404)
    except (msgspec.ValidationError, msgspec.DecodeError, ApiError) as error:
        return _answer({"error": str(error)}, 400)


def _answer(document: Any, code: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=code, content_type="application/json")


async def _body(request: web.Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def _cluster(request: web.Request) -> SandboxCluster:
    clusters, name = request.app[FLEET].clusters, request.match_info["cluster"]
    if (found := clusters.get(name)) is None:
        raise KeyError(f"there is no cluster {name}; there are {', '.join(clusters)}")
    return found


async def _clusters(request: web.Request) -> web.Response:
    return _answer({"clusters": [cluster.summary() for cluster in request.app[FLEET].clusters.values()]})


async def _runs(request: web.Request) -> web.Response:
    fleet = request.app[FLEET]
    now, runs, completions = fleet.timers.clock(), fleet.observer.runs, fleet.observer.completions
    found = {"now": now, "runs": runs, "completions": completions}
    found["doubleRuns"] = double_runs(runs, completions, now=now)
    found["perCluster"] = per_cluster(runs, completions, now=now)
    return _answer(found)


async def _set_faults(request: web.Request) -> web.Response:
    cluster = _cluster(request)
    cluster.faults.set(await _body(request, FaultSettings))
    return _answer(cluster.faults.settings)


async def _restart(request: web.Request) -> web.Response:
    _cluster(request).faults.restart()
    return _answer({})


async def _add_nodes(request: web.Request) -> web.Response:
    _cluster(request).sim.add_nodes(await _body(request, NodeGroup))
    return _answer({}, 201)


async def _act_on_node(request: web.Request) -> web.Response:
    sim, node = _cluster(request).sim, request.match_info["node"]
    wanted = await _body(request, NodeAction)
    actions: dict[str, Callable[[], None]] = {
        "lose": lambda: sim.nodes.lose(node),
        "cut": lambda: sim.nodes.lose(node, dead=False),
        "restore": lambda: sim.restore_node(node),
        "remove": lambda: sim.nodes.remove(node),
        "abandon": lambda: sim.nodes.remove(node, keep_pods=True),
        "cordon": lambda: sim.nodes.cordon(node),
        "uncordon": lambda: sim.nodes.cordon(node, on=False),
    }
    actions[wanted.action]()
    return _answer({})


async def _freeze(request: web.Request) -> web.Response:
    wanted = await _body(request, Freeze)
    _cluster(request).sim.freeze(wanted.part, on=wanted.on)
    return _answer({})
