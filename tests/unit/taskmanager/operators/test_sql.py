"""SQL over streams: equal to DuckDB over the whole input, whichever way the input is given."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdover.v1.job_pb2 import JobVertex, Operator, ParquetSource, Source
from taskmanager.operators.chain import open_chain
from taskmanager.operators.errors import JobError, TaskCancelled
from taskmanager.operators.stream import BatchStream
from tests.unit.taskmanager.operators.chain_harness import (
    file_splits,
    operator_context,
    run_chain,
    sql_operator,
    stream_of,
)

FACTS = pa.table(
    {
        "k": [i % 97 for i in range(5000)],
        "v": list(range(5000)),
        "price": pa.array([decimal.Decimal(i) / 100 for i in range(5000)], pa.decimal128(15, 2)),
    }
)
NAMES = pa.table({"k": list(range(0, 97, 2)), "name": [f"n{i}" for i in range(0, 97, 2)]})

QUERIES = [
    "SELECT k, v FROM facts WHERE v % 7 = 0",
    "SELECT k, sum(v) AS s, count(*) AS n FROM facts GROUP BY k",
    "SELECT k % 3 AS a, min(v) AS b, max(price) AS c, sum(price) AS d FROM facts GROUP BY k % 3",
    "SELECT sum(v) AS s, count(*) AS n, min(v) AS m FROM facts WHERE v < 0",
    "SELECT name, sum(price) AS s, count(v) AS n FROM facts JOIN names USING (k) GROUP BY ALL",
    "SELECT k, sum(v) AS s FROM facts GROUP BY k HAVING sum(v) > 125000",
    "SELECT k, avg(v) AS a FROM facts GROUP BY k",
    "SELECT k, sum(v) + 1 AS s FROM facts GROUP BY k",
    "SELECT k, count(DISTINCT v % 5) AS n FROM facts GROUP BY k",
    "SELECT k, sum(v) FILTER (v > 9) AS s FROM facts GROUP BY k",
    "SELECT k, sum(v) AS s FROM facts GROUP BY k, v % 2",
    "SELECT k % 3 AS v, sum(v) AS s FROM facts GROUP BY k % 3",
    "SELECT k, k % 2 AS odd, sum(v) AS s FROM facts GROUP BY ROLLUP (k, k % 2)",
    "SELECT k, sum(v) AS s FROM facts GROUP BY k ORDER BY s LIMIT 3",
    "SELECT sum(n) AS s FROM (SELECT k, count(*) AS n FROM facts GROUP BY k)",
    "SELECT count(*) AS n FROM facts",
    "SELECT max(v) AS m FROM facts",
    "SELECT 1 AS one FROM facts WHERE v < 3",
    "SELECT facts.k, name, price FROM facts JOIN names USING (k) WHERE name <> 'n4'",
    "SELECT v, name FROM facts LEFT JOIN names USING (k)",
    "SELECT name, v FROM names LEFT JOIN facts USING (k)",
    "SELECT v FROM facts WHERE k IN (SELECT k FROM names)",
    "SELECT v FROM facts WHERE k NOT IN (SELECT k FROM names)",
    "SELECT name FROM names WHERE k IN (SELECT k FROM facts WHERE v > 4990)",
    "SELECT v FROM facts WHERE v > (SELECT avg(v) FROM facts)",
    "SELECT a.v, b.v AS w FROM facts a JOIN facts b ON a.v = b.v + 1 WHERE a.k = 3",
    "WITH c AS (SELECT k, v FROM facts) SELECT x.v FROM c x JOIN c y ON x.v = y.v WHERE y.k = 1",
    "SELECT v FROM facts UNION ALL SELECT k FROM names",
    "SELECT DISTINCT k FROM facts",
    "SELECT v, row_number() OVER (ORDER BY v) AS r FROM facts",
    "SELECT v FROM facts ORDER BY v DESC LIMIT 5",
    "SELECT v FROM facts, names WHERE facts.k = names.k AND v < 100",
    """WITH RECURSIVE r(x) AS (
        SELECT 0 UNION ALL SELECT min(v) FROM facts, r WHERE v > x AND x < 9 HAVING count(*) > 0
    ) SELECT x FROM r""",
    "SELECT name, (SELECT max(v) FROM facts WHERE facts.k = names.k) AS m FROM names",
    "SELECT k FROM facts WHERE v < 50 EXCEPT SELECT k FROM names",
]


def expected(query: str) -> list[tuple[object, ...]]:
    session = duckdb.connect()
    session.register("facts", FACTS)
    session.register("names", NAMES)
    return sorted(session.sql(query).fetchall(), key=repr)


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)


@pytest.fixture
def facts_file(tmp_path: Path) -> Path:
    path = tmp_path / "facts.parquet"
    pq.write_table(FACTS, path, row_group_size=500)
    return path


@pytest.mark.parametrize("query", QUERIES)
def test_a_chained_parquet_source_gives_what_duckdb_gives(
    tmp_path: Path, facts_file: Path, query: str
) -> None:
    source = Operator(name="scan", source=Source(parquet=ParquetSource(glob=str(facts_file))))
    splits = file_splits(facts_file, 9_000)
    assert len(splits) > 3
    tables = {"facts": -1, "names": 0} if "names" in query else {"facts": -1}
    with operator_context(tmp_path, splits) as context:
        inputs = {0: stream_of(NAMES)} if "names" in query else {}
        found = run_chain(context, [source, sql_operator(query, **tables)], inputs)
        assert context.splits == [split.index for split in splits]
        assert context.rows_in == FACTS.num_rows
    assert rows_of(found) == expected(query)


@pytest.mark.parametrize("memory", ["1 gb", "64 mb"])
@pytest.mark.parametrize("query", QUERIES)
def test_exchange_inputs_give_what_duckdb_gives(
    tmp_path: Path, query: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory == "64 mb":  # so little that all inputs go to tables that can spill
        monkeypatch.setattr("taskmanager.operators.sql._TABLES_SHARE", 0.0)
    with operator_context(tmp_path, (), {"taskmanager.memory.task.size": memory}) as context:
        found = run_chain(
            context,
            [sql_operator(query, facts=1, names=0)],
            {1: stream_of(FACTS), 0: stream_of(NAMES)},
        )
    assert rows_of(found) == expected(query)


def test_a_filter_over_a_source_runs_split_by_split(tmp_path: Path, facts_file: Path) -> None:
    source = Operator(name="scan", source=Source(parquet=ParquetSource(glob=str(facts_file))))
    operators = [source, sql_operator("SELECT v FROM t WHERE v >= 0", t=-1)]
    with operator_context(tmp_path, file_splits(facts_file, 9_000)) as context:
        stream = open_chain(context, JobVertex(operators=operators), {})
        next(stream.batches)
        assert len(context.splits) == 1


def test_a_subtask_without_splits_gives_no_rows_but_a_schema(
    tmp_path: Path, facts_file: Path
) -> None:
    source = Operator(name="scan", source=Source(parquet=ParquetSource(glob=str(facts_file))))
    with operator_context(tmp_path) as context:
        found = run_chain(context, [source, sql_operator("SELECT k + 1 AS j FROM t", t=-1)])
    assert (found.schema, found.num_rows) == (pa.schema([("j", pa.int64())]), 0)


def test_a_sum_of_whole_numbers_is_exact_and_survives_parquet(tmp_path: Path) -> None:
    big = pa.table({"n": pa.array([2**63 - 1] * 4, pa.int64())})
    with operator_context(tmp_path) as context:
        found = run_chain(
            context, [sql_operator("SELECT sum(n) AS s FROM t", t=0)], {0: stream_of(big)}
        )
    assert found.schema.field("s").type == pa.decimal128(38, 0)
    pq.write_table(found, tmp_path / "s.parquet")
    assert pq.read_table(tmp_path / "s.parquet")["s"].to_pylist() == [(2**63 - 1) * 4]


def test_an_input_may_have_two_names(tmp_path: Path) -> None:
    query = "SELECT a.k FROM a JOIN b ON a.k = b.k WHERE b.name = 'n8'"
    with operator_context(tmp_path) as context:
        found = run_chain(context, [sql_operator(query, a=0, b=0)], {0: stream_of(NAMES)})
    assert found["k"].to_pylist() == [8]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nothing FROM t", r'"nothing" not found.*its inputs are: t\(k int64, name string'),
        ("SELECT k FROM u", r"Table with name u does not exist.*its inputs are: t\("),
        ("SELEC k FROM t", "syntax error"),
        ("SELECT 1 AS a; SELECT 2 AS a", "must be one SELECT statement"),
        ("CREATE TABLE x (i int)", "must be one SELECT statement"),
        ("SELECT t.*, k FROM t", "more than one column named 'k'"),
        ("SELECT sum(name) AS s FROM t", "No function matches"),
    ],
)
def test_a_wrong_query_fails_the_job_naming_operator_and_columns(
    tmp_path: Path, query: str, message: str
) -> None:
    with (
        operator_context(tmp_path) as context,
        pytest.raises(JobError, match=f"operator 'query': .*{message}"),
    ):
        run_chain(context, [sql_operator(query, t=0)], {0: stream_of(NAMES)})


def test_an_input_without_columns_fails_the_job(tmp_path: Path) -> None:
    nothing = BatchStream(pa.schema([]), iter(()))
    with (
        operator_context(tmp_path) as context,
        pytest.raises(JobError, match="nobody knows the columns of its input 't'"),
    ):
        run_chain(context, [sql_operator("SELECT 1 AS a FROM t", t=0)], {0: nothing})


@pytest.mark.parametrize("query", ["SELECT k FROM t", "SELECT a.k FROM t a JOIN t b USING (k)"])
def test_what_an_input_raises_comes_out_as_it_is(tmp_path: Path, query: str) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from NAMES.to_batches()
        raise SystemExit(3)

    stream = BatchStream(NAMES.schema, broken())
    with operator_context(tmp_path) as context, pytest.raises(SystemExit):
        run_chain(context, [sql_operator(query, t=0)], {0: stream})


def test_a_cancellation_while_duckdb_reads_its_input_ends_the_query(tmp_path: Path) -> None:
    with operator_context(tmp_path) as context:

        def endless() -> Iterator[pa.RecordBatch]:
            for _ in range(10_000):
                yield from NAMES.to_batches()
                context.cancellation.request()

        stream = BatchStream(NAMES.schema, endless())
        with pytest.raises(TaskCancelled):
            run_chain(context, [sql_operator("SELECT sum(k) AS s FROM t", t=0)], {0: stream})


def test_nothing_of_a_query_is_left_in_the_scratch_directory(tmp_path: Path) -> None:
    with operator_context(tmp_path) as context:
        run_chain(context, [sql_operator("SELECT k FROM t", t=0)], {0: stream_of(NAMES)})
    assert not (tmp_path / "scratch").exists()


def test_a_group_by_larger_than_its_memory_spills(tmp_path: Path) -> None:
    def many() -> Iterator[pa.RecordBatch]:
        for start in range(0, 2_000_000, 50_000):
            yield pa.record_batch({"n": pa.array(range(start, start + 50_000), pa.int64())})

    stream = BatchStream(pa.schema([("n", pa.int64())]), many())
    query = "SELECT n, count(*) AS c, max('x' || n) AS m FROM t GROUP BY n"
    options = {"taskmanager.memory.task.size": "96 mb"}
    with operator_context(tmp_path, (), options) as context:
        opened = open_chain(context, JobVertex(operators=[sql_operator(query, t=0)]), {0: stream})
        assert sum(batch.num_rows for batch in opened.batches) == 2_000_000


def test_a_query_that_cannot_spill_says_which_option_to_raise(tmp_path: Path) -> None:
    query = "SELECT list(repeat('x', 1000) || range) AS l FROM range(1000000), t LIMIT 1"
    options = {"taskmanager.memory.task.size": "64 mb"}
    with (
        operator_context(tmp_path, (), options) as context,
        pytest.raises(MemoryError, match=r"raise taskmanager\.memory\.task\.size"),
    ):
        run_chain(context, [sql_operator(query, t=0)], {0: stream_of(NAMES)})


def test_a_query_sees_nothing_of_the_query_before_it(tmp_path: Path) -> None:
    with operator_context(tmp_path) as context:
        run_chain(
            context,
            [sql_operator("SELECT count(*) AS n FROM a, b", a=0, b=0)],
            {0: stream_of(NAMES)},
        )
    for table in ("a", "b"):
        with operator_context(tmp_path) as context, pytest.raises(JobError, match="does not exist"):
            run_chain(context, [sql_operator(f"FROM {table}", t=0)], {0: stream_of(NAMES)})
