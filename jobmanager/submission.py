"""What is looked at on storage before a submitted job is stored."""

from __future__ import annotations

import posixpath

from holdover.errors import JobGraphError
from holdover.runtime import Disk
from holdover.v1 import job_pb2
from jobmanager.sink_commit import foreign_file
from jobmanager.split_enumeration import SourceUnreadable, source_files


async def check_files(disk: Disk, graph: job_pb2.JobGraph) -> None:
    """What can be said about sources and sinks before anything runs.

    Raises:
        JobGraphError: names the field of a source that cannot be read, or of an output directory
        that is not empty.
    """
    for vertex_index, vertex in enumerate(graph.vertices):
        for index, operator in enumerate(vertex.operators):
            where = f"vertices[{vertex_index}].operators[{index}]"
            if operator.HasField("source") and not operator.source.HasField("sequence"):
                try:
                    await source_files(disk, operator.source)
                except SourceUnreadable as error:
                    kind = operator.source.WhichOneof("kind")
                    raise JobGraphError(f"{where}.source.{kind}.glob", str(error)) from error
            if operator.HasField("sink"):
                await _check_output(disk, f"{where}.sink.path", operator.sink.path)


async def _check_output(disk: Disk, field: str, path: str) -> None:
    try:
        await _check_is_directory(disk, field, path)
        foreign = await foreign_file(disk, (path,))
    except OSError as error:
        raise JobGraphError(
            field, f"the output directory {path!r} cannot be read: {error.strerror or error}"
        ) from error
    if foreign is not None:
        raise JobGraphError(
            field,
            f"the output directory {path!r} exists and is not empty (it holds {foreign!r}); "
            "choose another one or remove it",
        )


async def _check_is_directory(disk: Disk, field: str, path: str) -> None:
    """The output directory, or the nearest one above it that exists."""
    path = place = posixpath.normpath(path)
    while (found := await disk.stat(place)) is None:
        if place == posixpath.dirname(place):
            return
        place = posixpath.dirname(place)
    if found.is_directory:
        return
    if place == path:
        raise JobGraphError(field, f"the output {path!r} is a file; name a directory")
    raise JobGraphError(field, f"the output directory {path!r} cannot be made: {place!r} is a file")
