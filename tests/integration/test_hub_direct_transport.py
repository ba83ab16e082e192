"""Polls over real TLS: who is let in, what is sent, and what every failure is called."""

import asyncio
import gzip
import ssl
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web

from hub.fleet.direct import DirectTransport
from hub.fleet.transport import BadAnswer, Refused, Target, Unreachable, VersionMismatch, WrongIdentity
from hub.kueue.runtime import tls
from hub.kueue.wire import Action, Intent, PollAnswer, PollRequest, WireProblem

NOW = time.time()
HUB_CA = tls.make_ca("hub", NOW)
HUB = tls.make_certificate("hub", NOW, ca=HUB_CA, purpose="client")
AGENT = tls.make_certificate("east", NOW, hosts=["127.0.0.1"])


class Agent:
    """An HTTPS server in the agent's place. `answer` makes the response; `seen` keeps what arrived."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.response = lambda: web.json_response({"bootId": "b1", "cursor": 3})
        self.held = False
        self.never = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.headers.get("Content-Encoding", ""), await request.read()))
        if self.held:
            await self.never.wait()
        return self.response()


@pytest.fixture
async def agent() -> AsyncIterator[SimpleNamespace]:
    served = Agent()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/poll", served.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    context = tls.server_context(AGENT, client_ca_pem=HUB_CA.certificate_pem)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    target = Target(cluster="east", address=f"https://127.0.0.1:{port}", certificate_pem=AGENT.certificate_pem)
    yield SimpleNamespace(served=served, target=target)
    served.never.set()
    await runner.cleanup()


@pytest.fixture
async def transport() -> AsyncIterator[DirectTransport]:
    made = DirectTransport(HUB, HUB_CA.certificate_pem)
    yield made
    await made.close()


REQUEST = PollRequest(cluster="east", term=1, lease_s=60)


async def test_a_poll_goes_there_and_back(agent, transport):
    answer = await transport.poll(agent.target, REQUEST, timeout_s=5)
    assert answer == PollAnswer(boot_id="b1", cursor=3)
    assert msgspec.json.decode(agent.served.seen[0][1], type=PollRequest) == REQUEST


async def test_large_bodies_are_packed_both_ways(agent, transport):
    intent = Intent(placement="p", generation=1, action=Action.RUN, namespace="n", workload="w", job={"x": "y" * 9000})
    big = PollAnswer(boot_id="b" * 9000, cursor=1)

    def packed() -> web.Response:
        return web.Response(body=gzip.compress(msgspec.json.encode(big)), headers={"Content-Encoding": "gzip"})

    agent.served.response = packed
    answer = await transport.poll(agent.target, msgspec.structs.replace(REQUEST, intents=[intent]), timeout_s=5)
    assert answer == big
    encoding, body = agent.served.seen[0]
    assert (encoding, len(body) > 9000) == ("gzip", True)


async def test_one_connection_serves_many_polls(agent, transport):
    for _ in range(3):
        await transport.poll(agent.target, REQUEST, timeout_s=5)
    session = transport._sessions["east"][1]
    assert sum(len(conns) for conns in session.connector._conns.values()) == 1


async def test_another_certificate_gets_no_byte_of_the_request(agent, transport):
    other = tls.make_certificate("east", NOW, hosts=["127.0.0.1"])
    target = msgspec.structs.replace(agent.target, certificate_pem=other.certificate_pem)
    with pytest.raises(WrongIdentity, match="register the cluster again"):
        await transport.poll(target, REQUEST, timeout_s=5)
    assert agent.served.seen == []


async def test_an_agent_lets_only_its_own_hub_in(agent):
    stranger_ca = tls.make_ca("other hub", NOW)
    stranger = DirectTransport(
        tls.make_certificate("hub", NOW, ca=stranger_ca, purpose="client"), HUB_CA.certificate_pem
    )
    with pytest.raises(Unreachable):
        await stranger.poll(agent.target, REQUEST, timeout_s=5)
    await stranger.close()
    assert agent.served.seen == []


def problem(status: int, **fields) -> web.Response:
    body = msgspec.json.encode(WireProblem(title="No", status=status, **fields))
    return web.Response(body=body, status=status, content_type="application/problem+json")


@pytest.mark.parametrize(
    ("response", "want_error", "want_words"),
    [
        pytest.param(lambda: problem(409, detail="term 3 leads"), Refused, "HTTP 409: No: term 3 leads", id="refused"),
        pytest.param(lambda: web.Response(text="<html>", status=502), Refused, "HTTP 502: <html>", id="a proxy's page"),
        pytest.param(
            lambda: problem(426, wire_min=7, wire_max=9), VersionMismatch, "speaks wire version 7 to 9.*upgrade the hub",
            id="newer agent",
        ),
        pytest.param(
            lambda: web.json_response({"bootId": "b", "cursor": 1, "wireVersion": 0}), VersionMismatch, "upgrade the agent",
            id="older agent",
        ),
        pytest.param(lambda: web.json_response({"cursor": 3}), BadAnswer, "bootId", id="not a poll answer"),
        pytest.param(
            lambda: web.Response(body=gzip.compress(b"0" * 40_000_000), headers={"Content-Encoding": "gzip"}), BadAnswer,
            "over the limit", id="a small answer that unpacks to a huge one",
        ),
    ],
)  # fmt: skip
async def test_every_failure_has_a_name(agent, transport, response, want_error, want_words):
    agent.served.response = response
    with pytest.raises(want_error, match=want_words) as caught:
        await transport.poll(agent.target, REQUEST, timeout_s=5)
    assert caught.value.reason == want_error.__name__


async def test_an_agent_that_hangs_costs_its_time_limit(agent, transport):
    agent.served.held = True
    with pytest.raises(Unreachable, match="did not answer within"):
        await transport.poll(agent.target, REQUEST, timeout_s=0.2)


@pytest.mark.parametrize(
    ("address", "want_words"),
    [("http://127.0.0.1:1", "must begin with https://"), ("https://127.0.0.1:1", "127.0.0.1:1")],
    ids=["no TLS", "nobody listens"],
)
async def test_an_address_that_is_of_no_use(transport, address, want_words):
    target = Target(cluster="east", address=address, certificate_pem=AGENT.certificate_pem)
    with pytest.raises(Unreachable, match=want_words):
        await transport.poll(target, REQUEST, timeout_s=5)


async def test_the_shared_context_checks_the_pin_and_nothing_else(transport):
    assert (transport._tls.verify_mode, transport._tls.check_hostname) == (ssl.CERT_NONE, False)
