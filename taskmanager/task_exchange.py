"""A task's inputs and outputs, as its deployment and its job's graph describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdover.config import (
    SHUFFLE_COMPRESSION,
    SHUFFLE_FETCH_RETRY_TIMEOUT,
    SHUFFLE_WRITE_BUFFER_SIZE,
)
from holdover.ids import AttemptKey, partition_name
from holdover.runtime.transport_security import CredentialFiles
from holdover.v1.job_pb2 import DistributionKind, IntermediateDataSet, JobGraph, JobVertex
from holdover.v1.taskmanager_pb2 import InputGate, RunTask, TaskDeployment
from shuffle.environment import (
    FetchLimits,
    InputReader,
    PartitionSource,
    ResultOutput,
    ResultWriter,
)
from shuffle.errors import SchemasDiffer
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.key_hash import check_key_types_agree, key_type_classes
from shuffle.partition_name import parse_partition_name
from shuffle.partitioner import (
    HashPartitioner,
    Partitioner,
    Piece,
    RangePartitioner,
    RebalancePartitioner,
    SinglePartitioner,
)
from shuffle.result_writer import ResultTarget
from shuffle.survey import lost_partitions
from taskmanager.operators.errors import JobError
from taskmanager.operators.stream import BatchStream, OperatorContext, describe_schema


@dataclass(frozen=True, slots=True)
class _OpenGate:
    """One edge's partitions, and how their rows were distributed."""

    gate: InputGate
    reader: InputReader
    data_set: IntermediateDataSet


def open_inputs(
    context: OperatorContext,
    graph: JobGraph,
    run: RunTask,
    credentials: CredentialFiles | None,
) -> dict[int, BatchStream]:
    """The vertex's inputs by number; edges into one input are read one after another.

    Only indexes are read here, which names a lost partition before any work is done. Raises
    PartitionNotFound, PartitionDamaged, PartitionUnreachable; KeyTypesDiffer when rows of equal
    keys would not have met; SchemasDiffer when the edges of one input differ in their columns.
    """
    limits = FetchLimits(retry_timeout_s=context.options.get(SHUFFLE_FETCH_RETRY_TIMEOUT))
    gates: list[_OpenGate] = []
    for gate in run.deployment.inputs:
        reader = InputReader(
            _partitions(context.attempt.job_id, gate),
            gate.first_subpartition,
            gate.end_subpartition,
            shuffle_dir=run.shuffle_directory,
            local_address=run.data_address,
            limits=limits,
            credentials=credentials,
        )
        context.cleanup.callback(reader.close)
        gates.append(_OpenGate(gate, reader, _data_set(graph, gate)))
    _check_keys(gates)
    by_input: dict[int, list[InputReader]] = {}
    for opened in gates:
        by_input.setdefault(opened.gate.input, []).append(opened.reader)
    return {number: _union(context, number, readers) for number, readers in by_input.items()}


def open_outputs(
    context: OperatorContext,
    vertex: JobVertex,
    run: RunTask,
    inputs: dict[int, BatchStream],
    target: ResultTarget | None,
) -> ResultWriter | None:
    """A writer for the vertex's outputs, to `target` where there is one; None when it has none.

    Takes the inputs that carry range boundaries out of `inputs`, and reads them.
    """
    deployment = run.deployment
    if not vertex.outputs:
        return None
    outputs = []
    for number, data_set in enumerate(vertex.outputs):
        identity = parse_partition_name(partition_name(context.attempt, number))
        partitioner = _partitioner(data_set, deployment, number, inputs)
        outputs.append(ResultOutput(identity, partitioner))
    return ResultWriter(
        run.shuffle_directory,
        outputs,
        compression=context.options.get(SHUFFLE_COMPRESSION),
        buffer_bytes_max=context.options.get(SHUFFLE_WRITE_BUFFER_SIZE),
        target=target,
    )


def open_target(
    context: OperatorContext, deployment: TaskDeployment, credentials: CredentialFiles | None
) -> ShuffleServiceTarget | None:
    """The shuffle service that the attempt's output goes to; None for this machine's disk."""
    if not deployment.HasField("shuffle_target"):
        return None
    target = ShuffleServiceTarget(
        deployment.shuffle_target.data_address,
        retry_timeout_s=context.options.get(SHUFFLE_FETCH_RETRY_TIMEOUT),
        files=credentials,
    )
    context.cleanup.callback(target.close)
    return target


