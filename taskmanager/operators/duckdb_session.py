"""DuckDB inside of a task: one thread, bounded memory, spilling to the scratch directory.

Making a database costs some 18 ms, so a process keeps those that its last attempts left clean. A
session sees nothing of the sessions before it: tables and views are temporary and die with it.
"""

from __future__ import annotations

import os
import shutil

import duckdb

from holdover.config import TASKMANAGER_MEMORY_TASK_SIZE
from taskmanager.operators.stream import OperatorContext

# A source, a query and what combines its results have a database each.
_KEPT_MAX = 3
_kept: list[duckdb.DuckDBPyConnection] = []


def open_session(
    context: OperatorContext, name: str, *, memory_bytes: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection to a database that nobody else uses, closed when the attempt is over.

    `memory_bytes` bounds what it holds before it spills (default: taskmanager.memory.task.size);
    `name` is its directory for that within the attempt's scratch directory.
    """
    if memory_bytes is None:
        memory_bytes = context.options.get(TASKMANAGER_MEMORY_TASK_SIZE)
    os.makedirs(context.scratch_directory, exist_ok=True)
    context.cleanup.callback(shutil.rmtree, context.scratch_directory, ignore_errors=True)
    database = _kept.pop() if _kept else _new_database()
    session = database.cursor()
    spill_directory = os.path.join(context.scratch_directory, name)
    context.cleanup.callback(_close, database, session, spill_directory)
    session.execute(f"SET memory_limit = '{memory_bytes}B'")
    session.execute(f"SET temp_directory = {quoted_text(spill_directory)}")
    # A file's footer is read once, not once for each of its splits.
    session.execute("SET parquet_metadata_cache = true")
    return session


def prepare_database() -> None:
    """Makes one more database ahead of need, while there is nothing else to do."""
    if len(_kept) < _KEPT_MAX:
        _kept.append(_new_database())


def _new_database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        config={
            "threads": 1,
            # A table is an input of the query, never a variable of ours that is named like it.
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
        }
    )


def _close(
    database: duckdb.DuckDBPyConnection, session: duckdb.DuckDBPyConnection, spill_directory: str
) -> None:
    session.close()
    # Once it has spilled, its directory cannot be changed any more.
    if os.path.exists(spill_directory) or len(_kept) >= _KEPT_MAX:
        database.close()
    else:
        _kept.append(database)


def quoted_name(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
