"""Python functions: what they are called with, what they may return, how the schema is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from holdover.v1.job_pb2 import Operator, PythonFunction
from taskmanager.operators.errors import JobError
from tests.unit.taskmanager.operators.chain_harness import operator_context, run_chain, stream_of

TABLE = pa.table({"n": [1, 2, 3, 4]})


def function(called: Callable[[Any], object], takes_iterator: bool = False) -> Operator:
    pickled = cloudpickle.dumps(called)
    return Operator(
        name="f", function=PythonFunction(pickled=pickled, takes_iterator=takes_iterator)
    )


def run(tmp_path: Path, operator: Operator, table: pa.Table = TABLE) -> pa.Table:
    with operator_context(tmp_path) as context:
        return run_chain(context, [operator], {0: stream_of(table, batch_rows=2)})


def test_a_function_is_called_for_each_batch(tmp_path: Path) -> None:
    found = run(tmp_path, function(lambda batch: batch.slice(0, 1)))
    assert found.to_pydict() == {"n": [1, 3]}


def test_it_may_return_a_table_a_generator_or_nothing(tmp_path: Path) -> None:
    def mixed(batch: pa.RecordBatch) -> object:
        first = batch["n"][0].as_py()
        if first == 1:
            return None
        return (pa.table({"n": [first * i]}) for i in (10, 100))

    assert run(tmp_path, function(mixed)).to_pydict() == {"n": [30, 300]}


def test_an_iterator_function_sees_all_batches(tmp_path: Path) -> None:
    def total(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"total": [sum(sum(b["n"].to_pylist()) for b in batches)]})

    assert run(tmp_path, function(total, takes_iterator=True)).to_pydict() == {"total": [10]}


@pytest.mark.parametrize("takes_iterator", [False, True])
def test_without_rows_it_is_called_with_an_empty_batch_for_the_schema(
    tmp_path: Path, takes_iterator: bool
) -> None:
    def double(value: Any) -> object:
        batches = list(value) if isinstance(value, Iterator) else [value]
        return [pa.record_batch({"m": batch["n"]}) for batch in batches]

    found = run(tmp_path, function(double, takes_iterator), TABLE.slice(0, 0))
    assert (found.schema, found.num_rows) == (pa.schema([("m", pa.int64())]), 0)


def test_a_function_that_filters_everything_away_still_gives_a_schema(tmp_path: Path) -> None:
    found = run(tmp_path, function(lambda batch: None if batch.num_rows else batch))
    assert (found.schema, found.num_rows) == (TABLE.schema, 0)


def test_a_function_by_reference_is_imported(tmp_path: Path) -> None:
    operator = Operator(name="f", function=PythonFunction(reference="builtins:list"))
    with pytest.raises(JobError, match="an iterable with a Int64Array in it; it must return"):
        run(tmp_path, operator)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:f", "No module named 'no_such_module'.*attach the Python files"),
        ("os:no_such_name", "no_such_name"),
        ("os", "not of the form 'module:name'"),
        ("os:sep", "'/' is not a function"),
    ],
)
def test_a_reference_that_leads_nowhere_fails_the_job(
    tmp_path: Path, reference: str, message: str
) -> None:
    with pytest.raises(JobError, match=f"operator 'f': .*{message}"):
        run(tmp_path, Operator(name="f", function=PythonFunction(reference=reference)))


@pytest.mark.parametrize("result", [1, "text", {"n": 1}])
def test_another_result_fails_the_job_naming_its_type(tmp_path: Path, result: object) -> None:
    with pytest.raises(JobError, match=rf"returned a {type(result).__name__}; it must return"):
        run(tmp_path, function(lambda _: result))


def test_batches_of_different_schemas_fail_the_job(tmp_path: Path) -> None:
    def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if batch["n"][0].as_py() == 1 else pa.record_batch({"n": ["x"]})

    with pytest.raises(JobError, match=r"first \[n int64\], then \[n string\]"):
        run(tmp_path, function(odd))


def test_what_it_raises_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, function(lambda _: 1 // 0))


def test_variables_of_a_function_begin_anew_in_each_attempt(tmp_path: Path) -> None:
    seen: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(1)
        return pa.record_batch({"seen": [len(seen)]})

    operator = function(count)
    assert run(tmp_path, operator) == run(tmp_path, operator)
