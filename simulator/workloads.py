"""The job of a scenario as a JobGraph, and what its output must be. Pure.

MODEL: each stage is a vertex with one workload operator, named like the stage. A stage without
inputs makes rows, every other one passes all rows of its inputs on, and the last ones write them to
files. So the output of a run without faults is known beforehand: the identities of all rows that
were made, as often as exchanges repeat them. The same graph runs in both worlds.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from holdover.api import Job
from holdover.api.dataset import DataSet, Exchange, Rows
from holdover.api.plan import DeterminismName
from holdover.jobgraph.index import JobGraphIndex
from holdover.jobgraph.workload_draws import source_identities
from holdover.v1.common_pb2 import ConfigEntry
from holdover.v1.job_pb2 import (
    DISTRIBUTION_KIND_BROADCAST,
    DISTRIBUTION_KIND_FORWARD,
    DISTRIBUTION_KIND_RANGE,
    ExponentialDistribution,
    JobEdge,
    JobGraph,
    JobVertex,
    LognormalDistribution,
    NumberDistribution,
    UniformDistribution,
    Workload,
)
from simulator.quantities import Constant, Distribution, Exponential, Lognormal, Uniform
from simulator.scenario import JobSpec, StageSpec
from simulator.world.medium import FileNode
from simulator.world.modelled_outputs import parse_sink_content
from simulator.world.modelled_vertex import sequence_rows
from simulator.world.rows import maker_subtask
from simulator.world.storage import SimulatedStorage

_SEED_MAX = (1 << 63) - 1
_KEY = "value"


def build_graph(
    job: JobSpec,
    *,
    seed: int,
    output_directory: str,
    ledger_path: str = "",
    stored: bytes | None = None,
) -> JobGraph:
    """The job of a scenario, under its name as id.

    Args:
        job: the job.
        seed: of what its workloads draw.
        output_directory: absolute; where the last stage writes. Several last stages write to
            directories in it that have their names.
        ledger_path: see `Workload.ledger_path`.
        stored: content of the file `job.graph`, for a job that names one; its graph keeps its own
            sinks and gets the scenario's options.

    Raises ValueError when a stored graph is not given, JobGraphError for an impossible job.
    """
    if job.graph is not None:
        if stored is None:
            raise ValueError(f"the content of {job.graph} is not given")
        graph = JobGraph.FromString(stored)
        graph.job_id = job.name
        options = {entry.key: entry.value for entry in graph.options} | job.options
        del graph.options[:]
        graph.options.extend(ConfigEntry(key=k, value=v) for k, v in sorted(options.items()))
        return graph
    described = Job(job.name, job.options)
    draws_seed = (seed + zlib.crc32(job.name.encode())) & _SEED_MAX
    stages: dict[str, DataSet] = {}
    for stage in job.stages:
        stages[stage.name] = _described(described, stage, stages, draws_seed, ledger_path)
    last = [stage.name for stage in job.last_stages()]
    for name in last:
        place = output_directory if len(last) == 1 else posixpath.join(output_directory, name)
        stages[name].write_parquet(place, parallelism=_parallelism(job, name))
    graph = described.build(job.name)
    for vertex in graph.vertices:
        for operator in vertex.operators:
            if operator.HasField("workload"):
                # A source of no rows: without this it would make random ones.
                operator.workload.pass_rows = not operator.workload.rows
    return graph


def other_work(job: JobSpec) -> Workload:
    """What subtasks of a stored graph do where they have no workload: for `TaskModel.others`."""
    return Workload(
        seconds_distribution=number_distribution(job.seconds),
        output_bytes_distribution=number_distribution(job.output_bytes),
    )


def number_distribution(distribution: Distribution) -> NumberDistribution:
    """A scenario's distribution as the message."""
    match distribution:
        case Constant(value):
            return NumberDistribution(constant=value)
        case Uniform(low, high):
            return NumberDistribution(uniform=UniformDistribution(minimum=low, maximum=high))
        case Exponential(mean):
            return NumberDistribution(exponential=ExponentialDistribution(mean=mean))
        case Lognormal(median, sigma):
            lognormal = LognormalDistribution(median=median, sigma=sigma)
            return NumberDistribution(lognormal=lognormal)
        case _:
            assert_never(distribution)


def _described(
    job: Job, stage: StageSpec, stages: Mapping[str, DataSet], seed: int, ledger_path: str
) -> DataSet:
    seconds = number_distribution(stage.seconds)
    output_bytes = number_distribution(stage.output_bytes)
    determinism: DeterminismName = "unordered" if stage.unordered else "determinate"
    if stage.indeterminate:
        determinism = "indeterminate"
    if not stage.inputs and not stage.splits:
        return job.workload(
            seconds,
            output_bytes,
            rows=stage.rows,
            failure_probability=stage.failure_probability,
            seed=seed,
            ledger_path=ledger_path,
            name=stage.name,
            parallelism=stage.parallelism,
            determinism=determinism,
        )
    return _read(job, stage, stages).workload(
        seconds,
        output_bytes,
        pass_rows=True,
        failure_probability=stage.failure_probability,
        seed=seed,
        ledger_path=ledger_path,
        name=stage.name,
        parallelism=stage.parallelism,
        determinism=determinism,
    )


def _read(job: Job, stage: StageSpec, stages: Mapping[str, DataSet]) -> Rows:
    """What a stage reads: a source of numbers, or all its inputs."""
    if stage.splits:
        assert stage.parallelism is not None, "a stage without inputs has a number"
        rows = stage.rows * stage.parallelism
        return job.sequence(0, rows, name=f"{stage.name}-rows", parallelism=stage.parallelism)
    inputs = [_exchanged(stages[name], stage) for name in stage.inputs]
    read = inputs[0]
    for exchange in inputs[1:]:
        read = read.union(exchange)
    return read


