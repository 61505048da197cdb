"""SQL: one DuckDB query over the operator's inputs.

How an input gets into the query, best first:

1. A Parquet source in the same chain, when the query over all its splits is the union of the query
   over each, or the sums, counts, minima and maxima of it: DuckDB reads each split itself, with its
   own pruning of columns, rows and row groups. Measured with 18 million rows of TPC-H's lineitem on
   one thread: a filter takes 1.1 s over the whole file, 1.7 s over 22 splits, 2.2 s through Arrow;
   a small GROUP BY 0.7 s, 1.1 s, 4.0 s.
2. The only input, when the query reads it once: streamed, batch by batch.
3. Else as an Arrow table in memory, so that DuckDB knows its size and joins it on the right side;
   or, when it is too large for that, as a table of DuckDB's, which spills to disk.

Types are DuckDB's. Decimals are exact; a sum of whole numbers is a HUGEINT, which is
`decimal128(38, 0)` in Arrow, and so exact, in partitions and in Parquet files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import duckdb
import pyarrow as pa

from holdover.config import TASKMANAGER_MEMORY_TASK_SIZE
from holdover.v1.job_pb2 import Sql
from taskmanager.operators import sql_plan
from taskmanager.operators.duckdb_session import open_session, quoted_name
from taskmanager.operators.errors import JobError
from taskmanager.operators.sql_disjoint import set_apart
from taskmanager.operators.sql_partials import Combination, combination_of
from taskmanager.operators.stream import (
    BATCH_ROWS,
    BatchStream,
    OperatorContext,
    ParquetPieces,
    describe_schema,
)

# The part of a task's memory for inputs that are held as Arrow tables; the rest is DuckDB's.
_TABLES_SHARE = 0.25
# Rows of the other inputs up to which it is right to build their hash tables again for each split.
_REBUILT_ROWS_MAX = 1_000_000
_FEED = "holdover_feed"
_STAND_IN = "holdover_stand_in"
_OUT_OF_MEMORY = "Out of Memory Error"

# What DuckDB raises for a query that can never run, whatever the data.
_WRONG_QUERY = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.NotImplementedException,
    duckdb.ParserException,
    duckdb.SyntaxException,
)


def open_sql(
    context: OperatorContext, name: str, sql: Sql, inputs: Mapping[int, BatchStream]
) -> BatchStream:
    """The result of the query over the inputs, which are numbered as in `SqlInput.vertex_input`.

    Raises JobError, with the columns of the inputs, for a query that is not one SELECT or does not
    bind, for an input whose columns nobody knows, and for a result with two columns of one name.
    """
    return _SqlTask(context, name, sql, inputs).open()


class _SqlTask:
    """One run of a query: loads what must be loaded, streams what can be streamed."""

    def __init__(
        self, context: OperatorContext, name: str, sql: Sql, inputs: Mapping[int, BatchStream]
    ) -> None:
        self._context = context
        self._name = name
        self._names: dict[int, list[str]] = {}
        for entry in sql.inputs:
            self._names.setdefault(entry.vertex_input, []).append(entry.name)
        self._streams = {number: inputs[number] for number in self._names}
        self._check_schemas()
        memory_bytes = context.options.get(TASKMANAGER_MEMORY_TASK_SIZE)
        self._tables_bytes_left = int(memory_bytes * _TABLES_SHARE)
        self._duckdb_bytes = memory_bytes - self._tables_bytes_left
        self._session = open_session(context, "sql", memory_bytes=self._duckdb_bytes)
        self._query = _one_select(self._session, name, sql.query)
        self._loaded_rows = 0
        self._feed_error: BaseException | None = None

    def open(self) -> BatchStream:
        """Loads the inputs and binds the query; the result is computed as it is pulled."""
        numbers = sorted(self._streams, reverse=True)  # what is chained (-1) comes last
        with self._guarded():
            for number in numbers[:-1]:
                self._load(number)
            if numbers:
                return self._open_last(numbers[-1])
        return self._result()

    def _open_last(self, number: int) -> BatchStream:
        names, stream = self._names[number], self._streams[number]
        single = len(names) == 1
        columns: list[str] | None = None
        if stream.scan is not None and single:
            by_split = self._by_split(names[0], stream.schema, stream.scan)
            if by_split is not None:
                return by_split
            columns = self._columns_needed(names[0], stream)
        if single and len(self._streams) == 1 and self._reads_once(names[0], stream.schema):
            self._session.register(names[0], self._feed(self._pruned(stream, columns)))
        else:
            self._streams[number] = self._pruned(stream, columns)
            self._load(number)
        return self._result()

    # --- inputs

    def _check_schemas(self) -> None:
        for number, names in self._names.items():
            if not len(self._streams[number].schema):
                raise JobError(
                    f"operator {self._name!r}: nobody knows the columns of its input {names[0]!r}:"
                    " no subtask that produces it gave a batch; let it return a batch without rows"
                )

    def _load(self, number: int) -> None:
        """Registers an input as a table, in memory or, when it is large, in DuckDB."""
        stream, (first, *others) = self._streams[number], self._names[number]
        held: deque[pa.RecordBatch] = deque()
        for batch in stream.batches:
            self._context.cancellation.check()
            held.append(batch)
            self._tables_bytes_left -= batch.nbytes
            self._loaded_rows += batch.num_rows
            if self._tables_bytes_left < 0:
                self._tables_bytes_left += sum(part.nbytes for part in held)
                self._load_spillable(first, BatchStream(stream.schema, _drained(held, stream)))
                break
        else:
            self._session.register(first, pa.Table.from_batches(held, stream.schema))
        for other in others:
            self._session.execute(
                f"CREATE TEMP VIEW {quoted_name(other)} AS FROM {quoted_name(first)}"
            )

    def _load_spillable(self, name: str, stream: BatchStream) -> None:
        self._session.register(_FEED, self._feed(stream))
        self._session.execute(f"CREATE TEMP TABLE {quoted_name(name)} AS FROM {_FEED}")
        self._session.unregister(_FEED)

    def _feed(self, stream: BatchStream) -> pa.RecordBatchReader:
        """The stream for DuckDB, which would only keep the text of what goes wrong in it."""

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from stream.batches
            except GeneratorExit:
                raise
            except BaseException as error:
                self._feed_error = error
                raise RuntimeError(f"an input failed: {type(error).__name__}") from error

        return pa.RecordBatchReader.from_batches(stream.schema, batches())

    def _pruned(self, stream: BatchStream, columns: list[str] | None) -> BatchStream:
        if columns is None or stream.scan is None:
            return stream
        schema = pa.schema([stream.schema.field(name) for name in columns])
        return BatchStream(schema, stream.scan.batches(columns))

    # --- the plan

    def _by_split(self, name: str, schema: pa.Schema, scan: ParquetPieces) -> BatchStream | None:
        """The result computed split by split by DuckDB; None when that would not be right."""
        if self._loaded_rows > _REBUILT_ROWS_MAX:
            return None
        plan = self._plan(name, schema)
        if sql_plan.is_union_of_pieces(plan, _STAND_IN):
            schema, results = self._piecewise(name, scan)
            return self._guarded_stream(BatchStream(schema, chain.from_iterable(results)))
        if not sql_plan.is_aggregate_of_pieces(plan, _STAND_IN):
            return None
        self._view(name, scan.example)
        relation = self._bound()
        (syntax,) = self._session.execute("SELECT json_serialize_sql(?)", [self._query]).fetchall()[
            0
        ]
        types = [str(kind) for kind in relation.types]
        combination = combination_of(syntax, relation.columns, types, _FEED)
        if combination is None:
            return None
        return self._combined(combination, *self._piecewise(name, scan))

    def _columns_needed(self, name: str, stream: BatchStream) -> list[str] | None:
        plan = self._plan(name, stream.schema, "filter_pushdown")
        return sql_plan.scanned_columns(plan, _STAND_IN, stream.schema.names)

    def _reads_once(self, name: str, schema: pa.Schema) -> bool:
        return sql_plan.is_read_once(self._plan(name, schema), _STAND_IN)

    def _plan(self, name: str, schema: pa.Schema, *disabled: str) -> sql_plan.PlanNode:
        """The plan of the query over an input without rows, and without some optimizers.

        Not used are, in any case, those that read a table twice to read less of it.
        """
        optimizers = ",".join(("statistics_propagation", "late_materialization", *disabled))
        execute = self._session.execute
        self._session.register(_FEED, schema.empty_table())
        execute(f"CREATE OR REPLACE TEMP TABLE {_STAND_IN} AS FROM {_FEED}")
        self._session.unregister(_FEED)
        self._view(name, _STAND_IN)
        execute(f"SET disabled_optimizers = '{optimizers}'")
        rows = execute(f"EXPLAIN (FORMAT JSON) {self._query}").fetchall()
        execute("RESET disabled_optimizers")
        execute(f"DROP VIEW {quoted_name(name)}")
        return sql_plan.parse_plan(rows[0][1])

    def _view(self, name: str, relation: str) -> None:
        self._session.execute(f"CREATE OR REPLACE TEMP VIEW {quoted_name(name)} AS FROM {relation}")

    # --- results

    def _result(self) -> BatchStream:
        with self._guarded():
            reader = self._run()
        return self._guarded_stream(BatchStream(reader.schema, iter(reader)))

    def _piecewise(
        self, name: str, scan: ParquetPieces
    ) -> tuple[pa.Schema, Iterator[Iterator[pa.RecordBatch]]]:
        """The query's results for no rows, for the schema, and then for each split."""
        self._view(name, f"(FROM {scan.example} LIMIT 0)")
        nothing = self._run().read_all()

        def results() -> Iterator[Iterator[pa.RecordBatch]]:
            if nothing.num_rows:
                yield iter(nothing.to_batches())
            for piece in scan.pieces():
                self._view(name, piece.relation)
                yield iter(self._run())

        return nothing.schema, results()

    def _combined(
        self,
        combination: Combination,
        schema: pa.Schema,
        results: Iterator[Iterator[pa.RecordBatch]],
    ) -> BatchStream:
        """One result from the results of the splits."""
        half = self._duckdb_bytes // 2
        self._session.execute(f"SET memory_limit = '{half}B'")

        def batches() -> Iterator[pa.RecordBatch]:
            apart, rest = self._set_apart(combination.groups, schema, results)
            for table in apart:
                yield from table.to_batches()
            # Without a group there is one row of no rows, so there is something to combine.
            first = next(rest, None)
            if first is None:
                return
            session = open_session(self._context, "combine", memory_bytes=half)
            session.register(_FEED, self._feed(BatchStream(schema, chain([first], rest))))
            with self._context.cancellation.interrupting(session.interrupt):
                yield from session.sql(combination.query).to_arrow_reader(BATCH_ROWS)

        return self._guarded_stream(BatchStream(schema, batches()))

    def _set_apart(
        self,
        groups: tuple[str, ...],
        schema: pa.Schema,
        results: Iterator[Iterator[pa.RecordBatch]],
    ) -> tuple[list[pa.Table], Iterator[pa.RecordBatch]]:
        """What needs no combining, and what does: all that is too large to be held in memory."""
        if not groups:
            return [], chain.from_iterable(results)
        held: deque[pa.RecordBatch] = deque()
        pieces: list[pa.Table] = []
        for result in results:
            begin = len(held)
            for batch in result:
                self._context.cancellation.check()
                held.append(batch)
                # Counted twice: rows are copied when a piece is parted.
                self._tables_bytes_left -= 2 * batch.nbytes
                if self._tables_bytes_left < 0:
                    pieces.clear()
                    following = chain(result, chain.from_iterable(results))
                    return [], _drained(held, BatchStream(schema, following))
            pieces.append(pa.Table.from_batches(list(held)[begin:], schema))
        apart, rest = set_apart(pieces, groups)
        return apart, (batch for table in rest for batch in table.to_batches())

    def _run(self) -> pa.RecordBatchReader:
        """Binds the query and begins to compute it; batches come as they are read."""
        return self._bound().to_arrow_reader(BATCH_ROWS)

    def _bound(self) -> duckdb.DuckDBPyRelation:
        relation = self._session.sql(self._query)
        repeated = sorted(
            {column for column in relation.columns if relation.columns.count(column) > 1}
        )
        if repeated:
            raise JobError(
                f"operator {self._name!r}: the result has more than one column named"
                f" {', '.join(map(repr, repeated))}; name them apart with AS"
            )
        return relation

    def _guarded_stream(self, stream: BatchStream) -> BatchStream:
        return BatchStream(stream.schema, self._guarded_batches(stream.batches))

    def _guarded_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._guarded():
            for batch in batches:
                if batch.num_rows:
                    yield batch

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Lets a cancellation interrupt DuckDB, and says what an error of DuckDB's really is."""
        try:
            with self._context.cancellation.interrupting(self._session.interrupt):
                yield
        except _WRONG_QUERY as error:
            raise JobError(
                f"operator {self._name!r}: {_one_line(error)}; its inputs are: {self._inputs()}"
            ) from error
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            self._context.cancellation.check()
            # What went wrong in an input comes back as a text; so does DuckDB's own error while
            # a result is read.
            cause = self._feed_error or error
            if isinstance(cause, duckdb.Error | OSError) and _OUT_OF_MEMORY in str(cause):
                raise MemoryError(
                    f"operator {self._name!r}: {cause}; raise {TASKMANAGER_MEMORY_TASK_SIZE.key},"
                    " or the parallelism"
                ) from cause
            if cause is error:
                raise
            raise cause from None

    def _inputs(self) -> str:
        described = [
            f"{name}({describe_schema(self._streams[number].schema)})"
            for number, names in self._names.items()
            for name in names
        ]
        return ", ".join(described) or "none"


def _one_select(session: duckdb.DuckDBPyConnection, name: str, query: str) -> str:
    """The query, when it is one SELECT statement; else JobError."""
    try:
        statements = session.extract_statements(query)
    except duckdb.Error as error:
        raise JobError(f"operator {name!r}: {_one_line(error)}") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise JobError(f"operator {name!r}: its SQL must be one SELECT statement: {query}")
    text: str = statements[0].query
    return text


def _drained(held: deque[pa.RecordBatch], stream: BatchStream) -> Iterator[pa.RecordBatch]:
    """What is held and then what follows; what was given on is not held any longer."""
    while held:
        yield held.popleft()
    yield from stream.batches


def _one_line(error: duckdb.Error) -> str:
    """DuckDB's message without the picture of the query below it."""
    return " ".join(str(error).partition("\n\nLINE ")[0].split())
