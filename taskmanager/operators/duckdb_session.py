"""DuckDB inside of a task: one thread, bounded memory, spilling to the scratch directory."""

from __future__ import annotations

import os
import shutil

import duckdb

from holdover.config import TASKMANAGER_MEMORY_TASK_SIZE
from taskmanager.operators.stream import OperatorContext


def open_session(
    context: OperatorContext, name: str, *, memory_bytes: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A database of its own, closed when the attempt is over.

    `memory_bytes` bounds what it holds before it spills (default: taskmanager.memory.task.size);
    `name` is its directory for that within the attempt's scratch directory.
    """
    if memory_bytes is None:
        memory_bytes = context.options.get(TASKMANAGER_MEMORY_TASK_SIZE)
    os.makedirs(context.scratch_directory, exist_ok=True)
    context.cleanup.callback(shutil.rmtree, context.scratch_directory, ignore_errors=True)
    session = duckdb.connect(
        config={
            "threads": 1,
            "memory_limit": f"{memory_bytes}B",
            "temp_directory": os.path.join(context.scratch_directory, name),
            # A table is an input of the query, never a variable of ours that happens to have its
            # name.
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
        }
    )
    context.cleanup.callback(session.close)
    # A file's footer is read once, not once for each of its splits.
    session.execute("SET parquet_metadata_cache = true")
    return session


def quoted_name(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
