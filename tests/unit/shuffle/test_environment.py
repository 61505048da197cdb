"""A task's inputs and outputs: the same rows in the same order, near or far, and bounded."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shuffle.environment import (
    FetchLimits,
    InputReader,
    PartitionSource,
    ResultOutput,
    ResultWriter,
)
from shuffle.errors import (
    PartitionDamaged,
    PartitionNotFound,
    PartitionUnreachable,
    SchemasDiffer,
)
from shuffle.flight import FlightPartitionClient, FlightPartitionServer, PartitionsStream
from shuffle.partition_file import PartitionFile
from shuffle.partition_name import DATA_SUFFIX, PartitionIdentity, partition_base
from shuffle.partitioner import (
    HashPartitioner,
    Partitioner,
    RebalancePartitioner,
    SinglePartitioner,
)
from tests.unit.shuffle.conftest import WritePartition

LOCAL = "127.0.0.1:1"


def part(subtask: int) -> PartitionIdentity:
    return PartitionIdentity("job", "map", 0, subtask, 0, 1)


def numbers(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


class Holder:
    """A server that can be stopped and started again on its port."""

    def __init__(self, shuffle_dir: str) -> None:
        self._dir = shuffle_dir
        self.asked: list[str] = []
        self.server = self._serve(0)
        self.address = f"127.0.0.1:{self.server.port}"

    def _serve(self, port: int) -> FlightPartitionServer:
        return FlightPartitionServer("127.0.0.1", port, self._lookup)

    def _lookup(self, name: str) -> str | None:
        self.asked.append(name)
        return partition_base(self._dir, name)

    def stop(self) -> None:
        asyncio.run(self.server.stop())

    def start(self) -> None:
        self.server = self._serve(self.server.port)


@pytest.fixture
def holder(shuffle_dir: str) -> Iterator[Holder]:
    holder = Holder(shuffle_dir)
    yield holder
    holder.stop()


Open = Callable[..., InputReader]


@pytest.fixture
def reader(shuffle_dir: str) -> Iterator[Open]:
    """Opens readers that are closed at the end."""
    with ExitStack() as stack:

        def open_reader(sources: list[tuple[int, str]], **limits: float) -> InputReader:
            return stack.enter_context(
                InputReader(
                    [PartitionSource(part(subtask).name, address) for subtask, address in sources],
                    0,
                    2,
                    shuffle_dir=shuffle_dir,
                    local_address=LOCAL,
                    limits=FetchLimits(**limits),  # type: ignore[arg-type]  # ints and floats
                )
            )

        yield open_reader


def values(batches: InputReader | list[pa.RecordBatch]) -> list[Any]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


# ---------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("far", [(), (0, 1, 2, 3, 4), (1, 3), (0, 2, 4)])
def test_partitions_come_in_the_given_order_wherever_they_are(
    holder: Holder, reader: Open, write_partition: WritePartition, far: tuple[int, ...]
) -> None:
    for i in range(5):
        pieces = [(1, numbers(10 * i + 5, 5)), (0, numbers(10 * i, 5))]
        write_partition(pieces, identity=part(i))
    source = reader([(i, holder.address if i in far else LOCAL) for i in range(5)])
    assert source.schema() == numbers(0, 1).schema
    assert values(source) == list(range(50))
    assert source.rows == 50
    assert (source.remote_bytes > 0) == bool(far)
    assert (source.local_bytes > 0) == (len(far) < 5)


@pytest.mark.parametrize("where", ["near", "far"])
def test_the_schema_is_known_without_rows_and_beyond_partitions_without(
    holder: Holder, reader: Open, write_partition: WritePartition, where: str
) -> None:
    for i in range(4):
        write_partition([], identity=part(i))
    write_partition([(0, numbers(0, 3))], identity=part(4))
    address = LOCAL if where == "near" else holder.address
    source = reader([(i, address) for i in range(5)])
    assert source.schema() == numbers(0, 1).schema
    assert values(source) == [0, 1, 2]
    nothing = reader([(i, address) for i in range(4)])
    assert nothing.schema() == pa.schema([])
    assert values(nothing) == []


def test_partitions_of_different_schemas_are_refused(
    reader: Open, write_partition: WritePartition
) -> None:
    write_partition([(0, numbers(0, 3))], identity=part(0))
    write_partition([(0, numbers(0, 3).rename_columns(["m"]))], identity=part(1))
    with pytest.raises(SchemasDiffer, match=r"partition job/map-0-1-0-1.*m int64"):
        values(reader([(0, LOCAL), (1, LOCAL)]))


@pytest.mark.parametrize("where", ["near", "far"])
def test_a_missing_partition_is_named_at_once(
    holder: Holder, reader: Open, write_partition: WritePartition, where: str
) -> None:
    """P34."""
    address = LOCAL if where == "near" else holder.address
    write_partition([(0, numbers(0, 3))], identity=part(0))
    source = iter(reader([(0, address), (1, address)], retry_timeout_s=60))
    assert values([next(source)]) == [0, 1, 2]
    with pytest.raises(PartitionNotFound, match="job/map-0-1-0-1"):
        next(source)


@pytest.mark.parametrize("where", ["near", "far"])
def test_a_damaged_partition_is_named_at_once(
    holder: Holder,
    reader: Open,
    write_partition: WritePartition,
    shuffle_dir: str,
    where: str,
) -> None:
    """P38."""
    write_partition([(0, numbers(0, 3))], identity=part(0))
    path = Path(partition_base(shuffle_dir, part(0).name) + DATA_SUFFIX)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    source = reader([(0, LOCAL if where == "near" else holder.address)])
    with pytest.raises(PartitionDamaged, match="job/map-0-0-0-1"):
        values(source)


def test_a_fetch_goes_on_where_it_broke_off(
    holder: Holder, reader: Open, write_partition: WritePartition
) -> None:
    """P41: the server goes away in the middle and comes back; nothing is lost or read twice."""
    rows = 3_000_000
    write_partition([(0, numbers(0, rows))], identity=part(0), compression="none")
    source = iter(reader([(0, holder.address)], ahead_bytes_max=1 << 20))
    read = values([next(source)])
    holder.stop()
    threading.Timer(0.5, holder.start).start()
    for batch in source:
        read += batch.column(0).to_pylist()
    assert read == list(range(rows))
    assert len(holder.asked) >= 2


def test_a_slow_reader_is_not_a_failure(
    holder: Holder, reader: Open, write_partition: WritePartition
) -> None:
    """The call times out again and again while nobody reads, and is continued."""
    rows = 3_000_000
    write_partition([(0, numbers(0, rows))], identity=part(0), compression="none")
    source = reader(
        [(0, holder.address)], ahead_bytes_max=1 << 20, call_timeout_s=0.3, retry_timeout_s=60
    )
    read = []
    for batch in source:
        if batch.column(0)[0].as_py() % 7 == 0:
            time.sleep(0.4)
        read += batch.column(0).to_pylist()
    assert read == list(range(rows))


def test_a_holder_that_stays_away_is_unreachable_not_lost(
    reader: Open, write_partition: WritePartition
) -> None:
    """P41: only the JobManager may declare the holder dead."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(PartitionUnreachable, match=f"job/map-0-0-0-1 cannot .* {address}: .+"):
        values(reader([(0, address)], retry_timeout_s=0.5))


