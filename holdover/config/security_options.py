"""The part of the table of options that is about `security`."""

from __future__ import annotations

import re
from typing import Any, Final

from holdover.config.values import Boolean, FilePath, Option, Text

SECURITY_SSL_ENABLED = Option(
    "security.ssl.enabled",
    Boolean(),
    "false",
    "Speak TLS on every connection, and with nobody who has no certificate of security.ssl.ca.",
)
SECURITY_SSL_CERTIFICATE = Option(
    "security.ssl.certificate",
    FilePath(),
    "",
    "PEM file with the process's certificate, followed by intermediate ones if there are any. All"
    " files of security.ssl may be replaced at any time.",
)
SECURITY_SSL_PRIVATE_KEY = Option(
    "security.ssl.private-key",
    FilePath(),
    "",
    "PEM file with the certificate's private key, without a password.",
)
SECURITY_SSL_CA = Option(
    "security.ssl.ca",
    FilePath(),
    "",
    "PEM file with the certificates of the authorities whose certificates are accepted, from"
    " servers and from clients.",
)
SECURITY_SSL_EXPECTED_NAME = Option(
    "security.ssl.expected-name",
    Text(re.compile(r"([A-Za-z0-9:._-]{1,253})?"), "empty, or a host name or IP address"),
    "",
    "Name that the certificate of every server must have, for clusters whose addresses are not in"
    " their certificates; empty asks for the host that was called.",
)

#: All of them, in the order of the documentation.
SECURITY_OPTIONS: Final[tuple[Option[Any], ...]] = (
    SECURITY_SSL_ENABLED,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_PRIVATE_KEY,
    SECURITY_SSL_CA,
    SECURITY_SSL_EXPECTED_NAME,
)
