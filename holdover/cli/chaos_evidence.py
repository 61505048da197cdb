"""What can be seen from outside of a cluster: finished work on its disks, files and processes that
should not be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdover.cli.tpch.ledger import LedgerLine, Subtask
from shuffle.finished_record import RECORD_SUFFIX

# Files of a TaskManager that belong to no job.
_TASKMANAGERS_OWN = ("lock", "generated", "tasks.log")
# Directories of the storage that hold something for each unfinished job.
_UNFINISHED = "jobs"


@dataclass(frozen=True, slots=True)
class Rerun:
    """A subtask that began again although its finished work was on a disk.

    Attributes:
        subtask: vertex and number.
        seen_wall_s: when its finished work was seen.
        lines: all that the subtask said, oldest first.
    """

    subtask: Subtask
    seen_wall_s: float
    lines: tuple[LedgerLine, ...]

    def __str__(self) -> str:
        said = ", ".join(
            f"{line.what} {line.attempt}/{line.epoch} at {line.wall_s:.3f}" for line in self.lines
        )
        vertex_id, number = self.subtask
        return f"{vertex_id}-{number} was on a disk at {self.seen_wall_s:.3f}: {said}"


class FinishedWork:
    """Which subtasks of a job have been seen finished, that is with the record of an attempt on the
    disk of a TaskManager, by which the attempt is found again after any restart.
    """

    def __init__(self) -> None:
        self._seen_wall_s: dict[Subtask, float] = {}

    def look(self, finished: Iterable[Subtask], wall_s: float) -> None:
        """Take note of what is finished at that moment."""
        for subtask in finished:
            self._seen_wall_s.setdefault(subtask, wall_s)

    def reruns(self, lines: Iterable[LedgerLine]) -> list[Rerun]:
        """Those that have begun again afterwards, by the word of the tasks."""
        said: dict[Subtask, list[LedgerLine]] = {}
        for line in lines:
            said.setdefault(line.key, []).append(line)
        return [
            Rerun(subtask, seen_wall_s, tuple(said[subtask]))
            for subtask, seen_wall_s in self._seen_wall_s.items()
            if any(
                line.what == "start" and line.wall_s > seen_wall_s for line in said.get(subtask, ())
            )
        ]


def finished_on_disk(partitions: Path) -> dict[str, list[Subtask]]:
    """Subtasks of which a finished attempt is recorded below a directory, by job."""
    found: dict[str, list[Subtask]] = {}
    for record in sorted(partitions.glob(f"*/*/shuffle/*/*{RECORD_SUFFIX}")):
        stem = record.name.removesuffix(RECORD_SUFFIX)
        vertex_id, subtask, _attempt, _epoch = stem.rsplit("-", 3)
        found.setdefault(record.parent.name, []).append((vertex_id, int(subtask)))
    return found


def left_files(partitions: Path, storage: Path, outputs: Path) -> list[str]:
    """Files that no ended job may leave: partitions, scratch, events, staged output."""
    held = (
        path
        for path in partitions.rglob("*")
        if path.name not in _TASKMANAGERS_OWN and not path.is_dir()
    )
    stored = (path for jobs in storage.glob(f"*/{_UNFINISHED}") for path in jobs.iterdir())
    staged = outputs.glob("**/.staging*")
    return sorted(str(path) for path in (*held, *stored, *staged))


def orphans(marked: Iterable[int], recorded: Iterable[int]) -> list[str]:
    """Processes of a cluster that descend from none that is recorded as running: pid and command.

    Args:
        marked: pids of all processes that carry the cluster's mark.
        recorded: pids of its JobManager and TaskManagers.
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