def test_reading_ahead_is_bounded(
    holder: Holder, reader: Open, write_partition: WritePartition
) -> None:
    """While nobody reads, the budget holds, and the holder is not read to the end."""
    count = 12
    for i in range(count):
        write_partition([(0, numbers(0, 500_000))], identity=part(i), compression="none")
    source = reader([(i, holder.address) for i in range(count)], ahead_bytes_max=3 << 20)
    batches = iter(source)
    next(batches)
    fetcher = source._fetcher
    assert fetcher is not None
    seen = []
    deadline_s = time.monotonic() + 1.0
    while time.monotonic() < deadline_s:
        seen.append(fetcher._ahead_bytes)
        time.sleep(0.01)
    block_bytes_max = (1 << 20) + 4096
    assert max(seen) <= (3 << 20) + block_bytes_max, "one block more for the partition being read"
    # What Flight has on its way beside the budget is some messages of each stream.
    assert part(count - 1).name not in holder.asked
    assert source.rows + sum(batch.num_rows for batch in batches) == count * 500_000


@pytest.mark.parametrize("streams_max", [1, 2, 8])
def test_the_number_of_streams_is_not_that_of_the_partitions(
    holder: Holder,
    reader: Open,
    write_partition: WritePartition,
    monkeypatch: pytest.MonkeyPatch,
    streams_max: int,
) -> None:
    count = 60
    for i in range(count):
        write_partition([(0, numbers(10 * i, 10))], identity=part(i))
    streams = []
    fetch_many = FlightPartitionClient.fetch_many

    def counted(client: FlightPartitionClient, *args: Any) -> PartitionsStream:
        streams.append(len(args[0]))
        return fetch_many(client, *args)

    monkeypatch.setattr(FlightPartitionClient, "fetch_many", counted)
    source = reader([(i, holder.address) for i in range(count)], streams_max=streams_max)
    assert values(source) == list(range(10 * count))
    assert len(streams) == streams_max
    assert sum(streams) == count


