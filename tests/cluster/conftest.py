"""Clusters of real processes, one for each test that asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest_asyncio

from holdover.cli.local_cluster import LocalCluster
from tests.cluster.running_cluster import WAIT_TIMEOUT_S, RunningCluster

StartCluster = Callable[..., Awaitable[RunningCluster]]


@pytest_asyncio.fixture
async def start_cluster(tmp_path: Path) -> AsyncIterator[StartCluster]:
    """`await start_cluster(taskmanagers=3, slots=2, options={...})`; stopped after it.

    There is more, by name only: `shuffle_services=2`, `start=True`.

    With `start=False` nothing runs yet. The ends of all logs are printed: pytest shows them where
    the test fails.
    """
    async with AsyncExitStack() as stack:
        running: list[RunningCluster] = []

        async def start(
            taskmanagers: int = 3,
            slots: int = 2,
            options: Mapping[str, str] | None = None,
            *,
            shuffle_services: int = 0,
            start: bool = True,
        ) -> RunningCluster:
            place = tmp_path / f"cluster-{len(running)}"
            cluster = LocalCluster(
                place,
                taskmanagers=taskmanagers,
                slots=slots,
                shuffle_services=shuffle_services,
                options=options or {},
            )
            stack.push_async_callback(cluster.stop)
            if start:
                await cluster.start(WAIT_TIMEOUT_S)
            client = await stack.enter_async_context(cluster.client())
            running.append(RunningCluster(cluster, client, tmp_path))
            return running[-1]

        yield start
        for each in running:
            print(each.logs())
