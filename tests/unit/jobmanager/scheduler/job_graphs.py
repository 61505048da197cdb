"""Small job graphs for scheduler tests."""

from __future__ import annotations

from holdover.v1 import job_pb2

HASH = job_pb2.DISTRIBUTION_KIND_HASH
BROADCAST = job_pb2.DISTRIBUTION_KIND_BROADCAST
FORWARD = job_pb2.DISTRIBUTION_KIND_FORWARD
REBALANCE = job_pb2.DISTRIBUTION_KIND_REBALANCE


def source(vertex_id: str, parallelism: int) -> job_pb2.JobVertex:
    """A source of numbers."""
    operator = job_pb2.Operator(
        name="source",
        determinism=job_pb2.DETERMINISM_DETERMINATE,
        source=job_pb2.Source(sequence=job_pb2.SequenceSource(start=0, end=8)),
    )
    return job_pb2.JobVertex(
        vertex_id=vertex_id, name=vertex_id, parallelism=parallelism, operators=[operator]
    )


def stage(
    vertex_id: str,
    parallelism: int,
    determinism: job_pb2.Determinism.ValueType = job_pb2.DETERMINISM_DETERMINATE,
) -> job_pb2.JobVertex:
    """A vertex that passes rows on."""
    operator = job_pb2.Operator(
        name="stage",
        determinism=determinism,
        function=job_pb2.PythonFunction(reference="module:function"),
    )
    return job_pb2.JobVertex(
        vertex_id=vertex_id, name=vertex_id, parallelism=parallelism, operators=[operator]
    )


def sink(vertex_id: str, parallelism: int) -> job_pb2.JobVertex:
    """A vertex that stages files."""
    vertex = stage(vertex_id, parallelism)
    vertex.operators.add(
        name="sink",
        determinism=job_pb2.DETERMINISM_DETERMINATE,
        sink=job_pb2.Sink(format=job_pb2.FILE_FORMAT_PARQUET, path="/out"),
    )
    return vertex


def connect(
    job: job_pb2.JobGraph,
    producer: str,
    consumer: str,
    kind: job_pb2.DistributionKind.ValueType,
    width: int,
) -> None:
    """Join two vertices by an exchange of `width` subpartitions, as the consumer's next input."""
    source_vertex = next(v for v in job.vertices if v.vertex_id == producer)
    distribution = job_pb2.Distribution(kind=kind, keys=["k"] if kind == HASH else [])
    source_vertex.outputs.add(distribution=distribution, subpartitions=width)
    inputs = sum(edge.target_vertex_id == consumer for edge in job.edges)
    job.edges.add(
        source_vertex_id=producer,
        source_output=len(source_vertex.outputs) - 1,
        target_vertex_id=consumer,
        target_input=inputs,
    )


def chain(parallelism: int, *, adaptive: bool = False, forward: bool = False) -> job_pb2.JobGraph:
    """CHAIN(n): source -> map -> sink, all exchanges blocking and all-to-all."""
    middle = 0 if adaptive else parallelism
    width = 6 if adaptive else parallelism
    job = job_pb2.JobGraph(
        job_id="job",
        vertices=[source("s", parallelism), stage("m", middle), sink("k", parallelism)],
    )
    if forward:
        connect(job, "s", "m", FORWARD, 1)
    else:
        connect(job, "s", "m", HASH, width)
    connect(job, "m", "k", HASH, parallelism)
    return job


def join(parallelism: int) -> job_pb2.JobGraph:
    """JOIN(n): s1 (shuffled) and s2 (broadcast, one subtask) -> j -> k."""
    job = job_pb2.JobGraph(
        job_id="job",
        vertices=[
            source("s1", parallelism),
            source("s2", 1),
            stage("j", parallelism),
            sink("k", parallelism),
        ],
    )
    connect(job, "s1", "j", HASH, parallelism)
    connect(job, "s2", "j", BROADCAST, 1)
    connect(job, "j", "k", HASH, parallelism)
    return job


def unrecorded(job: job_pb2.JobGraph, vertex_id: str = "s") -> job_pb2.JobGraph:
    """The same job, whose source does not record its splits."""
    vertex = next(v for v in job.vertices if v.vertex_id == vertex_id)
    vertex.operators[0].source.splits_unrecorded = True
    return job


def dealt_out(parallelism: int) -> job_pb2.JobGraph:
    """source -> unordered stage -> (rebalance) sink: a second run of the stage deals its rows out
    otherwise.
    """
    job = job_pb2.JobGraph(
        job_id="job",
        vertices=[
            source("s", parallelism),
            stage("m", parallelism, job_pb2.DETERMINISM_UNORDERED),
            sink("k", parallelism),
        ],
    )
    connect(job, "s", "m", HASH, parallelism)
    connect(job, "m", "k", REBALANCE, parallelism)
    return job
