"""Certificates: who is believed by whom, tried by real handshakes in memory."""

import ssl
import time

import pytest

from hub.kueue.runtime.tls import (
    DAY_S,
    Identity,
    TlsError,
    client_context,
    expires_at,
    fingerprint,
    fingerprint_of_der,
    make_ca,
    make_certificate,
    server_context,
)

NOW = time.time()
CA = make_ca("test CA", NOW)
SERVER = make_certificate("api", NOW, ca=CA, hosts=["localhost", "127.0.0.1"])
CLIENT = make_certificate("hub", NOW, ca=CA, purpose="client")
OTHER_CA = make_ca("other CA", NOW)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Both ends in memory, until each is content. Returns the server's end. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(4):
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    client_end.write(b"x")
    assert server_end.read(1) == b"x"
    return server_end


def test_mutual_tls_with_one_ca():
    server_end = handshake(
        server_context(SERVER, client_ca_pem=CA.certificate_pem), client_context(CA.certificate_pem, CLIENT)
    )
    der = server_end.getpeercert(binary_form=True)
    assert der is not None
    assert fingerprint_of_der(der) == fingerprint(CLIENT.certificate_pem)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_is_believed_under_each_of_its_names(host):
    handshake(server_context(SERVER), client_context(CA.certificate_pem), host)


@pytest.mark.parametrize(
    ("server", "client", "host"),
    [
        pytest.param(
            server_context(SERVER), client_context(OTHER_CA.certificate_pem), "localhost", id="a CA that we do not know"
        ),
        pytest.param(
            server_context(SERVER), client_context(CA.certificate_pem), "example.org", id="a name that it does not have"
        ),
        pytest.param(
            server_context(SERVER, client_ca_pem=CA.certificate_pem),
            client_context(CA.certificate_pem),
            "localhost",
            id="a client without a certificate",
        ),
        pytest.param(
            server_context(SERVER, client_ca_pem=CA.certificate_pem),
            client_context(CA.certificate_pem, make_certificate("hub", NOW, ca=OTHER_CA, purpose="client")),
            "localhost",
            id="a client of another CA",
        ),
        pytest.param(
            server_context(make_certificate("api", NOW - 800 * DAY_S, ca=CA, hosts=["localhost"])),
            client_context(CA.certificate_pem),
            "localhost",
            id="a certificate that has run out",
        ),
    ],
)
def test_not_believed(server, client, host):
    with pytest.raises(ssl.SSLError):
        handshake(server, client, host)


def test_a_pinned_certificate_is_accepted_and_no_other():
    pinned = make_certificate("agent east", NOW)
    handshake(server_context(pinned), client_context(pinned.certificate_pem, check_hostname=False), "10.0.0.7")
    namesake = server_context(make_certificate("agent east", NOW))
    with pytest.raises(ssl.SSLError):
        handshake(namesake, client_context(pinned.certificate_pem, check_hostname=False), "10.0.0.7")


def test_end_of_validity():
    assert expires_at(make_certificate("x", NOW, valid_s=DAY_S).certificate_pem) == pytest.approx(NOW + DAY_S, abs=1)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: fingerprint("no certificate"),
        lambda: server_context(Identity(certificate_pem="x", key_pem="y")),
        lambda: client_context("no CA"),
        lambda: make_certificate("x", NOW, ca=Identity(certificate_pem=CA.certificate_pem, key_pem="nonsense")),
    ],
)
def test_what_cannot_be_used_says_so(broken):
    with pytest.raises(TlsError):
        broken()
