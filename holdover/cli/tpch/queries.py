"""The queries by number, and their jobs from the arguments of `holdover submit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdover.api import Job
from holdover.cli.tpch import q1, q3, q5, q9, q18
from holdover.cli.tpch.data import tpch_data
from holdover.cli.tpch.query import Parallelism, Query

QUERIES: dict[int, Query] = {
    query.number: query for query in (q1.QUERY, q3.QUERY, q5.QUERY, q9.QUERY, q18.QUERY)
}


def job_from_arguments(number: int, arguments: list[str]) -> Job:
    """The job of a query; `--help` among the arguments shows what they mean and exits.

    Raises DataUnavailable when the tables cannot be generated.
    """
    query = QUERIES[number]
    parser = argparse.ArgumentParser(
        prog=f"q{number}.py", description=f"TPC-H query {number}: {query.title}"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor (default: 1)")
    parser.add_argument("--data", type=Path, help="directory of the tables (default: a cache)")
    parser.add_argument(
        "--output", type=Path, default=Path(f"tpch-q{number}"), help="directory of the result"
    )
    parser.add_argument("--lineitem-parallelism", type=int, help="subtasks that read lineitem")
    parser.add_argument("--join-parallelism", type=int, help="subtasks behind a hash exchange")
    options = parser.parse_args(arguments)
    data = tpch_data(options.scale, directory=options.data and options.data.absolute())
    usual = Parallelism.of(options.scale)
    parallelism = Parallelism(
        lineitem=options.lineitem_parallelism or usual.lineitem,
        scan=usual.scan,
        join=options.join_parallelism or usual.join,
    )
    return query.job(data, str(options.output.absolute()), parallelism)
