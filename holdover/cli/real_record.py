"""What local processes leave behind, told to the recorder: log lines, ends, and the tasks' ledger.

Times are wall clock seconds of this machine until they are told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import cast

from holdover.ids import AttemptKey
from simulator.record import AttemptEnd
from simulator.recorder import RunRecorder

#: `<time> <level> <process name> <event and fields>`, as `holdover.runtime.log` writes it.
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\S+Z) +(\w+) +(\S+) (.*)")
_FIELD = re.compile(r' ([A-Za-z_][A-Za-z0-9_]*)=("(?:[^"\\]|\\.)*"|[^ "]*)(?= |$)')
_ESCAPED = re.compile(r"\\(.)")
_READ_BYTES_MAX = 4 << 20

Telling = Callable[[RunRecorder, float], object]
"""Tells a recorder one thing that happened at the time given, in seconds of the run."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event of a process's log."""

    wall_s: float
    event: str
    fields: dict[str, str]


def parse_log_line(text: str) -> LogLine | None:
    """The event in a line of a log; None for other lines, such as those of a traceback."""
    line = _LINE.fullmatch(text)
    if line is None:
        return None
    rest = line[4]
    found = list(_FIELD.finditer(rest))
    event = rest[: found[0].start()] if found else rest
    return LogLine(
        datetime.fromisoformat(line[1]).timestamp(),
        event,
        {match[1]: _unquoted(match[2]) for match in found},
    )


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text[1:-1])


class LogFollower:
    """Reads what a growing log has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[LogLine]:
        """The events of all lines that are complete now; none when there is no file yet."""
        if not self._path.exists() or self._path.stat().st_size <= self._offset:
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            read = file.read(_READ_BYTES_MAX)
        self._offset += len(read)
        *complete, self._rest = (self._rest + read).split(b"\n")
        lines = (parse_log_line(text.decode("utf-8", "replace")) for text in complete)
        return [line for line in lines if line is not None]


@dataclass(slots=True)
class Chronicle:
    """All that was seen of a run, from many places, to be told in the order of time."""

    _tellings: list[tuple[float, Telling]] = field(default_factory=list)

    def note(self, wall_s: float, telling: Telling) -> None:
        """Something happened at that time; it may be noted late."""
        self._tellings.append((wall_s, telling))

    def note_log_line(self, process: str, line: LogLine) -> None:
        """A process has logged an event."""
        self.note(
            line.wall_s,
            lambda recorder, at_s: recorder.log_line(at_s, process, line.event, line.fields),
        )

    def note_ledger(self, path: Path) -> None:
        """What the tasks themselves have written (`Workload.ledger_path`)."""
        if path.exists():
            for text in path.read_text(encoding="utf-8").splitlines():
                self._note_attempt(json.loads(text))

    def _note_attempt(self, line: dict[str, object]) -> None:
        number = {name: int(str(line[name])) for name in ("subtask", "attempt", "epoch", "bytes")}
        key = AttemptKey(
            str(line["job"]),
            str(line["vertex"]),
            number["subtask"],
            number["attempt"],
            number["epoch"],
        )
        event, worker = str(line["event"]), str(line["worker"])
        wall_s = float(str(line["wall_ms"])) / 1000
        if event == "started":
            self.note(wall_s, lambda recorder, at_s: recorder.attempt_started(at_s, worker, key))
            return
        end = cast("AttemptEnd", event)
        n_bytes = number["bytes"] if end == "finished" else 0
        self.note(wall_s, lambda recorder, at_s: recorder.attempt_ended(at_s, key, end, n_bytes))

    def tell(self, recorder: RunRecorder, zero_wall_s: float, end_wall_s: float) -> None:
        """Tell everything up to the run's end, oldest first; what was before its zero happened at
        zero."""
        for wall_s, telling in sorted(self._tellings, key=lambda entry: entry[0]):
            if wall_s <= end_wall_s:
                telling(recorder, max(0.0, wall_s - zero_wall_s))
