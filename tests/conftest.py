"""What holds for every test: no blocking call on an event loop, no process left behind."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from inspect import iscoroutinefunction
from pathlib import Path

import grpc.aio
import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine only.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

SHIPPED_PACKAGES = ["holdover", "jobmanager", "taskmanager", "shuffle"]
CLUSTER_TESTS = Path(__file__).parent / "cluster"
SESSION_VARIABLE = "_HOLDOVER_TEST_SESSION"
PROCESS_END_TIMEOUT_S = 120.0


@pytest.fixture(scope="session", autouse=True)
def grpc_stays_up() -> None:
    """Without its last channel or server gRPC shuts its poller down, at any collection of garbage,
    and joins a thread there: in the middle of whatever test runs then. It ends with the process: at
    the end of all tests that thread has been waited for without end.
    """
    grpc.aio.init_grpc_aio()


@pytest.fixture(autouse=True)
def blocking_calls_fail(request: pytest.FixtureRequest) -> Iterator[None]:
    """Raises BlockingError where shipped code blocks the event loop of an in-process async test.

    Only stacks that pass through shipped code count, so pytest, grpc and the tests themselves may
    block. Cluster tests drive real processes from outside and are exempt, and so is a test marked
    `blocking_allowed`.
    """
    item = request.node
    assert isinstance(item, pytest.Item)
    exempt = (
        CLUSTER_TESTS in item.path.parents
        or item.get_closest_marker("blocking_allowed") is not None
        or not iscoroutinefunction(getattr(item, "function", None))
    )
    if exempt:
        yield
        return
    with blockbuster_ctx(SHIPPED_PACKAGES):
        yield


def processes_marked(token: str) -> dict[int, str]:
    """Living processes that were started with `token` in their environment: pid to command line.

    The mark is inherited, so a process is found whoever its parent is by now. A zombie has no
    environment left and is not reported.
    """
    mark = f"{SESSION_VARIABLE}={token}".encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is not ours to read
    return found


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fails at the end of the session, and ends them, when processes of the tests still live."""
    token = secrets.token_hex(8)
    os.environ[SESSION_VARIABLE] = token
    yield
    deadline_s = time.monotonic() + PROCESS_END_TIMEOUT_S
    while (left := processes_marked(token)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        listing = "\n".join(f"  {pid}: {command}" for pid, command in left.items())
        pytest.fail(f"processes left by the tests (now killed):\n{listing}", pytrace=False)
