"""What must be true of one operator of a JobGraph, wherever it stands in its chain."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdover.errors import JobGraphError
from holdover.v1 import job_pb2

PARALLELISM_MAX = 32_768
NAME_CHARACTERS_MAX = 1_000
PATH_CHARACTERS_MAX = 4_096
QUERY_CHARACTERS_MAX = 1 << 20
KEYS_MAX = 64
SQL_INPUTS_MAX = 256
COLUMNS_MAX = 10_000
SAMPLE_ROWS_MAX = 1_000_000
WORKLOAD_SECONDS_MAX = 7 * 86_400.0
WORKLOAD_BYTES_MAX = 1 << 40
WORKLOAD_ROWS_MAX = 100_000_000

#: Parameters of distributions of numbers, with a limit of their own; None: that of the numbers.
_NUMBER_PARAMETERS: Mapping[str, Mapping[str, float | None]] = {
    "uniform": {"minimum": None, "maximum": None},
    "exponential": {"mean": None},
    "lognormal": {"median": None, "sigma": 10.0},
    "pareto": {"minimum": None, "alpha": 1_000.0},
}
_ALPHA_MIN = 0.1

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REFERENCE = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:"
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
)
_DETERMINISMS = (
    job_pb2.DETERMINISM_DETERMINATE,
    job_pb2.DETERMINISM_UNORDERED,
    job_pb2.DETERMINISM_INDETERMINATE,
)
_FORMATS = (
    job_pb2.FILE_FORMAT_TEXT,
    job_pb2.FILE_FORMAT_CSV,
    job_pb2.FILE_FORMAT_PARQUET,
)


def check_operator(operator: job_pb2.Operator, field: str) -> None:
    """Raises JobGraphError, with a path below `field`, for an operator that cannot run."""
    check_name(operator.name, f"{field}.name")
    if operator.determinism not in _DETERMINISMS:
        raise JobGraphError(
            f"{field}.determinism",
            f"{operator.determinism} is no determinism: set determinate (1), unordered (2) or"
            " indeterminate (3)",
        )
    kind = operator.WhichOneof("kind")
    if kind is None:
        raise JobGraphError(field, "does nothing: set source, function, sql, workload, sink, ...")
    _CHECKS[kind](getattr(operator, kind), f"{field}.{kind}")


def check_name(name: str, field: str) -> None:
    """Raises JobGraphError for a name for people that is too long or would break a log line."""
    if len(name) > NAME_CHARACTERS_MAX:
        raise JobGraphError(field, f"has {len(name)} characters; {NAME_CHARACTERS_MAX} are allowed")
    if not name.isprintable():
        raise JobGraphError(field, f"{name!r} has characters that cannot be printed")


def check_keys(keys: Sequence[str], field: str) -> None:
    """Raises JobGraphError unless `keys` are one or more distinct column names."""
    if not keys:
        raise JobGraphError(field, "names no column: give at least one key")
    if len(keys) > KEYS_MAX:
        raise JobGraphError(field, f"names {len(keys)} columns; {KEYS_MAX} are allowed")
    for position, key in enumerate(keys):
        if not key:
            raise JobGraphError(f"{field}[{position}]", "is empty: name a column")
        if key in keys[:position]:
            raise JobGraphError(f"{field}[{position}]", f"repeats column {key!r}")


def check_path(path: str, field: str) -> None:
    """Raises JobGraphError unless `path` is absolute and means the same on every machine."""
    if not path.startswith("/"):
        raise JobGraphError(
            field, f"{path!r} is not absolute: a TaskManager has another working directory"
        )
    if len(path) > PATH_CHARACTERS_MAX or "\0" in path:
        raise JobGraphError(
            field, f"must have at most {PATH_CHARACTERS_MAX} characters, and no NUL among them"
        )
    if ".." in path.split("/"):
        raise JobGraphError(field, f"{path!r} contains '..': write {posixpath.normpath(path)!r}")


def _check_source(source: job_pb2.Source, field: str) -> None:
    kind = source.WhichOneof("kind")
    if kind is None:
        raise JobGraphError(field, "reads nothing: set text, csv, parquet or sequence")
    field = f"{field}.{kind}"
    if kind == "sequence":
        sequence = source.sequence
        if sequence.start > sequence.end:
            raise JobGraphError(
                f"{field}.end",
                f"{sequence.end} is below start {sequence.start}: end is one past the last number",
            )
        return
    check_path(getattr(source, kind).glob, f"{field}.glob")
    if kind == "csv":
        _check_csv(source.csv, field)
    elif kind == "parquet":
        _check_columns(source.parquet.columns, f"{field}.columns")


def _check_csv(source: job_pb2.CsvSource, field: str) -> None:
    delimiter = source.delimiter
    if len(delimiter) != 1 or len(delimiter.encode()) != 1 or delimiter in '"\r\n\0':
        raise JobGraphError(
            f"{field}.delimiter",
            f"{delimiter!r} must be one ASCII character, and no quote or line end",
        )
    if source.header == bool(source.column_names):
        what = "the header names them already" if source.header else "there is no header"
        raise JobGraphError(
            f"{field}.column_names", f"names {len(source.column_names)} columns, but {what}"
        )
    _check_columns(source.column_names, f"{field}.column_names")
    _check_columns(source.typed_columns, f"{field}.typed_columns")
    if len(source.column_types) != len(source.typed_columns):
        raise JobGraphError(
            f"{field}.column_types",
            f"has {len(source.column_types)} types for {len(source.typed_columns)} typed_columns",
        )


def _check_columns(columns: Sequence[str], field: str) -> None:
    if len(columns) > COLUMNS_MAX:
        raise JobGraphError(field, f"names {len(columns)} columns; {COLUMNS_MAX} are allowed")
    seen: dict[str, int] = {}
    for position, column in enumerate(columns):
        if not column:
            raise JobGraphError(f"{field}[{position}]", "is empty: name a column")
        if column in seen:
            raise JobGraphError(f"{field}[{position}]", f"repeats column {column!r}")
        seen[column] = position


def _check_function(function: job_pb2.PythonFunction, field: str) -> None:
    code = function.WhichOneof("code")
    if code is None or (code == "pickled" and not function.pickled):
        raise JobGraphError(field, "has no code: set pickled or reference")
    if code == "reference" and _REFERENCE.fullmatch(function.reference) is None:
        raise JobGraphError(
            f"{field}.reference", f"{function.reference!r} must be written as 'module:name'"
        )


def _check_sql(sql: job_pb2.Sql, field: str) -> None:
    if not sql.query.strip():
        raise JobGraphError(f"{field}.query", "is empty: write one SELECT statement")
    if len(sql.query) > QUERY_CHARACTERS_MAX:
        raise JobGraphError(
            f"{field}.query",
            f"has {len(sql.query)} characters; {QUERY_CHARACTERS_MAX} are allowed",
        )
    if not sql.inputs:
        raise JobGraphError(f"{field}.inputs", "is empty: a query needs at least one input table")
    if len(sql.inputs) > SQL_INPUTS_MAX:
        raise JobGraphError(
            f"{field}.inputs", f"has {len(sql.inputs)} tables; {SQL_INPUTS_MAX} are allowed"
        )
    seen: dict[str, int] = {}
    for position, table in enumerate(sql.inputs):
        if IDENTIFIER.fullmatch(table.name) is None:
            raise JobGraphError(
                f"{field}.inputs[{position}].name",
                f"{table.name!r} is no table name: it must match {IDENTIFIER.pattern}",
            )
        folded = table.name.lower()
        if folded in seen:
            raise JobGraphError(
                f"{field}.inputs[{position}].name",
                f"{table.name!r} is also the name of inputs[{seen[folded]}]"
                " (SQL names ignore case)",
            )
        seen[folded] = position


def _check_workload(workload: job_pb2.Workload, field: str) -> None:
    if not (math.isfinite(workload.seconds) and 0 <= workload.seconds <= WORKLOAD_SECONDS_MAX):
        raise JobGraphError(
            f"{field}.seconds", f"{workload.seconds} must be 0 to {WORKLOAD_SECONDS_MAX:g}"
        )
    if not 0 <= workload.output_bytes <= WORKLOAD_BYTES_MAX:
        raise JobGraphError(
            f"{field}.output_bytes", f"{workload.output_bytes} must be 0 to {WORKLOAD_BYTES_MAX}"
        )
    if workload.HasField("seconds_distribution"):
        check_numbers(
            workload.seconds_distribution, f"{field}.seconds_distribution", WORKLOAD_SECONDS_MAX
        )
    if workload.HasField("output_bytes_distribution"):
        place = f"{field}.output_bytes_distribution"
        check_numbers(workload.output_bytes_distribution, place, WORKLOAD_BYTES_MAX)
    if not 0 <= workload.failure_probability <= 1:
        raise JobGraphError(
            f"{field}.failure_probability", f"{workload.failure_probability} must be 0 to 1"
        )
    if not 0 <= workload.rows <= WORKLOAD_ROWS_MAX:
        raise JobGraphError(f"{field}.rows", f"{workload.rows} must be 0 to {WORKLOAD_ROWS_MAX}")
    if workload.rows and workload.pass_rows:
        raise JobGraphError(
            f"{field}.pass_rows", "must be unset where rows are made: a workload does one of them"
        )
    if workload.ledger_path:
        check_path(workload.ledger_path, f"{field}.ledger_path")


def check_numbers(numbers: job_pb2.NumberDistribution, field: str, number_max: float) -> None:
    """Raises JobGraphError unless the parameters describe numbers; draws above `number_max` are
    cut to it.
    """
    kind = numbers.WhichOneof("kind")
    if kind is None:
        raise JobGraphError(
            field, "is empty: set constant, uniform, exponential, lognormal or pareto"
        )
    field = f"{field}.{kind}"
    if kind == "constant":
        _check_number(numbers.constant, field, number_max)
        return
    distribution = getattr(numbers, kind)
    for name, limit in _NUMBER_PARAMETERS[kind].items():
        _check_number(getattr(distribution, name), f"{field}.{name}", limit or number_max)
    if kind == "uniform" and numbers.uniform.minimum > numbers.uniform.maximum:
        raise JobGraphError(f"{field}.maximum", f"{numbers.uniform.maximum} is below minimum")
    if kind == "pareto" and numbers.pareto.alpha < _ALPHA_MIN:
        raise JobGraphError(f"{field}.alpha", f"{numbers.pareto.alpha} is below {_ALPHA_MIN}")


def _check_number(number: float, field: str, number_max: float) -> None:
    if not (math.isfinite(number) and 0 <= number <= number_max):
        raise JobGraphError(field, f"{number} must be 0 to {number_max:g}")


def _check_sink(sink: job_pb2.Sink, field: str) -> None:
    if sink.format not in _FORMATS:
        raise JobGraphError(
            f"{field}.format", f"{sink.format} is no format: set text (1), csv (2) or parquet (3)"
        )
    check_path(sink.path, f"{field}.path")
    if posixpath.normpath(sink.path).strip("/") == "":
        raise JobGraphError(f"{field}.path", "is the root directory: name a directory of its own")


def _check_key_sample(sample: job_pb2.KeySample, field: str) -> None:
    check_keys(sample.keys, f"{field}.keys")
    if not 1 <= sample.rows_max <= SAMPLE_ROWS_MAX:
        raise JobGraphError(
            f"{field}.rows_max", f"{sample.rows_max} must be 1 to {SAMPLE_ROWS_MAX}"
        )


def _check_range_boundaries(boundaries: job_pb2.RangeBoundaries, field: str) -> None:
    check_keys(boundaries.keys, f"{field}.keys")
    if not 1 <= boundaries.ranges <= PARALLELISM_MAX:
        raise JobGraphError(
            f"{field}.ranges", f"{boundaries.ranges} must be 1 to {PARALLELISM_MAX}"
        )


_CHECKS: Mapping[str, Callable[[Any, str], None]] = {
    "source": _check_source,
    "function": _check_function,
    "sql": _check_sql,
    "workload": _check_workload,
    "sink": _check_sink,
    "key_sample": _check_key_sample,
    "range_boundaries": _check_range_boundaries,
}
