"""Certificates and TLS contexts: a CA of our own, what it signs, and who trusts whom.

Serving certificates name the addresses they serve (subject alternative names). A client certificate's common name is the
client. Keys are EC P-256 in unencrypted PKCS#8: whoever stores one does so with mode 0600.
"""

import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

Purpose = Literal["server", "client", "both"]

DAY_S = 86_400.0
CA_VALID_S = 3650 * DAY_S
CERTIFICATE_VALID_S = 365 * DAY_S
#: Valid since a while ago already, for peers whose clocks lag.
BACKDATE_S = 3600.0


class TlsError(Exception):
    """A certificate, key or CA cannot be used."""


class Identity(Struct, frozen=True, kw_only=True):
    """A certificate and its private key, PEM."""

    certificate_pem: str
    key_pem: str


def make_ca(common_name: str, now: float, *, valid_s: float = CA_VALID_S) -> Identity:
    """A self-signed certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, now, valid_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _signed(builder, key, key)


def make_certificate(
    common_name: str,
    now: float,
    *,
    ca: Identity | None = None,
    hosts: Sequence[str] = (),
    purpose: Purpose = "server",
    organizations: Sequence[str] = (),
    valid_s: float = CERTIFICATE_VALID_S,
) -> Identity:
    """A certificate signed by `ca`, or by itself without one. `hosts`: DNS names and IP addresses that it serves.

    `organizations` are the groups that a Kubernetes API server takes a client certificate's holder to be in.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(common_name, organizations)
    issuer_key, issuer = (key, subject) if ca is None else _issuer(ca)
    usages = {
        "server": [ExtendedKeyUsageOID.SERVER_AUTH],
        "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
        "both": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    }[purpose]
    builder = (
        _builder(subject, issuer, key, now, valid_s, issuer_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
    return _signed(builder, key, issuer_key)


def fingerprint(certificate_pem: str) -> str:
    """SHA-256 of the certificate's DER form, hex. Raises TlsError."""
    return _certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()


def fingerprint_of_der(der: bytes) -> str:
    """The same for what `ssl.SSLObject.getpeercert(binary_form=True)` returns."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return digest.finalize().hex()


def expires_at(certificate_pem: str) -> float:
    """End of validity, seconds since the epoch. Raises TlsError."""
    return _certificate(certificate_pem).not_valid_after_utc.timestamp()


def server_context(identity: Identity, *, client_ca_pem: str = "", require_client: bool = True) -> ssl.SSLContext:
    """For serving. With `client_ca_pem`, clients show a certificate of that CA (or may, unless `require_client`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_identity(context, identity)
    if client_ca_pem:
        _load_ca(context, client_ca_pem)
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
    return context


def client_context(ca_pem: str, identity: Identity | None = None, *, check_hostname: bool = True) -> ssl.SSLContext:
    """For connecting to a server whose certificate is signed by (or is) `ca_pem`.

    `check_hostname=False` is for a pinned certificate only: `ca_pem` is then the one certificate that is accepted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    _load_ca(context, ca_pem)
    if not check_hostname:
        # A self-made certificate is no CA: accept the very certificate as its own anchor.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    if identity is not None:
        _load_identity(context, identity)
    return context


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: float,
    valid_s: float,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    signer = (issuer_key or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_instant(now - BACKDATE_S))
        .not_valid_after(_instant(now + valid_s))
        # Strict verification (Python 3.13 and newer) asks for both identifiers.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _instant(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> Identity:
    certificate = builder.sign(issuer_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(certificate_pem=certificate.public_bytes(pem).decode(), key_pem=private.decode())


def _certificate(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise TlsError(f"this is not a PEM certificate: {error}") from error


def _issuer(ca: Identity) -> tuple[ec.EllipticCurvePrivateKey, x509.Name]:
    try:
        key = serialization.load_pem_private_key(ca.key_pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise TlsError(f"the CA's key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TlsError("the CA's key is not an EC key")
    return key, _certificate(ca.certificate_pem).subject


def _load_ca(context: ssl.SSLContext, ca_pem: str) -> None:
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"the CA certificate cannot be used: {error}") from error


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    try:
        with _files(identity) as (certificate, key):
            context.load_cert_chain(certificate, key)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"certificate and key cannot be used: {error}") from error


@contextmanager
def _files(identity: Identity) -> Iterator[tuple[Path, Path]]:
    """The ssl module reads them from files only; these are readable by us alone and gone at once."""
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_text(identity.certificate_pem)
        key.touch(mode=0o600)
        key.write_text(identity.key_pem)
        yield certificate, key
