"""What the demo shows: steps, a bar while the job runs, small tables; plain text in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from holdover.cli.progress import finished_subtasks

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from holdover.v1.jobmanager_pb2 import JobStatus

_INDENT = 14
_WIDTH_MAX = 110
# Without a terminal, a line at every quarter is enough to see that it goes on.
_PLAIN_STEPS = 4


class DemoScreen:
    """Standard output for a person; nothing at all when `quiet`."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, quiet=quiet)
        if not self._console.is_terminal or self._console.width > _WIDTH_MAX:
            self._console.width = _WIDTH_MAX
        self._steps = 0

    def title(self, text: str) -> None:
        """The first line."""
        self._console.print(f"[bold]{text}[/bold]\n")

    def step(self, name: str, text: str) -> None:
        """Begin the next numbered step."""
        self._steps += 1
        head = f"[bold cyan]{self._steps}  {name:<{_INDENT - 4}}[/bold cyan] "
        self._console.print(head + text, soft_wrap=True)

    def say(self, text: str) -> None:
        """One more line about the present step."""
        self._console.print(" " * _INDENT + text, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A small table; all but its first column are figures or short."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for index, column in enumerate(columns):
            side: JustifyMethod = "left" if index == 0 else "right"
            table.add_column(column, justify=side, no_wrap=True)
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
        self._console.print(Padding(table, (0, 0, 0, _INDENT), expand=False))

    def end(self, good: bool, text: str) -> None:
        """The last line: what came of it."""
        colour = "green" if good else "red"
        self._console.print(f"\n[bold {colour}]{text}[/bold {colour}]", soft_wrap=True)

    @contextmanager
    def following(self, subtasks_total: int) -> Iterator[JobBar]:
        """A bar that follows a job."""
        if not self._console.is_terminal:
            yield JobBar(self, None, subtasks_total)
            return
        columns = (
            TextColumn(" " * (_INDENT - 1)),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.description}"),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield JobBar(self, progress, subtasks_total)


class JobBar:
    """Shows how far a job is."""

    def __init__(self, screen: DemoScreen, progress: Progress | None, subtasks_total: int) -> None:
        self._screen = screen
        self._progress = progress
        self._total = subtasks_total
        self._shown = 0
        if progress is not None:
            self._bar = progress.add_task("", total=subtasks_total)

    def show(self, status: JobStatus) -> None:
        """The job's present status."""
        finished = status.subtasks_finished
        if self._progress is not None:
            self._progress.update(self._bar, completed=finished, description=_at_work(status))
            return
        step = finished * _PLAIN_STEPS // max(1, self._total)
        if step > self._shown:
            self._screen.say(f"{finished} of {self._total} subtasks have finished")
            self._shown = step


def _at_work(status: JobStatus) -> str:
    """The vertices that are neither complete nor untouched."""
    names = [
        vertex.name
        for vertex in status.vertices
        if 0 < finished_subtasks(vertex) < vertex.parallelism
    ]
    return "; ".join(names)[:48]
