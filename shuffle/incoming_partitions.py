"""Which partitions are being put to a shuffle service, and what they take of its room.

A partition has one stream at most: a later one takes the place of an earlier one, which is refused
from then on. Complete ones wait for their attempt to be published. No I/O; thread-safe, because
streams are served by foreign threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdover.ids import AttemptKey
from shuffle.errors import OutputRefused
from shuffle.partition_name import parse_partition_name
from shuffle.room import Room

#: Why output of an attempt, or a copy of it, is not taken; None when it is.
Refusal = Callable[[AttemptKey, bool], str | None]


@dataclass(slots=True)
class _Put:
    name: str
    key: AttemptKey
    is_copy: bool
    taken_bytes: int = 0
    is_complete: bool = False


class IncomingPartitions:
    """See the module. Streams are known by numbers, which are never used again."""

    def __init__(self, room: Room, refusal: Refusal) -> None:
        """`refusal` is called from any thread, and with the lock held."""
        self._room = room
        self._refusal = refusal
        self._lock = threading.Lock()
        self._begun = 0
        self._puts: dict[int, _Put] = {}
        self._by_name: dict[str, int] = {}
        #: The job of each stream that is not over.
        self._streams: dict[int, str] = {}
        self._jobs: dict[str, None] = {}

    @property
    def open_puts(self) -> int:
        """Partitions that are not complete yet."""
        with self._lock:
            return sum(not put.is_complete for put in self._puts.values())

    def begin(self, partition_name: str, is_copy: bool) -> int:
        """A stream begins. Raises ValueError for a bad name, and OutputRefused."""
        key = AttemptKey(*parse_partition_name(partition_name).producer)
        with self._lock:
            self._check(key, is_copy)
            self._room.take(0)
            earlier = self._by_name.get(partition_name)
            if earlier is not None:
                self._drop(earlier)
            self._begun += 1
            self._puts[self._begun] = _Put(partition_name, key, is_copy)
            self._by_name[partition_name] = self._begun
            self._streams[self._begun] = key.job_id
            self._jobs[key.job_id] = None
            return self._begun

    def take(self, put: int, wanted_bytes: int) -> None:
        """Bytes of a stream are about to be written. Raises OutputRefused."""
        with self._lock:
            found = self._current(put)
            self._room.take(wanted_bytes)
            found.taken_bytes += wanted_bytes

    def complete(self, put: int) -> None:
        """All of a partition is written. Raises OutputRefused."""
        with self._lock:
            self._current(put).is_complete = True

    def end(self, put: int) -> bool:
        """A stream is over; whether it has left an incomplete partition, which is to be deleted.

        One that was given up, or has a successor, is not its stream's to delete any more.
        """
        with self._lock:
            # Whatever has become of its job meanwhile, it may just have made files of it.
            self._jobs[self._streams.pop(put)] = None
            found = self._puts.get(put)
            if found is None or found.is_complete:
                return False
            self._drop(put)
            return True

    def check_complete(self, key: AttemptKey, names: Iterable[str], is_copy: bool) -> None:
        """Raises OutputRefused unless an attempt is still wanted, and these are all complete."""
        with self._lock:
            self._check(key, is_copy)
            for name in names:
                put = self._puts.get(self._by_name.get(name, 0))
                if put is None or not put.is_complete:
                    raise OutputRefused(f"{name} was not put here, or not to its end")

    def published(self, names: Iterable[str]) -> None:
        """These partitions are finished output now. Their room stays taken."""
        with self._lock:
            for name in names:
                put = self._by_name.pop(name, 0)
                self._puts.pop(put, None)

    def give_up(self, key: AttemptKey) -> list[str]:
        """Refuse what an attempt still sends; the names of what it has put, to be deleted."""
        return self._give_up(lambda put: put.key == key)

    def give_up_job(self, job_id: str) -> list[str]:
        """The same for all attempts of a job, which is about to be deleted."""
        with self._lock:
            self._jobs.pop(job_id, None)
        return self._give_up(lambda put: put.key.job_id == job_id)

    @property
    def attempts(self) -> list[AttemptKey]:
        """Attempts of which anything is being put, or waits to be published."""
        with self._lock:
            return list(dict.fromkeys(put.key for put in self._puts.values()))

    def outdated(self, epoch: int) -> list[AttemptKey]:
        """Those that a new leader does not know of: of earlier epochs, and copies, of whatever
        epoch, for it was another one that ordered them."""
        with self._lock:
            puts = self._puts.values()
            return list(dict.fromkeys(p.key for p in puts if p.is_copy or p.key.epoch < epoch))

    @property
    def jobs(self) -> list[str]:
        """Jobs of which anything was put since they were given up, whatever has become of it: each
        may have a directory, which the end of the job is to delete."""
        with self._lock:
            return list(self._jobs)

    def _give_up(self, is_unwanted: Callable[[_Put], bool]) -> list[str]:
        with self._lock:
            unwanted = [number for number, put in self._puts.items() if is_unwanted(put)]
            names = [self._puts[number].name for number in unwanted]
            for number in unwanted:
                self._drop(number)
            return names

    def _current(self, put: int) -> _Put:
        found = self._puts.get(put)
        if found is None:
            raise OutputRefused("this output is not wanted any more, or is put once more")
        self._check(found.key, found.is_copy)
        return found

    def _check(self, key: AttemptKey, is_copy: bool) -> None:
        refusal = self._refusal(key, is_copy)
        if refusal is not None:
            raise OutputRefused(f"output of {key} is refused: {refusal}")

    def _drop(self, number: int) -> None:
        put = self._puts.pop(number)
        del self._by_name[put.name]
        self._room.give_back(put.taken_bytes)
