"""What can be seen from outside of a cluster: finished work on its disks, files and processes that
should not be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdover.cli.tpch.ledger import LedgerLine, Subtask
from shuffle.finished_record import RECORD_SUFFIX, ends_in_its_crc32c

# Files of a worker that belong to no job.
_WORKERS_OWN = ("lock", "generated", "tasks.log")
# Directories of the storage that hold something for each unfinished job.
_UNFINISHED = "jobs"
# From a task's last word to its report's arrival at the JobManager, on a busy machine.
_REPORT_S = 3.0


@dataclass(frozen=True, slots=True)
class Rerun:
    """A subtask that began again although its finished work was on a disk.

    Attributes:
        subtask: vertex and number.
        seen_wall_s: when its finished work was seen.
        unheard: its TaskManager, or the shuffle service that had its output, was killed so soon
            after it had finished that the JobManager, which lived on, need not have heard of it.
        lines: all that the subtask said, oldest first.
    """

    subtask: Subtask
    seen_wall_s: float
    unheard: bool
    lines: tuple[LedgerLine, ...]

    def __str__(self) -> str:
        said = ", ".join(
            f"{line.what} {line.attempt}/{line.epoch} at {line.wall_s:.3f}" for line in self.lines
        )
        vertex_id, number = self.subtask
        return f"{vertex_id}-{number} was on a disk at {self.seen_wall_s:.3f}: {said}"


class FinishedWork:
    """Which subtasks of a job have been seen finished, that is with the record of an attempt on the
    disk of a TaskManager or a shuffle service, by which the attempt is found again after any
    restart.
    """

    def __init__(self) -> None:
        #: When each was seen first, and whether its workers had just been killed, and they alone.
        self._seen: dict[Subtask, tuple[float, bool]] = {}

    def look(self, subtask: Subtask, wall_s: float, *, only_workers_killed: bool) -> None:
        """Take note of one that is finished at that moment."""
        self._seen.setdefault(subtask, (wall_s, only_workers_killed))

    def reruns(self, lines: Iterable[LedgerLine]) -> list[Rerun]:
        """Those that have begun again afterwards, by the word of the tasks."""
        said: dict[Subtask, list[LedgerLine]] = {}
        for line in lines:
            said.setdefault(line.key, []).append(line)
        return [
            Rerun(
                subtask,
                seen_s,
                killed and not _ended_before(said[subtask], seen_s - _REPORT_S),
                tuple(said[subtask]),
            )
            for subtask, (seen_s, killed) in self._seen.items()
            if any(line.what == "start" and line.wall_s > seen_s for line in said.get(subtask, ()))
        ]


def _ended_before(lines: Iterable[LedgerLine], wall_s: float) -> bool:
    return any(line.what == "end" and line.wall_s < wall_s for line in lines)


def finished_on_disk(partitions: Path) -> Iterator[tuple[str, str, Subtask]]:
    """Subtasks of which a finished attempt is recorded below a directory: worker, job, which.

    Each TaskManager and each shuffle service has a directory of its name there.
    """
    for record in sorted(partitions.glob(f"*/*/shuffle/*/*{RECORD_SUFFIX}")):
        if not _is_whole(record):
            continue
        stem = record.name.removesuffix(RECORD_SUFFIX)
        vertex_id, subtask, _attempt, _epoch = stem.rsplit("-", 3)
        worker = record.relative_to(partitions).parts[0]
        yield worker, record.parent.name, (vertex_id, int(subtask))


def _is_whole(record: Path) -> bool:
    """Not so while it is being written, and when a kill has cut it off."""
    try:
        return ends_in_its_crc32c(record.read_bytes())
    except FileNotFoundError:
        return False


def left_files(partitions: Path, storage: Path, outputs: Path) -> list[str]:
    """Files that no ended job may leave: partitions, scratch, events, staged output."""
    held = (
        path
        for path in partitions.rglob("*")
        if path.name not in _WORKERS_OWN and not path.is_dir()
    )
    stored = (path for jobs in storage.glob(f"*/{_UNFINISHED}") for path in jobs.iterdir())
    staged = outputs.glob("**/.staging*")
    return sorted(str(path) for path in (*held, *stored, *staged))


def orphans(marked: Iterable[int], recorded: Iterable[int]) -> list[str]:
    """Processes of a cluster that descend from none that is recorded as running: pid and command.

    Args:
        marked: pids of all processes that carry the cluster's mark.
        recorded: pids of its JobManager and workers.
    """
    parents = dict(_parents())
    alive = set(recorded)
    return [_command(pid) for pid in marked if not alive & set(_line_of(pid, parents))]


def _line_of(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """The process, its parent, and so on."""
    while pid > 1:
        yield pid
        pid = parents.get(pid, 0)


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                # The second field is the program's name in parentheses and may hold anything.
                yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid} (ended meanwhile)"
    return f"{pid} {words.decode(errors='replace').strip()}"
