"""What the five queries have in common: their shape, and how many subtasks a scale deserves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdover.api import DataSet, Job
from holdover.cli.tpch.data import TpchData


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Numbers of subtasks.

    Attributes:
        lineitem: of scans of the largest table.
        scan: of scans of the middle-sized tables (orders, partsupp, customer).
        join: of vertices behind a hash exchange.
    """

    lineitem: int
    scan: int
    join: int

    @classmethod
    def of(cls, scale: float) -> Parallelism:
        """As many as give a task some tenths of a second, and never more than is worth starting.

        A lost subtask should cost little, yet a task should work for longer than its start takes.
        """
        lineitem = min(max(round(scale * 4), 12), 240)
        return cls(lineitem=lineitem, scan=max(4, lineitem // 3), join=max(4, lineitem // 3))


#: Describes a query: reads the tables of a job, and returns its result as one ordered subtask.
PlanFunction = Callable[[Job, TpchData, Parallelism], DataSet]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of the benchmark, with the specification's default parameters.

    Attributes:
        number: as in the specification.
        title: what it asks for.
        sql: the query as DuckDB runs it over views named as the tables.
        order: its ORDER BY, as column names; rows that are equal in these may come in any order.
        plan: the same as a job in stages.
    """

    number: int
    title: str
    sql: str
    order: tuple[str, ...]
    plan: PlanFunction

    def job(
        self,
        data: TpchData,
        output: str,
        parallelism: Parallelism | None = None,
        options: Mapping[str, str | int | float | bool] | None = None,
    ) -> Job:
        """A job that writes the result as Parquet to the directory `output`."""
        job = Job(f"tpch-q{self.number}", options)
        result = self.plan(job, data, parallelism or Parallelism.of(data.scale))
        result.write_parquet(output)
        return job


def scan(
    job: Job, data: TpchData, table: str, columns: str, parallelism: int | None = 1
) -> DataSet:
    """Reads some columns (separated by blanks) of a table."""
    return job.read_parquet(
        data.file(table), columns=columns.split(), name=table, parallelism=parallelism
    )
