"""Submits a job that is built of nothing but messages, and prints its id.

    python -m examples.client.submit --address 127.0.0.1:6123 JOB_ID OUTPUT [SECONDS]

Eight subtasks make rows, SECONDS each (default: 1), two count them into OUTPUT (a directory). The
same JOB_ID with the same job is the same submission: run it twice, and there is one job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from examples.client import arguments
from holdover.v1.job_pb2 import (
    Determinism,
    Distribution,
    DistributionKind,
    FileFormat,
    IntermediateDataSet,
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    Sink,
    Sql,
    SqlInput,
    Workload,
)
from holdover.v1.jobmanager_pb2 import SubmitHeader, SubmitJobRequest

_CHUNK_BYTES = 1 << 20
_PRODUCERS, _CONSUMERS, _ROWS = 8, 2, 100


def graph(job_id: str, output: str, seconds: float) -> JobGraph:
    """Two vertices, and a hash exchange between them."""
    rows = Workload(seconds=seconds, output_bytes=100_000, rows=_ROWS)
    make = Operator(name="make rows", determinism=Determinism.DETERMINISM_DETERMINATE)
    make.workload.CopyFrom(rows)
    count = Operator(
        name="count",
        determinism=Determinism.DETERMINISM_DETERMINATE,
        sql=Sql(
            query="select count(*) as n from input",
            inputs=[SqlInput(name="input", vertex_input=0)],
        ),
    )
    write = Operator(
        name="write",
        determinism=Determinism.DETERMINISM_DETERMINATE,
        sink=Sink(format=FileFormat.FILE_FORMAT_CSV, path=output),
    )
    by_value = Distribution(kind=DistributionKind.DISTRIBUTION_KIND_HASH, keys=["value"])
    producer = JobVertex(vertex_id="v0", name="make rows", parallelism=_PRODUCERS)
    producer.operators.append(make)
    producer.outputs.append(IntermediateDataSet(distribution=by_value, subpartitions=_CONSUMERS))
    consumer = JobVertex(vertex_id="v1", name="count -> write", parallelism=_CONSUMERS)
    consumer.operators.extend([count, write])
    return JobGraph(
        job_id=job_id,
        name="submitted by a script",
        vertices=[producer, consumer],
        edges=[JobEdge(source_vertex_id="v0", target_vertex_id="v1")],
    )


def messages(job: JobGraph, epoch: int) -> Iterator[SubmitJobRequest]:
    """A submission: the header, then the graph in chunks."""
    content = job.SerializeToString(deterministic=True)
    yield SubmitJobRequest(
        header=SubmitHeader(
            leader_epoch=epoch,
            job_id=job.job_id,
            graph_bytes=len(content),
            graph_crc32c=google_crc32c.value(content),
        )
    )
    for start in range(0, len(content), _CHUNK_BYTES):
        yield SubmitJobRequest(chunk=content[start : start + _CHUNK_BYTES])


def main() -> int:
    """The script."""
    parser = arguments.parser(__doc__)
    parser.add_argument("job_id")
    parser.add_argument("output", type=Path)
    parser.add_argument("seconds", type=float, nargs="?", default=1.0)
    given = parser.parse_args()
    job = graph(given.job_id, str(given.output.absolute()), given.seconds)
    with arguments.leader(given) as leader:
        answer = leader.call(lambda stub: stub.SubmitJob(messages(job, leader.epoch), timeout=10))
    print(answer.job_id, "(was submitted before)" if answer.already_submitted else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
