"""`holdover certs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdover.cli.main import app
from holdover.config import Configuration
from holdover.runtime.transport_security import credential_files


def certs(*arguments: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["certs", *arguments])
    return ended.exit_code, ended.output


def test_what_it_makes_works_for_processes_and_clients(tmp_path: Path) -> None:
    code, output = certs(str(tmp_path / "new"), "--host", "jm.example", "--json")
    assert code == 0, output
    made = json.loads(output)
    for who in ("process", "client"):
        assert credential_files(Configuration.of(made[who])) is not None


def test_private_keys_are_their_owners_only(tmp_path: Path) -> None:
    certs(str(tmp_path))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    keys = {name for name in modes if "key" in name}
    assert keys == {"ca-key.pem", "node-key.pem", "client-key.pem"}
    assert {modes[name] for name in keys} == {0o600}


@pytest.mark.parametrize("name", ["ca.pem", "client-key.pem"])
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    code, output = certs(str(tmp_path))
    assert code == 1
    assert f"{name} exists" in output
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"