def test_holders_whose_turn_comes_early_are_never_waited_for_in_vain(
    shuffle_dir: str, reader: Open, write_partition: WritePartition
) -> None:
    """More holders than streams, and no room to run ahead: the streams that run are full of what
    comes later than what is read."""
    count = 24
    for i in range(count):
        write_partition([(0, numbers(10 * i, 10))], identity=part(i))
    holders = [Holder(shuffle_dir) for _ in range(4)]
    sources = [(i, holders[i * i % 4 + i % 3].address) for i in range(count)]
    source = reader(sources, streams_max=2, ahead_bytes_max=1)
    assert values(source) == list(range(10 * count))
    for holder in holders:
        holder.stop()


def test_many_partitions_go_on_where_they_broke_off(
    holder: Holder, reader: Open, write_partition: WritePartition
) -> None:
    """P41: within a partition that is not the first of its stream."""
    rows = 400_000
    for i in range(4):
        write_partition(
            [(0, numbers(rows * i, rows))],
            identity=part(i),
            compression="none",
            block_bytes_max=64 << 10,
        )
    source = iter(
        reader([(i, holder.address) for i in range(4)], streams_max=1, ahead_bytes_max=64 << 10)
    )
    read: list[Any] = []
    while len(read) < 1.5 * rows:
        read += values([next(source)])
    holder.stop()
    threading.Timer(0.3, holder.start).start()
    for batch in source:
        read += batch.column(0).to_pylist()
    assert read == list(range(4 * rows))


def test_closing_in_the_middle_ends_the_threads(
    holder: Holder, reader: Open, write_partition: WritePartition
) -> None:
    for i in range(3):
        write_partition([(0, numbers(0, 500_000))], identity=part(i), compression="none")
    source = reader([(i, holder.address) for i in range(3)], ahead_bytes_max=1 << 20)
    next(iter(source))
    source.close()
    assert [t for t in threading.enumerate() if t.name.startswith("fetch-")] == []


# ---------------------------------------------------------------------------------- writing


def outputs(*partitioners: Partitioner) -> list[ResultOutput]:
    return [
        ResultOutput(PartitionIdentity("job", "map", i, 0, 0, 1), partitioner)
        for i, partitioner in enumerate(partitioners)
    ]


def opened(shuffle_dir: str, output: int) -> PartitionFile:
    name = PartitionIdentity("job", "map", output, 0, 0, 1).name
    return PartitionFile.open(partition_base(shuffle_dir, name), name)


