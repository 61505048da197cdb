"""Giving an attempt's output its names, all at once: what a shuffle service does when it is told to
publish.

The files are those that a TaskManager's task leaves: data and index of each partition, and then the
record, without which the next stock-taking deletes the rest. As there, nothing is synced: what a
power loss has torn is found by its sizes and checksums.
"""

from __future__ import annotations

import posixpath

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Disk
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.finished_record import encode_record, index_is, record_name
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX


class PartsDiffer(Exception):
    """What was put is not what its writer says it has put."""


async def publish_parts(disk: Disk, shuffle_directory: str, execution: FinishedExecution) -> None:
    """Rename the completed partitions of an attempt, and leave its record beside them, unless its
    job has switched recovery off: then no later process is to find it.

    Raises `PartsDiffer`, before anything is renamed, unless each of them is there as the execution
    describes it, and `OSError`; after that some may have their names, and are to be deleted.
    """
    key = AttemptKey.from_proto(execution.attempt)
    bases = [
        posixpath.join(shuffle_directory, partition_name(key, partition.output))
        for partition in execution.partitions
    ]
    for base, partition in zip(bases, execution.partitions, strict=True):
        data = await disk.stat(base + DATA_SUFFIX + PART_SUFFIX)
        if data is None or data.bytes != partition.data_bytes:
            found = "is missing" if data is None else f"has {data.bytes} bytes"
            raise PartsDiffer(
                f"the data of output {partition.output} of {key} {found};"
                f" its writer says {partition.data_bytes} bytes"
            )
        index = await disk.read(base + INDEX_SUFFIX + PART_SUFFIX)
        if not index_is(index, partition.index_crc32c):
            raise PartsDiffer(
                f"the index of output {partition.output} of {key} is not its writer's"
            )
    for base in bases:
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
            await disk.rename(base + suffix + PART_SUFFIX, base + suffix)
    if not execution.recovery_disabled:
        await _write_record(disk, posixpath.join(shuffle_directory, record_name(key)), execution)


async def _write_record(disk: Disk, path: str, execution: FinishedExecution) -> None:
    if not execution.partitions:
        await disk.make_directories(posixpath.dirname(path))  # a sink puts no partition
    await disk.remove(path + PART_SUFFIX, missing_ok=True)
    file = await disk.open_append(path + PART_SUFFIX)
    try:
        await file.write(encode_record(execution))
    finally:
        await file.close()
    await disk.rename(path + PART_SUFFIX, path)
