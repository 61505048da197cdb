"""Why a connection cannot be secured, in words.

gRPC tells that a connection did not come about; of the reason it tells little, and nothing when it
is the server that refuses the client. Whoever wants to know it connects once more, here.
"""

from __future__ import annotations

import socket
import ssl

from holdover.runtime.network import split_address
from holdover.runtime.transport_security import TransportSecurity, problem_of

_TIMEOUT_S = 2.0
_CA = "security.ssl.ca"

#: OpenSSL's verification errors.
_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_ISSUER = (18, 19, 20, 21)
_OTHER_NAME = (62, 64)

#: What a server that refuses a client says, by a part of the alert's name.
_ALERTS = {
    "CERTIFICATE_EXPIRED": "it refuses this certificate, which has expired",
    "UNKNOWN_CA": "it refuses this certificate, which no authority that it knows has issued",
    "CERTIFICATE_REQUIRED": "it wants a certificate and was shown none",
    "BAD_CERTIFICATE": "it refuses this certificate",
    "CERTIFICATE_UNKNOWN": "it refuses this certificate",
}


def obstacle_at(address: str, security: TransportSecurity | None) -> str:
    """What keeps this process from a secure connection to the server; empty when nothing is known.

    Blocks for some seconds at most.
    """
    host, port = split_address(address)
    try:
        context = _context(security)
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as plain:
            if security is None:
                return _of_plaintext(context, plain)
            name = security.expected_name or host
            return _of_handshake(context, plain, name, security)
    except OSError:
        return ""  # it is not there, or not to be understood: gRPC says it as well


def _context(security: TransportSecurity | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if security is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is sent; it is only asked whether it is TLS
    else:
        context.load_verify_locations(security.ca)
        context.load_cert_chain(security.certificate, security.private_key)
    return context


def _of_plaintext(context: ssl.SSLContext, plain: socket.socket) -> str:
    try:
        with context.wrap_socket(plain):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return ""
    return "the server speaks TLS, and security.ssl.enabled is not true here"


def _of_handshake(
    context: ssl.SSLContext, plain: socket.socket, name: str, security: TransportSecurity
) -> str:
    try:
        with context.wrap_socket(plain, server_hostname=name) as secured:
            # A server has its say about the client after the client's part of the handshake.
            if secured.recv(1):
                return ""
    except ssl.SSLCertVerificationError as error:
        return _of_server_certificate(error, name, security)
    except ssl.SSLEOFError:
        pass
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        for alert, meaning in _ALERTS.items():
            if alert in reason:
                return f"{meaning}: {security.certificate}"
        if "ALERT" in reason:
            return f"the server ends the handshake: {reason}"
        return "the server does not speak TLS (security.ssl.enabled is not true there)"
    except (TimeoutError, ConnectionError):
        return ""
    return problem_of(security) or (
        f"the server is trusted, but ends the connection: it does not accept {security.certificate}"
    )


def _of_server_certificate(
    error: ssl.SSLCertVerificationError, name: str, security: TransportSecurity
) -> str:
    if error.verify_code == _EXPIRED:
        return "the server's certificate has expired"
    if error.verify_code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet"
    if error.verify_code in _UNKNOWN_ISSUER:
        return f"the server's certificate was not issued by an authority in {_CA} ({security.ca})"
    if error.verify_code in _OTHER_NAME:
        return f"the server's certificate is not for the name {name} (security.ssl.expected-name)"
    return f"the server's certificate is not accepted: {error.verify_message}"
