"""The splits of a source, and what is wrong with one before anything runs."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.v1 import job_pb2
from jobmanager import split_enumeration
from jobmanager.split_enumeration import SourceUnreadable, enumerate_splits, source_files
from simulator.world.storage import SimulatedStorage

PARQUET = b"PAR1" + bytes(100) + b"PAR1"


def text(glob: str = "/in/*") -> job_pb2.Source:
    return job_pb2.Source(text=job_pb2.TextSource(glob=glob))


def csv(glob: str = "/in/*") -> job_pb2.Source:
    return job_pb2.Source(csv=job_pb2.CsvSource(glob=glob))


def parquet(glob: str = "/in/*") -> job_pb2.Source:
    return job_pb2.Source(parquet=job_pb2.ParquetSource(glob=glob))


def sequence(start: int, end: int) -> job_pb2.Source:
    return job_pb2.Source(sequence=job_pb2.SequenceSource(start=start, end=end))


async def disk_with(**files: bytes) -> SimulatedStorage:
    disk = SimulatedStorage()
    await disk.make_directories("/in")
    for name, data in files.items():
        await disk.publish(f"/in/{name}", data)
    return disk


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 400)
)
async def test_the_splits_of_text_files_cover_every_byte_once(
    sizes: list[int], wanted: int, bytes_max: int
) -> None:
    """In order, none larger than allowed, and about as many as there are subtasks."""
    disk = await disk_with(**{f"f{index}": bytes(size) for index, size in enumerate(sizes)})
    splits = await enumerate_splits(disk, text(), wanted, bytes_max)
    assert [split.index for split in splits] == list(range(len(splits)))
    assert all(split.end - split.start <= bytes_max for split in splits)
    for index, size in enumerate(sizes):
        own = [split for split in splits if split.path == f"/in/f{index}"]
        assert (own[0].start, own[-1].end) == (0, size)
        assert all(before.end == after.start for before, after in pairwise(own))
        assert {split.file_bytes for split in own} == {size}
    assert len(splits) >= min(wanted, sum(sizes), 1)
    assert len(splits) <= wanted + len(sizes) + sum(sizes) // bytes_max + 1


async def test_csv_files_are_not_cut() -> None:
    """A quoted field may hold a line's end."""
    disk = await disk_with(a=bytes(1000), b=bytes(10))
    splits = await enumerate_splits(disk, csv(), 8, 100)
    assert [(split.path, split.start, split.end) for split in splits] == [
        ("/in/a", 0, 1000),
        ("/in/b", 0, 10),
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(-1000, 1000), st.integers(0, 2000), st.integers(1, 50))
async def test_a_sequence_is_cut_without_gap_or_overlap(
    start: int, length: int, wanted: int
) -> None:
    splits = await enumerate_splits(SimulatedStorage(), sequence(start, start + length), wanted, 1)
    assert (splits[0].start, splits[-1].end) == (start, start + length)
    assert all(before.end == after.start for before, after in pairwise(splits))
    assert len(splits) == max(1, min(wanted, length))


async def test_files_are_read_in_the_order_of_their_names() -> None:
    """The same splits at every enumeration: determinism of what follows rests on it."""
    disk = await disk_with(b=b"2", a=b"1", c=b"3")
    assert [file.path for file in await source_files(disk, text())] == ["/in/a", "/in/b", "/in/c"]


async def test_a_glob_that_matches_nothing_is_named() -> None:
    with pytest.raises(SourceUnreadable, match=r"no file matches the source '/in/\*\.txt'"):
        await source_files(await disk_with(a=b"1"), text("/in/*.txt"))


async def test_a_file_or_directory_that_cannot_be_read_is_named() -> None:
    disk = await disk_with(a=b"1")
    disk.fail("read", errno.EACCES, "/in/a")
    with pytest.raises(SourceUnreadable, match="/in/a cannot be read: Permission denied"):
        await source_files(disk, text())
    disk.fail("glob", errno.EIO)
    with pytest.raises(SourceUnreadable, match=r"'/in/\*' cannot be read"):
        await source_files(disk, text())


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"a,b\n1,2\n", PARQUET[:-1], b"\0" + PARQUET[1:]]
)
async def test_a_file_that_is_not_parquet_is_named(content: bytes) -> None:
    """By its first and last bytes; the JobManager reads no more."""
    disk = await disk_with(good=PARQUET, bad=content)
    with pytest.raises(SourceUnreadable, match="/in/bad is not a Parquet file"):
        await source_files(disk, parquet())
    assert await source_files(disk, parquet("/in/good"))


async def test_too_many_splits_are_refused_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_enumeration, "SPLITS_MAX", 10)
    with pytest.raises(SourceUnreadable, match=r"more than 10 splits; raise source\.split\.max-by"):
        await enumerate_splits(await disk_with(a=bytes(100)), text(), 1, 5)


async def test_more_splits_than_an_event_can_carry_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P53: otherwise the job would fail on its own log."""
    monkeypatch.setattr(split_enumeration, "SPLITS_BYTES_MAX", 100)
    with pytest.raises(SourceUnreadable, match=r"the 20 splits of the source .* more than 100;"):
        await enumerate_splits(await disk_with(a=bytes(100)), text(), 1, 5)
