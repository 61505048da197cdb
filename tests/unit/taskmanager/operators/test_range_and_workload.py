"""Key samples, range boundaries and the synthetic workload."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from holdover.v1.job_pb2 import KeySample, Operator, RangeBoundaries, Workload
from shuffle.errors import MissingKeyColumn
from taskmanager.operators.errors import TaskCancelled
from tests.unit.taskmanager.operators.chain_harness import operator_context, run_chain, stream_of


def run(tmp_path: Path, operator: Operator, table: pa.Table) -> pa.Table:
    with operator_context(tmp_path) as context:
        return run_chain(context, [operator], {0: stream_of(table, 97)})


@pytest.mark.parametrize("rows", [0, 1, 10, 11, 500, 12_345])
def test_a_sample_is_bounded_and_evenly_spread(tmp_path: Path, rows: int) -> None:
    table = pa.table({"other": ["x"] * rows, "k": pa.array(range(rows), pa.int64())})
    found = run(tmp_path, Operator(key_sample=KeySample(keys=["k"], rows_max=10)), table)
    sample = found["k"].to_pylist()
    assert found.schema.names == ["k"]
    assert len(sample) == min(rows, 10)
    gaps = [b - a for a, b in pairwise([*sample, rows])]
    assert all(0 < gap <= max(1, rows // 4) for gap in gaps)


def test_a_sample_of_a_missing_column_names_those_there_are(tmp_path: Path) -> None:
    operator = Operator(key_sample=KeySample(keys=["x"], rows_max=10))
    with pytest.raises(MissingKeyColumn, match="'x' does not exist; the columns are: k"):
        run(tmp_path, operator, pa.table({"k": [1]}))


def test_boundaries_cut_the_sample_into_equal_ranges(tmp_path: Path) -> None:
    table = pa.table({"k": [7, 1, 3, 5, 2, 6, 4, 8, None]})
    operator = Operator(range_boundaries=RangeBoundaries(keys=["k"], ranges=4))
    assert run(tmp_path, operator, table)["k"].to_pylist() == [2, 4, 6]


def test_without_samples_there_are_no_boundaries(tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([None], pa.int64())})
    operator = Operator(range_boundaries=RangeBoundaries(keys=["k"], ranges=4))
    assert run(tmp_path, operator, table).num_rows == 0


def test_a_workload_writes_the_same_bytes_in_each_attempt(tmp_path: Path) -> None:
    operator = Operator(workload=Workload(output_bytes=2_000_000))
    with operator_context(tmp_path) as context:
        first = run_chain(context, [operator])
        assert first.equals(run_chain(context, [operator]))
    assert first.nbytes == 2_000_000


def test_a_workload_ends_its_wait_when_it_is_cancelled(tmp_path: Path) -> None:
    with operator_context(tmp_path) as context:
        threading.Timer(0.05, context.cancellation.request).start()
        with pytest.raises(TaskCancelled):
            run_chain(context, [Operator(workload=Workload(seconds=60))])
