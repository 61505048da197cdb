"""What workloads draw, and which distributions a job may ask for."""

from __future__ import annotations

import statistics

import pytest

from holdover.errors import JobGraphError
from holdover.jobgraph.operator_rules import check_operator
from holdover.jobgraph.workload_draws import (
    draw_number,
    draw_workload,
    row_bytes_until,
    source_identities,
)
from holdover.v1.job_pb2 import (
    DETERMINISM_DETERMINATE,
    ExponentialDistribution,
    LognormalDistribution,
    NumberDistribution,
    Operator,
    ParetoDistribution,
    UniformDistribution,
    Workload,
)

UNIFORM = NumberDistribution(uniform=UniformDistribution(minimum=2, maximum=4))
EXPONENTIAL = NumberDistribution(exponential=ExponentialDistribution(mean=3))
LOGNORMAL = NumberDistribution(lognormal=LognormalDistribution(median=10, sigma=0.5))
PARETO = NumberDistribution(pareto=ParetoDistribution(minimum=1, alpha=2))


@pytest.mark.parametrize(
    ("numbers", "median"),
    [
        (NumberDistribution(constant=7), 7),
        (UNIFORM, 3),
        (EXPONENTIAL, 2.08),
        (LOGNORMAL, 10),
        (PARETO, 1.41),
    ],
)
def test_half_of_the_draws_are_below_the_median(numbers: NumberDistribution, median: float) -> None:
    drawn = [draw_number(numbers, f"{i}") for i in range(4_000)]
    assert min(drawn) >= 0
    assert statistics.median(drawn) == pytest.approx(median, rel=0.05)


def test_draws_are_the_same_for_ever() -> None:
    workload = Workload(seed=3, seconds_distribution=LOGNORMAL, output_bytes_distribution=PARETO)
    first = draw_workload(workload, "v0", 5, 0)
    assert first.seconds == pytest.approx(17.865925624, rel=1e-9)
    assert draw_workload(workload, "v0", 5, 9) == first
    assert draw_workload(workload, "v0", 6, 0).seconds != first.seconds


def test_failures_are_drawn_for_each_attempt() -> None:
    workload = Workload(seconds=10, failure_probability=0.3)
    draws = [draw_workload(workload, "v0", 0, attempt) for attempt in range(1_000)]
    failing = [draw for draw in draws if draw.fails]
    assert len(failing) == pytest.approx(300, abs=50)
    assert all(0 <= draw.seconds < 10 for draw in failing)
    assert all(draw.seconds == 10 for draw in draws if not draw.fails)


def test_rows_share_the_bytes_and_keep_their_identity() -> None:
    assert [row_bytes_until(row, 3, 100) for row in range(4)] == [0, 33, 66, 100]
    assert row_bytes_until(3, 3, 1) == 24
    assert row_bytes_until(0, 0, 100) == 0
    assert list(source_identities(Workload(rows=2), 3)) == [3 << 32, (3 << 32) + 1]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Workload(failure_probability=2), "failure_probability: 2.0 must be 0 to 1"),
        (Workload(rows=-1), "rows: -1 must be"),
        (Workload(rows=1, pass_rows=True), "pass_rows: must be unset"),
        (Workload(ledger_path="x"), "ledger_path: 'x' is not absolute"),
        (Workload(seconds_distribution=NumberDistribution()), "seconds_distribution: is empty"),
        (
            Workload(
                output_bytes_distribution=NumberDistribution(
                    uniform=UniformDistribution(minimum=2, maximum=1)
                )
            ),
            "output_bytes_distribution.uniform.maximum: 1.0 is below minimum",
        ),
        (
            Workload(seconds_distribution=NumberDistribution(pareto=ParetoDistribution(minimum=1))),
            "seconds_distribution.pareto.alpha: 0.0 is below 0.1",
        ),
        (
            Workload(
                seconds_distribution=NumberDistribution(
                    exponential=ExponentialDistribution(mean=float("inf"))
                )
            ),
            "exponential.mean: inf must be",
        ),
    ],
)
def test_an_impossible_workload_is_refused(workload: Workload, message: str) -> None:
    operator = Operator(determinism=DETERMINISM_DETERMINATE, workload=workload)
    with pytest.raises(JobGraphError, match=message):
        check_operator(operator, "operators[0]")
