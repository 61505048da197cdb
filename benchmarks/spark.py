"""PySpark `local[2]` in a process of its own, which runs queries on request and tells their time.

As a program: `python -m benchmarks.spark DIRECTORY_OF_TABLES`; it reads one query per line (as
JSON) and answers each with one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdover.cli.tpch.data import TABLES, TpchData


class SparkQueries:
    """The process, from this side."""

    def __init__(self, data: TpchData, place: Path) -> None:
        """Starts it; its log goes to `place`."""
        self._log = (place / "spark.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark", str(data.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._path = place / "spark.log"

    def seconds(self, sql: str) -> float:
        """Runs a query; from its text to its rows in Python."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(sql) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"Spark has ended: {self._path.read_text()[-2000:]}")
        return float(json.loads(answer)["seconds"])

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def main(directory: str) -> None:
    """Serve queries until standard input ends."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    session = (
        builder.master("local[2]")
        .config("spark.driver.memory", "8g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    for table in TABLES:
        session.read.parquet(f"{directory}/{table}.parquet").createOrReplaceTempView(table)
    for line in sys.stdin:
        started_s = time.monotonic()
        rows = session.sql(json.loads(line)).collect()
        answer = {"seconds": time.monotonic() - started_s, "rows": len(rows)}
        print(json.dumps(answer), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
