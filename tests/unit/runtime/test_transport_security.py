"""Certificates that cannot work are told at start, naming option and file (P63)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from holdover.cli.certificate_authority import LOCAL_HOSTS
from holdover.config import Configuration
from holdover.errors import ConfigurationError
from holdover.runtime.transport_security import (
    CredentialFiles,
    TransportSecurity,
    credential_files,
    environment_of,
)
from tests.doubles.certificates import authority, files_in, install, node


def configuration(directory: Path) -> Configuration:
    return Configuration.of(
        {
            "security.ssl.enabled": "true",
            "security.ssl.certificate": str(directory / "own.pem"),
            "security.ssl.private-key": str(directory / "own-key.pem"),
            "security.ssl.ca": str(directory / "ca.pem"),
        }
    )


def problem(directory: Path) -> str:
    with pytest.raises(ConfigurationError) as raised:
        credential_files(configuration(directory))
    return str(raised.value)


def test_nothing_is_secured_unless_it_is_configured() -> None:
    assert credential_files(Configuration()) is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    node(tmp_path, authority())
    (tmp_path / "ca.pem").unlink()
    assert problem(tmp_path).startswith(f"security.ssl.ca: cannot read {tmp_path}/ca.pem: No such")


def test_a_file_without_certificate_is_named(tmp_path: Path) -> None:
    node(tmp_path, authority())
    (tmp_path / "own.pem").write_text("hello")
    assert problem(tmp_path).startswith(
        f"security.ssl.certificate: {tmp_path}/own.pem: holds no certificate"
    )


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    issuer = authority()
    node(tmp_path, issuer)
    (tmp_path / "own-key.pem").write_bytes(issuer.own.private_key)
    assert f"{tmp_path}/own-key.pem: is not the key of the certificate in" in problem(tmp_path)


def test_a_key_with_a_password_is_refused(tmp_path: Path) -> None:
    node(tmp_path, authority())
    path = tmp_path / "own-key.pem"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert f"{path}: has a password" in problem(tmp_path)


def test_an_expired_certificate_is_refused_with_its_date(tmp_path: Path) -> None:
    issuer = authority()
    install(tmp_path, issuer.issue("old", LOCAL_HOSTS, days=-1), issuer)
    assert f"{tmp_path}/own.pem: the certificate of CN=old expired at 20" in problem(tmp_path)


def test_a_certificate_of_a_stranger_is_refused(tmp_path: Path) -> None:
    install(tmp_path, authority("one").issue("own", LOCAL_HOSTS), authority("another"))
    assert f"was not issued by an authority in {tmp_path}/ca.pem" in problem(tmp_path)


def test_a_private_key_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node(tmp_path, authority())
    (tmp_path / "own-key.pem").chmod(0o640)
    with caplog.at_level(logging.WARNING):
        files_in(tmp_path)
    assert "others may read the private key: chmod 600 it" in caplog.text


def test_no_key_is_shown(tmp_path: Path) -> None:
    files = files_in(node(tmp_path, authority()))
    assert "PRIVATE" not in repr(files.current)


def test_a_child_process_inherits_paths_and_no_keys(tmp_path: Path) -> None:
    environment = environment_of(configuration(node(tmp_path, authority())))
    assert not any("PRIVATE KEY" in value for value in environment.values())
    security = TransportSecurity.inherited(environment)
    assert security is not None
    assert CredentialFiles(security, watched=False).current.private_key.startswith(b"-----BEGIN")
    assert TransportSecurity.inherited(environment_of(Configuration())) is None
    assert TransportSecurity.inherited({}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"security.ssl.enabled": "true"},
            "security.ssl.enabled .* needs security.ssl.certificate, which is not set",
        ),
        (
            {"security.ssl.certificate": "/a.pem"},
            "security.ssl.certificate .* has no effect while security.ssl.enabled is not set",
        ),
        (
            {"security.ssl.expected-name": "jm"},
            "security.ssl.expected-name .* has no effect while security.ssl.enabled is not set",
        ),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(
    settings: dict[str, str], message: str
) -> None:
    """P63: nobody is to believe that his connections are secured when they are not."""
    with pytest.raises(ConfigurationError, match=message):
        Configuration.of(settings)


def test_certificates_may_be_configured_and_switched_off() -> None:
    settings = {"security.ssl.enabled": "false", "security.ssl.certificate": "/a.pem"}
    assert credential_files(Configuration.of(settings)) is None
