"""What must hold when the jobs of a scenario have ended: right output, and nothing else left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdover.cli.real_cluster import RealCluster
from holdover.v1.job_pb2 import JobGraph
from simulator.workloads import expected_rows, sink_directories

OUTPUT = "the output equals that of a run without faults"
LEFTOVERS = "nothing of an ended job remains"
#: Beyond two heartbeats, after which every worker knows that a job has ended.
_CLEAN_UP_S = 10.0
_LOOK_S = 0.1
_LISTED_MAX = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that did not hold."""

    invariant: str
    text: str


def check_output(graph: JobGraph, parallelism: Mapping[str, int]) -> list[Problem]:
    """Whether the files of a finished job hold each row as often as they should.

    `parallelism` is the number of subtasks of each vertex, as it was decided.
    """
    problems = []
    rows: list[int] = []
    for directory in map(Path, sink_directories(graph)):
        if not (directory / "_SUCCESS").exists():
            text = f"job {graph.job_id} has finished, but {directory} has no _SUCCESS"
            problems.append(Problem(OUTPUT, text))
        staging = sorted(str(path) for path in directory.glob(".staging*"))
        if staging:
            problems.append(Problem(LEFTOVERS, f"there is {', '.join(staging)}"))
        rows += committed_rows(directory)
    missing = Counter(expected_rows(graph, parallelism))
    missing.subtract(rows)
    lost = sum(count for count in missing.values() if count > 0)
    surplus = -sum(count for count in missing.values() if count < 0)
    if lost or surplus:
        examples = [str(row) for row, count in sorted(missing.items()) if count][:_LISTED_MAX]
        text = f"job {graph.job_id}: {lost} rows lost, {surplus} too many, such as"
        problems.append(Problem(OUTPUT, f"{text} {', '.join(examples)}"))
    return problems


def committed_rows(directory: Path) -> list[int]:
    """Identities of the rows in the files of a sink."""
    import pyarrow.parquet as pq

    rows: list[int] = []
    for path in sorted(directory.glob("part-*.parquet")):
        rows.extend(pq.read_table(path, columns=["value"])["value"].to_pylist())
    return rows


async def check_leftovers(cluster: RealCluster, job_ids: Sequence[str]) -> list[Problem]:
    """Whether living workers delete ended jobs in the time that this takes at most."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + 2 * cluster.heartbeat_interval_s + _CLEAN_UP_S
    while True:
        left = await asyncio.to_thread(_files_of, cluster, job_ids)
        if not left:
            return []
        if loop.time() > deadline_s:
            more = f" and {len(left) - _LISTED_MAX} more" if len(left) > _LISTED_MAX else ""
            return [Problem(LEFTOVERS, f"there are {', '.join(left[:_LISTED_MAX])}{more}")]
        await asyncio.sleep(_LOOK_S)


def _files_of(cluster: RealCluster, job_ids: Sequence[str]) -> list[str]:
    """Files of these jobs on living workers."""
    directories = [
        cluster.place(name) / what / job_id
        for name in cluster.living(cluster.workers)
        for what in ("shuffle", "scratch")
        for job_id in job_ids
    ]
    return [str(path) for directory in directories for path in sorted(directory.rglob("*"))]
