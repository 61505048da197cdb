"""What is lost from storages behind the services' back.

MODEL: files are damaged at once, on the medium too, past every cache and past what else is wrong
with the storage.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from jobmanager.event_store.segments import list_segments
from jobmanager.job_store import JobStore
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX
from simulator.invariants.view import at_once
from simulator.world.disk_faults import DiskFaults
from simulator.world.storage import SimulatedStorage


def lose_partitions(
    storage: SimulatedStorage, shuffle_directory: str, part: float, source: random.Random
) -> list[str]:
    """Remove the files of this part of the finished partitions, of at least one where there is any,
    and of none that is being written; returns their index files."""
    with _past_faults(storage):
        found = at_once(storage.glob(f"{shuffle_directory}/**/*{INDEX_SUFFIX}"))
        count = min(len(found), max(1, round(part * len(found))))
        lost = [found[index].path for index in sorted(source.sample(range(len(found)), count))]
        for path in lost:
            at_once(storage.remove(path))
            data = path.removesuffix(INDEX_SUFFIX) + DATA_SUFFIX
            at_once(storage.remove(data, missing_ok=True))
            at_once(storage.sync_directory(posixpath.dirname(path)))
    return lost


def cut_event_logs(
    shared: SimulatedStorage,
    storage_directory: str,
    job_ids: Sequence[str],
    bytes_max: int | None,
    source: random.Random,
) -> dict[str, int]:
    """Cut the newest segment of each job's log at a byte that is drawn; returns the bytes that
    each lost. A job without a log loses nothing."""
    lost: dict[str, int] = {}
    store = JobStore(shared, storage_directory)
    with _past_faults(shared):
        for job_id in job_ids:
            segments = at_once(list_segments(shared, store.events_directory(job_id)))
            if not segments:
                continue
            newest = segments[-1]
            at_most = newest.bytes if bytes_max is None else min(newest.bytes, bytes_max)
            cut = source.randint(0, at_most)
            content = at_once(shared.read(newest.path))
            shared.overwrite(newest.path, content[: newest.bytes - cut])
            lost[job_id] = cut
    return lost


@contextmanager
def _past_faults(storage: SimulatedStorage) -> Generator[None, None, None]:
    """What is damaged is damaged whether or not the storage answers at the moment."""
    acting = storage.faults
    storage.faults = DiskFaults(acting.free_bytes)
    try:
        yield
    finally:
        storage.faults = acting
