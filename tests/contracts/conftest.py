"""The arms of the runtime seam. Every suite here runs on each; a new arm joins in this file.

There are two worlds. A test that uses a fixture of `IN_BOTH_WORLDS`, itself or through another
fixture, runs twice: once on an ordinary event loop ("real"), once on the virtual loop of a new
simulated world ("simulated"), where `asyncio.sleep` and `asyncio.timeout` of the test itself take
virtual time. The fixture `world` is that world, or None in the real one; in it the test, and every
fixture that depends on `world`, runs as the process "test" of the host "test" (`CURRENT`). An arm
is therefore a fixture that depends on `world` and looks whether it is there:

    @pytest.fixture
    async def disk_arm(world: World | None, tmp_path: Path) -> DiskArm: ...

A module that has no simulated counterpart yet stays in the real world with
`pytestmark = pytest.mark.asyncio(loop_factories=["real"])`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from holdover.runtime import Disk, Runtime, is_object_url
from holdover.runtime.real import real_runtime
from simulator.world.process import CURRENT
from simulator.world.storage import SimulatedStorage
from simulator.world.world import World
from tests.doubles.s3_server import environment, make_bucket, moto_server

#: Names of the fixtures that exist in both worlds.
IN_BOTH_WORLDS = ("runtime_arm", "disk_arm")

_NUMBERS = itertools.count()
_WORLDS: WeakKeyDictionary[asyncio.AbstractEventLoop, World] = WeakKeyDictionary()


def _loop_of_a_new_world() -> asyncio.AbstractEventLoop:
    world = World(seed=7)
    _WORLDS[world.loop] = world
    return world.loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Function
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The worlds that a test runs in."""
    if any(name in item.fixturenames for name in IN_BOTH_WORLDS):
        return {"real": asyncio.new_event_loop, "simulated": _loop_of_a_new_world}
    return {"real": asyncio.new_event_loop}


@dataclass(frozen=True)
class DiskArm:
    """A disk and an existing, empty directory on it."""

    disk: Disk
    root: str

    def needs_a_file_system(self) -> None:
        """Skip what no object store has, and no service asks of one (docs/event-log.md)."""
        if is_object_url(self.root):
            pytest.skip("not on an object store")


@pytest.fixture
async def world() -> AsyncIterator[World | None]:
    """The simulated world of the test, which runs in one of its processes; None in the real one."""
    world = _WORLDS.get(asyncio.get_running_loop())
    if world is None:
        yield None
        return
    CURRENT.set(world.process(world.host("test"), "test"))
    yield world
    assert world.failures == []


@pytest.fixture
async def runtime_arm(world: World | None) -> Runtime:
    """A whole runtime."""
    return real_runtime() if world is None else world.runtime(CURRENT.get())


@pytest.fixture(scope="session")
def s3_server_port() -> Iterator[int]:
    """An S3 server, and what this process needs to know to use it."""
    with moto_server() as port, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(f"http://127.0.0.1:{port}").items():
            patch.setenv(name, value)
        yield port


def new_object_root(scheme: str, request: pytest.FixtureRequest) -> str:
    """An empty directory in an object store; skips in the simulated world, which has none."""
    bucket = f"contract-{next(_NUMBERS)}"
    if scheme == "s3":
        make_bucket(request.getfixturevalue("s3_server_port"), bucket)
    return f"{scheme}://{bucket}/some/prefix"


@pytest.fixture(params=["of-the-runtime", "storage-by-itself", "memory", "s3"])
async def disk_arm(
    request: pytest.FixtureRequest, runtime_arm: Runtime, world: World | None, tmp_path: Path
) -> DiskArm:
    """The disk of a runtime, the storage that the simulated one is made of, or an object store."""
    if request.param in ("memory", "s3"):
        if world is not None:
            pytest.skip("the simulated world has no object store")
        return DiskArm(runtime_arm.disk, new_object_root(request.param, request))
    if request.param == "storage-by-itself":
        arm = DiskArm(SimulatedStorage(), "/disk")
    elif world is None:
        return DiskArm(runtime_arm.disk, str(tmp_path))
    else:
        arm = DiskArm(runtime_arm.disk, "/shared/disk")
    await arm.disk.make_directories(arm.root)
    return arm
