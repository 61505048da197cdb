"""Key samples, range boundaries and the synthetic workload."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from holdover.v1.job_pb2 import (
    DETERMINISM_UNORDERED,
    KeySample,
    Operator,
    RangeBoundaries,
    Workload,
)
from shuffle.errors import MissingKeyColumn
from taskmanager.operators.errors import JobError, TaskCancelled
from taskmanager.operators.workload import WorkloadFailed
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


def passing(**fields: object) -> Operator:
    return Operator(name="w", workload=Workload(pass_rows=True, **fields))  # type: ignore[arg-type]


def test_row_identities_are_padded_to_the_bytes_that_were_drawn(tmp_path: Path) -> None:
    operator = Operator(workload=Workload(rows=1_000, output_bytes=3_000_007))
    with operator_context(tmp_path) as context:
        found = run_chain(context, [operator])
    assert found["value"].to_pylist() == [2 * 2**32 + i for i in range(1_000)]
    lengths = [len(text) for text in found["payload"].to_pylist()]
    assert sum(lengths) + 8 * 1_000 == 3_000_007
    assert max(lengths) - min(lengths) <= 1


def test_identities_pass_once_with_a_payload_of_their_own(tmp_path: Path) -> None:
    ids = [5, 2**40, 7]
    table = pa.table({"payload": ["long"] * 3, "value": pa.array(ids, pa.int64())})
    found = run(tmp_path, passing(output_bytes=27), table)
    assert found["value"].to_pylist() == ids
    assert [len(text) for text in found["payload"].to_pylist()] == [1, 1, 1]
    assert run(tmp_path, passing(output_bytes=9), table.slice(0, 0)).num_rows == 0


def test_what_has_no_identities_cannot_be_passed_on(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"'w' hands on column 'value' \(int64\), but reads \[k"):
        run(tmp_path, passing(), pa.table({"k": [1]}))


def test_each_attempt_of_an_unordered_workload_has_another_order(tmp_path: Path) -> None:
    operator = Operator(workload=Workload(rows=3), determinism=DETERMINISM_UNORDERED)
    with operator_context(tmp_path) as context:
        found = run_chain(context, [operator])["value"].to_pylist()
    assert [value % 2**32 for value in found] == [1, 2, 0]


def test_a_workload_fails_when_it_draws_so(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkloadFailed, match="probability 1"),
        operator_context(tmp_path) as context,
    ):
        run_chain(context, [Operator(workload=Workload(failure_probability=1))])


def test_the_ledger_has_a_line_for_the_start_and_the_end_of_each_attempt(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    operators = [
        Operator(workload=Workload(ledger_path=str(path), failure_probability=probability))
        for probability in (0, 1)
    ]
    for operator in operators:
        with suppress(WorkloadFailed), operator_context(tmp_path) as context:
            run_chain(context, [operator])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "finished", "started", "failed"]
    assert lines[0].items() >= {"job": "job", "vertex": "v0", "subtask": 2, "attempt": 1}.items()
