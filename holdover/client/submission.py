"""A job on its way to the cluster: the same bytes under the same id at every attempt."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import google_crc32c

from holdover import ids
from holdover.config import check_job_option
from holdover.errors import InvalidJob
from holdover.runtime import Randomness
from holdover.v1.common_pb2 import ConfigEntry
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.jobmanager_pb2 import SubmitHeader, SubmitJobRequest

_CHUNK_BYTES = 1024 * 1024
_GRAPH_BYTES_MAX = 256 * 1024 * 1024
_RANDOM_BYTES = 4
_NAME_CHARACTERS_MAX = 40
# Storing a large graph durably takes the JobManager longer than answering a question.
_STORING_BYTES_PER_S = 8 * 1024 * 1024


class BuildsJobGraph(Protocol):
    """A `holdover.Job`."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def build(self, job_id: str) -> JobGraph:
        """The graph, under this id."""
        ...


def new_job_id(name: str, randomness: Randomness) -> str:
    """An id that nobody else chooses, and that people recognise the name in."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_CHARACTERS_MAX].strip("-")
    return ids.job_id(f"{stem or 'job'}-{randomness.token_hex(_RANDOM_BYTES)}")


class Submission:
    """One job, serialized once, that can be sent any number of times (P43)."""

    def __init__(self, graph: JobGraph) -> None:
        """Raises InvalidId for the graph's id, and InvalidJob for one that is too large."""
        self.job_id = ids.job_id(graph.job_id)
        self._graph = graph.SerializeToString(deterministic=True)
        if len(self._graph) > _GRAPH_BYTES_MAX:
            raise InvalidJob(
                f"the job graph has {len(self._graph)} bytes, more than {_GRAPH_BYTES_MAX}:"
                " read large data from files instead of carrying it in functions"
            )
        self._crc32c = int(google_crc32c.value(self._graph))

    @property
    def storing_s(self) -> float:
        """How long the JobManager may reasonably take to store it, seconds, on top of a call."""
        return len(self._graph) / _STORING_BYTES_PER_S

    async def requests(self, leader_epoch: int) -> AsyncIterator[SubmitJobRequest]:
        """The messages of one attempt."""
        header = SubmitHeader(
            leader_epoch=leader_epoch,
            job_id=self.job_id,
            graph_bytes=len(self._graph),
            graph_crc32c=self._crc32c,
        )
        yield SubmitJobRequest(header=header)
        for start in range(0, len(self._graph), _CHUNK_BYTES):
            yield SubmitJobRequest(chunk=self._graph[start : start + _CHUNK_BYTES])


def graph_to_submit(
    job: BuildsJobGraph | JobGraph,
    job_id: str | None,
    options: Mapping[str, str],
    randomness: Randomness,
) -> JobGraph:
    """The graph of `job` under its final id, with `options` winning over its own.

    The id is `job_id`, or the graph's own, or a new one. Raises InvalidId, InvalidJob,
    ConfigurationError.
    """
    if isinstance(job, JobGraph):
        graph = JobGraph()
        graph.CopyFrom(job)
        graph.job_id = job_id or job.job_id or new_job_id(job.name, randomness)
    else:
        graph = job.build(job_id or new_job_id(job.name, randomness))
    ids.job_id(graph.job_id)
    for key, value in options.items():
        check_job_option(key, value, f"-D {key}={value}")
    kept = [entry for entry in graph.options if entry.key not in options]
    del graph.options[:]
    graph.options.extend(kept)
    graph.options.extend(ConfigEntry(key=key, value=value) for key, value in options.items())
    return graph
