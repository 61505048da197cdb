"""What a modelled task leaves on disks: partitions, and staged files of a sink.

MODEL: the names and the order of writing are the real ones (data before index, all partitions
before the attempt's record, staged files synced before they are reported, and staged only where the
JobManager has made a directory); the contents are row identities. A file counts as large as a real
one would be: that fills the disk. See `simulator.world.rows` for partitions; a sink's file is text
or CSV with the identities, and who made each row where that is known, whatever its format says.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution, StagedFile
from holdover.v1.job_pb2 import FileFormat, JobVertex, Sink
from holdover.v1.taskmanager_pb2 import RunTask
from shuffle.finished_record import encode_record, record_path
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX
from simulator.world.disk import NewFile, ProcessDisk
from simulator.world.modelled_puts import PutPartition, put_attempt
from simulator.world.modelled_vertex import TaskOutcome
from simulator.world.process import Process
from simulator.world.rows import ModelledPartition, Rows, index_checksum

if TYPE_CHECKING:
    from simulator.world.world import World

_EXTENSIONS: dict[int, str] = {
    FileFormat.FILE_FORMAT_TEXT: "txt",
    FileFormat.FILE_FORMAT_CSV: "csv",
    FileFormat.FILE_FORMAT_PARQUET: "parquet",
}


class OutputWriter:
    """Writes the output of one attempt. Raises the disk's `OSError`."""

    def __init__(
        self, world: World, process: Process, disk: ProcessDisk, key: AttemptKey, run: RunTask
    ) -> None:
        self._world = world
        self._process = process
        self._disk = disk
        self._key = key
        self._run = run

    async def write(
        self, vertex: JobVertex, outcome: TaskOutcome, finished: FinishedExecution
    ) -> None:
        """Publish a partition for each output of the vertex, and name it in `finished`; then the
        attempt's record, where one is wanted. Where the deployment names a shuffle service, all
        goes there instead; raises OutputRefused when it is not taken."""
        target = self._run.deployment.shuffle_target.data_address
        files: list[NewFile] = []
        puts: list[PutPartition] = []
        for output, data_set in enumerate(vertex.outputs):
            partition = ModelledPartition.of(
                outcome.rows,
                data_set.distribution.kind,
                self._run.deployment.output_subpartitions[output],
                self._key.subtask,
                outcome.output_bytes,
            )
            index, data = partition.encode()
            name = partition_name(self._key, output)
            base = f"{self._run.shuffle_directory}/{name}"
            n_bytes = max(partition.data_bytes, len(data))
            puts.append(PutPartition(name, index, data, n_bytes))
            files += [
                NewFile(base + DATA_SUFFIX, data, partition.data_bytes),
                NewFile(base + INDEX_SUFFIX, index, 0),
            ]
            finished.partitions.add(
                output=output,
                subpartition_bytes=partition.subpartition_bytes(),
                rows=len(partition.rows),
                data_bytes=n_bytes,
                index_crc32c=index_checksum(index),
            )
        if target:
            await put_attempt(self._world, self._process, target, puts, finished)
            return
        if self._run.record_finished:
            path = record_path(self._run.shuffle_directory, self._key)
            files.append(NewFile(path, encode_record(finished), 0))
        if files:
            await self._make_directory(posixpath.dirname(files[0].path))
            await self._disk.write_files(files)

    async def stage(self, sink: Sink, outcome: TaskOutcome) -> StagedFile:
        """Write the attempt's file of a sink, durably."""
        key = self._key
        attempt = f"{key.vertex_id}-{key.subtask}-{key.attempt}-{key.epoch}"
        directory = posixpath.join(sink.path, f".staging-{key.job_id}", attempt)
        extension = _EXTENSIONS.get(sink.format, "txt")
        path = posixpath.join(directory, f"part-{key.subtask:05d}.{extension}")
        content = sink_content(outcome.rows, sink.format)
        await self._disk.make_directory(directory)
        await self._disk.publish(path, content)
        size = self._count_as(path, len(content), outcome.output_bytes)
        final = f"part-{key.vertex_id}-{key.subtask:05d}.{extension}"
        return StagedFile(
            staged_path=path,
            final_path=posixpath.join(sink.path, final),
            bytes=size,
            rows=len(outcome.rows),
        )

    async def _make_directory(self, path: str) -> None:
        """Most often another attempt of the job has made it: that takes no time."""
        storage = self._world.storages.device(self._process.host, path).storage
        try:
            storage.directory(path)
        except OSError:
            await self._disk.make_directories(path)

    def _count_as(self, path: str, content_bytes: int, n_bytes: int) -> int:
        """Let a file count as a larger one; returns its size."""
        if n_bytes > content_bytes:
            device = self._world.storages.device(self._process.host, path)
            device.storage.model_size(path, n_bytes)
        return max(n_bytes, content_bytes)


def sink_content(rows: Rows, file_format: int) -> bytes:
    """The file of a sink, as `parse_sink_content` reads it."""
    lines = []
    if file_format != FileFormat.FILE_FORMAT_TEXT:
        lines.append('"value","maker"' if rows.makers else '"value"')
    if rows.makers:
        lines += [f"{i},{maker}" for i, maker in zip(rows.ids, rows.makers, strict=True)]
    else:
        lines += [str(i) for i in rows.ids]
    return "".join(f"{line}\n" for line in lines).encode()


def parse_sink_content(content: bytes) -> list[tuple[int, int]]:
    """Identity and maker (0: not known) of each row of a sink's file.

    Also of the CSV files of the real world, whose second column is payload. Raises ValueError.
    """
    rows = []
    for line in content.decode().splitlines():
        first, _, rest = line.partition(",")
        if first != '"value"':
            rows.append((int(first), int(rest) if rest.isdecimal() else 0))
    return rows
