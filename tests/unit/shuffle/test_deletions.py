"""Deleting the files of attempts that are held no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shuffle.deletions import Deletions
from simulator.world.storage import SimulatedStorage


class CountingStorage(SimulatedStorage):
    """A storage that keeps the paths of each call, and says when all that was asked is done."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        self.calls.append(list(paths))
        return await super().remove_all(paths)


async def _deleted(storage: CountingStorage, attempts: list[list[str]]) -> None:
    deletions = Deletions(storage, "/shuffle")
    deletions.add(attempts)
    running = asyncio.create_task(deletions.run())
    async with asyncio.timeout(10):
        while len(deletions):
            await asyncio.sleep(0)
    running.cancel()


async def _with_files(*names: str) -> CountingStorage:
    storage = CountingStorage()
    await storage.make_directories("/shuffle")
    for name in names:
        await storage.publish(f"/shuffle/{name}", b"1")
    return storage


async def test_what_waits_together_is_deleted_together_and_in_order() -> None:
    storage = await _with_files("a1", "a2", "b1")
    await _deleted(storage, [["a1", "a2"], ["b1"]])
    assert storage.calls == [["/shuffle/a1", "/shuffle/a2", "/shuffle/b1"]]
    assert await storage.list_directory("/shuffle") == []


async def test_a_call_is_bounded_and_takes_attempts_whole() -> None:
    storage = await _with_files()
    attempts = [[f"{attempt}-{file}" for file in range(100)] for attempt in range(5)]
    await _deleted(storage, attempts)
    assert [len(paths) for paths in storage.calls] == [300, 200]


async def test_what_cannot_be_deleted_is_logged_and_the_rest_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = await _with_files("after")
    await storage.make_directories("/shuffle/in-the-way")
    await _deleted(storage, [["in-the-way"], ["after"]])
    assert [entry.name for entry in await storage.list_directory("/shuffle")] == ["in-the-way"]
    assert "cannot delete a file of a partition" in caplog.text
