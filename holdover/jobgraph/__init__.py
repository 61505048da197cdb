"""What can be known about a JobGraph without running it: whether it is valid, and its shape."""

from holdover.jobgraph.determinism import determinism_of, exchanged
from holdover.jobgraph.index import JobGraphIndex, find_cycle
from holdover.jobgraph.operator_rules import PARALLELISM_MAX
from holdover.jobgraph.validation import (
    EDGES_MAX,
    GRAPH_BYTES_MAX,
    VERTICES_MAX,
    validate,
    validation_steps,
)

__all__ = [
    "EDGES_MAX",
    "GRAPH_BYTES_MAX",
    "PARALLELISM_MAX",
    "VERTICES_MAX",
    "JobGraphIndex",
    "determinism_of",
    "exchanged",
    "find_cycle",
    "validate",
    "validation_steps",
]
