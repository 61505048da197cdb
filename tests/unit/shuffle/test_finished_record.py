"""A record is read back as it was written, and anything else is found out (P38)."""

from __future__ import annotations

import shutil
from itertools import accumulate
from pathlib import Path

import pytest

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition, StagedFile
from shuffle.finished_record import (
    GROUP_BYTES_MAX,
    RecordDamaged,
    RecordWriter,
    decode_group,
    decode_record,
    encode_record,
    files_of,
    index_is,
    record_name,
    record_path,
)
from shuffle.partition_file import PartitionWriter
from shuffle.partition_name import PartitionIdentity

KEY = AttemptKey("job", "map", 3, attempt=1, epoch=2)
NAME = "job/map-3-1-2.finished"
EXECUTION = FinishedExecution(
    attempt=KEY.to_proto(),
    partitions=[
        ResultPartition(output=output, subpartition_bytes=[7, 0], data_bytes=7, index_crc32c=9)
        for output in range(2)
    ],
    splits=[4, 5],
    staged_files=[StagedFile(staged_path="/s", final_path="/f", bytes=1)],
    rows_out=3,
)


def is_damaged(data: bytes, name: str = NAME) -> bool:
    try:
        decode_record(data, name)
    except RecordDamaged:
        return True
    return False


def test_a_record_is_read_back() -> None:
    assert record_name(KEY) == NAME
    assert decode_record(encode_record(EXECUTION), NAME) == (KEY, EXECUTION)


def test_a_record_of_another_attempt_is_none() -> None:
    with pytest.raises(RecordDamaged, match="it is the record of"):
        decode_record(encode_record(EXECUTION), "job/map-3-0-2.finished")


def test_every_cut_and_every_flipped_byte_is_found() -> None:
    data = encode_record(EXECUTION)
    assert all(is_damaged(data[:end]) for end in range(len(data)))
    assert is_damaged(data + b"\0")
    for place in range(len(data)):
        for bit in (1, 128):
            assert is_damaged(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]), place


def test_what_is_whole_but_no_execution_is_found() -> None:
    strange = FinishedExecution(attempt=KEY.to_proto())
    strange.attempt.subtask = -1
    assert is_damaged(encode_record(strange))
    assert is_damaged(encode_record(FinishedExecution()))


def test_the_record_is_deleted_before_the_indexes_and_these_before_the_data() -> None:
    assert files_of(KEY, EXECUTION) == [
        NAME,
        "job/map-0-3-1-2.index",
        "job/map-0-3-1-2.data",
        "job/map-1-3-1-2.index",
        "job/map-1-3-1-2.data",
    ]


def test_a_record_is_written_whole_also_where_no_partition_is(tmp_path: Path) -> None:
    writer = RecordWriter()
    writer.write(str(tmp_path), EXECUTION)
    writer.write(str(tmp_path), EXECUTION)
    path = Path(record_path(str(tmp_path), KEY))
    assert decode_record(path.read_bytes(), NAME) == (KEY, EXECUTION)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    writer.delete(str(tmp_path), KEY)
    writer.delete(str(tmp_path), KEY)
    assert list(path.parent.iterdir()) == []


def small(subtask: int, job_id: str = "job", splits: int = 0) -> FinishedExecution:
    """What an attempt without files has left."""
    key = AttemptKey(job_id, "k", subtask, attempt=0, epoch=1)
    return FinishedExecution(attempt=key.to_proto(), splits=range(splits))


def keys_in(group: Path) -> list[int]:
    """The subtasks of a group that is whole."""
    attempts, damage = decode_group(group.read_bytes(), group.parent.name)
    assert damage is None
    return [key.subtask for key, _ in attempts]


def test_attempts_without_files_share_one_in_each_job(tmp_path: Path) -> None:
    writer = RecordWriter()
    for execution in (small(3), small(4), small(0, "other"), small(5), small(6)):
        writer.write(str(tmp_path), execution)
    writer.close()
    groups = {str(each.relative_to(tmp_path)): keys_in(each) for each in tmp_path.glob("*/*")}
    assert groups == {
        "job/k-3-0-1.attempts": [3, 4],
        "other/k-0-0-1.attempts": [0],
        "job/k-5-0-1.attempts": [5, 6],
    }


def test_only_the_last_attempt_is_taken_out_of_a_group(tmp_path: Path) -> None:
    """It has failed after all."""
    writer = RecordWriter()
    for subtask in range(3):
        writer.write(str(tmp_path), small(subtask))
    for subtask in (0, 2, 2):
        writer.delete(str(tmp_path), AttemptKey("job", "k", subtask, attempt=0, epoch=1))
    assert keys_in(tmp_path / "job" / "k-0-0-1.attempts") == [0, 1]
    writer.write(str(tmp_path), small(3))
    assert keys_in(tmp_path / "job" / "k-0-0-1.attempts") == [0, 1, 3]
    writer.close()


def test_a_group_is_begun_anew_when_its_job_was_deleted(tmp_path: Path) -> None:
    writer = RecordWriter()
    writer.write(str(tmp_path), small(0))
    shutil.rmtree(tmp_path / "job")
    writer.write(str(tmp_path), small(1))
    assert keys_in(tmp_path / "job" / "k-1-0-1.attempts") == [1]
    writer.close()


def test_a_group_is_bounded(tmp_path: Path) -> None:
    writer = RecordWriter()
    for subtask in range(60):
        writer.write(str(tmp_path), small(subtask, splits=10_000))
    writer.write(str(tmp_path), small(60, splits=GROUP_BYTES_MAX))
    writer.close()
    groups = sorted((tmp_path / "job").glob("*.attempts"))
    assert sorted(subtask for group in groups for subtask in keys_in(group)) == [*range(60)]
    assert len(groups) > 1
    assert max(group.stat().st_size for group in groups) <= GROUP_BYTES_MAX
    assert [each.name for each in (tmp_path / "job").glob("*.finished")] == ["k-60-0-1.finished"]


def test_every_cut_of_a_group_leaves_the_attempts_before_it() -> None:
    records = [encode_record(small(subtask)) for subtask in range(3)]
    ends = list(accumulate(map(len, records)))
    data = b"".join(records)
    for end in range(len(data) + 1):
        attempts, damage = decode_group(data[:end], "job")
        whole = sum(each <= end for each in ends)
        assert [key.subtask for key, _ in attempts] == [*range(whole)]
        assert (damage is None) == (end in (0, *ends))
    for strange in (encode_record(EXECUTION), encode_record(small(0, "other"))):
        assert len(decode_group(data + strange + data, "job")[0]) == 3


def test_an_index_is_known_by_its_checksum(tmp_path: Path) -> None:
    writer = PartitionWriter(str(tmp_path), PartitionIdentity("job", "map", 0, 3, 1, 2), 2)
    checksum = writer.commit().index_crc32c
    index = (tmp_path / "job" / "map-0-3-1-2.index").read_bytes()
    assert index_is(index, checksum)
    assert not index_is(index, checksum + 1)
    flipped = [index[:i] + bytes([index[i] ^ 1]) + index[i + 1 :] for i in range(len(index))]
    assert not any(index_is(each, checksum) for each in flipped)
    assert not any(index_is(index[:end], checksum) for end in range(len(index)))
