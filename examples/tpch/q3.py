"""TPC-H query 3 as a job: `holdover submit examples/tpch/q3.py -- --scale 1 --output out`.

The plan is in holdover/cli/tpch/q3.py, where the demo, the tests and the benchmarks use it too.
"""

from holdover.api import Job
from holdover.cli.tpch.queries import job_from_arguments


def build(arguments: list[str]) -> Job:
    """The job; `--help` tells the arguments."""
    return job_from_arguments(3, arguments)
