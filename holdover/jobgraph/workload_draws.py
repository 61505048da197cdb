"""What a Workload operator draws: the same numbers on every machine and in both worlds.

Each number is a function of the workload, the vertex, the subtask and (failures only) the attempt,
by way of a hash: an attempt that runs again takes as long as before, and no draw moves another.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from holdover.jobgraph.operator_rules import WORKLOAD_BYTES_MAX, WORKLOAD_SECONDS_MAX
from holdover.v1.job_pb2 import NumberDistribution, Workload

#: Row identities of one subtask: its number times this, and following.
IDENTITIES_PER_SUBTASK = 1 << 32
#: A row is padded up to this size and not beyond.
ROW_BYTES_MAX = 16 << 20
IDENTITY_BYTES = 8


@dataclass(frozen=True, slots=True)
class WorkloadDraw:
    """What one attempt does.

    Attributes:
        seconds: how long it takes, before it fails if it does.
        output_bytes: what it writes.
        fails: whether it fails after these seconds.
    """

    seconds: float
    output_bytes: int
    fails: bool


def draw_workload(workload: Workload, vertex_id: str, subtask: int, attempt: int) -> WorkloadDraw:
    """The draws of one attempt; time and bytes are the same in each attempt of a subtask."""
    who = f"{workload.seed}/{vertex_id}/{subtask}"
    seconds = workload.seconds
    if workload.HasField("seconds_distribution"):
        drawn = draw_number(workload.seconds_distribution, f"{who}/seconds")
        seconds = min(drawn, WORKLOAD_SECONDS_MAX)
    output_bytes = workload.output_bytes
    if workload.HasField("output_bytes_distribution"):
        drawn = draw_number(workload.output_bytes_distribution, f"{who}/bytes")
        output_bytes = int(min(drawn, WORKLOAD_BYTES_MAX))
    probability = workload.failure_probability
    if probability > 0 and uniform(f"{who}/{attempt}/fails") < probability:
        part = uniform(f"{who}/{attempt}/part")
        return WorkloadDraw(seconds * part, output_bytes, fails=True)
    return WorkloadDraw(seconds, output_bytes, fails=False)


def draw_number(numbers: NumberDistribution, purpose: str) -> float:
    """One number of 0 or more for a purpose; 0 for a distribution without a kind."""
    kind = numbers.WhichOneof("kind")
    if kind == "uniform":
        low, high = numbers.uniform.minimum, numbers.uniform.maximum
        return low + (high - low) * uniform(purpose)
    if kind == "exponential":
        return -numbers.exponential.mean * math.log(1 - uniform(purpose))
    if kind == "lognormal":
        # Box and Muller's way to a normal number.
        radius = math.sqrt(-2 * math.log(1 - uniform(purpose)))
        normal = radius * math.cos(2 * math.pi * uniform(f"{purpose}/angle"))
        return numbers.lognormal.median * math.exp(numbers.lognormal.sigma * normal)
    if kind == "pareto":
        scale = math.pow(1 - uniform(purpose), -1 / numbers.pareto.alpha)
        return numbers.pareto.minimum * scale
    return numbers.constant


def uniform(purpose: str) -> float:
    """A number of [0, 1) that depends on nothing but the text."""
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def source_identities(workload: Workload, subtask: int) -> range:
    """The rows that a subtask without inputs makes."""
    first = subtask * IDENTITIES_PER_SUBTASK
    return range(first, first + workload.rows)


def row_bytes_until(row: int, rows: int, output_bytes: int) -> int:
    """Bytes of the first `row` of `rows` rows, which share `output_bytes` evenly.

    A row has at least its identity, and at most `ROW_BYTES_MAX`.
    """
    total = max(rows * IDENTITY_BYTES, min(output_bytes, rows * ROW_BYTES_MAX))
    return total * row // rows if rows else 0


def order_shift(rows: int, attempt: int, ordered: bool) -> int:
    """By how many places an attempt rotates its rows: those of a workload that does not promise
    their order have another one in each attempt.
    """
    return 0 if ordered or not rows else attempt % rows
