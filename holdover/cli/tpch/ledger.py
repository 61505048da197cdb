"""What tasks themselves say about their runs, in a file outside of the cluster.

Whether finished work ran again is asked here, not from the JobManager whose recovery is judged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdover.task_context import current
from holdover.v1.job_pb2 import DETERMINISM_DETERMINATE, JobGraph, Operator, PythonFunction

if TYPE_CHECKING:
    import pyarrow as pa

Subtask = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line: a task has begun, or has given its last row.

    Attributes:
        what: "start" or "end".
        vertex_id, subtask, attempt, epoch: the attempt.
        pid: of the task process.
        wall_s: when, by the machine's clock.
    """

    what: str
    vertex_id: str
    subtask: int
    attempt: int
    epoch: int
    pid: int
    wall_s: float

    @property
    def key(self) -> Subtask:
        """The subtask, whichever attempt."""
        return self.vertex_id, self.subtask


def add_ledger(graph: JobGraph, path: Path) -> None:
    """Make every task of the job write to the ledger at `path`, which is a local file.

    Each vertex gets one more operator, in front of its sink if it has one.
    """
    import cloudpickle

    note = cloudpickle.dumps(partial(_note_run, str(path)))
    for vertex in graph.vertices:
        operators = list(vertex.operators)
        position = len(operators) - operators[-1].HasField("sink")
        ledger = Operator(
            name="ledger",
            determinism=DETERMINISM_DETERMINATE,
            function=PythonFunction(pickled=note, takes_iterator=True),
        )
        del vertex.operators[:]
        vertex.operators.extend([*operators[:position], ledger, *operators[position:]])


def read_ledger(path: Path) -> list[LedgerLine]:
    """All lines, in the order in which they were written; none when no task has begun."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="ascii").splitlines():
        what, vertex_id, subtask, attempt, epoch, pid, wall_s = text.split()
        lines.append(
            LedgerLine(
                what, vertex_id, int(subtask), int(attempt), int(epoch), int(pid), float(wall_s)
            )
        )
    return lines


def _note_run(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _note(path, "start")
    yield from batches
    _note(path, "end")


def _note(path: str, what: str) -> None:
    task = current()
    line = (
        f"{what} {task.vertex_id} {task.subtask} {task.attempt} {task.leader_epoch}"
        f" {os.getpid()} {time.time():.6f}\n"
    )
    # One short write in append mode: lines of many processes do not mix.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode("ascii"))
    finally:
        os.close(file)
