"""The arms of the runtime seam. Every suite here runs on each; a new arm joins in this file.

There are two worlds. A test that uses a fixture of `IN_BOTH_WORLDS`, itself or through another
fixture, runs twice: once on an ordinary event loop ("real"), once on the virtual loop of a new
simulated world ("simulated"), where `asyncio.sleep` and `asyncio.timeout` of the test itself take
virtual time. The fixture `world` is that world, or None in the real one; in it the test, and every
fixture that depends on `world`, runs as the process "test" of the host "test" (`CURRENT`). An arm
is therefore a fixture that depends on `world` and looks whether it is there:

    @pytest.fixture
    async def disk_arm(world: World | None, tmp_path: Path) -> DiskArm: ...

The suites of the network run in a third arm, "secured": the real world with mutual TLS.

A module that has no simulated counterpart yet stays in the real world with
`pytestmark = pytest.mark.asyncio(loop_factories=["real"])`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

import pytest

from holdover.runtime import Disk, Runtime
from holdover.runtime.real import real_runtime
from simulator.world.process import CURRENT
from simulator.world.storage import SimulatedStorage
from simulator.world.world import World
from tests.doubles.certificates import authority, files_in, node
from tests.doubles.s3_server import S3Proxy, environment, make_bucket, moto_server, s3_proxy

#: Names of the fixtures that exist in both worlds.
IN_BOTH_WORLDS = ("runtime_arm", "disk_arm")

_NUMBERS = itertools.count()
#: Modules with a secured arm.
SECURED = ("test_network_contract.py", "test_network_calls_contract.py")

_SECURED_LOOPS: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_WORLDS: WeakKeyDictionary[asyncio.AbstractEventLoop, World] = WeakKeyDictionary()


def _loop_of_a_new_world() -> asyncio.AbstractEventLoop:
    world = World(seed=7)
    _WORLDS[world.loop] = world
    return world.loop


def _loop_of_a_secured_process() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    _SECURED_LOOPS.add(loop)
    return loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Function
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The worlds that a test runs in."""
    if any(name in item.fixturenames for name in IN_BOTH_WORLDS):
        worlds = {"real": asyncio.new_event_loop, "simulated": _loop_of_a_new_world}
        if item.path.name in SECURED:
            worlds["secured"] = _loop_of_a_secured_process
        return worlds
    return {"real": asyncio.new_event_loop}


@dataclass(frozen=True)
class DiskArm:
    """A disk and an existing, empty directory on it."""

    disk: Disk
    root: str


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


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a process of this machine, by an authority that trusts nobody else."""
    return node(tmp_path_factory.mktemp("certificates"), authority())


@pytest.fixture
async def runtime_arm(world: World | None, certificates: Path) -> Runtime:
    """A whole runtime."""
    if world is not None:
        return world.runtime(CURRENT.get())
    if asyncio.get_running_loop() in _SECURED_LOOPS:
        files = await asyncio.to_thread(files_in, certificates)
        return real_runtime(credentials=files)
    return real_runtime()


@pytest.fixture(params=["of-the-runtime", "storage-by-itself"])
async def disk_arm(
    request: pytest.FixtureRequest, runtime_arm: Runtime, world: World | None, tmp_path: Path
) -> DiskArm:
    """The disk of a runtime, or the storage that the simulated one is made of."""
    if request.param == "storage-by-itself":
        arm = DiskArm(SimulatedStorage(), "/disk")
    elif world is None:
        return DiskArm(runtime_arm.disk, str(tmp_path))
    else:
        arm = DiskArm(runtime_arm.disk, "/shared/disk")
    await arm.disk.make_directories(arm.root)
    return arm


@pytest.fixture(scope="session")
def s3_server_port() -> Iterator[int]:
    """A running server."""
    with moto_server() as port:
        yield port


@pytest.fixture
async def s3(s3_server_port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Proxy]:
    """The proxy before it, which this process is told of by the standard variables."""
    async with s3_proxy(s3_server_port) as proxy:
        for name, value in environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def s3_root(s3: S3Proxy, s3_server_port: int) -> str:
    """An empty directory in a bucket of its own."""
    bucket = f"bucket-{next(_NUMBERS)}"
    make_bucket(s3_server_port, bucket)
    return f"s3://{bucket}/some/prefix"


@pytest.fixture(params=["memory", "s3"])
def object_root(request: pytest.FixtureRequest) -> str:
    """An empty directory in an object store."""
    if request.param == "memory":
        return f"memory://bucket-{next(_NUMBERS)}/some/prefix"
    root: str = request.getfixturevalue("s3_root")
    return root
