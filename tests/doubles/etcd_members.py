"""Members of a real etcd, each a process on this machine that can be killed and started again."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.doubles.ports import free_ports

READY_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 60.0
# Twice as fast as etcd's defaults: leases of one second are allowed, and tests are short.
HEARTBEAT_MS = 50
ELECTION_MS = 500


def require_etcd() -> None:
    """Skip the test, loudly, where there is no etcd."""
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("no etcd: install etcd-server and etcd-client (or put etcd, etcdctl on PATH)")


class EtcdMembers:
    """One or more members of one etcd, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        count: int = 1,
        options: Sequence[str] = (),
        certificates: Path | None = None,
    ) -> None:
        """With `certificates`, clients speak TLS and show one of the authority there, whose files
        are named as by `tests.doubles.certificates.install`."""
        self._directory = directory
        self._options = tuple(options)
        #: Where they are; None when all is in clear.
        self.certificates = certificates
        self._scheme = "http" if certificates is None else "https"
        if certificates is not None:
            self._options += ("--client-cert-auth", "--trusted-ca-file", f"{certificates}/ca.pem")
            self._options += ("--cert-file", f"{certificates}/own.pem")
            self._options += ("--key-file", f"{certificates}/own-key.pem")
        ports = free_ports(2 * count)
        #: host:port of each, for clients.
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:count]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *members: int) -> None:
        """Start these members, or all, with what their disks have kept."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for member in members or range(len(self.endpoints)):
            client, peer = f"{self._scheme}://{self.endpoints[member]}", self._peers[member]
            peers = ",".join(f"m{number}={url}" for number, url in enumerate(self._peers))
            command = ["etcd", "--name", f"m{member}"]
            command += ["--data-dir", str(self._directory / f"m{member}")]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--initial-cluster", peers]
            command += ["--heartbeat-interval", str(HEARTBEAT_MS)]
            command += ["--election-timeout", str(ELECTION_MS), *self._options]
            environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": _architecture()}
            with (self._directory / f"m{member}.log").open("ab") as log:
                self._processes[member] = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def kill(self, *members: int, signal_number: int = signal.SIGKILL) -> None:
        """End these members, or all, and wait until they are gone."""
        ended = [self._processes.pop(member) for member in members or sorted(self._processes)]
        for process in ended:
            with suppress(ProcessLookupError):
                process.send_signal(signal_number)
        for process in ended:
            process.wait(STOP_TIMEOUT_S)

    def signal(self, member: int, signal_number: int) -> None:
        """Send a member a signal, such as SIGSTOP."""
        self._processes[member].send_signal(signal_number)

    def wait_until_healthy(self) -> None:
        """Wait until every member that runs takes part in a majority."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        waiting = [self.endpoints[member] for member in sorted(self._processes)]
        while waiting:
            if self._is_healthy(waiting[0]):
                waiting.pop(0)
                continue
            assert time.monotonic() < deadline_s, f"not healthy: {waiting}\n{self.logs()}"
            time.sleep(0.05)

    def control(self, *arguments: str) -> str:
        """What etcdctl says."""
        done = subprocess.run(
            ["etcdctl", "--endpoints", ",".join(self.endpoints), *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            timeout=READY_TIMEOUT_S,
            text=True,
        )
        assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _is_healthy(self, endpoint: str) -> bool:
        context = None
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
            own = self.certificates / "own.pem"
            context.load_cert_chain(own, self.certificates / "own-key.pem")
        try:
            with urllib.request.urlopen(
                f"{self._scheme}://{endpoint}/health", timeout=ANSWER_TIMEOUT_S, context=context
            ) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.HTTPError):
            return False

    def revision(self) -> int:
        """The store's present revision."""
        fields = self.control("endpoint", "status", "--write-out=fields").splitlines()
        return max(int(line.split()[-1]) for line in fields if line.startswith('"Revision"'))

    def logs(self) -> str:
        """The ends of the logs."""
        return "\n".join(
            path.read_text(errors="replace")[-2000:]
            for path in sorted(self._directory.glob("*.log"))
        )


def _architecture() -> str:
    """etcd wants to be told that it runs where it is not supported."""
    return {"aarch64": "arm64"}.get(platform.machine(), "")
