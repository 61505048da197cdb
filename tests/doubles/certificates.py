"""Certificates for tests: good ones, and every kind that is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from holdover.cli.certificate_authority import LOCAL_HOSTS, Authority, Issued
from holdover.runtime.transport_security import CredentialFiles, TransportSecurity

NOW = datetime.now(UTC)


def authority(name: str = "test authority") -> Authority:
    """One that nobody else trusts."""
    return Authority(NOW, 30, name)


def install(directory: Path, issued: Issued, *trusted: Authority) -> TransportSecurity:
    """Write the files, in the place of those that are there."""
    directory.mkdir(parents=True, exist_ok=True)
    security = TransportSecurity(
        str(directory / "own.pem"), str(directory / "own-key.pem"), str(directory / "ca.pem")
    )
    key = Path(security.private_key)
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key)
    Path(security.certificate).write_bytes(issued.certificate)
    Path(security.ca).write_bytes(b"".join(each.own.certificate for each in trusted))
    return security


def node(directory: Path, issuer: Authority, hosts: tuple[str, ...] = LOCAL_HOSTS) -> Path:
    """The files of a process that `issuer` knows, in `directory`."""
    install(directory, issuer.issue(directory.name, hosts), issuer)
    return directory


def files_in(directory: Path, expected_name: str = "", *, watched: bool = True) -> CredentialFiles:
    """The credentials there."""
    security = TransportSecurity(
        str(directory / "own.pem"),
        str(directory / "own-key.pem"),
        str(directory / "ca.pem"),
        expected_name,
    )
    return CredentialFiles(security, watched=watched)
