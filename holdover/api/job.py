"""Job: where a user's description of a job begins and becomes a JobGraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdover import ids
from holdover.api.assembly import assemble
from holdover.api.attachments import read_attachment
from holdover.api.dataset import DataSet, Rows, absolute, apply_sql
from holdover.api.plan import DeterminismName, Part, Plan
from holdover.api.workload import workload_operator
from holdover.config import check_job_option
from holdover.errors import JobGraphError
from holdover.v1 import job_pb2
from holdover.v1.common_pb2 import ConfigEntry


class Job:
    """A batch job: sources, operators and sinks.

    Everything that was described runs, whether or not a sink reads it.

    Example:
        job = Job("wordcount")
        words = job.read_text("docs/**/*.md").map_batches(split_words)
        counts = words.hash("word").sql("select word, count(*) as n from input group by word")
        counts.write_parquet("out")
    """

    def __init__(
        self, name: str, options: Mapping[str, str | int | float | bool] | None = None
    ) -> None:
        """A job without operators.

        Args:
            name: for people.
            options: options that a job may set (docs/configuration.md), by key. Raises
                ConfigurationError for others and for impossible values.
        """
        self._name = name
        self._options: dict[str, str] = {}
        for key, value in (options or {}).items():
            text = str(value).lower() if isinstance(value, bool) else str(value).strip()
            check_job_option(key, text, f"the options of job {name!r}")
            self._options[key] = text
        self._files: dict[str, job_pb2.AttachedFile] = {}
        self._plan = Plan()

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    def read_text(
        self,
        glob: str,
        *,
        with_path: bool = False,
        name: str = "",
        parallelism: int | None = None,
        record_splits: bool = True,
    ) -> DataSet:
        """Lines of text files as column "line", and with `with_path` their file as "path".

        `glob` is made absolute here; it is expanded in the cluster when the job starts, and what
        was found is kept with the job. Where files come and go, `record_splits` False has it
        expanded anew by each JobManager that has to read it: then finished subtasks are kept over
        a failover only when all of them had finished, and when one must run again all do.
        """
        source = job_pb2.TextSource(glob=absolute(glob), with_path=with_path)
        read = job_pb2.Source(text=source, splits_unrecorded=not record_splits)
        return self._read(read, name or "read_text", parallelism)

    def read_csv(
        self,
        glob: str,
        *,
        delimiter: str = ",",
        columns: Sequence[str] = (),
        types: Mapping[str, Any] | None = None,
        name: str = "",
        parallelism: int | None = None,
        record_splits: bool = True,
    ) -> DataSet:
        """Rows of CSV files; see `read_text` for `glob` and `record_splits`.

        Args:
            delimiter: one character between fields.
            columns: names of the columns of files without a header line; empty: the first line
                of each file names them.
            types: Arrow types by column, as `pyarrow.DataType` or text ("int64"); other columns'
                types are inferred from the first file.
        """
        source = job_pb2.CsvSource(
            glob=absolute(glob),
            delimiter=delimiter,
            header=not columns,
            column_names=_names(columns, "columns", name or "read_csv"),
            typed_columns=list(types or {}),
            column_types=[str(type_) for type_ in (types or {}).values()],
        )
        read = job_pb2.Source(csv=source, splits_unrecorded=not record_splits)
        return self._read(read, name or "read_csv", parallelism)

    def read_parquet(
        self,
        glob: str,
        *,
        columns: Sequence[str] = (),
        name: str = "",
        parallelism: int | None = None,
        record_splits: bool = True,
    ) -> DataSet:
        """Rows of Parquet files, of all columns or of those named; see `read_text` for `glob` and
        `record_splits`.
        """
        source = job_pb2.ParquetSource(
            glob=absolute(glob), columns=_names(columns, "columns", name or "read_parquet")
        )
        read = job_pb2.Source(parquet=source, splits_unrecorded=not record_splits)
        return self._read(read, name or "read_parquet", parallelism)

    def sequence(
        self, start: int, end: int, *, name: str = "sequence", parallelism: int | None = None
    ) -> DataSet:
        """Whole numbers from `start` up to but not including `end`, as column "value"."""
        if not -(2**63) <= start <= end < 2**63:
            raise JobGraphError(name, f"{start} to {end} is no ascending range of 64-bit numbers")
        source = job_pb2.SequenceSource(start=start, end=end)
        return self._read(job_pb2.Source(sequence=source), name, parallelism)

    def workload(
        self,
        seconds: float | job_pb2.NumberDistribution,
        output_bytes: int | job_pb2.NumberDistribution = 0,
        *,
        rows: int = 0,
        failure_probability: float = 0.0,
        seed: int = 0,
        ledger_path: str = "",
        name: str = "workload",
        parallelism: int | None = None,
        determinism: DeterminismName = "determinate",
    ) -> DataSet:
        """Spends `seconds` and writes `output_bytes` in each subtask: for experiments.

        Args:
            seconds: a number, or a distribution that each subtask draws from.
            output_bytes: the same, in bytes.
            rows: how many rows with an identity (column "value") each subtask makes, padded to
                `output_bytes`; 0: random numbers instead.
            failure_probability: how likely each attempt is to fail, 0 to 1.
            seed: what all draws depend on.
            ledger_path: absolute path of a file in which each attempt notes its start and end.
            determinism: "unordered" and "indeterminate" give each attempt another order of rows.
        """
        operator = workload_operator(
            name,
            seconds,
            output_bytes,
            rows=rows,
            failure_probability=failure_probability,
            seed=seed,
            ledger_path=ledger_path,
            determinism=determinism,
        )
        return self._begin(operator, parallelism)

    def sql(
        self,
        query: str,
        *,
        name: str = "",
        parallelism: int | None = None,
        determinism: DeterminismName | None = None,
        **tables: Rows,
    ) -> DataSet:
        """Runs one DuckDB SELECT in each subtask, over `tables` by their name in the query.

        The first table without an exchange is chained to the query where that is possible, any
        further one is forwarded. Otherwise as `DataSet.sql`.
        """
        return apply_sql(self._plan, query, tables, name, parallelism, determinism)

    def attach(self, path: str) -> None:
        """Lets a Python file travel with the job, importable by its functions.

        Modules that a function refers to travel with it anyway; attach what it imports when it
        runs. Raises JobGraphError when the file cannot be read, or another has the same name.
        """
        file = read_attachment(path)
        if self._files.setdefault(file.name, file) != file:
            raise JobGraphError("attach", f"another file {file.name!r} is attached already")

    def build(self, job_id: str) -> job_pb2.JobGraph:
        """The JobGraph under this id; the same at every call.

        Raises InvalidId, and JobGraphError naming the operator for functions that cannot be
        pickled and for whatever else makes the job impossible to run.
        """
        ids.job_id(job_id)
        if not self._plan.nodes:
            raise JobGraphError("", f"job {self._name!r} does nothing: begin with a read_ method")
        graph = job_pb2.JobGraph(
            job_id=job_id,
            name=self._name,
            options=[ConfigEntry(key=k, value=v) for k, v in sorted(self._options.items())],
            files=[self._files[file] for file in sorted(self._files)],
        )
        assemble(self._plan, self._options, graph)
        return graph

    def _read(self, source: job_pb2.Source, name: str, parallelism: int | None) -> DataSet:
        operator = job_pb2.Operator(
            name=name, determinism=job_pb2.DETERMINISM_DETERMINATE, source=source
        )
        return self._begin(operator, parallelism)

    def _begin(self, operator: job_pb2.Operator, parallelism: int | None) -> DataSet:
        return DataSet(self._plan, (Part(self._plan.add(operator, parallelism=parallelism)),))


def _names(names: Sequence[str], argument: str, operator_name: str) -> list[str]:
    if isinstance(names, str):
        raise JobGraphError(operator_name, f"{argument} is one text: give a list of names")
    return list(names)
