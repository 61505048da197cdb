"""What a TaskManager is told about one attempt: its inputs, where they are, and the shape of its
outputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdover.v1 import common_pb2, taskmanager_pb2
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.vertices import Edge, ExecutionJobVertex, ExecutionVertex


class InputDigests:
    """Names, in 64 bits, the producers' attempts that a subtask reads whose rows may be others when
    they run again.

    An attempt carries the digest to its end. When a new leader is offered what it has left behind,
    and no event tells of it, the digest says whether it has read what now counts.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        #: By edge, with the `output_version` of its source; all-to-all edges only.
        self._edges: dict[int, tuple[int, bytes]] = {}

    def of(self, vertex: ExecutionVertex) -> int:
        """The digest of the subtask's inputs as they are; 0 where every run gives the same rows."""
        edges = [e for e in self._graph.vertices[vertex.vertex_id].in_edges if e.rows_differ]
        if not edges:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        for edge in edges:
            digest.update(self._edge(edge, vertex))
        return int.from_bytes(digest.digest(), "big") or 1

    def match(self, vertex: ExecutionVertex, execution: common_pb2.FinishedExecution) -> bool:
        """Whether an attempt of whatever leader has read what now counts: its subtask's part, by
        the shape that the vertex has, of the rows that its producers have left behind.

        A shape that was lost with the end of the log may be decided otherwise the second time.
        """
        shape = self._graph.vertices[vertex.vertex_id].shape_digest
        rows = self.of(vertex)
        return execution.shape_digest in (0, shape) and rows in (0, execution.inputs_digest)

    def forget(self, owner: ExecutionJobVertex) -> None:
        """Nothing of a vertex is deployed at present."""
        for edge in owner.in_edges:
            self._edges.pop(edge.index, None)

    def _edge(self, edge: Edge, vertex: ExecutionVertex) -> bytes:
        source = self._graph.vertices[edge.source]
        if edge.forward:
            return _names(edge, [source.subtasks[vertex.subtask]])
        version, names = self._edges.get(edge.index, (-1, b""))
        if version != source.output_version:
            names = hashlib.blake2b(_names(edge, source.subtasks), digest_size=8).digest()
            self._edges[edge.index] = (source.output_version, names)
        return names


def _names(edge: Edge, producers: Iterable[ExecutionVertex]) -> bytes:
    attempts = ((p.subtask, p.attempt, p.epoch) for p in producers)
    return repr((edge.index, *attempts)).encode()


class _KeptGate(NamedTuple):
    """It holds while its source has this version, and the workers serve at these addresses."""

    gate: taskmanager_pb2.InputGate
    output_version: int
    addresses: dict[str, str]


class TaskDeployments:
    """Makes the deployments of one job's subtasks.

    What all subtasks of a vertex read alike (every producer's attempt and place) is put together
    once and copied for each, until a producer finishes again elsewhere.
    """

    def __init__(
        self,
        graph: ExecutionGraph,
        data_addresses: Mapping[str, str],
        digests: InputDigests,
        *,
        recovery_enabled: bool,
    ) -> None:
        """`data_addresses`: of each registered worker, as of the time of each deployment."""
        self._graph = graph
        self._digests = digests
        self._data_addresses = data_addresses
        self._recovery_enabled = recovery_enabled
        #: By edge; all-to-all edges only.
        self._gates: dict[int, _KeptGate] = {}

    def of(
        self, vertex: ExecutionVertex, slot: SlotId, target: str = ""
    ) -> taskmanager_pb2.TaskDeployment:
        """The deployment of a subtask's current attempt, all of whose inputs are available.

        `target` is the registered shuffle service that its output goes to, or empty.
        """
        graph = self._graph
        owner = graph.vertices[vertex.vertex_id]
        deployment = taskmanager_pb2.TaskDeployment(
            attempt=vertex.key(graph.job_id).to_proto(),
            slot=slot.index,
            parallelism=owner.parallelism,
            output_subpartitions=owner.output_subpartitions,
            inputs_digest=self._digests.of(vertex),
            shape_digest=owner.shape_digest,
            recovery_disabled=not self._recovery_enabled,
        )
        if target:
            deployment.shuffle_target.worker_id = target
            deployment.shuffle_target.data_address = self._data_addresses[target]
        for position, edge in enumerate(owner.in_edges):
            deployment.inputs.append(self._gate(edge, vertex))
            gate = deployment.inputs[position]
            first, end = _subpartition_range(graph, owner, position, edge, vertex)
            gate.first_subpartition, gate.end_subpartition = first, end
        return deployment

    def forget(self, owner: ExecutionJobVertex) -> None:
        """All subtasks of a vertex have finished: what they read alike is not kept."""
        self._digests.forget(owner)
        for edge in owner.in_edges:
            self._gates.pop(edge.index, None)

    def _gate(self, edge: Edge, vertex: ExecutionVertex) -> taskmanager_pb2.InputGate:
        source = self._graph.vertices[edge.source]
        if edge.forward:
            return self._new_gate(edge, [source.subtasks[vertex.subtask]])
        kept = self._gates.get(edge.index)
        if (
            kept is not None
            and kept.output_version == source.output_version
            and kept.addresses.items() <= self._data_addresses.items()
        ):
            return kept.gate
        gate = self._new_gate(edge, source.subtasks)
        addresses = {place.worker_id: place.data_address for place in gate.locations}
        self._gates[edge.index] = _KeptGate(gate, source.output_version, addresses)
        return gate

    def _new_gate(
        self, edge: Edge, producers: Sequence[ExecutionVertex]
    ) -> taskmanager_pb2.InputGate:
        # The workers that store their partitions, each once, in the producers' order.
        indexes: dict[str, int] = {}
        for producer in producers:
            if producer.stored_at not in indexes:
                indexes[producer.stored_at] = len(indexes)
        return taskmanager_pb2.InputGate(
            input=edge.target_input,
            source_vertex_id=edge.source,
            source_output=edge.source_output,
            subtasks=[p.subtask for p in producers],
            attempts=[p.attempt for p in producers],
            epochs=[p.epoch for p in producers],
            locations=[
                common_pb2.PartitionLocation(
                    worker_id=worker, data_address=self._data_addresses[worker]
                )
                for worker in indexes
            ],
            location_indexes=[indexes[p.stored_at] for p in producers],
        )


def _subpartition_range(
    graph: ExecutionGraph,
    owner: ExecutionJobVertex,
    position: int,
    edge: Edge,
    vertex: ExecutionVertex,
) -> tuple[int, int]:
    bounds = owner.input_bounds[position]
    if bounds:
        return bounds[vertex.subtask], bounds[vertex.subtask + 1]
    return 0, graph.vertices[edge.source].output_subpartitions[edge.source_output]


def preferred_worker(graph: ExecutionGraph, vertex: ExecutionVertex) -> str | None:
    """The worker that stores a subtask's forward input, which it can then read by memory map."""
    for edge in graph.vertices[vertex.vertex_id].in_edges:
        if edge.forward:
            return graph.vertices[edge.source].subtasks[vertex.subtask].stored_at
    return None
