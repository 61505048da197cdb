"""The operator that spends time and writes bytes."""

from __future__ import annotations

from holdover.api.plan import DeterminismName, determinism_value
from holdover.v1.job_pb2 import NumberDistribution, Operator, Workload


def workload_operator(
    name: str,
    seconds: float | NumberDistribution,
    output_bytes: int | NumberDistribution,
    *,
    rows: int = 0,
    pass_rows: bool = False,
    failure_probability: float = 0.0,
    seed: int = 0,
    ledger_path: str = "",
    determinism: DeterminismName = "determinate",
) -> Operator:
    """A workload; the meaning of each field is the message's."""
    workload = Workload(
        rows=rows,
        pass_rows=pass_rows,
        failure_probability=failure_probability,
        seed=seed,
        ledger_path=ledger_path,
    )
    if isinstance(seconds, NumberDistribution):
        workload.seconds_distribution.CopyFrom(seconds)
    else:
        workload.seconds = seconds
    if isinstance(output_bytes, NumberDistribution):
        workload.output_bytes_distribution.CopyFrom(output_bytes)
    else:
        workload.output_bytes = output_bytes
    return Operator(name=name, determinism=determinism_value(determinism, name), workload=workload)
