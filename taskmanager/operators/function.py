"""Python functions over record batches."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle
import pyarrow as pa

from holdover.v1.job_pb2 import PythonFunction
from taskmanager.operators.errors import JobError
from taskmanager.operators.stream import BatchStream, OperatorContext, describe_schema, empty_batch

_RETURNS = "it must return a RecordBatch, a Table, an iterable of them, or None"


def open_function(
    context: OperatorContext, name: str, function: PythonFunction, upstream: BatchStream
) -> BatchStream:
    """Calls a user's function for each batch, or once with an iterator of the subtask's batches.

    What it gives decides the schema, so the first batch is computed here. A subtask whose function
    would never be called, or gave nothing for all its batches, has no schema to pass on; the
    function is then called (once more) with a batch without rows. An iterator is never empty for
    the same reason. Each batch must have the schema of the first. Raises JobError for a function
    that cannot be loaded or gives anything else; what the function raises passes through.
    """
    called = load_function(name, function)
    empty = empty_batch(upstream.schema)

    def results() -> Iterator[object]:
        if function.takes_iterator:
            yield called(_never_empty(upstream.batches, empty))
            return
        for batch in upstream.batches:
            context.cancellation.check()
            yield called(batch)

    def batches() -> Iterator[pa.RecordBatch]:
        found = False
        for result in results():
            for batch in _as_batches(name, result):
                found = True
                yield batch
        if not found and not function.takes_iterator:
            yield from _as_batches(name, called(empty))

    return _with_one_schema(name, batches())


def load_function(name: str, function: PythonFunction) -> Callable[[Any], object]:
    """The user's function; JobError when it cannot be loaded in this process.

    A pickled function is loaded anew for each attempt, so that what one attempt does to the
    function's variables cannot be seen by the next one in the same process.
    """
    try:
        if function.WhichOneof("code") == "reference":
            loaded: Any = _imported(name, function.reference)
        else:
            loaded = cloudpickle.loads(function.pickled)
    except (ImportError, AttributeError, pickle.UnpicklingError) as error:
        raise JobError(
            f"operator {name!r}: its function cannot be loaded in a task process: {error};"
            " attach the Python files that it imports to the job"
        ) from error
    if not callable(loaded):
        raise JobError(f"operator {name!r}: {loaded!r} is not a function")
    called: Callable[[Any], object] = loaded
    return called


def _imported(name: str, reference: str) -> Any:
    module, separator, path = reference.partition(":")
    if not separator or not path:
        raise JobError(f"operator {name!r}: {reference!r} is not of the form 'module:name'")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _never_empty(
    batches: Iterator[pa.RecordBatch], empty: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    first = next(batches, empty)
    yield first
    yield from batches


def _as_batches(name: str, result: object) -> Iterator[pa.RecordBatch]:
    if result is None:
        return
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.to_batches() or [empty_batch(result.schema)]
    elif isinstance(result, Iterable) and not isinstance(result, str | bytes | dict):
        for part in result:
            if isinstance(part, pa.RecordBatch | pa.Table):
                yield from _as_batches(name, part)
            elif part is not None:
                raise JobError(
                    f"operator {name!r}: its function gave an iterable with a"
                    f" {type(part).__name__} in it; {_RETURNS}"
                )
    else:
        raise JobError(
            f"operator {name!r}: its function returned a {type(result).__name__}; {_RETURNS}"
        )


def _with_one_schema(name: str, batches: Iterator[pa.RecordBatch]) -> BatchStream:
    first = next(batches, None)
    if first is None:
        return BatchStream(pa.schema([]), iter(()))
    schema = first.schema.remove_metadata()

    def checked() -> Iterator[pa.RecordBatch]:
        yield first
        for batch in batches:
            if not batch.schema.equals(schema):
                raise JobError(
                    f"operator {name!r}: its function returned batches of different columns:"
                    f" first [{describe_schema(schema)}], then [{describe_schema(batch.schema)}];"
                    " give every batch the same schema"
                )
            yield batch

    return BatchStream(schema, (batch.replace_schema_metadata(None) for batch in checked()))
