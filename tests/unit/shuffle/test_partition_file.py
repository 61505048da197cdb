"""A partition on disk: what is written is what is read, or it is lost (P34, P38)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shuffle.arrow_blocks import COMPRESSIONS, plain_batch, plain_schema
from shuffle.errors import (
    PartitionDamaged,
    PartitionIncomplete,
    PartitionLost,
    PartitionNotFound,
    SchemasDiffer,
)
from shuffle.partition_file import PartitionFile, PartitionWriter, delete_partition_files
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PartitionIdentity, partition_base
from tests.unit.shuffle.conftest import IDENTITY, WritePartition

NUMBERS = pa.record_batch({"n": pa.array(range(100), pa.int64())})


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def files_in(shuffle_dir: str) -> list[str]:
    return sorted(path.name for path in Path(shuffle_dir).rglob("*") if path.is_file())


def read(shuffle_dir: str, first: int, end: int, start_block: int = 0) -> list[Any]:
    file = PartitionFile.open(partition_base(shuffle_dir, IDENTITY.name), IDENTITY.name)
    batches = list(file.read(first, end, start_block))
    return [value for batch in batches for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rows_come_back_by_subpartition_then_in_writing_order(
    shuffle_dir: str, write_partition: WritePartition, compression: str
) -> None:
    pieces = [(1, numbers(1, 2)), (0, numbers(3)), (1, numbers(4)), (0, numbers(5, 6))]
    write_partition(pieces, compression=compression)
    assert read(shuffle_dir, 0, 2) == [3, 5, 6, 1, 2, 4]
    assert read(shuffle_dir, 1, 2) == [1, 2, 4]
    assert read(shuffle_dir, 1, 2, start_block=1) == [4]
    assert read(shuffle_dir, 1, 1) == []


def test_metrics_tell_bytes_and_rows_of_each_subpartition(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    metrics = write_partition([(0, numbers(1, 2)), (2, numbers(3))], subpartitions=3)
    assert metrics.subpartition_rows == (2, 0, 1)
    assert metrics.rows == 3
    assert metrics.subpartition_bytes[1] == 0
    assert sum(metrics.subpartition_bytes) == metrics.data_bytes
    base = partition_base(shuffle_dir, IDENTITY.name)
    assert os.path.getsize(base + DATA_SUFFIX) == metrics.data_bytes
    index = PartitionFile.open(base, IDENTITY.name).index
    assert index.metrics == metrics


def test_a_large_batch_becomes_several_blocks(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    write_partition([(0, NUMBERS)], block_bytes_max=100)
    file = PartitionFile.open(partition_base(shuffle_dir, IDENTITY.name), IDENTITY.name)
    assert len(file.blocks(0, 1)) == 8
    assert read(shuffle_dir, 0, 1) == list(range(100))


def test_a_partition_without_rows_has_its_schema(shuffle_dir: str) -> None:
    writer = PartitionWriter(shuffle_dir, IDENTITY, 1)
    writer.declare_schema(NUMBERS.schema)
    assert writer.commit().data_bytes == 0
    file = PartitionFile.open(partition_base(shuffle_dir, IDENTITY.name), IDENTITY.name)
    assert file.schema == NUMBERS.schema
    assert list(file.read(0, 1)) == []


def test_a_partition_whose_schema_nobody_knew_has_none(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    write_partition([])
    file = PartitionFile.open(partition_base(shuffle_dir, IDENTITY.name), IDENTITY.name)
    assert file.schema is None
    assert list(file.read(0, 2)) == []


def test_rows_without_columns_are_counted(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    write_partition([(1, batch)])
    file = PartitionFile.open(partition_base(shuffle_dir, IDENTITY.name), IDENTITY.name)
    assert [b.num_rows for b in file.read(0, 2)] == [5]


def test_batches_of_another_schema_are_refused(shuffle_dir: str) -> None:
    writer = PartitionWriter(shuffle_dir, IDENTITY, 1)
    writer.write(0, NUMBERS)
    with pytest.raises(SchemasDiffer, match=r"n int64.*but found.*m int64"):
        writer.write(0, NUMBERS.rename_columns(["m"]))
    writer.abort()


def test_a_range_beyond_the_partition_is_refused(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    write_partition([(0, NUMBERS)])
    with pytest.raises(ValueError, match=r"subpartitions 0\.\.3"):
        read(shuffle_dir, 0, 3)


# ------------------------------------------------------------------------------- publication


def test_nothing_is_offered_before_the_commit(shuffle_dir: str) -> None:
    writer = PartitionWriter(shuffle_dir, IDENTITY, 1)
    writer.write(0, NUMBERS)
    base = partition_base(shuffle_dir, IDENTITY.name)
    with pytest.raises(PartitionNotFound, match="job/map-0-3-0-1"):
        PartitionFile.open(base, IDENTITY.name)
    assert files_in(shuffle_dir) == ["map-0-3-0-1.data.part"]
    writer.abort()
    assert files_in(shuffle_dir) == []


def test_an_abort_deletes_what_was_committed(shuffle_dir: str) -> None:
    writer = PartitionWriter(shuffle_dir, IDENTITY, 1, sync=True)
    writer.write(0, NUMBERS)
    writer.commit()
    with pytest.raises(PartitionIncomplete):
        writer.write(0, NUMBERS)
    writer.abort()
    writer.abort()
    assert files_in(shuffle_dir) == []


def test_an_open_partition_outlives_its_files(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    write_partition([(0, NUMBERS)])
    base = partition_base(shuffle_dir, IDENTITY.name)
    file = PartitionFile.open(base, IDENTITY.name)
    delete_partition_files(base)
    assert next(file.read(0, 1)) == NUMBERS


# ------------------------------------------------------------------------------------ damage


def _lost(shuffle_dir: str) -> bool:
    try:
        read(shuffle_dir, 0, 2)
    except PartitionLost as error:
        return error.name == IDENTITY.name
    return False


@pytest.mark.parametrize("suffix", [DATA_SUFFIX, INDEX_SUFFIX])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_flipped_byte_is_found(
    shuffle_dir: str, write_partition: WritePartition, suffix: str, compression: str
) -> None:
    """P38: damage is found before any of it is decoded, wherever it is."""
    write_partition([(0, numbers(1, 2)), (1, numbers(3))], compression=compression)
    path = Path(partition_base(shuffle_dir, IDENTITY.name) + suffix)
    whole = path.read_bytes()
    missed = []
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        if not _lost(shuffle_dir):
            missed.append(position)
    assert not missed
    path.write_bytes(whole)
    assert not _lost(shuffle_dir)


@pytest.mark.parametrize("suffix", [DATA_SUFFIX, INDEX_SUFFIX])
def test_every_cut_is_found(shuffle_dir: str, write_partition: WritePartition, suffix: str) -> None:
    """P34: a short file is a lost partition, not an I/O error; so is an empty one."""
    write_partition([(0, numbers(1, 2)), (1, numbers(3))])
    path = Path(partition_base(shuffle_dir, IDENTITY.name) + suffix)
    whole = path.read_bytes()
    kept = [size for size in range(len(whole)) if not _cut_is_lost(path, whole[:size], shuffle_dir)]
    assert not kept
    path.write_bytes(whole + b"\0")
    assert _lost(shuffle_dir)


def _cut_is_lost(path: Path, content: bytes, shuffle_dir: str) -> bool:
    path.write_bytes(content)
    return _lost(shuffle_dir)


def test_a_missing_data_file_is_damage(shuffle_dir: str, write_partition: WritePartition) -> None:
    """P34."""
    write_partition([(0, NUMBERS)])
    os.unlink(partition_base(shuffle_dir, IDENTITY.name) + DATA_SUFFIX)
    with pytest.raises(PartitionDamaged, match="data file is missing"):
        read(shuffle_dir, 0, 1)


def test_files_of_another_partition_are_damage(
    shuffle_dir: str, write_partition: WritePartition
) -> None:
    """A file under a wrong name must not pass for the partition of that name."""
    write_partition([(0, NUMBERS)])
    base = partition_base(shuffle_dir, IDENTITY.name)
    other = PartitionIdentity("job", "map", 0, 3, 1, 1)
    for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
        os.rename(base + suffix, partition_base(shuffle_dir, other.name) + suffix)
    with pytest.raises(PartitionDamaged, match=f"is that of {IDENTITY.name}"):
        PartitionFile.open(partition_base(shuffle_dir, other.name), other.name)


def test_an_unreadable_index_is_damage(shuffle_dir: str) -> None:
    base = partition_base(shuffle_dir, IDENTITY.name)
    os.makedirs(base + INDEX_SUFFIX)
    with pytest.raises(PartitionDamaged, match="index cannot be read"):
        PartitionFile.open(base, IDENTITY.name)


# ------------------------------------------------------------------------------- any schema

_SCALARS = st.sampled_from(
    [
        pa.int8(),
        pa.uint64(),
        pa.float32(),
        pa.bool_(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary_view(),
        pa.binary(),
        pa.binary(3),
        pa.null(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(12, 2),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.int64()),
    ]
)
_TYPES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.lists(inner, min_size=0, max_size=2).map(
            lambda types: pa.struct([(f"f{i}", t) for i, t in enumerate(types)])
        ),
    ),
    max_leaves=3,
)


def _fifths(rows: int) -> pa.Array:
    return pa.array([i % 5 == 4 for i in range(rows)], pa.bool_())


def _values(data_type: pa.DataType, rows: int) -> pa.Array:
    """Some values, with nulls, of any of the types above."""
    if pa.types.is_dictionary(data_type):
        values = _values(data_type.value_type, rows)
        indices = pa.array([i if i % 3 else None for i in range(rows)], data_type.index_type)
        return pa.DictionaryArray.from_arrays(indices, values)
    if pa.types.is_struct(data_type):
        fields = [data_type.field(i) for i in range(data_type.num_fields)]
        if not fields:
            return pa.array([{}] * rows, data_type)
        children = [_values(f.type, rows) for f in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=_fifths(rows))
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        offset_type = pa.int32() if pa.types.is_list(data_type) else pa.int64()
        offsets = pa.array(range(rows + 1), offset_type)
        kind = pa.ListArray if pa.types.is_list(data_type) else pa.LargeListArray
        values = _values(data_type.value_type, rows)
        return kind.from_arrays(offsets, values, type=data_type, mask=_fifths(rows))
    if pa.types.is_null(data_type):
        return pa.nulls(rows)
    plain = pa.array([i if i % 4 else None for i in range(rows)], pa.int64())
    if pa.types.is_boolean(data_type):
        return plain.cast(pa.bool_())
    if pa.types.is_fixed_size_binary(data_type) and not pa.types.is_decimal(data_type):
        return pa.array([f"{i:03}".encode() if i % 4 else None for i in range(rows)], data_type)
    if pa.types.is_date(data_type):
        return plain.cast(pa.int32()).cast(data_type)
    if pa.types.is_decimal(data_type):
        return plain.cast(pa.decimal128(19, 0)).cast(data_type)
    if pa.types.is_binary(data_type) or pa.types.is_binary_view(data_type):
        return plain.cast(pa.string()).cast(pa.binary()).cast(data_type)
    return (
        plain.cast(pa.string()).cast(data_type)
        if "string" in str(data_type)
        else (plain.cast(data_type))
    )


def test_a_slice_of_nested_views_comes_back() -> None:
    """Lists of nulls beside a view, which Arrow's own cast of a sliced struct damages."""
    nulls = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.nulls(2))
    views = pa.array(["a", "b"], pa.string_view())
    struct = pa.StructArray.from_arrays([views, nulls], ["v", "n"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), struct)
    batch = pa.record_batch({"s": struct, "l": lists}).slice(1)
    plain = plain_batch(batch, plain_schema(batch.schema))
    plain.validate(full=True)
    assert plain.to_pylist() == batch.to_pylist()


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(types=st.lists(_TYPES, max_size=4), rows=st.integers(0, 20), start=st.integers(0, 5))
def test_any_schema_comes_back(
    tmp_path: Path, types: list[pa.DataType], rows: int, start: int
) -> None:
    schema = pa.schema([(f"c{i}", t) for i, t in enumerate(types)])
    columns = [_values(t, rows) for t in types]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema).slice(min(start, rows))
    writer = PartitionWriter(str(tmp_path), IDENTITY, 1)
    writer.write(0, batch)
    writer.commit()
    file = PartitionFile.open(partition_base(str(tmp_path), IDENTITY.name), IDENTITY.name)
    assert file.schema == plain_schema(schema)
    expected = plain_batch(batch, plain_schema(schema))
    found = pa.Table.from_batches(list(file.read(0, 1)), file.schema)
    assert found.to_pylist() == expected.to_pylist() == batch.to_pylist()
    assert found.num_rows == batch.num_rows
