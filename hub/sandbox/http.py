"""The HTTP edge of one cluster: every request comes in here and leaves as an answer, a Status or a cut connection."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from hub.sandbox import discovery, openapi
from hub.sandbox.access import MASTERS, Attributes, User
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.errors import ApiError, internal, method_not_allowed, no_such_resource
from hub.sandbox.faults import CutError, Faults
from hub.sandbox.http_objects import BODY_MAX_BYTES, HANDLERS, Call
from hub.sandbox.http_parts import SUBRESOURCES, review
from hub.sandbox.http_webhooks import Admission
from hub.sandbox.negotiation import JSON, negotiate
from hub.sandbox.reviews import REVIEWS
from hub.sandbox.routing import VERBS, Target, parse_path
from hub.sandbox.served import Served
from hub.sandbox.watch import flag

log = logging.getLogger(__name__)

ABORT_TURNS = 3
NO_SUCH_PAGE = "404 page not found\n"
WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class Edge:
    """Serves one ApiServer. `faults` may hold back, refuse or lose anything."""

    def __init__(self, api: ApiServer, faults: Faults) -> None:
        self.api, self.faults = api, faults
        self.admission = Admission(api)
        self._documents: dict[Any, tuple[int, bytes]] = {}

    async def close(self, app: web.Application) -> None:
        await self.admission.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not self.faults.active:
            return await self._answer(request)
        try:
            await self.faults.gate()
            response = await self._answer(request)
        except CutError:
            return _cut(request)
        return _cut(request) if self.faults.loses_reply() else response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except ApiError as refusal:
            return refused(refusal)
        except (web.HTTPException, CutError):
            raise
        except Exception as error:  # a bug here must not look like a network failure to the client
            log.exception("%s %s failed", request.method, request.path)
            return refused(internal(f"{type(error).__name__}: {error}"))

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        user = self._user(request)
        if (target := parse_path(path)) is None:
            self._require_path(request, user, path)
            return self._other(request, path)
        if not target.plural:
            self._require_path(request, user, path)
            return self._discovery(request, target)
        served = self.api.registry.at(target.group, target.version, target.plural)
        if served is None:
            if not self.api.registry.has_group(target.group):
                raise web.HTTPNotFound(text=NO_SUCH_PAGE)
            raise no_such_resource()
        verb = VERBS.get((request.method, bool(target.name)))
        if verb is None or (verb not in served.verbs and not target.subresource):
            raise method_not_allowed()
        return await self._resource(request, target, served, verb, user)

    def _user(self, request: web.Request) -> User:
        """Raises ApiError 401, or 403 for an impersonation that is not allowed."""
        headers = request.headers
        user = self.api.access.authenticate(headers.get("Authorization"))
        if "Impersonate-User" in headers:
            return self.api.access.impersonated(user, headers, headers.getall("Impersonate-Group", []))
        return user

    def _require_path(self, request: web.Request, user: User, path: str) -> None:
        if MASTERS not in user.groups:
            self.api.access.require(user, Attributes(verb=request.method.lower(), path=path))

    async def _resource(
        self, request: web.Request, target: Target, served: Served, verb: str, user: User
    ) -> web.StreamResponse:
        if served.resource.namespaced and not target.namespace and (verb not in ("list", "deletecollection")):
            raise no_such_resource()
        if target.subresource and target.subresource not in served.subresources:
            raise no_such_resource()
        query = request.query if request.query_string else {}
        if MASTERS not in user.groups:
            asked = "watch" if verb == "list" and flag(query, "watch") else verb
            self.api.access.require(user, _attributes(target, asked))
        if self.faults.active and verb in WRITE_VERBS:
            self.faults.check_write(verb, served)
        call = Call(request, self.api, self.faults, target, served, user, self.admission, query)
        if target.subresource in SUBRESOURCES:
            return await SUBRESOURCES[target.subresource](call, verb)
        if served.collection in REVIEWS:
            return await review(call)
        return await HANDLERS[verb](call)

    # --- everything that is not an object ------------------------------------------------------------------------------

    def _discovery(self, request: web.Request, target: Target) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        group, version = target.group, target.version
        registry, core = self.api.registry, request.path.startswith("/api/") or request.path == "/api"
        if not version and (core or not group):
            output = negotiate(request.headers.get("Accept", ""))
            if output.form == "APIGroupDiscoveryList":
                return self._aggregated(core)
            legacy = (
                (lambda: discovery.api_versions(request.host)) if core else lambda: discovery.api_group_list(registry)
            )
            return self._document(("legacy", core, request.host), legacy)
        if not version:
            return self._document(("group", group), lambda: discovery.api_group(registry, group))
        return self._document(
            ("resources", group, version), lambda: discovery.api_resource_list(registry, group, version)
        )

    def _aggregated(self, core: bool) -> web.Response:
        response = self._document(("aggregated", core), lambda: discovery.aggregated(self.api.registry, core=core))
        response.headers["Content-Type"] = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return response

    def _document(self, name: Any, make: Callable[[], dict[str, Any] | None]) -> web.Response:
        """A document that stays the same until the set of served resources changes."""
        epoch = self.api.registry.epoch
        known = self._documents.get(name)
        if known is None or known[0] != epoch:
            if (document := make()) is None:
                raise web.HTTPNotFound(text=NO_SUCH_PAGE)
            known = self._documents[name] = (epoch, orjson.dumps(document))
        return web.Response(body=known[1], content_type=JSON)

    def _openapi(self, request: web.Request, path: str) -> web.Response:
        """Documents as JSON; clients that insist on protobuf get 406 and take v3 instead."""
        negotiate(request.headers.get("Accept", ""))
        everything = openapi.documented(self.api.registry)
        version, _, gv = path.partition("/")
        body = None
        if version == "v2" and not gv:
            body = openapi.v2_document(everything)
        elif version == "v3":
            body = openapi.v3_document(everything, gv) if gv else openapi.v3_index(everything)
        if body is None:
            raise web.HTTPNotFound(text=NO_SUCH_PAGE)
        return web.Response(body=body, content_type=JSON)

    def _other(self, request: web.Request, path: str) -> web.Response:
        if path == "/version":
            return web.Response(body=orjson.dumps(discovery.version_info()), content_type=JSON)
        if path.split("/")[1] in ("healthz", "readyz", "livez"):
            return web.Response(text="ok")
        if path.startswith("/openapi/"):
            return self._openapi(request, path.removeprefix("/openapi/"))
        raise web.HTTPNotFound(text=NO_SUCH_PAGE)


def _attributes(target: Target, verb: str) -> Attributes:
    return Attributes(
        verb=verb,
        group=target.group,
        resource=target.plural,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
    )


def _cut(request: web.Request) -> web.Response:
    """Close the connection; the answer returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def refused(refusal: ApiError) -> web.Response:
    headers = {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s else None
    return web.Response(body=orjson.dumps(refusal.status()), status=refusal.code, headers=headers, content_type=JSON)


def make_app(server: ApiServer, faults: Faults | None = None) -> web.Application:
    """The whole API of `server`. Further routes may be added: literal paths win over the API's."""
    app = web.Application(client_max_size=BODY_MAX_BYTES)
    edge = Edge(server, faults or Faults(server))
    app.router.add_route("*", "/{path:.*}", edge.handle)
    app[FAULTS] = edge.faults
    app.on_cleanup.append(edge.close)
    return app


FAULTS = web.AppKey("faults", Faults)


class Serving:
    """A server that listens. `url` and `ca_pem` are what a client needs."""

    def __init__(self, runner: web.AppRunner, url: str, ca_pem: str) -> None:
        self._runner = runner
        self.url, self.ca_pem = url, ca_pem

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def close_connections(self) -> None:
        """Cut every open connection, watches included; new ones are welcome."""
        server = self._runner.server
        for connection in list(server.connections) if isinstance(server, web.Server) else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def close(self) -> None:
        self.close_connections()
        await self._runner.cleanup()
        # An aborted transport closes its socket in the loop's next turn, a TLS one in the turn after that.
        for _ in range(ABORT_TURNS):
            await asyncio.sleep(0)


async def serve(
    app: web.Application,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    ca_pem: str = "",
) -> Serving:
    """Listen at `host:port` (0: any free port), with TLS when given a context; `ca_pem` is handed on to clients."""
    # A watch whose client has gone would otherwise live on until its time is over.
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=tls)
    await site.start()
    bound = runner.addresses[0][1]
    serving = Serving(runner, f"{'https' if tls else 'http'}://{host}:{bound}", ca_pem)
    if (faults := app.get(FAULTS)) is not None:
        faults.close_connections = serving.close_connections
    return serving
