"""Small JobGraphs for tests, built field by field without the API."""

from __future__ import annotations

from holdover.v1 import job_pb2
from holdover.v1.job_pb2 import (
    DETERMINISM_DETERMINATE,
    DISTRIBUTION_KIND_BROADCAST,
    DISTRIBUTION_KIND_FORWARD,
    DISTRIBUTION_KIND_HASH,
    DISTRIBUTION_KIND_RANGE,
    DISTRIBUTION_KIND_REBALANCE,
    JobGraph,
    JobVertex,
    Operator,
)


def operator(**kind: object) -> Operator:
    return Operator(name="op", determinism=DETERMINISM_DETERMINATE, **kind)  # type: ignore[arg-type]


def source() -> Operator:
    return operator(source=job_pb2.Source(text=job_pb2.TextSource(glob="/in/*.txt")))


def sql(*tables: tuple[str, int]) -> Operator:
    inputs = [job_pb2.SqlInput(name=name, vertex_input=number) for name, number in tables]
    return operator(sql=job_pb2.Sql(query="select 1 from input", inputs=inputs))


def function() -> Operator:
    return operator(function=job_pb2.PythonFunction(reference="m:f"))


def sink(path: str = "/out") -> Operator:
    return operator(sink=job_pb2.Sink(format=job_pb2.FILE_FORMAT_CSV, path=path))


def vertex(graph: JobGraph, *operators: Operator, parallelism: int = 0) -> JobVertex:
    return graph.vertices.add(
        vertex_id=f"v{len(graph.vertices)}", parallelism=parallelism, operators=operators
    )


def join(
    graph: JobGraph,
    producer: int,
    consumer: int,
    kind: job_pb2.DistributionKind.ValueType = DISTRIBUTION_KIND_HASH,
    *,
    target_input: int = 0,
    subpartitions: int = 0,
) -> None:
    keyed = kind in (DISTRIBUTION_KIND_HASH, DISTRIBUTION_KIND_RANGE)
    many = keyed or kind == DISTRIBUTION_KIND_REBALANCE
    output = graph.vertices[producer].outputs.add(subpartitions=subpartitions or (8 if many else 1))
    output.distribution.kind = kind
    output.distribution.keys.extend(["k"] if keyed else [])
    graph.edges.add(
        source_vertex_id=f"v{producer}",
        source_output=len(graph.vertices[producer].outputs) - 1,
        target_vertex_id=f"v{consumer}",
        target_input=target_input,
    )


def valid() -> JobGraph:
    """v0: text and lines source; v1: lookup source; v2: hash and broadcast join; v3: sink."""
    graph = JobGraph(job_id="job-1", name="a job")
    vertex(graph, source(), function(), parallelism=2)
    vertex(graph, source())
    vertex(graph, sql(("input", 0), ("p", 1)), parallelism=4)
    vertex(graph, sink())
    join(graph, 0, 2)
    join(graph, 1, 2, DISTRIBUTION_KIND_BROADCAST, target_input=1)
    join(graph, 2, 3, DISTRIBUTION_KIND_FORWARD)
    return graph


def ranged() -> JobGraph:
    """v0 source; v1 sample; v2 boundaries; v3 spreads v0 by range; v4 reads the ranges."""
    graph = JobGraph(job_id="job-1")
    vertex(graph, source(), parallelism=2)
    vertex(graph, operator(key_sample=job_pb2.KeySample(keys=["k"], rows_max=10)), parallelism=2)
    boundaries = operator(range_boundaries=job_pb2.RangeBoundaries(keys=["k"], ranges=8))
    vertex(graph, boundaries, parallelism=1)
    vertex(graph, function(), parallelism=2)
    vertex(graph, function())
    join(graph, 0, 1, DISTRIBUTION_KIND_FORWARD)
    join(graph, 1, 2, DISTRIBUTION_KIND_BROADCAST)
    join(graph, 0, 3, DISTRIBUTION_KIND_FORWARD)
    join(graph, 2, 3, DISTRIBUTION_KIND_BROADCAST, target_input=1)
    join(graph, 3, 4, DISTRIBUTION_KIND_RANGE)
    graph.vertices[3].outputs[0].distribution.boundaries_input = 1
    return graph
