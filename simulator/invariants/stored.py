"""What lies on storages, looked at from outside of the world: no time, no faults, no process."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import cast

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Disk, Entry, FileStat
from holdover.v1.archive_pb2 import ArchivedJob
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.job_pb2 import JobGraph
from jobmanager.job_store import JobStore
from jobmanager.sink_commit import sinks_of
from shuffle.finished_record import RECORD_SUFFIX, RecordDamaged, decode_record, index_is
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, partition_base
from shuffle.stocktaking import check_sizes
from simulator.invariants.view import ClusterView, WorkerView, at_once
from simulator.world.medium import DirectoryNode, FileNode
from simulator.world.storage import SimulatedStorage


def archived(view: ClusterView, job_id: str) -> ArchivedJob | None:
    """How a job has ended, once that is on the shared storage.

    Raises `StorageError` when the file is damaged.
    """
    return at_once(JobStore(view.shared, view.storage_directory).read_archive(job_id))


def files_below(disk: Disk, directory: str) -> Iterator[str]:
    """Paths of all files in a directory and below it, sorted; none when it does not exist."""
    if at_once(disk.stat(directory)) is None:
        return
    for entry in at_once(disk.list_directory(directory)):
        path = posixpath.join(directory, entry.name)
        if entry.is_directory:
            yield from files_below(disk, path)
        else:
            yield path


def exists(disk: Disk, path: str) -> bool:
    """Whether there is a file or directory of that path."""
    return at_once(disk.stat(path)) is not None


def output_directories(graph: JobGraph) -> list[str]:
    """Where the sinks of a job publish."""
    return [directory for directory, _ in sinks_of(graph)]


def lives(worker: WorkerView | None, key: AttemptKey) -> bool:
    """Whether a finished attempt is held by a living TaskManager with all files of its
    partitions."""
    execution = worker.finished.get(key) if worker is not None else None
    return worker is not None and execution is not None and _files_there(worker, key, execution)


def whole(worker: WorkerView, key: AttemptKey) -> bool:
    """Whether a worker holds a finished attempt with all files of its partitions, and their data
    are as long as they were when it finished."""
    execution = worker.finished.get(key)
    if execution is None or not _files_there(worker, key, execution):
        return False
    for partition in execution.partitions:
        base = partition_base(worker.shuffle_directory, partition_name(key, partition.output))
        data = at_once(worker.disk.stat(base + DATA_SUFFIX))
        if data is None or data.bytes != partition.data_bytes:
            return False
    return True


def whole_attempts(disk: Disk, shuffle_directory: str) -> list[AttemptKey]:
    """Finished attempts of which a TaskManager that starts on this directory has all files, as
    they were when they finished."""
    if not exists(disk, shuffle_directory):
        return []
    jobs = (e.name for e in at_once(disk.list_directory(shuffle_directory)) if e.is_directory)
    return [key for job_id in jobs for key in _whole_attempts_of(disk, shuffle_directory, job_id)]


def _whole_attempts_of(disk: Disk, root: str, job_id: str) -> Iterator[AttemptKey]:
    listed = at_once(disk.list_directory(posixpath.join(root, job_id)))
    entries = {entry.name: entry for entry in listed}
    for name in entries:
        if not name.endswith(RECORD_SUFFIX):
            continue
        record = f"{job_id}/{name}"
        try:
            key, execution = decode_record(at_once(disk.read(posixpath.join(root, record))), record)
            check_sizes(key, execution, entries)
        except RecordDamaged:
            continue
        bases = (
            (partition_base(root, partition_name(key, p.output)), p.index_crc32c)
            for p in execution.partitions
        )
        if all(index_is(at_once(disk.read(base + INDEX_SUFFIX)), crc) for base, crc in bases):
            yield key


def _files_there(worker: WorkerView, key: AttemptKey, execution: FinishedExecution) -> bool:
    return all(
        exists(worker.disk, partition_base(worker.shuffle_directory, name) + suffix)
        for name in (partition_name(key, p.output) for p in execution.partitions)
        for suffix in (INDEX_SUFFIX, DATA_SUFFIX)
    )


class StoredFiles:
    """What is on a storage, past its faults and whether it has power or not; for reading."""

    def __init__(self, storage: SimulatedStorage) -> None:
        self._storage = storage

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        data = self._storage.file(path).data
        return bytes(data[offset:] if length is None else data[offset : offset + length])

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        return [
            Entry(name, isinstance(node, DirectoryNode), _size_bytes(node))
            for name, node in sorted(self._storage.directory(path).entries.items(), key=_name)
        ]

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        try:
            node = self._storage.node(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(path, _size_bytes(node), isinstance(node, DirectoryNode))


def as_it_is(storage: SimulatedStorage) -> Disk:
    """A storage to be looked at by invariants: see `StoredFiles`."""
    return cast(Disk, StoredFiles(storage))


def _size_bytes(node: FileNode | DirectoryNode) -> int:
    return 0 if isinstance(node, DirectoryNode) else node.size_bytes


def _name(entry: tuple[str, object]) -> str:
    return entry[0]