def lost_inputs(job_id: str, run: RunTask, credentials: CredentialFiles | None) -> list[str]:
    """Names of all partitions of the attempt's inputs that are lost, as far as can be seen."""
    return lost_partitions(
        [source for gate in run.deployment.inputs for source in _partitions(job_id, gate)],
        shuffle_dir=run.shuffle_directory,
        local_address=run.data_address,
        credentials=credentials,
    )


def _partitions(job_id: str, gate: InputGate) -> list[PartitionSource]:
    """The partitions of an edge in the order of the producing subtasks."""
    sources = [
        (
            subtask,
            PartitionSource(
                partition_name(
                    AttemptKey(job_id, gate.source_vertex_id, subtask, attempt, epoch),
                    gate.source_output,
                ),
                gate.locations[location].data_address,
            ),
        )
        for subtask, attempt, epoch, location in zip(
            gate.subtasks, gate.attempts, gate.epochs, gate.location_indexes, strict=True
        )
    ]
    return [source for _, source in sorted(sources, key=lambda pair: pair[0])]


def _data_set(graph: JobGraph, gate: InputGate) -> IntermediateDataSet:
    for vertex in graph.vertices:
        if vertex.vertex_id == gate.source_vertex_id:
            return vertex.outputs[gate.source_output]
    raise JobError(f"input {gate.input} is fed by {gate.source_vertex_id}, which is not in the job")


def _check_keys(gates: Sequence[_OpenGate]) -> None:
    """Rows of hash exchanges are meant to meet: their keys must be of types that hash alike."""
    first: tuple[str, ...] | None = None
    hashed = [
        opened
        for opened in gates
        if opened.data_set.distribution.kind == DistributionKind.DISTRIBUTION_KIND_HASH
    ]
    for opened in hashed if len(hashed) > 1 else ():
        schema = opened.reader.schema()
        if not len(schema):
            continue  # no rows, so none that fail to meet
        classes = key_type_classes(schema, list(opened.data_set.distribution.keys))
        if first is None:
            first = classes
        check_key_types_agree(first, classes)


def _union(context: OperatorContext, number: int, readers: list[InputReader]) -> BatchStream:
    schemas = [reader.schema() for reader in readers]
    schema = next((found for found in schemas if len(found)), pa.schema([]))
    for found in schemas:
        if len(found) and not found.equals(schema):
            raise SchemasDiffer(
                f"input {number} is a union", describe_schema(schema), describe_schema(found)
            )

    def batches() -> Iterator[pa.RecordBatch]:
        for reader in readers:
            yield from reader

    return BatchStream(schema, context.counted(batches()))


def _partitioner(
    data_set: IntermediateDataSet,
    deployment: TaskDeployment,
    output: int,
    inputs: dict[int, BatchStream],
) -> Partitioner:
    subpartitions = deployment.output_subpartitions[output]
    distribution = data_set.distribution
    kind = distribution.kind
    if kind == DistributionKind.DISTRIBUTION_KIND_HASH:
        return HashPartitioner(distribution.keys, subpartitions)
    if kind == DistributionKind.DISTRIBUTION_KIND_REBALANCE:
        return RebalancePartitioner(subpartitions, deployment.attempt.subtask)
    if kind == DistributionKind.DISTRIBUTION_KIND_RANGE:
        return _range_partitioner(
            list(distribution.keys), subpartitions, inputs.pop(distribution.boundaries_input)
        )
    if subpartitions != 1:
        raise JobError(f"output {output} is read whole, and cannot have {subpartitions} parts")
    return SinglePartitioner()


def _range_partitioner(keys: list[str], subpartitions: int, boundaries: BatchStream) -> Partitioner:
    rows = [
        tuple(row[key] for key in keys) for batch in boundaries.batches for row in batch.to_pylist()
    ]
    if not rows:
        return _LastPartitioner(subpartitions)
    # Fewer boundaries than asked for leave ranges empty that lie at the end.
    rows += [rows[-1]] * (subpartitions - 1 - len(rows))
    return RangePartitioner(keys, rows[: subpartitions - 1])


class _LastPartitioner:
    """Range exchange without boundaries: all keys are null (or there are no rows), so greatest."""

    def __init__(self, subpartitions: int) -> None:
        self.subpartitions = subpartitions

    def split(self, batch: pa.RecordBatch) -> list[Piece]:
        """All rows to the last subpartition."""
        return [(self.subpartitions - 1, batch)] if batch.num_rows else []
