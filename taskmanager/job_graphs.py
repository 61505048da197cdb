"""Job graphs as tasks need them: one file a job, fetched once however many attempts start."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.rpc_call import CallFailed
from holdover.errors import ConfigurationError
from holdover.runtime import Disk
from holdover.runtime.log import Log
from holdover.v1.common_pb2 import ConfigEntry
from holdover.v1.job_pb2 import JobGraph

_log = Log(__name__)

#: What a task process is told of the configuration, resolved for its job.
_TASK_OPTIONS = (
    options.SHUFFLE_COMPRESSION,
    options.SHUFFLE_FETCH_RETRY_TIMEOUT,
    options.SHUFFLE_WRITE_BUFFER_SIZE,
    options.TASKMANAGER_MEMORY_TASK_SIZE,
)


class JobGraphUnavailable(Exception):
    """The graph cannot be fetched, stored or understood; the text says why."""


@dataclass(frozen=True, slots=True)
class CachedJobGraph:
    """A job's graph on this machine, and what the TaskManager itself must know of it.

    `outputs` is the number of data sets by vertex; `sink_paths` the output directories by vertex,
    for vertices that have sinks.
    """

    path: str
    recovery_enabled: bool
    task_options: tuple[ConfigEntry, ...]
    outputs: dict[str, int]
    sink_paths: dict[str, tuple[str, ...]]


class JobGraphs:
    """The cache. `fetch` reads the serialized graph of a job; it raises `CallFailed`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        configuration: Configuration,
        fetch: Callable[[str], Awaitable[bytes]],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._configuration = configuration
        self._fetch = fetch
        self._cached: dict[str, CachedJobGraph] = {}
        #: Jobs that recover, as is known without their graph.
        self._recovering: dict[str, None] = {}
        self._fetching: dict[str, asyncio.Task[CachedJobGraph]] = {}
        #: Files that are being written: unlike a fetch, a write ends by itself only.
        self._writing: dict[str, asyncio.Task[None]] = {}

    def cached(self, job_id: str) -> CachedJobGraph | None:
        """The graph, when it is here already."""
        return self._cached.get(job_id)

    def recovery_enabled(self, job_id: str) -> bool:
        """Whether the job wants its finished work kept; the job carries the option itself."""
        graph = self._cached.get(job_id)
        if job_id in self._recovering:
            return True
        if graph is None:
            return self._configuration.get(options.BATCH_JOB_RECOVERY_ENABLED)
        return graph.recovery_enabled

    def note_recovery_enabled(self, job_id: str) -> None:
        """The job has left records of finished work, as only one with recovery does."""
        self._recovering[job_id] = None

    async def get(self, job_id: str) -> CachedJobGraph:
        """The graph, fetched when it is not here yet. Raises `JobGraphUnavailable`.

        Concurrent callers share one fetch, which goes on when one of them gives up.
        """
        cached = self._cached.get(job_id)
        if cached is not None:
            return cached
        fetching = self._fetching.get(job_id)
        if fetching is None:
            fetching = asyncio.ensure_future(self._load(job_id))
            # Its outcome counts as looked at even when all who waited for it have gone.
            fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._fetching[job_id] = fetching
        await asyncio.wait([fetching])
        return fetching.result()

    async def stop_fetching(self, job_id: str) -> None:
        """Those who wait for the job's graph get `JobGraphUnavailable`."""
        fetching = self._fetching.get(job_id)
        if fetching is not None:
            fetching.cancel()
            await asyncio.wait([fetching])
        writing = self._writing.get(job_id)
        if writing is not None:
            await asyncio.wait([writing])

    async def forget(self, job_id: str) -> None:
        """Delete the graph of a job that has ended here. Raises `OSError`."""
        self._recovering.pop(job_id, None)
        cached, writing = self._cached.pop(job_id, None), self._writing.pop(job_id, None)
        if cached is not None or writing is not None:
            await self._disk.remove(self._path(job_id), missing_ok=True)

    async def close(self) -> None:
        """Stop all fetches."""
        fetches = list(self._fetching.values())
        for fetching in fetches:
            fetching.cancel()
        if fetches:
            await asyncio.wait(fetches)

    def _path(self, job_id: str) -> str:
        return posixpath.join(self._directory, f"{job_id}.pb")

    async def _load(self, job_id: str) -> CachedJobGraph:
        try:
            data = await self._fetch(job_id)
            cached = self._understand(job_id, data)
            await self._write(job_id, cached.path, data)
        except asyncio.CancelledError as error:
            # Those who wait for it are not cancelled themselves: they get an error they can report.
            raise JobGraphUnavailable(f"the job {job_id} was released meanwhile") from error
        except (CallFailed, OSError, DecodeError, ConfigurationError) as error:
            raise JobGraphUnavailable(f"cannot get the graph of job {job_id}: {error}") from error
        finally:
            self._fetching.pop(job_id, None)
        self._cached[job_id] = cached
        _log.info("job graph fetched", job_id=job_id, bytes=len(data))
        return cached

    async def _write(self, job_id: str, path: str, data: bytes) -> None:
        """Store a graph. When this is cancelled, the write is left for `forget` to undo."""
        writing = asyncio.ensure_future(self._disk.publish(path, data))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._writing[job_id] = writing
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done():
                del self._writing[job_id]

    def _understand(self, job_id: str, data: bytes) -> CachedJobGraph:
        graph = JobGraph.FromString(data)
        configuration = self._configuration.with_overrides(graph.options)
        return CachedJobGraph(
            path=self._path(job_id),
            recovery_enabled=configuration.get(options.BATCH_JOB_RECOVERY_ENABLED),
            task_options=tuple(configuration.to_entries(*_TASK_OPTIONS)),
            outputs={vertex.vertex_id: len(vertex.outputs) for vertex in graph.vertices},
            sink_paths={
                vertex.vertex_id: paths
                for vertex in graph.vertices
                if (paths := tuple(o.sink.path for o in vertex.operators if o.HasField("sink")))
            },
        )
