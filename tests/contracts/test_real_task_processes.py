"""What only processes of an operating system can do wrong (P52)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdover.runtime import (
    Runtime,
    TaskProcess,
    TaskProcessesUnavailable,
    TaskProcessPool,
    TaskProcessSpec,
)
from holdover.runtime.real import real_runtime
from tests.contracts.test_network_contract import Echo, add_echo_to_server
from tests.contracts.test_task_process_contract import WATCHDOG_S, ask, end_of

ENTRY = "tests.contracts.echo_process:main"

WORKER = """
import asyncio, sys
from holdover.runtime import TaskProcessSpec
from holdover.runtime.real import real_runtime

async def main():
    spec = TaskProcessSpec(entry="tests.contracts.echo_process:main", log_path=sys.argv[1])
    pool = await real_runtime().task_processes.open(spec)
    processes = [await pool.acquire() for _ in range(3)]
    await processes[0].send(b"ignore-interrupt")
    await processes[0].receive()
    await processes[1].send(b"start-child")
    pids = [process.pid for process in processes] + [int(await processes[1].receive())]
    await processes[2].send(b"parent")
    pids.append(int(await processes[2].receive()))
    print(*pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def runtime() -> Runtime:
    return real_runtime()


@pytest.fixture
def spec(tmp_path: Path) -> TaskProcessSpec:
    return TaskProcessSpec(entry=ENTRY, log_path=str(tmp_path / "tasks.log"))


@pytest.fixture
async def pool(runtime: Runtime, spec: TaskProcessSpec) -> AsyncIterator[TaskProcessPool]:
    pool = await runtime.task_processes.open(spec)
    yield pool
    async with asyncio.timeout(WATCHDOG_S):
        await pool.close()


def is_running(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return re.search(r"^State:\s+[ZX]", status, re.MULTILINE) is None


async def until(condition: Callable[[], bool], seen: Callable[[], object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WATCHDOG_S):
            while not condition():
                await asyncio.sleep(0.02)
    assert condition(), f"still so after {WATCHDOG_S} s: {seen()}"


async def number(process: TaskProcess, message: bytes) -> int:
    answer = await ask(process, message)
    assert answer is not None
    return int(answer)


async def test_a_process_has_no_descriptor_of_its_worker(
    runtime: Runtime, pool: TaskProcessPool
) -> None:
    """P52."""
    server = runtime.network.server("127.0.0.1:0")
    port = await server.start()
    async with runtime.network.channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        process = await pool.acquire()
        answer = await ask(process, b"descriptors")
    await server.stop(0)
    assert answer is not None
    descriptors = dict(entry.split("=", 1) for entry in answer.decode().split(" "))
    log = descriptors["1"]
    assert log.endswith("tasks.log")
    own_socket = [target for target in descriptors.values() if target.startswith("socket:")]
    assert len(own_socket) == 1
    assert sorted(descriptors.values()) == sorted(["/dev/null", log, log, *own_socket])


async def test_killing_a_process_kills_what_it_started(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    child = await number(process, b"start-child")
    process.kill()
    await end_of(process)
    await until(lambda: not is_running(child), lambda: child)
    assert await process.receive() is None


async def test_a_process_that_ends_leaves_none_that_it_started(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    child = await number(process, b"start-child")
    assert await ask(process, b"exit 0") is None
    await until(lambda: not is_running(child), lambda: child)


async def test_output_is_in_the_log_even_after_a_kill(
    pool: TaskProcessPool, spec: TaskProcessSpec
) -> None:
    log = Path(spec.log_path)
    process = await pool.acquire()
    await ask(process, b"print something to remember")
    process.kill()
    await end_of(process)
    assert "something to remember" in await asyncio.to_thread(log.read_text)
    process = await pool.acquire()
    await ask(process, b"raise told in the log")
    await end_of(process)
    assert "ValueError: told in the log" in await asyncio.to_thread(log.read_text)


async def test_a_process_has_the_surroundings_of_its_spec(
    runtime: Runtime, spec: TaskProcessSpec, tmp_path: Path
) -> None:
    niceness = os.nice(0) + 3
    spec = dataclasses.replace(spec, cwd=str(tmp_path), env={"GREETING": "hello"}, nice=3)
    pool = await runtime.task_processes.open(spec)
    answer = await ask(await pool.acquire(), b"surroundings")
    await pool.close()
    assert answer == f"{tmp_path} hello {niceness}".encode()


async def test_a_task_goes_before_its_taskmanager_when_memory_runs_out(
    pool: TaskProcessPool,
) -> None:
    def score(process: object) -> int:
        return int(Path(f"/proc/{process}/oom_score_adj").read_text())

    process = await pool.acquire()
    await ask(process, b"echo ready")
    assert score(process.pid) > score("self")


async def test_a_process_that_drops_its_socket_is_ended(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    assert await ask(process, b"close-socket") is None
    assert (await end_of(process)).signal == signal.SIGKILL


async def test_spares_are_started_before_they_are_wanted(
    runtime: Runtime, spec: TaskProcessSpec
) -> None:
    pool = await runtime.task_processes.open(dataclasses.replace(spec, spare=2))
    first = await pool.acquire()
    zygote = await number(first, b"parent")
    children = Path(f"/proc/{zygote}/task/{zygote}/children")
    await until(lambda: len(children.read_text().split()) == 3, children.read_text)
    await pool.close()


async def test_a_hundred_processes_start_while_streams_are_busy(
    runtime: Runtime, pool: TaskProcessPool
) -> None:
    """P52: no hang and no crash, with the link going up and down."""
    server = runtime.network.server("127.0.0.1:0")
    server.add(add_echo_to_server, Echo())
    address = f"127.0.0.1:{await server.start()}"
    stop = asyncio.Event()

    async def stream_and_flap() -> int:
        messages = 0
        while not stop.is_set():
            async with runtime.network.channel(address) as channel:
                count: Any = channel.unary_stream("/Echo/count")
                async for _ in count(b"200", timeout=WATCHDOG_S):
                    messages += 1
        return messages

    streams = [asyncio.create_task(stream_and_flap()) for _ in range(3)]
    async with asyncio.timeout(WATCHDOG_S):
        processes = await asyncio.gather(*(pool.acquire() for _ in range(100)))
        answers = await asyncio.gather(*(ask(process, b"echo up") for process in processes))
        stop.set()
        received = await asyncio.gather(*streams)
        await server.stop(0)
    assert answers == [b"up"] * 100
    assert len({process.pid for process in processes}) == 100
    assert min(received) > 0


async def test_no_process_outlives_its_worker(tmp_path: Path) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WORKER,
        str(tmp_path / "tasks.log"),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.stdout is not None
    pids = [int(pid) for pid in (await worker.stdout.readline()).split()]
    assert len(pids) == 5
    assert all(is_running(pid) for pid in pids)
    worker.kill()
    await worker.wait()
    await until(
        lambda: not any(is_running(pid) for pid in pids),
        lambda: [pid for pid in pids if is_running(pid)],
    )


async def test_the_maker_of_processes_is_replaced_when_it_dies(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    idle = await pool.acquire()
    pool.release(idle)
    zygote = await number(process, b"parent")
    os.kill(zygote, signal.SIGKILL)
    assert (await end_of(process)).text.startswith("was lost together")
    async with asyncio.timeout(WATCHDOG_S):
        assert await process.receive() is None
    await until(lambda: not is_running(process.pid), lambda: process.pid)
    async with asyncio.timeout(WATCHDOG_S):
        successor = await pool.acquire()
    assert await ask(successor, b"echo again") == b"again"
    assert await number(successor, b"parent") != zygote


@pytest.mark.parametrize(
    ("preload", "reason"),
    [
        ("grpc", "imports grpc"),
        ("tests.contracts.thread_at_import", "starts threads: "),
        ("tests.no_such_module", "No module named"),
    ],
)
async def test_a_preload_that_makes_forking_unsafe_is_refused(
    runtime: Runtime, spec: TaskProcessSpec, preload: str, reason: str
) -> None:
    with pytest.raises(TaskProcessesUnavailable, match=reason):
        await runtime.task_processes.open(dataclasses.replace(spec, preload=(preload,)))


async def test_the_data_libraries_can_be_preloaded(runtime: Runtime, spec: TaskProcessSpec) -> None:
    data = ("numpy", "pyarrow", "pyarrow.parquet", "pyarrow.flight", "duckdb")
    pool = await runtime.task_processes.open(dataclasses.replace(spec, preload=data))
    assert await ask(await pool.acquire(), b"echo data") == b"data"
    await pool.close()


def test_the_task_side_loads_no_grpc() -> None:
    code = "import sys, holdover.runtime.zygote; sys.exit('grpc' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
