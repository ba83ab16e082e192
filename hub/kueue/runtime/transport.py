"""HTTP to one API server: kubernetes-asyncio reads the kubeconfig, authenticates and keeps the connections; bodies are ours.

The library decodes objects into models at a tenth of the speed and sets no time-out at all; so requests go through its
session directly, every one with a time limit, and JSON is read and written by orjson.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from yarl import URL

from hub.kueue.runtime.errors import Request, Unauthorized, Unreachable, error_from

log = logging.getLogger(__name__)

#: Longest wait for a whole answer; a page of 500 large objects through a slow link still fits.
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 256

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML


class Answer:
    """Status below 400 and the decoded body."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body


class Transport:
    def __init__(self, configuration: Configuration, user_agent: str, loader: Any = None) -> None:
        configuration.connection_pool_maxsize = CONNECTIONS_MAX
        self._configuration = configuration
        self._loader = loader
        self._proxy = configuration.proxy or _environment_proxy(configuration.host or "")
        self._session = _session(configuration)
        self._user_agent = user_agent
        self._refresh = asyncio.Lock()

    @classmethod
    async def open(cls, kubeconfig: str | None, context: str | None, user_agent: str) -> "Transport":
        """Raises Unreachable when there is no usable configuration; the message says what was looked for."""
        configuration = Configuration()
        request = Request(verb="load", resource="kubeconfig", key=kubeconfig or "")
        if kubeconfig is not None and not _is_file(kubeconfig):
            raise Unreachable(request, "no such file; give the path of a kubeconfig")
        try:
            if kubeconfig is None and context is None:
                try:
                    config.load_incluster_config(client_configuration=configuration)
                    return cls(configuration, user_agent)
                except ConfigException:
                    log.debug("not inside a cluster: the default kubeconfig is used")
            loader = await config.load_kube_config(kubeconfig, context, configuration, persist_config=False)
        except (ConfigException, OSError, ValueError, TypeError, AttributeError) as error:
            raise Unreachable(request, f"cannot be used: {error}; give the path of a valid kubeconfig") from error
        return cls(configuration, user_agent, loader)

    @property
    def host(self) -> str:
        return (self._configuration.host or "").rstrip("/")

    def with_token(self, token: str) -> "Transport":
        """The same server as somebody else. Our own client certificate stays out: the server would trust it first."""
        other = Configuration()
        ours = self._configuration
        other.host, other.ssl_ca_cert, other.verify_ssl = ours.host, ours.ssl_ca_cert, ours.verify_ssl
        other.tls_server_name, other.proxy = ours.tls_server_name, ours.proxy
        other.api_key["BearerToken"] = f"Bearer {token}"
        return Transport(other, self._user_agent)

    async def call(
        self,
        request: Request,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Answer:
        """One request, one answer. Raises a KubernetesError for everything else than success."""
        data = None if body is None else orjson.dumps(body)
        headers = {"Accept": accept, "Content-Type": content_type} if data is not None else {"Accept": accept}
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        used = self._token
        try:
            return await self._attempt(request, method, path, query, data, headers, limits)
        except Unauthorized:
            if not await self._renew_credentials(used):
                raise
            return await self._attempt(request, method, path, query, data, headers, limits)

    async def _attempt(
        self,
        request: Request,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: dict[str, str],
        limits: aiohttp.ClientTimeout,
    ) -> Answer:
        async with self._open(request, method, path, query, data, headers, limits) as response:
            raw = await response.read()
            body = _decoded(request, raw, response)
            if response.status >= 400:
                raise error_from(request, response.status, body, retry_after=response.headers.get("Retry-After"))
            return Answer(response.status, body)

    async def stream(
        self, request: Request, path: str, *, query: Mapping[str, str], idle_s: float
    ) -> AsyncGenerator[dict[str, Any]]:
        """JSON documents, one a line, as they arrive. Ends when the server ends it; Unreachable after `idle_s` of silence."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s)
        async with self._open(request, "GET", path, query, None, {"Accept": JSON}, limits) as response:
            if response.status >= 400:
                body = _decoded(request, await response.read(), response)
                raise error_from(request, response.status, body, retry_after=response.headers.get("Retry-After"))
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _document(request, line)

    @asynccontextmanager
    async def _open(
        self,
        request: Request,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: dict[str, str],
        limits: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        text = self.host + path + (f"?{urlencode(query)}" if query else "")
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        sent = {**headers, "User-Agent": self._user_agent, **({"Authorization": token} if token else {})}
        options: dict[str, Any] = {}
        if self._configuration.tls_server_name:
            options["server_hostname"] = self._configuration.tls_server_name
        if self._proxy:
            options["proxy"] = self._proxy
        try:
            async with self._session.request(
                method, URL(text, encoded=True), data=data, headers=sent, timeout=limits, **options
            ) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = str(error) or type(error).__name__
            hint = "" if method == "GET" else "; it may have been done all the same"
            raise Unreachable(request, f"no answer from {self.host}: {said}{hint}") from error

    @property
    def _token(self) -> str | None:
        return self._configuration.api_key.get("BearerToken")

    async def _renew_credentials(self, used: str | None) -> bool:
        """Read the kubeconfig's credentials again (exec plug-ins, OIDC, token files). True when they are other ones."""
        if self._loader is None:
            return False
        async with self._refresh:
            if self._token == used:
                try:
                    await self._loader.load_and_set(self._configuration)
                except Exception as error:  # noqa: BLE001 - plug-ins raise anything; the first answer, 401, is what counts
                    log.warning("credentials could not be renewed: %s", error)
            return self._token != used

    async def close(self) -> None:
        await self._session.close()


def _session(configuration: Configuration) -> aiohttp.ClientSession:
    """The library's connections, with its TLS settings, in a session of ours.

    The library's own asks the environment for proxies and ~/.netrc anew for each request, in a thread: half of the cost of
    a small one.
    """
    theirs: aiohttp.ClientSession = ApiClient(configuration).rest_client.pool_manager
    ours = aiohttp.ClientSession(connector=theirs.connector, trust_env=False)
    theirs.detach()
    return ours


def _environment_proxy(url: str) -> str | None:
    """What HTTPS_PROXY and the like say about this address, unless NO_PROXY names it."""
    address = URL(url)
    if proxy_bypass(address.host or ""):
        return None
    return getproxies().get(address.scheme)


def _is_file(path: str) -> bool:
    return Path(path).expanduser().is_file()


def _decoded(request: Request, raw: bytes, response: aiohttp.ClientResponse) -> Any:
    if "json" in response.headers.get("Content-Type", ""):
        return _document(request, raw) if raw else None
    return raw.decode(errors="replace")


def _document(request: Request, raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Unreachable(request, f"the answer is not JSON: {raw[:200]!r}") from error
