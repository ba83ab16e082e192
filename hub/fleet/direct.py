"""The hub connects to the agent's HTTPS address: POST /v1/poll, JSON, gzip.

Both sides are known to each other: the hub shows a certificate of its own CA, which the agent got when it joined; the agent
must show the very certificate that it joined with. That is checked by fingerprint right after the handshake, before a byte
of the request is sent. One TLS context serves all agents, since one of them costs more memory than a thousand connections.
"""

import gzip
import ssl
from urllib.parse import urlsplit

import aiohttp
import msgspec

from hub.fleet.transport import BadAnswer, PollError, Refused, Target, Unreachable, VersionMismatch, WrongIdentity
from hub.kueue.runtime.tls import Identity, TlsError, client_context, fingerprint
from hub.kueue.wire import MESSAGE_BYTES_MAX, WIRE_VERSIONS, PollAnswer, PollRequest, WireProblem

POLL_PATH = "/v1/poll"
#: Smaller bodies are not worth the processor time.
COMPRESS_FROM_BYTES = 2048
#: The agent says so with this status when it speaks other versions (RFC 9110: Upgrade Required).
UPGRADE_REQUIRED = 426
_CONNECT_TIMEOUT_S = 5.0
#: One waits for news, one brings intents; a third is for the moment in which one of them is given up.
_CONNECTIONS_MAX = 3

_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(PollAnswer).decode
_decode_problem = msgspec.json.Decoder(WireProblem).decode


class DirectTransport:
    """Keeps one connection pool per agent, so that a slow one can never use up what others need."""

    def __init__(self, identity: Identity, ca_pem: str) -> None:
        self._tls = client_context(ca_pem, identity, check_hostname=False)
        # Whom we talk to is settled by the pinned fingerprint, whoever signed the certificate and until whenever.
        self._tls.verify_mode = ssl.CERT_NONE
        self._sessions: dict[str, tuple[Target, aiohttp.ClientSession]] = {}

    async def poll(self, target: Target, request: PollRequest, *, timeout_s: float) -> PollAnswer:
        session = await self._session(target)
        body, headers = _packed(request)
        try:
            async with session.post(
                target.address.rstrip("/") + POLL_PATH,
                data=body,
                headers=headers,
                ssl=self._tls,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S),
            ) as response:
                return await _answer(response)
        except PollError:
            raise
        except aiohttp.ServerFingerprintMismatch as error:
            raise WrongIdentity(
                f"{target.address} shows certificate {error.got.hex()[:16]}..., the agent of {target.cluster} joined with "
                f"{error.expected.hex()[:16]}...: if the agent was set up anew, register the cluster again"
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{target.address}: {error.os_error.strerror or error.os_error}") from error
        except TimeoutError as error:
            raise Unreachable(f"{target.address} did not answer within {timeout_s:.0f} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{target.address}: {type(error).__name__}: {error}") from error

    async def _session(self, target: Target) -> aiohttp.ClientSession:
        known = self._sessions.get(target.cluster)
        if known is not None and known[0] == target:
            return known[1]
        if urlsplit(target.address).scheme != "https":
            raise Unreachable(f"the address of {target.cluster} is {target.address!r} and must begin with https://")
        try:
            pinned = aiohttp.Fingerprint(bytes.fromhex(fingerprint(target.certificate_pem)))
        except TlsError as error:
            raise WrongIdentity(f"the stored certificate of {target.cluster} cannot be read: {error}") from error
        await self.forget(target.cluster)
        # The connector brings the fingerprint, each request the context: aiohttp then checks both.
        connector = aiohttp.TCPConnector(ssl=pinned, limit=_CONNECTIONS_MAX, keepalive_timeout=60.0)
        session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
        self._sessions[target.cluster] = (target, session)
        return session

    async def forget(self, cluster: str) -> None:
        if (known := self._sessions.pop(cluster, None)) is not None:
            await known[1].close()

    async def close(self) -> None:
        for cluster in list(self._sessions):
            await self.forget(cluster)


def _packed(request: PollRequest) -> tuple[bytes, dict[str, str]]:
    body = _encode(request)
    headers = {"Content-Type": "application/json"}
    if len(body) > MESSAGE_BYTES_MAX:
        raise BadAnswer(f"a request of {len(body):,} bytes is over the limit of {MESSAGE_BYTES_MAX:,} and was not sent")
    if len(body) >= COMPRESS_FROM_BYTES:
        return gzip.compress(body, compresslevel=1), headers | {"Content-Encoding": "gzip"}
    return body, headers


async def _answer(response: aiohttp.ClientResponse) -> PollAnswer:
    body = await _read(response)
    if response.status != 200:
        raise _refusal(response.status, body)
    try:
        answer = _decode_answer(body)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"not a poll answer: {error}") from error
    if not WIRE_VERSIONS[0] <= answer.wire_version <= WIRE_VERSIONS[1]:
        raise VersionMismatch(_versions(answer.wire_version, answer.wire_version))
    return answer


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, unpacked on the way in, so that a small packed answer cannot become a huge one."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(1 << 18):
        size += len(part)
        if size > MESSAGE_BYTES_MAX:
            raise BadAnswer(f"the answer is over the limit of {MESSAGE_BYTES_MAX:,} bytes")
        parts.append(part)
    return b"".join(parts)


def _refusal(status: int, body: bytes) -> PollError:
    try:
        problem = _decode_problem(body)
    except msgspec.MsgspecError:
        return Refused(f"HTTP {status}: {body[:200].decode(errors='replace')}")
    if status == UPGRADE_REQUIRED:
        return VersionMismatch(_versions(problem.wire_min, problem.wire_max))
    return Refused(f"HTTP {status}: {problem.title}{': ' + problem.detail if problem.detail else ''}")


def _versions(lowest: int, highest: int) -> str:
    theirs = str(lowest) if lowest == highest else f"{lowest} to {highest}"
    older = "agent" if highest < WIRE_VERSIONS[0] else "hub"
    return f"the agent speaks wire version {theirs}, this hub {WIRE_VERSIONS[0]} to {WIRE_VERSIONS[1]}: upgrade the {older}"
