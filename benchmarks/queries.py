"""TPC-H Q9 and Q18: recovery on and off, DuckDB alone, and PySpark, on the same files."""

from __future__ import annotations

import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.report import Report, Series, ratio
from benchmarks.spark import SparkQueries
from holdover.cli.local_cluster import LocalCluster
from holdover.cli.tpch.check import compare, read_output, reference
from holdover.cli.tpch.data import TpchData, tpch_data
from holdover.cli.tpch.queries import QUERIES
from holdover.cli.tpch.query import Query
from holdover.client import Client

_QUERIES = (9, 18)
_THREADS = 2
_NO_SPARK = "PySpark was not measured: pip install -r requirements-bench.lock (needs Java 17)"


async def overhead() -> Report:
    """What recovery costs where nothing fails: pairs of runs, nothing else in between."""
    scale = float(os.environ.get("BENCH_SCALE", "3"))
    pairs = int(os.environ.get("BENCH_PAIRS", "31"))
    data = tpch_data(scale, announce=print)
    report = Report("overhead", f"TPC-H at scale factor {scale:g}, {pairs} pairs of runs")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(Path(place) / "cluster", taskmanagers=3, slots=2)
        async with cluster, cluster.client() as client:
            for number in _QUERIES:
                runs = Runs(QUERIES[number], data, Path(place), client, None)
                for repetition in range(pairs + 1):
                    await runs.pair(repetition)
                runs.add_overhead_to(report)
    return report


async def run() -> Report:
    """Each query several times, all engines in turns; the first round warms up and is dropped."""
    scale = float(os.environ.get("BENCH_SCALE", "3"))
    repetitions = int(os.environ.get("BENCH_REPETITIONS", "5"))
    data = tpch_data(scale, announce=print)
    report = Report("queries", f"TPC-H at scale factor {scale:g}, submission to committed result")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(Path(place) / "cluster", taskmanagers=3, slots=2)
        async with cluster, cluster.client() as client:
            spark = SparkQueries(data, Path(place)) if find_spec("pyspark") else None
            try:
                for number in _QUERIES:
                    runs = Runs(QUERIES[number], data, Path(place), client, spark)
                    for repetition in range(repetitions + 1):
                        await runs.round(repetition)
                    runs.add_to(report)
            finally:
                if spark is not None:
                    spark.close()
    if spark is None:
        report.notes.append(_NO_SPARK)
    return report


class Runs:
    """All runs of one query."""

    def __init__(
        self,
        query: Query,
        data: TpchData,
        place: Path,
        client: Client,
        spark: SparkQueries | None,
    ) -> None:
        self._query = query
        self._data = data
        self._place = place
        self._client = client
        self._spark = spark
        name = f"Q{query.number}"
        self.enabled = Series(f"{name} Holdover, recovery enabled", "s")
        self.disabled = Series(f"{name} Holdover, recovery disabled", "s")
        self.duckdb = Series(f"{name} DuckDB alone, {_THREADS} threads", "s")
        self.spark = Series(f"{name} PySpark local[{_THREADS}], warm", "s")
        self.spark_first = Series(f"{name} PySpark local[{_THREADS}], first run", "s")

    async def round(self, repetition: int) -> None:
        """One run of each engine. Round 0 is not counted, but for Spark's first run."""
        self._note(self.enabled, await self._holdover(True, repetition), repetition)
        started_s = time.monotonic()
        reference(self._query, self._data, _THREADS)
        self._note(self.duckdb, time.monotonic() - started_s, repetition)
        if self._spark is not None:
            taken_s = self._spark.seconds(self._query.sql)
            if repetition == 0:
                self.spark_first.samples.append(taken_s)
            self._note(self.spark, taken_s, repetition)

    async def pair(self, repetition: int) -> None:
        """One run with recovery and one without, one right after the other."""
        # What runs first changes from pair to pair, so that neither gains by its place.
        order = [True, False] if repetition % 2 else [False, True]
        for enabled in order:
            taken_s = await self._holdover(enabled, repetition)
            self._note(self.enabled if enabled else self.disabled, taken_s, repetition)

    def add_overhead_to(self, report: Report) -> None:
        """What recovery costs where nothing fails."""
        report.series += [self.enabled, self.disabled]
        name = f"Q{self._query.number}: recovery enabled / disabled"
        report.add(name, ratio(self.enabled, self.disabled), at_most=1.02)
        totals = sum(self.enabled.samples) / sum(self.disabled.samples)
        report.add(f"{name}, all runs together", totals)

    def add_to(self, report: Report) -> None:
        """The series and what comes out of them."""
        name = f"Q{self._query.number}"
        report.series += [self.enabled, self.duckdb]
        against_duckdb = ratio(self.enabled, self.duckdb)
        report.add(f"{name}: Holdover / DuckDB alone", against_duckdb, at_most=3.0)
        if self._spark is not None:
            report.series += [self.spark, self.spark_first]
            against_spark = ratio(self.enabled, self.spark)
            report.add(f"{name}: Holdover / PySpark warm", against_spark, at_most=0.5)
            first = self.enabled.median / self.spark_first.median
            report.add(f"{name}: Holdover / PySpark first run", first)

    async def _holdover(self, enabled: bool, repetition: int) -> float:
        run = f"q{self._query.number}-{repetition}-{'with' if enabled else 'without'}"
        output = self._place / run
        options = {"execution.batch.job-recovery.enabled": enabled}
        job = self._query.job(self._data, str(output), options=options)
        started_s = time.monotonic()
        await self._client.submit(job, run)
        await self._client.wait(run)
        taken_s = time.monotonic() - started_s
        if repetition == 0:
            expected = reference(self._query, self._data, _THREADS)
            comparison = compare(self._query, read_output(output), expected)
            if not comparison.equal:
                raise AssertionError(f"a wrong result cannot be compared: {comparison.difference}")
        return taken_s

    def _note(self, series: Series, taken_s: float, repetition: int) -> None:
        if repetition > 0:
            series.samples.append(taken_s)
