"""Publishing the output of a job: by renaming, each file once, and a `_SUCCESS` file at the end.

The protocol (P45): `JobCommitStarted` with the list of files is durable before the first rename. A
commit that a JobManager's death interrupted is taken up by the next one from the same list, and
resolved by looking: a file that is staged is renamed, one that is not staged but published was
renamed before. No other attempt's files are ever touched.

A leader that is frozen meanwhile does the operation that it has begun when it wakes; its successor
may have finished by then. So every operation, done after all others, changes nothing: nothing is
made in the staging directory, which would bring it back, and what is made of the output is made
only where it is missing. A successor that cannot go on with the commit, since the job has no log,
runs the job again: what is not begun yet is done only by who leads for certain.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from holdover.runtime import Disk
from holdover.v1 import common_pb2, job_pb2
from jobmanager.leading import Leading

SUCCESS_FILE = "_SUCCESS"


class CommitImpossible(Exception):
    """A file to be published is neither staged nor published, or the directory holds foreign
    files.
    """


def staging_directory(output_directory: str, job_id: str) -> str:
    """Where the attempts of a job stage their files for one sink."""
    return posixpath.join(output_directory, f".staging-{job_id}")


def sinks_of(graph: job_pb2.JobGraph) -> list[tuple[str, str]]:
    """Output directory and vertex id of each sink."""
    return [
        (operator.sink.path, vertex.vertex_id)
        for vertex in graph.vertices
        for operator in vertex.operators
        if operator.HasField("sink")
    ]


async def missing_staged_files(
    disk: Disk, files: Iterable[common_pb2.StagedFile]
) -> tuple[str, ...]:
    """The staged paths that do not exist or have another size than was reported."""
    missing = []
    for file in files:
        found = await disk.stat(file.staged_path)
        if found is None or found.bytes != file.bytes:
            missing.append(file.staged_path)
    return tuple(missing)


async def foreign_file(
    disk: Disk, output_directories: Iterable[str], expected: frozenset[str] = frozenset()
) -> str | None:
    """A file in an output directory that is neither staging nor in `expected`; None if there is
    none.
    """
    for directory in output_directories:
        if await disk.stat(directory) is None:
            continue
        for entry in await disk.list_directory(directory):
            path = posixpath.join(directory, entry.name)
            if not entry.name.startswith(".staging-") and path not in expected:
                return path
    return None


async def publish(
    disk: Disk,
    job_id: str,
    files: Iterable[common_pb2.StagedFile],
    output_directories: Iterable[str],
    leading: Leading,
) -> None:
    """Publish all files of all sinks, then mark each output directory; may be repeated at any
    point. Waits, before each operation, until this process is certain that it leads.

    Raises:
        CommitImpossible: the output cannot be completed from what is there.
        OSError: storage does not work at present; to be tried again.
    """
    files, directories = tuple(files), tuple(output_directories)
    success = {posixpath.join(directory, SUCCESS_FILE) for directory in directories}
    expected = frozenset(success | {file.final_path for file in files})
    foreign = await foreign_file(disk, directories, expected)
    if foreign is not None:
        raise CommitImpossible(
            f"{foreign} was written into the output directory by somebody else while the job ran; "
            "nothing more is published there"
        )
    for file in files:
        if await disk.stat(file.staged_path) is not None:
            await leading.certain()
            await disk.rename(file.staged_path, file.final_path)
            continue
        published = await disk.stat(file.final_path)
        if published is None or published.bytes != file.bytes:
            raise CommitImpossible(
                f"{file.final_path} cannot be published: {file.staged_path} is gone"
            )
    for directory in directories:
        await disk.make_directories(directory)
        await disk.sync_directory(directory)
    # The success marks come last: each one says that the output of all sinks is complete.
    for directory in directories:
        await leading.certain()
        await _mark(disk, directory)
    await leading.certain()
    await remove_staging(disk, job_id, directories)


async def _mark(disk: Disk, output_directory: str) -> None:
    """Publish a success mark: an empty file, which is there or is not, and needs no staging.

    A leader that was frozen may do this, or begin it, after its successor has done all: then there
    is a mark already, and this changes nothing.
    """
    mark = await disk.open_append(posixpath.join(output_directory, SUCCESS_FILE))
    try:
        await mark.sync()
    finally:
        await mark.close()
    await disk.sync_directory(output_directory)


async def withdraw(disk: Disk, sinks: Iterable[tuple[str, str]], leading: Leading) -> None:
    """Delete what was published of a job that starts from its beginning: another run of it may
    publish other files, or none.

    Its output directories were empty when it was submitted, so what has its names there is its own.

    Args:
        disk: shared storage.
        sinks: (output directory, id of the vertex that writes there) of each sink.
        leading: asked before each file is deleted: a leader that was frozen over this would
            delete, when it wakes, what its successor has published.

    Raises OSError, LeadershipLost.
    """
    for directory, vertex_id in sinks:
        if await disk.stat(directory) is None:
            continue
        names = [entry.name for entry in await disk.list_directory(directory)]
        published = [name for name in names if name.startswith(f"part-{vertex_id}-")]
        # The mark goes first: with it the output would look complete.
        marked = [name for name in names if name == SUCCESS_FILE]
        for name in (*marked, *published):
            await leading.certain_or_over()
            await disk.remove(posixpath.join(directory, name), missing_ok=True)
        if marked or published:
            await disk.sync_directory(directory)


async def remove_staging(disk: Disk, job_id: str, output_directories: Iterable[str]) -> None:
    """Delete what attempts of the job have staged; an output directory that is then empty stays.

    When this returns it is durable: nobody looks there again once the job's end is recorded.
    """
    for directory in output_directories:
        await disk.remove_tree(staging_directory(directory, job_id), missing_ok=True)
        if await disk.stat(directory) is not None:
            await disk.sync_directory(directory)


async def discard(disk: Disk, graph: job_pb2.JobGraph, leading: Leading) -> None:
    """Delete all that a job that is given up, and of which nothing runs, has staged or published.

    May be repeated at any point; see `withdraw`. Raises OSError.
    """
    sinks = sinks_of(graph)
    await withdraw(disk, sinks, leading)
    await leading.certain_or_over()
    await remove_staging(disk, graph.job_id, [directory for directory, _ in sinks])
