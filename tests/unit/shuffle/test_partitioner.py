"""Which row goes where: every row once, equal keys together, order kept."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle.errors import KeyTypesDiffer, MissingKeyColumn, UnsupportedKeyType
from shuffle.key_hash import check_key_types_agree, hash_rows, key_type_classes
from shuffle.partitioner import (
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    RebalancePartitioner,
    SinglePartitioner,
)


def hashes(values: list[Any], data_type: pa.DataType) -> list[int]:
    batch = pa.record_batch({"k": pa.array(values, data_type)})
    result: list[int] = hash_rows(batch, ["k"]).tolist()
    return result


def split_values(partitioner: Partitioner, batch: pa.RecordBatch) -> dict[int, list[Any]]:
    pieces = partitioner.split(batch)
    assert [i for i, _ in pieces] == sorted({i for i, _ in pieces})
    return {i: piece.column(0).to_pylist() for i, piece in pieces}


# ---------------------------------------------------------------------- equal values, one hash


@given(st.lists(st.integers(-128, 127) | st.none()))
def test_an_integer_hashes_equally_in_all_widths(values: list[int | None]) -> None:
    expected = hashes(values, pa.int64())
    for data_type in (pa.int8(), pa.int16(), pa.int32()):
        assert hashes(values, data_type) == expected
    positive = [v for v in values if v is None or v >= 0]
    for data_type in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert hashes(positive, data_type) == hashes(positive, pa.int64())


@given(st.lists(st.floats(width=16) | st.none()))
def test_a_float_hashes_equally_in_all_widths(values: list[float | None]) -> None:
    half = pa.array(
        np.array([0.0 if v is None else v for v in values], dtype=np.float16),
        mask=np.array([v is None for v in values], dtype=bool),
    )
    expected = hashes(values, pa.float64())
    assert hashes(values, pa.float32()) == expected
    assert hash_rows(pa.record_batch({"k": half}), ["k"]).tolist() == expected


def test_both_zeros_are_one_value_and_all_nans_are_one() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], dtype=np.uint64).view(np.float64)
    zero, minus_zero, nan, other_nan, also_nan = hashes(
        [0.0, -0.0, *nans.tolist(), math.nan], pa.float64()
    )
    assert zero == minus_zero
    assert nan == other_nan == also_nan != zero


@settings(max_examples=200)
@given(st.integers(-(10**17) + 1, 10**17 - 1), st.integers(0, 9))
def test_a_decimal_hashes_by_value_at_any_scale_and_width(unscaled: int, scale: int) -> None:
    value = decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=50))
    types = [pa.decimal128(38, scale), pa.decimal128(38, scale + 8), pa.decimal256(70, scale + 30)]
    types += [pa.decimal64(18, scale)]
    assert len({hashes([value], data_type)[0] for data_type in types}) == 1
    if abs(unscaled) < 10**9:
        assert hashes([value], pa.decimal32(9, scale)) == hashes([value], types[0])


@given(st.lists(st.text(max_size=40) | st.none()))
def test_a_string_hashes_equally_in_all_forms(values: list[str | None]) -> None:
    expected = hashes(values, pa.string())
    dictionary = pa.array(values, pa.string()).dictionary_encode()
    assert hashes(values, pa.large_string()) == expected
    assert hashes(values, pa.string_view()) == expected
    assert hash_rows(pa.record_batch({"k": dictionary}), ["k"]).tolist() == expected
    encoded = [None if v is None else v.encode() for v in values]
    for data_type in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert hashes(encoded, data_type) == expected


@given(st.binary(min_size=1, max_size=300), st.integers(0, 20))
def test_a_string_hashes_equally_wherever_it_stands(value: bytes, before: int) -> None:
    alone = hashes([value], pa.binary())[0]
    assert hashes([value], pa.binary(len(value)))[0] == alone
    among = pa.record_batch({"k": pa.array([b"x" * before, None, value, b"tail"], pa.binary())})
    assert hash_rows(among, ["k"]).tolist()[2] == alone
    assert hash_rows(among.slice(2, 1), ["k"]).tolist() == [alone]


def test_strings_that_differ_in_little_hash_differently() -> None:
    values = [b"a" * n for n in range(600)] + [b"a" * n + b"\0" for n in range(600)]
    assert len(set(hashes(values, pa.binary()))) == len(values)


def test_times_hash_equally_in_all_units() -> None:
    moment = dt.datetime(2026, 11, 29, 15, 41, 20)  # noqa: DTZ001  (a zone is not the point)
    assert len({hashes([moment], pa.timestamp(u))[0] for u in ("s", "ms", "us", "ns")}) == 1
    day = dt.date(1969, 2, 3)
    assert hashes([day], pa.date32()) == hashes([day], pa.date64())
    clock = dt.time(23, 59, 7)
    times = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    assert len({hashes([clock], data_type)[0] for data_type in times}) == 1
    span = dt.timedelta(days=-3)
    assert len({hashes([span], pa.duration(u))[0] for u in ("s", "ms", "us", "ns")}) == 1


def test_nulls_hash_to_one_value_whatever_lies_under_them() -> None:
    types = (pa.int32(), pa.string(), pa.float64(), pa.null(), pa.decimal128(9, 2), pa.bool_())
    assert len({hashes([None], data_type)[0] for data_type in types}) == 1
    under = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\0"), pa.py_buffer(np.array([7, 8], np.int64))]
    )
    assert hash_rows(pa.record_batch({"k": under}), ["k"]).tolist() == hashes(
        [None, None], pa.int32()
    )


def test_the_hash_never_changes() -> None:
    """Partitions of one release meet those of another."""
    assert hashes([0, 1, -1, 2**62], pa.int64()) == PINNED["int64"]
    assert hashes(["", "a", "Customer#000000001", "x" * 300], pa.string()) == PINNED["string"]
    assert hashes([1.5], pa.float64()) == PINNED["float64"]
    assert hashes([decimal.Decimal("-12.50")], pa.decimal128(9, 2)) == PINNED["decimal"]
    assert hashes([True, None], pa.bool_()) == PINNED["boolean"]
    pair = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array(["x", None])})
    assert hash_rows(pair, ["a", "b"]).tolist() == PINNED["pair"]


#: The hashes of the first release.
PINNED: dict[str, list[int]] = {
    "int64": [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20, 0x00AA50EA8E0FA9EB],
    "string": [0xE220A8397B1DCDAF, 0x9079C71A43432B3B, 0x4782789EAF3EEC3E, 0x1546D9CAC139B512],
    "float64": [0xD6DAB18E1392608A],
    "decimal": [0x07C48C904B424437],
    "boolean": [0x910A2DEC89025CC1, 0x9AE16A3B2F90404F],
    "pair": [0xD8BA7DF8A339F371, 0x9B0667E07F242A17],
}


def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        "import pyarrow as pa; from shuffle.key_hash import hash_rows;"
        "print(hash_rows(pa.record_batch({'k': ['a', 'b' * 300, None]}), ['k']).tolist())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{hashes(['a', 'b' * 300, None], pa.string())}\n"}


def test_the_order_of_keys_matters() -> None:
    batch = pa.record_batch({"a": pa.array([1]), "b": pa.array([2])})
    assert hash_rows(batch, ["a", "b"]).tolist() != hash_rows(batch, ["b", "a"]).tolist()


def test_a_missing_key_is_named_with_the_columns_there_are() -> None:
    batch = pa.record_batch({"id": [1], "name": ["x"]})
    with pytest.raises(MissingKeyColumn, match="'nam' does not exist; the columns are: id, name"):
        HashPartitioner(["nam"], 4).split(batch)
    with pytest.raises(MissingKeyColumn):
        key_type_classes(batch.schema, ["id", "nam"])


def test_a_key_of_nested_type_is_refused() -> None:
    with pytest.raises(UnsupportedKeyType, match="'k' has type list"):
        HashPartitioner(["k"], 4).split(pa.record_batch({"k": [[1]]}))


def test_inputs_whose_equal_keys_would_not_meet_are_refused() -> None:
    left = key_type_classes(pa.schema([("a", pa.int32()), ("b", pa.string())]), ["a", "b"])
    right = key_type_classes(pa.schema([("x", pa.uint64()), ("y", pa.string_view())]), ["x", "y"])
    check_key_types_agree(left, right)
    check_key_types_agree(left, ("null", "string"))
    with pytest.raises(KeyTypesDiffer, match=r"\(integer, string\) and \(float, string\)"):
        check_key_types_agree(left, ("float", "string"))
    with pytest.raises(KeyTypesDiffer):
        check_key_types_agree(left, ("integer",))


# ------------------------------------------------------------------------------- distribution

_BATCHES = st.lists(st.lists(st.integers(0, 50) | st.none(), max_size=30), max_size=5)


def _numbered(batches: list[list[int | None]]) -> list[pa.RecordBatch]:
    result, row = [], 0
    for keys in batches:
        rows = pa.array(range(row, row + len(keys)), pa.int64())
        result.append(pa.record_batch({"row": rows, "k": pa.array(keys, pa.int32())}))
        row += len(keys)
    return result


@given(_BATCHES, st.integers(1, 7), st.sampled_from(["hash", "rebalance", "range"]))
def test_every_row_goes_to_one_place_and_keeps_its_order(
    batches: list[list[int | None]], subpartitions: int, kind: str
) -> None:
    makers: dict[str, Callable[[], Partitioner]] = {
        "hash": lambda: HashPartitioner(["k"], subpartitions),
        "rebalance": lambda: RebalancePartitioner(subpartitions, 3),
        "range": lambda: RangePartitioner(["k"], [(i * 7,) for i in range(1, subpartitions)]),
    }
    partitioner = makers[kind]()
    rows: dict[int, list[int]] = {}
    for batch in _numbered(batches):
        for subpartition, values in split_values(partitioner, batch).items():
            assert 0 <= subpartition < subpartitions
            rows.setdefault(subpartition, []).extend(values)
    assert all(values == sorted(values) for values in rows.values())
    assert sorted(v for values in rows.values() for v in values) == list(
        range(sum(len(keys) for keys in batches))
    )


@given(_BATCHES)
def test_equal_keys_meet(batches: list[list[int | None]]) -> None:
    homes: dict[Any, set[int]] = {}
    for batch in _numbered(batches):
        for subpartition, piece in HashPartitioner(["k"], 5).split(batch):
            for key in piece.column(1).to_pylist():
                homes.setdefault(key, set()).add(subpartition)
    assert all(len(found) == 1 for found in homes.values())


@pytest.mark.parametrize("subpartitions", [2, 6, 100])
def test_a_hash_spreads_keys_evenly(subpartitions: int) -> None:
    keys = pa.array(range(0, 4 * 100_000, 4), pa.int64())
    pieces = HashPartitioner(["k"], subpartitions).split(pa.record_batch({"k": keys}))
    rows = [piece.num_rows for _, piece in pieces]
    assert len(rows) == subpartitions
    assert max(rows) < 1.2 * 100_000 / subpartitions


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 9))
def test_a_rebalance_does_not_depend_on_where_batches_end(sizes: list[int], subtask: int) -> None:
    whole = pa.record_batch({"row": pa.array(range(sum(sizes)), pa.int64())})
    expected = split_values(RebalancePartitioner(4, subtask), whole)
    partitioner, start = RebalancePartitioner(4, subtask), 0
    found: dict[int, list[int]] = {}
    for size in sizes:
        for subpartition, rows in split_values(partitioner, whole.slice(start, size)).items():
            found.setdefault(subpartition, []).extend(rows)
        start += size
    assert found == expected


def test_a_rebalance_deals_few_rows_evenly_from_the_subtasks_own_index() -> None:
    batch = pa.record_batch({"row": pa.array(range(6))})
    assert split_values(RebalancePartitioner(4, 6), batch) == {0: [2], 1: [3], 2: [0, 4], 3: [1, 5]}
    many = pa.record_batch({"row": pa.array(range(100_000))})
    sizes = Counter({i: p.num_rows for i, p in RebalancePartitioner(4, 0).split(many)})
    assert max(sizes.values()) - min(sizes.values()) <= 1024


def test_a_single_subpartition_gets_the_batch_itself() -> None:
    batch = pa.record_batch({"row": [1, 2]})
    assert SinglePartitioner().split(batch) == [(0, batch)]
    assert SinglePartitioner().split(batch.slice(0, 0)) == []


def test_a_range_is_bounded_above_inclusively_with_nan_and_null_last() -> None:
    batch = pa.record_batch({"k": pa.array([5.0, None, 1.0, math.nan, 3.0, 3.5])})
    found = split_values(RangePartitioner(["k"], [(1.0,), (3.0,)]), batch)
    assert found[0] == [1.0]
    assert found[1] == [3.0]
    assert [repr(v) for v in found[2]] == ["5.0", "None", "nan", "3.5"]


def test_a_range_compares_column_by_column() -> None:
    batch = pa.record_batch({"a": [1, 1, 2, 2], "b": ["x", "z", "a", "y"]})
    pieces = RangePartitioner(["a", "b"], [(1, "y"), (2, "a")]).split(batch)
    assert {i: piece.column(1).to_pylist() for i, piece in pieces} == {
        0: ["x"],
        1: ["z", "a"],
        2: ["y"],
    }


def test_bad_range_boundaries_are_refused() -> None:
    with pytest.raises(ValueError, match="must have 1 values"):
        RangePartitioner(["k"], [(1, 2)])
    with pytest.raises(ValueError, match="null or NaN"):
        RangePartitioner(["k"], [(None,)])
    with pytest.raises(ValueError, match="not of type int64"):
        RangePartitioner(["k"], [("x",)]).split(pa.record_batch({"k": [1]}))