def test_all_outputs_get_all_rows_each_split_in_its_own_way(shuffle_dir: str) -> None:
    writer = ResultWriter(
        shuffle_dir,
        outputs(HashPartitioner(["n"], 4), SinglePartitioner(), RebalancePartitioner(3, 0)),
    )
    for start in range(0, 3000, 10):
        writer.write(numbers(start, 10))
    metrics = writer.commit()
    assert [m.rows for m in metrics] == [3000, 3000, 3000]
    assert writer.rows == 3000
    for output, subpartitions in ((0, 4), (1, 1), (2, 3)):
        file = opened(shuffle_dir, output)
        found = [values(list(file.read(i, i + 1))) for i in range(subpartitions)]
        assert sorted(v for rows in found for v in rows) == list(range(3000))
        assert all(rows == sorted(rows) for rows in found)


def test_small_batches_become_few_blocks(shuffle_dir: str) -> None:
    writer = ResultWriter(shuffle_dir, outputs(HashPartitioner(["n"], 4)))
    for start in range(0, 20_000, 10):
        writer.write(numbers(start, 10))
    writer.commit()
    assert len(opened(shuffle_dir, 0).blocks(0, 4)) == 4


def test_what_is_held_back_is_bounded(shuffle_dir: str) -> None:
    """Also when one batch is larger than the buffer, and when one subpartition gets nearly all."""
    writer = ResultWriter(
        shuffle_dir, outputs(HashPartitioner(["k"], 100)), buffer_bytes_max=50_000
    )
    for start in range(0, 200_000, 50_000):
        keys = pa.array([i if i % 1000 == 0 else 7 for i in range(start, start + 50_000)])
        writer.write(pa.record_batch({"k": keys}))
        assert writer._buffer_bytes < 50_000
    assert writer.commit()[0].rows == 200_000


def test_views_and_dictionaries_are_split_like_plain_columns(shuffle_dir: str) -> None:
    texts = [f"key {i % 50}" for i in range(1000)]
    columns = {
        "v": pa.array(texts, pa.string_view()),
        "d": pa.array(texts).dictionary_encode(),
    }
    writer = ResultWriter(
        shuffle_dir, outputs(HashPartitioner(["v"], 3), HashPartitioner(["d"], 3))
    )
    writer.write(pa.record_batch(columns))
    writer.commit()
    for output in (0, 1):
        file = opened(shuffle_dir, output)
        assert file.schema == pa.schema([("v", pa.string()), ("d", pa.string())])
        assert Counter(values(list(file.read(0, 3)))) == Counter(texts)
    assert values(list(opened(shuffle_dir, 0).read(1, 2))) == values(
        list(opened(shuffle_dir, 1).read(1, 2))
    )


def test_a_declared_schema_is_kept_without_rows(shuffle_dir: str) -> None:
    writer = ResultWriter(shuffle_dir, outputs(SinglePartitioner()))
    writer.declare_schema(numbers(0, 1).schema)
    writer.write(numbers(0, 0))
    with pytest.raises(SchemasDiffer, match="a task's output"):
        writer.write(numbers(0, 1).rename_columns(["m"]))
    writer.commit()
    assert opened(shuffle_dir, 0).schema == numbers(0, 1).schema


def test_an_abort_leaves_nothing(shuffle_dir: str) -> None:
    writer = ResultWriter(shuffle_dir, outputs(SinglePartitioner(), SinglePartitioner()))
    writer.write(numbers(0, 10))
    writer.commit()
    assert len(list(Path(shuffle_dir).rglob("*.index"))) == 2
    writer.abort()
    assert [path for path in Path(shuffle_dir).rglob("*") if path.is_file()] == []


def test_an_unfinished_task_offers_nothing(shuffle_dir: str) -> None:
    writer = ResultWriter(shuffle_dir, outputs(SinglePartitioner()), buffer_bytes_max=1)
    writer.write(numbers(0, 10))
    assert list(Path(shuffle_dir).rglob("*.index")) == []
    writer.abort()


def test_a_task_without_outputs_writes_nothing(shuffle_dir: str) -> None:
    writer = ResultWriter(shuffle_dir, [])
    writer.write(numbers(0, 10))
    assert writer.commit() == ()
