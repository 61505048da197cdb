"""What a TaskManager is told about one attempt: its inputs, where they are, and the shape of its
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdover.v1 import common_pb2, taskmanager_pb2
from jobmanager.scheduler.execution_graph import (
    Edge,
    ExecutionGraph,
    ExecutionJobVertex,
    ExecutionVertex,
)
from jobmanager.scheduler.signals import SlotId


def task_deployment(
    graph: ExecutionGraph,
    vertex: ExecutionVertex,
    slot: SlotId,
    data_addresses: Mapping[str, str],
) -> taskmanager_pb2.TaskDeployment:
    """The deployment of a subtask's current attempt, all of whose inputs are available."""
    owner = graph.vertices[vertex.vertex_id]
    deployment = taskmanager_pb2.TaskDeployment(
        attempt=vertex.key(graph.job_id).to_proto(),
        slot=slot.index,
        parallelism=owner.parallelism,
        output_subpartitions=[output.subpartitions for output in owner.vertex.outputs],
    )
    for position, edge in enumerate(owner.in_edges):
        gate = deployment.inputs.add()
        _fill_gate(gate, graph, edge, vertex, data_addresses)
        first, end = _subpartition_range(graph, owner, position, edge, vertex)
        gate.first_subpartition, gate.end_subpartition = first, end
    return deployment


def _fill_gate(
    gate: taskmanager_pb2.InputGate,
    graph: ExecutionGraph,
    edge: Edge,
    vertex: ExecutionVertex,
    data_addresses: Mapping[str, str],
) -> None:
    gate.input = edge.target_input
    gate.source_vertex_id = edge.source
    gate.source_output = edge.source_output
    producers = graph.vertices[edge.source].subtasks
    if edge.forward:
        producers = [producers[vertex.subtask]]
    indexes: dict[str, int] = {}
    for producer in producers:
        if producer.stored_at not in indexes:
            indexes[producer.stored_at] = len(indexes)
            gate.locations.append(
                common_pb2.PartitionLocation(
                    worker_id=producer.stored_at,
                    data_address=data_addresses[producer.stored_at],
                )
            )
    gate.subtasks.extend(p.subtask for p in producers)
    gate.attempts.extend(p.attempt for p in producers)
    gate.epochs.extend(p.epoch for p in producers)
    gate.location_indexes.extend(indexes[p.stored_at] for p in producers)


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
    output = graph.vertices[edge.source].vertex.outputs[edge.source_output]
    return 0, output.subpartitions


def preferred_worker(graph: ExecutionGraph, vertex: ExecutionVertex) -> str | None:
    """The worker that stores a subtask's forward input, which it can then read by memory map."""
    for edge in graph.vertices[vertex.vertex_id].in_edges:
        if edge.forward:
            return graph.vertices[edge.source].subtasks[vertex.subtask].stored_at
    return None
