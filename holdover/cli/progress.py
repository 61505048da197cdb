"""A watched job on the screen: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from holdover.cli.command_line import human_bytes, human_time, tell
from holdover.client import is_terminal, state_name
from holdover.v1.common_pb2 import ExecutionState
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryMode, VertexStatus

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_NAME_CHARACTERS_MAX = 40


class WatchDisplay(Protocol):
    """Where the statuses of one job are shown."""

    def say(self, text: str) -> None:
        """Say something about the connection."""
        ...

    def show(self, status: JobStatus) -> None:
        """Show the next status."""
        ...


@contextmanager
def watch_display(*, quiet: bool = False) -> Iterator[WatchDisplay]:
    """Bars when a person looks at a terminal, lines otherwise; `quiet` is for JSON."""
    if quiet or not sys.stdout.isatty():
        yield LineDisplay()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}")) as progress:
        yield BarDisplay(progress)


class News:
    """What is new in a status and worth a line of its own."""

    def __init__(self) -> None:
        self._states = 0
        self._waiting = ""
        self._mode: RecoveryMode.ValueType = RecoveryMode.RECOVERY_MODE_UNSPECIFIED

    def lines(self, status: JobStatus) -> list[str]:
        """New states with their time, what the job waits for, a degraded event log."""
        lines = [
            f"{human_time(entry.wall_ms)}  {state_name(entry.state)}"
            for entry in status.history[self._states :]
        ]
        self._states = len(status.history)
        if status.waiting and status.waiting != self._waiting:
            lines.append(status.waiting)
        self._waiting = status.waiting
        mode = status.recovery.mode
        if mode != self._mode and mode == RecoveryMode.RECOVERY_MODE_DEGRADED:
            lines.append(f"recovery: DEGRADED, {status.recovery.reason}")
        elif mode != self._mode and self._mode == RecoveryMode.RECOVERY_MODE_DEGRADED:
            lines.append("recovery: ACTIVE again")
        self._mode = mode
        return lines


class LineDisplay:
    """One line for each piece of news, and for each change of the number of finished subtasks."""

    def __init__(self) -> None:
        self._news = News()
        self._progress = ""

    def say(self, text: str) -> None:
        """See `WatchDisplay.say`."""
        tell(text)

    def show(self, status: JobStatus) -> None:
        """See `WatchDisplay.show`. A job's end is the last line of all."""
        lines = self._news.lines(status)
        progress = f"{status.subtasks_finished} of {status.subtasks_total} subtasks finished"
        if status.subtasks_total and progress != self._progress:
            lines.insert(0 if is_terminal(status) else len(lines), progress)
            self._progress = progress
        for line in lines:
            typer.echo(line)


class BarDisplay:
    """A bar for each vertex; news scroll above."""

    def __init__(self, progress: Progress) -> None:
        self._news = News()
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        """See `WatchDisplay.say`."""
        self._progress.print(text, markup=False)

    def show(self, status: JobStatus) -> None:
        """See `WatchDisplay.show`."""
        for line in self._news.lines(status):
            self._progress.print(line, markup=False)
        for vertex in status.vertices:
            if vertex.vertex_id not in self._bars:
                self._bars[vertex.vertex_id] = self._progress.add_task(
                    _label(vertex), total=None, figures=""
                )
            self._progress.update(
                self._bars[vertex.vertex_id],
                total=vertex.parallelism or None,
                completed=finished_subtasks(vertex),
                figures=f"{vertex.rows_out:,} rows, {human_bytes(vertex.bytes_out)}",
            )


def finished_subtasks(vertex: VertexStatus) -> int:
    """How many subtasks of the vertex have finished."""
    finished = ExecutionState.EXECUTION_STATE_FINISHED
    return vertex.state_counts[finished] if len(vertex.state_counts) > finished else 0


def _label(vertex: VertexStatus) -> str:
    from rich.markup import escape

    name = vertex.name or vertex.vertex_id
    if len(name) > _NAME_CHARACTERS_MAX:
        name = name[: _NAME_CHARACTERS_MAX - 3] + "..."
    return escape(f"{vertex.vertex_id:>4} {name}")