def _exchanged(data_set: DataSet, stage: StageSpec) -> Exchange:
    match stage.exchange:
        case "hash":
            return data_set.hash(_KEY)
        case "rebalance":
            return data_set.rebalance()
        case "broadcast":
            return data_set.broadcast()
        case "forward":
            return data_set.forward()


def _parallelism(job: JobSpec, name: str) -> int | None:
    return next(stage.parallelism for stage in job.stages if stage.name == name)


# ------------------------------------------------------------------ what the output must be


def expected_rows(graph: JobGraph, parallelism: Mapping[str, int] | None = None) -> list[int]:
    """Identities, sorted, of all rows that a run without faults writes to sinks.

    Args:
        graph: a valid graph.
        parallelism: number of subtasks by vertex, for adaptive vertices that read a broadcast.

    Raises ValueError when such a number is needed and not given.
    """
    index = JobGraphIndex.of(graph)
    subtasks = _subtasks(graph, index, parallelism or {})
    leaving: dict[str, list[int]] = {}
    written: list[int] = []
    for vertex in graph.vertices:
        read: list[int] = []
        for edge in index.inputs[vertex.vertex_id]:
            read += _read_over(edge, index, leaving, vertex, subtasks)
        rows = _through(vertex, read, subtasks)
        leaving[vertex.vertex_id] = rows
        if vertex.operators[-1].HasField("sink"):
            written += rows
    return sorted(written)


def _read_over(
    edge: JobEdge,
    index: JobGraphIndex,
    leaving: Mapping[str, list[int]],
    vertex: JobVertex,
    subtasks: Mapping[str, int],
) -> list[int]:
    """What all subtasks of a vertex together read over one edge."""
    for output in vertex.outputs:
        distribution = output.distribution
        is_range = distribution.kind == DISTRIBUTION_KIND_RANGE
        if is_range and distribution.boundaries_input == edge.target_input:
            return []
    rows = leaving[edge.source_vertex_id]
    if index.distribution(edge).kind == DISTRIBUTION_KIND_BROADCAST and rows:
        return rows * _count(subtasks, vertex)
    return rows


def _through(vertex: JobVertex, rows: list[int], subtasks: Mapping[str, int]) -> list[int]:
    for operator in vertex.operators:
        kind = operator.WhichOneof("kind")
        if kind == "source":
            sequence = operator.source.sequence
            rows = list(sequence_rows(sequence, sequence.start, sequence.end))
        elif kind == "workload" and operator.workload.rows:
            numbers = range(_count(subtasks, vertex))
            rows = [row for i in numbers for row in source_identities(operator.workload, i)]
        elif (kind == "workload" and not operator.workload.pass_rows) or kind in (
            "key_sample",
            "range_boundaries",
        ):
            rows = []
    return rows


def _subtasks(graph: JobGraph, index: JobGraphIndex, told: Mapping[str, int]) -> dict[str, int]:
    """Number of subtasks of each vertex, as far as it is known."""
    known: dict[str, int] = {}
    for vertex in graph.vertices:
        forwarded = [
            known[edge.source_vertex_id]
            for edge in index.inputs[vertex.vertex_id]
            if index.distribution(edge).kind == DISTRIBUTION_KIND_FORWARD
        ]
        count = vertex.parallelism or max(forwarded, default=0)
        known[vertex.vertex_id] = count or told.get(vertex.vertex_id, 0)
    return known


def _count(subtasks: Mapping[str, int], vertex: JobVertex) -> int:
    count = subtasks[vertex.vertex_id]
    if not count:
        raise ValueError(
            f"the number of subtasks of vertex {vertex.vertex_id} ({vertex.name}) decides how often"
            " rows are written: give its parallelism"
        )
    return count


# ------------------------------------------------------------------ what the output is


@dataclass(frozen=True, slots=True)
class CommittedOutput:
    """What stands at the final paths of a job's sinks.

    Attributes:
        ids: identities of the rows, sorted.
        mixed: (place of the vertex in the graph, subtask) of each subtask of an indeterminate
            vertex whose rows come from more than one of its attempts.
    """

    ids: list[int]
    mixed: list[tuple[int, int]]


def committed_output(storage: SimulatedStorage, graph: JobGraph) -> CommittedOutput:
    """The committed output on the storage that all hosts share, faults of that storage aside."""
    rows: list[tuple[int, int]] = []
    for directory in sink_directories(graph):
        for content in _committed_files(storage, directory):
            rows += parse_sink_content(content)
    makers: dict[tuple[int, int], dict[int, None]] = {}
    for _, maker in rows:
        if maker:
            makers.setdefault(maker_subtask(maker), {})[maker] = None
    mixed = [subtask for subtask, different in sorted(makers.items()) if len(different) > 1]
    return CommittedOutput(sorted(row for row, _ in rows), mixed)


def _committed_files(storage: SimulatedStorage, directory: str) -> Iterator[bytes]:
    try:
        entries = storage.directory(directory).entries
    except OSError:
        return  # nothing was committed
    for name, node in sorted(entries.items()):
        if name.startswith("part-") and isinstance(node, FileNode):
            yield bytes(node.data)


def sink_directories(graph: JobGraph) -> Iterable[str]:
    """The output directories of a job, in the order of its vertices."""
    for vertex in graph.vertices:
        if vertex.operators[-1].HasField("sink"):
            yield posixpath.normpath(vertex.operators[-1].sink.path)
