"""POST /agent/v1/join: an agent shows its one-time token and its certificate, and learns the hub's CA."""

import msgspec
from aiohttp import web

from hub.dispatch.clusters import HealthPolicy, Joined, step
from hub.kueue.runtime import tls
from hub.kueue.wire import WIRE_VERSIONS, JoinAnswer, JoinRequest, WireProblem
from hub.store import clusters as rows
from hub.store.errors import NotFound
from hub.web.clusters import token_hash
from hub.web.context import context_of
from hub.web.problems import PROBLEM_JSON
from hub.web.routes import Route, json_answer


async def join_agent(request: web.Request) -> web.Response:
    try:
        asked = msgspec.json.decode(await request.read(), type=JoinRequest)
    except msgspec.DecodeError as error:
        return _refused(WireProblem(title="not a join request", status=400, detail=str(error)))
    version = min(asked.wire_max, WIRE_VERSIONS[1])
    if version < max(asked.wire_min, WIRE_VERSIONS[0]):
        low, high = WIRE_VERSIONS
        detail = f"the agent speaks wire versions {asked.wire_min} to {asked.wire_max}, this hub {low} to {high}: upgrade the older one"
        return _refused(WireProblem(title="no common wire version", status=426, detail=detail))
    try:
        tls.fingerprint(asked.certificate_pem)
    except tls.TlsError as error:
        return _refused(WireProblem(title="not a certificate", status=422, detail=f"certificatePem: {error}"))
    return await _redeem(request, asked, version)


async def _redeem(request: web.Request, asked: JoinRequest, version: int) -> web.Response:
    context = context_of(request)
    async with context.database.transaction() as connection:
        try:
            before = await rows.redeem(
                connection, token_hash=token_hash(asked.token), certificate_pem=asked.certificate_pem
            )
        except NotFound as error:
            return _refused(WireProblem(title="join token not accepted", status=401, detail=str(error)))
        others = [
            c for c in await rows.list_clusters(connection) if asked.cluster_uid and c.cluster_uid == asked.cluster_uid
        ]
        if taken := next((c.name for c in others if c.name != before.name), None):
            detail = f"this cluster has joined as {taken} already; it cannot be {before.name} too"
            return _refused(WireProblem(title="two names for one cluster", status=409, detail=detail))
        if before.cluster_uid and asked.cluster_uid and before.cluster_uid != asked.cluster_uid:
            detail = f"{before.name} is another cluster (its uid is {before.cluster_uid}); register this one under a name of its own"
            return _refused(WireProblem(title="one name for two clusters", status=409, detail=detail))
        joined = Joined(
            now=connection.now,
            reason="Joined",
            message=f"the agent joined from {asked.address}",
            address=asked.address,
            certificate_pem=asked.certificate_pem,
            cluster_uid=asked.cluster_uid,
            agent_version=asked.agent_version,
            wire_version=version,
        )
        await rows.save_cluster(connection, before, step(before, joined, HealthPolicy()))
    context.on_cluster(before.name)
    return json_answer(JoinAnswer(cluster=before.name, wire_version=version, hub_ca_pem=context.hub_ca_pem))


def _refused(problem: WireProblem) -> web.Response:
    return web.Response(status=problem.status, body=msgspec.json.encode(problem), content_type=PROBLEM_JSON)


ROUTES = [
    Route(
        method="POST",
        path="/agent/v1/join",
        handler=join_agent,
        summary="An agent joins with its one-time token",
        body=JoinRequest,
        answer=JoinAnswer,
        tag="agents",
        open=True,
    )
]
