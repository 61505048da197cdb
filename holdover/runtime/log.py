"""Logging: one line an event, `key=value` fields, to standard error.

On the standard library's `logging` rather than structlog, whose import alone takes 0.2 s of a
JobManager's start.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")

_FIELDS: Final = "holdover_fields"


def configure(process_name: str, level: str = "info") -> None:
    """Send all log lines of this process to standard error, marked with `process_name`.

    Raises `ValueError` for a level that is not in `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"log level must be one of {', '.join(LEVELS)}, not {level!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_KeyValueFormatter(process_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)  # its own events are not the service's


class Log:
    """A logger with fixed fields. The event is a short constant text; what varies is a field."""

    def __init__(self, name: str, fields: dict[str, object] | None = None) -> None:
        self._logger = logging.getLogger(name)
        self._fields = fields or {}

    def bind(self, **fields: object) -> Log:
        """The same logger with more fixed fields."""
        return Log(self._logger.name, {**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        """What only a developer wants to know."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """What happened."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What went wrong and was handled."""
        self._write(logging.WARNING, event, fields)

    def error(
        self, event: str, *, exception: BaseException | None = None, **fields: object
    ) -> None:
        """What needs a person; with the traceback of `exception`, if given."""
        self._write(logging.ERROR, event, fields, exception)

    def _write(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        exception: BaseException | None = None,
    ) -> None:
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        info = None if exception is None else (type(exception), exception, exception.__traceback__)
        # Made here: the logger would look through the stack for a caller whom no line names.
        record = logging.LogRecord(logger.name, level, "", 0, event, (), info)
        setattr(record, _FIELDS, {**self._fields, **fields})
        logger.handle(record)


class _KeyValueFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info jobmanager leader elected epoch=3`."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        level = record.levelname.lower()
        line = f"{seconds}.{int(record.msecs):03d}Z {level:7} {self._process_name}"
        line = f"{line} {record.getMessage()}"
        for key, value in getattr(record, _FIELDS, {}).items():
            line = f"{line} {key}={_quoted(value)}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _quoted(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(character in ' "=' for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
