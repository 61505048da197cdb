"""Certificates for a test cluster: an authority of its own, and what it issues."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdover.errors import HoldoverError

CA_FILE, CA_KEY_FILE = "ca.pem", "ca-key.pem"
#: One certificate for the cluster's processes, one for those who call it.
NODE, CLIENT = "node", "client"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

# Clocks of machines that meet differ a little.
_BACKDATED = timedelta(minutes=5)


class CertificatesExist(HoldoverError):
    """A file that would be written is there already, and may be in use."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in PEM form with its private key."""

    certificate: bytes
    private_key: bytes


class Authority:
    """Issues certificates that hold `days` days from `now` on."""

    def __init__(self, now: datetime, days: float, name: str = "Holdover test authority") -> None:
        self._now = now
        self._days = days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._name, self._key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def own(self) -> Issued:
        """The authority's own certificate and key."""
        return Issued(_pem(self._certificate), _key_pem(self._key))

    def issue(self, name: str, hosts: Sequence[str], days: float | None = None) -> Issued:
        """A certificate for a process that is reached at `hosts` and calls others as well.

        It holds as long as the authority, or `days`; with less than none it is over already.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usage.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            self._builder(subject, key.public_key(), self._days if days is None else days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return Issued(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, days: float
    ) -> x509.CertificateBuilder:
        end = self._now + timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(self._now, end) - _BACKDATED)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )


def make_certificates(directory: Path, hosts: Sequence[str], days: int) -> list[Path]:
    """Make an authority, a certificate for the cluster and one for clients; what was written.

    The cluster's certificate is for `LOCAL_HOSTS` and `hosts`. Raises CertificatesExist before
    anything is written, and OSError. Private keys can be read by their owner only.
    """
    authority = Authority(datetime.now(UTC), days)
    node = authority.issue("holdover node", [*dict.fromkeys((*LOCAL_HOSTS, *hosts))])
    client = authority.issue("holdover client", ())
    contents = {
        CA_FILE: authority.own.certificate,
        CA_KEY_FILE: authority.own.private_key,
        f"{NODE}.pem": node.certificate,
        f"{NODE}-key.pem": node.private_key,
        f"{CLIENT}.pem": client.certificate,
        f"{CLIENT}-key.pem": client.private_key,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name in contents:
        if (directory / name).exists():
            raise CertificatesExist(
                f"{directory / name} exists: choose another directory, or move what is there away"
            )
    for name, content in contents.items():
        _write(directory / name, content)
    return [directory / name for name in contents]


def security_options(directory: Path, who: str = NODE) -> dict[str, str]:
    """The options that make a process use what `make_certificates` has written."""
    place = directory.absolute()
    return {
        "security.ssl.enabled": "true",
        "security.ssl.certificate": str(place / f"{who}.pem"),
        "security.ssl.private-key": str(place / f"{who}-key.pem"),
        "security.ssl.ca": str(place / CA_FILE),
    }


def _write(path: Path, content: bytes) -> None:
    mode = 0o600 if path.stem.endswith("-key") else 0o644
    # O_EXCL overwrites nobody's file; the mode is there before the key is.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
