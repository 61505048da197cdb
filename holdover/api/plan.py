"""What a user has described so far: operators and who reads whom, before any vertex is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdover.errors import JobGraphError
from holdover.v1 import job_pb2

DeterminismName = Literal["determinate", "unordered", "indeterminate"]
DistributionName = Literal["hash", "rebalance", "broadcast", "forward", "range"]

_DETERMINISMS: dict[str, job_pb2.Determinism.ValueType] = {
    "determinate": job_pb2.DETERMINISM_DETERMINATE,
    "unordered": job_pb2.DETERMINISM_UNORDERED,
    "indeterminate": job_pb2.DETERMINISM_INDETERMINATE,
}


@dataclass(frozen=True, slots=True)
class Exchanging:
    """How rows are to be spread; `keys` only for hash and range."""

    kind: DistributionName
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one operator on their way to a reader; without `exchanging` they may be chained."""

    node: Node
    exchanging: Exchanging | None = None


#: What feeds one input of an operator; several parts are a union.
Port = tuple[Part, ...]


@dataclass(eq=False, slots=True)
class Node:
    """One operator as the user described it.

    Attributes:
        number: position in the plan.
        operator: the message, but for what only the build knows (pickled code, vertex inputs).
        ports: its inputs; for SQL parallel to the tables of `operator.sql`.
        function: the function that the build pickles, if it has one.
        parallelism: number of subtasks, or None where the user said nothing.
    """

    number: int
    operator: job_pb2.Operator
    ports: tuple[Port, ...]
    function: Callable[..., Any] | None = None
    parallelism: int | None = None

    @property
    def name(self) -> str:
        """The operator's name, for messages."""
        return self.operator.name

    def parts(self) -> Iterator[Part]:
        """Everything that it reads."""
        for port in self.ports:
            yield from port


class Plan:
    """The operators of one job, every producer before its consumers."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(
        self,
        operator: job_pb2.Operator,
        ports: Sequence[Port] = (),
        *,
        parallelism: int | None = None,
        function: Callable[..., Any] | None = None,
    ) -> Node:
        """Appends an operator; raises JobGraphError when an input is of another job."""
        name = operator.name
        if parallelism is not None and (isinstance(parallelism, bool) or parallelism < 1):
            raise JobGraphError(
                name, f"parallelism {parallelism} must be at least 1; leave it out for adaptive"
            )
        node = Node(len(self.nodes), operator, tuple(ports), function, parallelism)
        for part in node.parts():
            if not self.has(part.node):
                raise JobGraphError(name, f"its input {part.node.name!r} belongs to another job")
        self.nodes.append(node)
        return node

    def has(self, node: Node) -> bool:
        """Whether the operator belongs to this plan."""
        return node.number < len(self.nodes) and self.nodes[node.number] is node


def determinism_value(name: str, operator_name: str) -> job_pb2.Determinism.ValueType:
    """The enum value of a determinism's name; raises JobGraphError."""
    if name not in _DETERMINISMS:
        raise JobGraphError(
            operator_name, f"determinism {name!r} must be one of {', '.join(_DETERMINISMS)}"
        )
    return _DETERMINISMS[name]
