"""Worker clusters: register, look at, cordon, remove. What an operator may do is a matter of RBAC on MultiKueueClusters."""

import hashlib
import re
import secrets
from typing import Any

from aiohttp import web
from msgspec import Struct

from hub.dispatch.clusters import Cluster, ClusterEvent, Cordon, HealthPolicy, Remove, Uncordon, step
from hub.kueue.api.meta import format_time
from hub.kueue.api.resources import MULTI_KUEUE_CLUSTERS
from hub.store import clusters as rows
from hub.store import placements
from hub.store.database import Connection
from hub.store.errors import NotFound
from hub.web import fleet_view
from hub.web.agent_manifest import environment, manifest
from hub.web.context import context_of
from hub.web.fleet_view import ClusterInfo
from hub.web.middleware import CALLER, require
from hub.web.problems import ProblemError, wrong_field
from hub.web.routes import Parameter, Route, json_answer, read_body

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
EXPIRES_IN_S = (60, 7 * 86_400)


class ClusterList(Struct, frozen=True, kw_only=True):
    items: list[ClusterInfo]


class Registration(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: str
    labels: dict[str, str] = {}
    expires_in_s: int = 3600


class NewToken(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    expires_in_s: int = 3600


class Invitation(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an agent needs to join. The token is shown this once and works once."""

    cluster: ClusterInfo
    join_token: str
    expires_at: str
    hub_url: str
    hub_ca_pem: str
    manifest: str
    environment: dict[str, str]


async def list_clusters(request: web.Request) -> web.Response:
    await require(request, "list", MULTI_KUEUE_CLUSTERS)
    return json_answer(ClusterList(items=await _infos(request)))


async def get_cluster(request: web.Request) -> web.Response:
    await require(request, "get", MULTI_KUEUE_CLUSTERS)
    return json_answer(await _info(request, request.match_info["name"]))


async def register_cluster(request: web.Request) -> web.Response:
    await require(request, "create", MULTI_KUEUE_CLUSTERS)
    wanted = await read_body(request, Registration)
    if not _NAME.fullmatch(wanted.name):
        raise wrong_field("name", f"{wanted.name!r} must be a DNS label: lower-case letters, digits and -, at most 63")
    token, digest, expires_at = _new_token(request, wanted.expires_in_s)
    async with context_of(request).database.transaction() as connection:
        await rows.invite(connection, wanted.name, token_hash=digest, expires_at=expires_at, labels=wanted.labels)
    return json_answer(await _invitation(request, wanted.name, token, expires_at), 201)


async def renew_token(request: web.Request) -> web.Response:
    await require(request, "update", MULTI_KUEUE_CLUSTERS)
    name = request.match_info["name"]
    token, digest, expires_at = _new_token(request, (await read_body(request, NewToken)).expires_in_s)
    async with context_of(request).database.transaction() as connection:
        await rows.invite_again(connection, name, token_hash=digest, expires_at=expires_at)
    return json_answer(await _invitation(request, name, token, expires_at), 201)


async def cordon_cluster(request: web.Request) -> web.Response:
    return await _operate(request, Cordon)


async def uncordon_cluster(request: web.Request) -> web.Response:
    return await _operate(request, Uncordon)


async def remove_cluster(request: web.Request) -> web.Response:
    """Refused while work of ours is there, unless forced: then it is withdrawn first and the row goes when it is gone."""
    await require(request, "delete", MULTI_KUEUE_CLUSTERS)
    context, name = context_of(request), request.match_info["name"]
    async with context.database.transaction() as connection:
        held = await placements.load_unreleased(connection, name)
        if held and request.query.get("force") != "true":
            names = sorted(str(placement.workload) for placement in held)
            detail = (
                f"{len(held)} workloads are on {name}; cordon it and wait, or remove it with force to withdraw them"
            )
            raise ProblemError(409, "the cluster is in use", detail, holding=names)
        await _step(connection, name, Remove, request)
    context.on_cluster(name)
    return json_answer(await _info(request, name), 202)


async def _operate(request: web.Request, event: type[ClusterEvent]) -> web.Response:
    await require(request, "update", MULTI_KUEUE_CLUSTERS)
    context, name = context_of(request), request.match_info["name"]
    async with context.database.transaction() as connection:
        await _step(connection, name, event, request)
    context.on_cluster(name)
    return json_answer(await _info(request, name))


async def _step(connection: Connection, name: str, event: type[ClusterEvent], request: web.Request) -> None:
    before = await _found(connection, name)
    who = request[CALLER].user.username
    told = event(now=connection.now, reason=event.__name__, message=f"by {who}")
    if not await rows.save_cluster(connection, before, step(before, told, HealthPolicy())):
        raise ProblemError(409, "the cluster changed meanwhile", f"{name}: try again")


async def _found(connection: Connection, name: str) -> Cluster:
    found = await rows.get_cluster(connection, name)
    if found is None:
        raise NotFound(f"no cluster {name} is registered")
    return found


def _new_token(request: web.Request, expires_in_s: int) -> tuple[str, str, float]:
    low, high = EXPIRES_IN_S
    if not low <= expires_in_s <= high:
        raise wrong_field("expiresInS", f"{expires_in_s} must be between {low} and {high} seconds")
    token = secrets.token_urlsafe(32)
    return token, token_hash(token), context_of(request).clock() + expires_in_s


def token_hash(token: str) -> str:
    """What the database keeps of a join token: its SHA-256. The token has 256 random bits, so no salt is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


async def _infos(request: web.Request) -> list[ClusterInfo]:
    context = context_of(request)
    async with context.database.transaction() as connection:
        seen = await fleet_view.load(connection, context.clock(), context.stale_after_s)
    return fleet_view.cluster_infos(seen)


async def _info(request: web.Request, name: str) -> ClusterInfo:
    found = [info for info in await _infos(request) if info.name == name]
    if not found:
        raise NotFound(f"no cluster {name} is registered")
    return found[0]


async def _invitation(request: web.Request, name: str, token: str, expires_at: float) -> Invitation:
    context = context_of(request)
    facts: dict[str, Any] = {
        "name": name,
        "token": token,
        "hub_url": context.public_url,
        "ca_pem": context.public_ca_pem,
    }
    return Invitation(
        cluster=await _info(request, name),
        join_token=token,
        expires_at=format_time(expires_at),
        hub_url=context.public_url,
        hub_ca_pem=context.public_ca_pem,
        manifest=manifest(**facts, version=context.version),
        environment=environment(name, context.public_url),
    )


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/clusters",
        handler=list_clusters,
        summary="All worker clusters",
        answer=ClusterList,
        tag="clusters",
    ),
    Route(
        method="POST",
        path="/api/v1/clusters",
        handler=register_cluster,
        summary="Register a cluster: a one-time token and the manifest of its agent",
        body=Registration,
        answer=Invitation,
        status=201,
        tag="clusters",
    ),
    Route(
        method="GET",
        path="/api/v1/clusters/{name}",
        handler=get_cluster,
        summary="One cluster",
        answer=ClusterInfo,
        tag="clusters",
    ),
    Route(
        method="POST",
        path="/api/v1/clusters/{name}/token",
        handler=renew_token,
        summary="A new one-time token for a known cluster",
        body=NewToken,
        answer=Invitation,
        status=201,
        tag="clusters",
    ),
    Route(
        method="POST",
        path="/api/v1/clusters/{name}/cordon",
        handler=cordon_cluster,
        summary="No new work there",
        answer=ClusterInfo,
        tag="clusters",
    ),
    Route(
        method="POST",
        path="/api/v1/clusters/{name}/uncordon",
        handler=uncordon_cluster,
        summary="New work again",
        answer=ClusterInfo,
        tag="clusters",
    ),
    Route(
        method="DELETE",
        path="/api/v1/clusters/{name}",
        handler=remove_cluster,
        summary="Forget a cluster on which nothing of ours is left",
        query={"force": Parameter(description="true: withdraw what is there first", type="boolean")},
        answer=ClusterInfo,
        status=202,
        tag="clusters",
    ),
]
