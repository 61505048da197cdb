"""What can be known of a process's own certificate before it meets anybody."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from holdover.config import SECURITY_SSL_CA, SECURITY_SSL_CERTIFICATE, SECURITY_SSL_PRIVATE_KEY
from holdover.errors import ConfigurationError
from holdover.runtime.log import Log

if TYPE_CHECKING:
    from holdover.runtime.transport_security import Credentials, TransportSecurity

_WARNING_MAX = timedelta(days=7)
# A chain that is longer is no chain.
_CHAIN_MAX = 10

_log = Log(__name__)


def check_credentials(
    security: TransportSecurity, credentials: Credentials, now_unix_s: float
) -> None:
    """Raises ConfigurationError, with option and file, for what every peer would refuse.

    That is: what is no PEM, a key of another certificate, a certificate that is not valid now, one
    that none of the authorities has issued, authorities that are all out of date. A certificate
    whose end is near, a week and a quarter of its time, is warned of.
    """
    key, path = SECURITY_SSL_CERTIFICATE.key, security.certificate
    chain = _certificates(key, path, credentials.certificate_chain)
    authorities = _certificates(SECURITY_SSL_CA.key, security.ca, credentials.ca)
    _check_private_key(security, credentials.private_key, chain[0])
    now = datetime.fromtimestamp(now_unix_s, UTC)
    for certificate in chain:
        reason = _not_valid(certificate, now)
        if reason:
            raise _error(key, path, f"{reason}; put a valid certificate in its place")
    reasons = [_not_valid(authority, now) for authority in authorities]
    if all(reasons):
        raise _error(SECURITY_SSL_CA.key, security.ca, reasons[0])
    if not _is_issued(chain, authorities):
        raise _error(
            key,
            path,
            f"was not issued by an authority in {security.ca}: every peer would refuse it",
        )
    end = chain[0].not_valid_after_utc
    if end - now < min(_WARNING_MAX, (end - chain[0].not_valid_before_utc) / 4):
        _log.warning("the certificate ends soon: replace it", path=path, end=f"{end:%F %R} UTC")


def _certificates(key: str, path: str, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise _error(key, path, f"holds no certificate in PEM form ({error})") from error


def _check_private_key(
    security: TransportSecurity, content: bytes, certificate: x509.Certificate
) -> None:
    key, path = SECURITY_SSL_PRIVATE_KEY.key, security.private_key
    try:
        private_key = serialization.load_pem_private_key(content, password=None)
    except TypeError as error:
        raise _error(key, path, "has a password, which nobody could give at start") from error
    except ValueError as error:
        raise _error(key, path, "holds no private key in PEM form") from error
    if _public_bytes(private_key.public_key()) != _public_bytes(certificate.public_key()):
        raise _error(key, path, f"is not the key of the certificate in {security.certificate}")


def _public_bytes(public_key: object) -> bytes:
    encoded: bytes = public_key.public_bytes(  # type: ignore[attr-defined]  # all kinds of keys
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _not_valid(certificate: x509.Certificate, now: datetime) -> str:
    """Why a certificate cannot be used now; empty when it can."""
    name = certificate.subject.rfc4514_string()
    if certificate.not_valid_after_utc < now:
        return f"the certificate of {name} expired at {certificate.not_valid_after_utc}"
    if certificate.not_valid_before_utc > now:
        return f"the certificate of {name} is not valid before {certificate.not_valid_before_utc}"
    return ""


def _is_issued(chain: list[x509.Certificate], authorities: list[x509.Certificate]) -> bool:
    """Whether the first certificate leads to an authority, over the others of its chain."""
    certificate: x509.Certificate | None = chain[0]
    for _ in range(_CHAIN_MAX):
        if certificate is None:
            return False
        if any(_issued(certificate, authority) for authority in authorities):
            return True
        certificate = next((link for link in chain[1:] if _issued(certificate, link)), None)
    return False


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _error(key: str, path: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{key}: {path}: {reason}", key=key)
