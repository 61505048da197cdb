"""TPC-H's tables as Parquet files, generated once and kept.

The generator is the `tpchgen-cli` package (extra `tpch`): the same scale factor gives the same rows
on every machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdover.errors import HoldoverError

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
SCALE_MAX = 1000.0
# Measured: all tables at scale factor 10 take 71 s on two busy cores. Ten times that, at least.
_GENERATION_TIMEOUT_S_PER_SCALE = 100.0
_GENERATION_TIMEOUT_S_MIN = 300.0
_ERROR_TEXT_MAX = 2000


class DataUnavailable(HoldoverError):
    """The tables cannot be generated; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class TpchData:
    """The tables of one scale factor, one Parquet file each, in one directory."""

    directory: Path
    scale: float

    def file(self, table: str) -> str:
        """Absolute path of a table's file."""
        return str(self.directory / f"{table}.parquet")

    def bytes(self) -> int:
        """Size of all tables that are there."""
        return sum(file.stat().st_size for file in self.directory.glob("*.parquet"))


def default_directory(scale: float) -> Path:
    """Where a scale factor's tables are kept: under `$HOLDOVER_CACHE` or `~/.cache/holdover`."""
    cache = os.environ.get("HOLDOVER_CACHE") or Path.home() / ".cache" / "holdover"
    return Path(cache).expanduser().absolute() / "tpch" / f"sf-{scale:g}"


def tpch_data(
    scale: float,
    *,
    directory: Path | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> TpchData:
    """The tables of a scale factor; those that are missing are generated first.

    A table appears whole or not at all, also when two processes generate it at once or one of them
    is killed.

    Args:
        scale: TPC-H's scale factor; 1 is about 1 GB of text and 0.35 GB of Parquet.
        directory: where the tables are or will be; `default_directory(scale)` when None.
        announce: is told before something slow begins.

    Raises:
        DataUnavailable: the scale is impossible, the generator is not installed or failed.
    """
    if not 0 < scale <= SCALE_MAX:
        raise DataUnavailable(f"scale {scale:g} must be more than 0 and at most {SCALE_MAX:g}")
    data = TpchData(directory or default_directory(scale), scale)
    missing = [table for table in TABLES if not Path(data.file(table)).exists()]
    if missing:
        announce(
            f"Generating TPC-H data at scale factor {scale:g} (once; kept in {data.directory}) ..."
        )
        try:
            _generate(data, missing)
        except OSError as error:
            raise DataUnavailable(
                f"the TPC-H data cannot be written to {data.directory}: {error.strerror};"
                " choose another place with HOLDOVER_CACHE=DIRECTORY"
            ) from error
    return data


def _generate(data: TpchData, tables: Iterable[str]) -> None:
    data.directory.mkdir(parents=True, exist_ok=True)
    staging = tempfile.mkdtemp(prefix=".generating-", dir=data.directory)
    try:
        _run_generator(data.scale, tables, staging)
        for table in tables:
            # The same rows, should another process have been faster.
            os.replace(Path(staging) / f"{table}.parquet", data.file(table))
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(staging)


def _run_generator(scale: float, tables: Iterable[str], directory: str) -> None:
    beside_python = Path(sys.executable).with_name("tpchgen-cli")
    generator = str(beside_python) if beside_python.exists() else shutil.which("tpchgen-cli")
    if generator is None:
        raise DataUnavailable(
            "tpchgen-cli, which generates TPC-H data, is not installed:"
            " pip install 'holdover[tpch]'"
        )
    command = [generator, "parquet", "--quiet", "--scale-factor", f"{scale:g}"]
    command += ["--tables", ",".join(tables), "--output-dir", directory]
    timeout_s = max(_GENERATION_TIMEOUT_S_MIN, scale * _GENERATION_TIMEOUT_S_PER_SCALE)
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise DataUnavailable(
            f"tpchgen-cli was not ready after {timeout_s:g} s: try a smaller scale"
        ) from error
    if done.returncode != 0:
        raise DataUnavailable(
            f"tpchgen-cli failed (exit code {done.returncode}): {done.stderr[-_ERROR_TEXT_MAX:]}"
        )
