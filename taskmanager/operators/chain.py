"""A vertex's chain of operators, opened as one pipeline that its last operator pulls."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from holdover.v1.job_pb2 import JobVertex, Operator
from taskmanager.operators.errors import JobError
from taskmanager.operators.function import open_function
from taskmanager.operators.range import open_key_sample, open_range_boundaries
from taskmanager.operators.source import open_source
from taskmanager.operators.sql import open_sql
from taskmanager.operators.stream import BatchStream, OperatorContext
from taskmanager.operators.workload import open_workload

#: The number under which SQL names the operator before it in the chain.
CHAINED_INPUT = -1


def open_chain(
    context: OperatorContext, vertex: JobVertex, inputs: Mapping[int, BatchStream]
) -> BatchStream:
    """The rows that leave the chain; a sink at its end is left to the caller.

    `inputs` are the vertex's inputs by number. The first operator reads input 0 unless it is a
    source, a query (which names its inputs) or a workload (which reads all of them). A chain
    without operators passes input 0 on. Raises JobError, and what opening the operators raises.
    """
    stream: BatchStream | None = None
    for operator in vertex.operators:
        if operator.WhichOneof("kind") == "sink":
            break
        stream = _open(context, operator, stream, inputs)
    return _first_input(stream, inputs)


def _open(
    context: OperatorContext,
    operator: Operator,
    chained: BatchStream | None,
    inputs: Mapping[int, BatchStream],
) -> BatchStream:
    kind = operator.WhichOneof("kind")
    if kind == "source":
        return open_source(context, operator.source)
    if kind == "sql":
        by_number = dict(inputs)
        if chained is not None:
            by_number[CHAINED_INPUT] = chained
        for entry in operator.sql.inputs:
            if entry.vertex_input not in by_number:
                raise JobError(f"operator {operator.name!r}: its input {entry.name!r} is missing")
        return open_sql(context, operator.name, operator.sql, by_number)
    if kind == "workload":
        read = list(inputs.values()) if chained is None else [chained]
        return open_workload(context, operator, read)
    upstream = _first_input(chained, inputs)
    if kind == "function":
        return open_function(context, operator.name, operator.function, upstream)
    if kind == "key_sample":
        return open_key_sample(context, operator.key_sample, upstream)
    if kind == "range_boundaries":
        return open_range_boundaries(context, operator.range_boundaries, upstream)
    raise JobError(f"operator {operator.name!r} has no kind that this version knows")


def _first_input(chained: BatchStream | None, inputs: Mapping[int, BatchStream]) -> BatchStream:
    if chained is not None:
        return chained
    return inputs.get(0) or BatchStream(pa.schema([]), iter(()))
