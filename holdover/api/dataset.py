"""Data sets as a user sees them: rows that operators read, and how they are spread on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from holdover.api.functions import function_name
from holdover.api.plan import (
    DeterminismName,
    DistributionName,
    Exchanging,
    Part,
    Plan,
    Port,
    determinism_value,
)
from holdover.api.query import check_query
from holdover.api.workload import workload_operator
from holdover.errors import JobGraphError
from holdover.v1 import job_pb2

if TYPE_CHECKING:
    from typing import Self

#: RecordBatch -> RecordBatch, Table, an iterable of batches, or None; or "module:name".
BatchFunction: TypeAlias = Callable[[Any], Any] | str

#: The table that a query on one data set reads.
INPUT_TABLE = "input"


class Rows:
    """Rows that an operator can read. Not made by users: see `DataSet` and `Exchange`."""

    def __init__(self, plan: Plan, port: Port) -> None:
        """`port` is what an operator that reads these rows is fed by."""
        self._plan = plan
        self._port = port

    @property
    def port(self) -> Port:
        """What an operator that reads these rows is fed by."""
        return self._port

    def map_batches(
        self,
        function: BatchFunction,
        *,
        name: str = "",
        parallelism: int | None = None,
        determinism: DeterminismName = "determinate",
    ) -> DataSet:
        """Calls `function` with each `pyarrow.RecordBatch`.

        It returns a RecordBatch, a Table, an iterable of batches, or None for no rows. A subtask
        without input rows calls it once with an empty batch, so that its columns are known.
        `function` is a callable, which is pickled, or "module:name", importable in task
        processes. Declare `determinism` where a second run over the same rows may differ.
        """
        return self._apply_function(function, False, name, parallelism, determinism)

    def map_partition(
        self,
        function: BatchFunction,
        *,
        name: str = "",
        parallelism: int | None = None,
        determinism: DeterminismName = "determinate",
    ) -> DataSet:
        """Calls `function` once per subtask, with an iterator of all its batches.

        Otherwise as `map_batches`.
        """
        return self._apply_function(function, True, name, parallelism, determinism)

    def sql(
        self,
        query: str,
        *,
        name: str = "",
        parallelism: int | None = None,
        determinism: DeterminismName | None = None,
        **tables: Rows,
    ) -> DataSet:
        """Runs one DuckDB SELECT in each subtask, over these rows as table `input`.

        `tables` are further inputs by their name in the query. Each subtask sees only what its
        exchange brings it: exchange the inputs by the keys of a join or a group, or broadcast
        them. Raises JobGraphError for a query that does not parse or reads unknown tables.

        A query is "unordered" unless it takes rows by position (LIMIT, `first`) or asks for time
        or chance: then it is "indeterminate". Say otherwise by `determinism`, for example where a
        total ORDER BY makes a LIMIT repeatable.
        """
        if any(table.lower() == INPUT_TABLE for table in tables):
            raise JobGraphError(
                name or "sql", f"table {INPUT_TABLE!r} is the data set that sql() is called on"
            )
        return apply_sql(
            self._plan, query, {INPUT_TABLE: self, **tables}, name, parallelism, determinism
        )

    def workload(
        self,
        seconds: float | job_pb2.NumberDistribution,
        output_bytes: int | job_pb2.NumberDistribution = 0,
        *,
        pass_rows: bool = False,
        failure_probability: float = 0.0,
        seed: int = 0,
        ledger_path: str = "",
        name: str = "workload",
        parallelism: int | None = None,
        determinism: DeterminismName = "determinate",
    ) -> DataSet:
        """Reads all rows, spends `seconds`, and writes `output_bytes`: for experiments.

        Both are for each subtask. With `pass_rows` each row that it reads leaves once, as its
        "value" and a payload; otherwise the rows it writes are random numbers, the same in each
        run. The rest as in `Job.workload`.
        """
        operator = workload_operator(
            name,
            seconds,
            output_bytes,
            pass_rows=pass_rows,
            failure_probability=failure_probability,
            seed=seed,
            ledger_path=ledger_path,
            determinism=determinism,
        )
        return self._apply(operator, parallelism)

    def write_text(self, path: str, *, name: str = "", parallelism: int | None = None) -> None:
        """Writes one line per row, from one string column, to files in the directory `path`.

        The directory must be empty or not exist. Files appear in it, with `_SUCCESS`, when the job
        has finished, and not before. `path` is made absolute here and must mean the same on all
        TaskManagers.
        """
        self._write(job_pb2.FILE_FORMAT_TEXT, "text", path, name, parallelism)

    def write_csv(self, path: str, *, name: str = "", parallelism: int | None = None) -> None:
        """Writes CSV files with a header line to the directory `path`; see `write_text`."""
        self._write(job_pb2.FILE_FORMAT_CSV, "csv", path, name, parallelism)

    def write_parquet(self, path: str, *, name: str = "", parallelism: int | None = None) -> None:
        """Writes Parquet files to the directory `path`; see `write_text`."""
        self._write(job_pb2.FILE_FORMAT_PARQUET, "parquet", path, name, parallelism)

    def _apply(
        self,
        operator: job_pb2.Operator,
        parallelism: int | None,
        function: Callable[..., Any] | None = None,
    ) -> DataSet:
        node = self._plan.add(operator, [self._port], parallelism=parallelism, function=function)
        return DataSet(self._plan, (Part(node),))

    def _apply_function(
        self,
        function: BatchFunction,
        takes_iterator: bool,
        name: str,
        parallelism: int | None,
        determinism: DeterminismName,
    ) -> DataSet:
        name = name or function_name(function)
        reference = function if isinstance(function, str) else ""
        if not reference and not callable(function):
            raise JobGraphError(name, f"{function!r} is neither a function nor 'module:name'")
        operator = job_pb2.Operator(
            name=name,
            determinism=determinism_value(determinism, name),
            function=job_pb2.PythonFunction(takes_iterator=takes_iterator),
        )
        if isinstance(function, str):
            operator.function.reference = function
            return self._apply(operator, parallelism)
        return self._apply(operator, parallelism, function)

    def _write(
        self,
        file_format: job_pb2.FileFormat.ValueType,
        kind: str,
        path: str,
        name: str,
        parallelism: int | None,
    ) -> None:
        operator = job_pb2.Operator(
            name=name or f"write_{kind}",
            determinism=job_pb2.DETERMINISM_DETERMINATE,
            sink=job_pb2.Sink(format=file_format, path=absolute(path)),
        )
        self._apply(operator, parallelism)


class Exchange(Rows):
    """A data set on its way to the next operator, with the rule that spreads its rows."""

    def union(self, other: Exchange) -> Self:
        """The rows of both; each is spread by its own rule."""
        if not isinstance(other, Exchange):
            raise JobGraphError(
                "union", "both sides must be exchanged, or neither: exchange the other one as well"
            )
        return type(self)(self._plan, (*self._port, *other.port))


class DataSet(Rows):
    """What an operator produces, and where the next one begins.

    An operator that reads a data set without an exchange is chained to its producer: they run in
    one task. Where that is impossible (the data set has several readers), subtask i reads what
    subtask i produced; where the numbers of subtasks differ, rows are dealt out evenly.
    """

    def hash(self, *keys: str) -> Exchange:
        """Rows with equal values in the columns `keys` meet in one subtask."""
        return self._exchange("hash", keys)

    def range(self, *keys: str) -> Exchange:
        """Each subtask gets a range of the values of `keys`, in the order of the subtasks.

        The data is sampled first, so it is written one more time.
        """
        return self._exchange("range", keys)

    def rebalance(self) -> Exchange:
        """Rows are dealt out evenly."""
        return self._exchange("rebalance")

    def broadcast(self) -> Exchange:
        """Every subtask gets all rows. A reader of nothing else runs as one subtask."""
        return self._exchange("broadcast")

    def forward(self) -> Exchange:
        """Subtask i reads what subtask i produced, in a task of its own."""
        return self._exchange("forward")

    def union(self, other: DataSet) -> Self:
        """The rows of both; they need the same columns."""
        if not isinstance(other, DataSet):
            raise JobGraphError(
                "union", "both sides must be exchanged, or neither: exchange the union instead"
            )
        return type(self)(self._plan, (*self._port, *other.port))

    def _exchange(self, kind: DistributionName, keys: tuple[str, ...] = ()) -> Exchange:
        if kind in ("hash", "range") and not (keys and all(isinstance(key, str) for key in keys)):
            raise JobGraphError(kind, "names no column: give the names of the key columns")
        exchanging = Exchanging(kind, keys)
        return Exchange(self._plan, tuple(Part(part.node, exchanging) for part in self._port))


def apply_sql(
    plan: Plan,
    query: str,
    tables: Mapping[str, Rows],
    name: str,
    parallelism: int | None,
    determinism: DeterminismName | None,
) -> DataSet:
    """Appends a query over `tables` to the plan; see `Rows.sql`."""
    name = name or "sql"
    if not tables:
        raise JobGraphError(name, "the query has no input: give at least one table=data_set")
    for table, rows in tables.items():
        if not isinstance(rows, Rows):
            raise JobGraphError(name, f"input {table!r} is {rows!r}, which is no data set")
    promised = check_query(query, tuple(tables), name)
    operator = job_pb2.Operator(
        name=name,
        determinism=determinism_value(determinism or promised, name),
        sql=job_pb2.Sql(query=query, inputs=[job_pb2.SqlInput(name=table) for table in tables]),
    )
    ports = [rows.port for rows in tables.values()]
    return DataSet(plan, (Part(plan.add(operator, ports, parallelism=parallelism)),))


def absolute(path: str) -> str:
    """A path that means the same in another working directory; a URL stays as it is."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
