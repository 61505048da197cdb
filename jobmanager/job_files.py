"""What one job does with files: it finds splits and publishes output. Each outcome is a signal.

Storage that fails at present is tried again until it works; the job waits, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdover.runtime import Disk
from holdover.runtime.log import Log
from holdover.v1 import job_pb2
from jobmanager import sink_commit
from jobmanager.job_store import JobStore
from jobmanager.leading import Leading
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.split_enumeration import SourceUnreadable, enumerate_splits
from jobmanager.staging import Staging

RETRY_DELAY_S = 0.5
RETRY_DELAY_S_MAX = 10.0
#: Nothing runs before there is something to stage in, unless storage takes so long.
STAGING_WAIT_S = 5.0

_log = Log(__name__)


class JobFiles:
    """The sources and sinks of one job, as its JobMaster deals with them."""

    def __init__(
        self,
        disk: Disk,
        store: JobStore,
        graph: job_pb2.JobGraph,
        split_bytes_max: int,
        leading: Leading,
    ) -> None:
        """`leading` is asked before anything is deleted that a successor could have written."""
        self._leading = leading
        self._disk = disk
        self._store = store
        self._graph = graph
        self._split_bytes_max = split_bytes_max
        self._output_directories = [path for path, _ in sink_commit.sinks_of(graph)]
        directories = [
            sink_commit.staging_directory(path, graph.job_id) for path in self._output_directories
        ]
        has_ended = functools.partial(store.has_ended, graph.job_id)
        self._staging = Staging(disk, directories, leading, has_ended)
        self._staging_was_tried = asyncio.Event()

    async def until_it_works(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat something that storage refuses at present, with growing pauses."""
        delay_s = RETRY_DELAY_S
        while True:
            try:
                return await work()
            except OSError as error:
                job_id = self._graph.job_id
                _log.warning("storage fails, will retry", job=job_id, what=what, error=error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)

    async def enumerate_splits(self, action: act.EnumerateSplits) -> sig.Signal:
        """Find the splits of a source."""
        try:
            splits = await enumerate_splits(
                self._disk, action.source, action.splits_wanted, self._split_bytes_max
            )
        except SourceUnreadable as error:
            return sig.SplitEnumerationFailed(action.vertex_id, str(error))
        return sig.SplitsEnumerated(action.vertex_id, splits)

    async def make_staging(self, graph: ExecutionGraph) -> None:
        """Make what tasks stage in, unless none will; however long storage refuses it."""
        ends = graph.cancel_requested or graph.failure is not None or graph.commit is not None

        async def make() -> None:
            try:
                if not ends:
                    await self._staging.make()
            finally:
                self._staging_was_tried.set()

        await self.until_it_works("making staging directories", make)

    async def make_staging_again(self) -> None:
        """Make what is missing of it, should somebody have deleted it; not again when it fails."""
        try:
            await self._staging.make()
        except OSError as error:
            _log.warning("cannot make staging directories", job=self._graph.job_id, error=error)

    def expect_staging(self) -> None:
        """A leader before has made them, most likely: there is no need to wait."""
        self._staging_was_tried.set()

    async def staging_was_tried(self) -> None:
        """Wait until those directories are there, or storage refuses it, or hangs."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STAGING_WAIT_S):
                await self._staging_was_tried.wait()

    async def check_staged(self, action: act.CheckStagedFiles) -> sig.Signal:
        """Look whether all files to be committed are there. If not, and somebody has deleted them
        with the directories, these are made again."""
        missing: tuple[str, ...] = ()

        async def look() -> None:
            nonlocal missing
            missing = await sink_commit.missing_staged_files(self._disk, action.files)
            if missing:
                await self._staging.make()

        await self.until_it_works("looking for staged files", look)
        return sig.StagedFilesChecked(missing)

    async def commit(self, action: act.CommitSinks) -> sig.Signal:
        """Publish the output; the intent is durable already."""
        await self._staging.close()
        try:
            await self.until_it_works(
                "publishing the output",
                lambda: sink_commit.publish(
                    self._disk,
                    self._graph.job_id,
                    action.files,
                    action.output_directories,
                    self._leading,
                ),
            )
        except sink_commit.CommitImpossible as error:
            return sig.CommitFailed(str(error))
        return sig.CommitFinished()

    async def begin_anew(self, leader_epoch: int) -> None:
        """The job starts from its beginning: what was published of it is no output. Raises
        OSError."""
        await self._store.mark_begun_anew(self._graph.job_id, leader_epoch)
        sinks = sink_commit.sinks_of(self._graph)
        await sink_commit.withdraw(self._disk, sinks, self._leading)

    async def remove_staging(self) -> None:
        """Delete what attempts have staged for sinks; nothing of it will be published."""
        await self._staging.close()

        async def remove() -> None:
            await self._leading.certain()
            await sink_commit.remove_staging(
                self._disk, self._graph.job_id, self._output_directories
            )

        await self.until_it_works("removing staged files", remove)
