"""A record is read back as it was written, and anything else is found out (P38)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition, StagedFile
from shuffle.finished_record import (
    RecordDamaged,
    decode_record,
    delete_record,
    encode_record,
    files_of,
    index_is,
    record_name,
    record_path,
    write_record,
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


def test_a_record_is_published_whole_also_where_no_partition_is(tmp_path: Path) -> None:
    write_record(str(tmp_path), EXECUTION)
    write_record(str(tmp_path), EXECUTION)
    path = Path(record_path(str(tmp_path), KEY))
    assert decode_record(path.read_bytes(), NAME) == (KEY, EXECUTION)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    delete_record(str(tmp_path), KEY)
    delete_record(str(tmp_path), KEY)
    assert list(path.parent.iterdir()) == []


def test_an_index_is_known_by_its_checksum(tmp_path: Path) -> None:
    writer = PartitionWriter(str(tmp_path), PartitionIdentity("job", "map", 0, 3, 1, 2), 2)
    checksum = writer.commit().index_crc32c
    index = (tmp_path / "job" / "map-0-3-1-2.index").read_bytes()
    assert index_is(index, checksum)
    assert not index_is(index, checksum + 1)
    flipped = [index[:i] + bytes([index[i] ^ 1]) + index[i + 1 :] for i in range(len(index))]
    assert not any(index_is(each, checksum) for each in flipped)
    assert not any(index_is(index[:end], checksum) for end in range(len(index)))
