"""Nobody reads an uncommitted or stale partition (behaviour 2, 5.6).

An attempt reads what its deployment names, and finds it only when its producer has finished. What
a leader deploys names the attempts that are current with it. Where another attempt may give other
rows, because the producer is indeterminate or rows without an order are dealt out by position, all
that is read of it by attempts whose output counts must be of one attempt: the one that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdover.ids import AttemptKey
from holdover.jobgraph import determinism_of, exchanged
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.job_pb2 import DETERMINISM_INDETERMINATE, JobGraph
from holdover.v1.taskmanager_pb2 import InputGate, TaskDeployment
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import ExecutionState, JobState
from shuffle.partition_name import parse_partition_name
from simulator.invariants.view import Broken, ClusterView, Invariant, Step
from simulator.observer import PartitionRead


class ReadsWhatCounts(Invariant):
    """See the module."""

    name = "no uncommitted or stale partition is read"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        self._deployments: dict[AttemptKey, TaskDeployment] = {}
        self._finished: dict[AttemptKey, None] = {}
        #: What attempts have read that another attempt may give otherwise.
        self._read: dict[AttemptKey, dict[AttemptKey, None]] = {}
        #: By job, the exchanges of such rows: producing and reading vertex.
        self._differing: dict[str, frozenset[tuple[str, str]]] = {}
        #: Gates that were compared with the graph already, by job, epoch and input.
        self._compared: dict[tuple[str, int, str, int], int] = {}

    # ------------------------------------------------------------------ what tasks do

    def attempt_started(self, worker: str, deployment: TaskDeployment) -> None:
        """Remember what it may read."""
        if deployment.inputs:
            self._deployments[AttemptKey.from_proto(deployment.attempt)] = deployment

    def attempt_ended(
        self, worker: str, key: AttemptKey, end: str, execution: FinishedExecution | None
    ) -> None:
        """From now on its partitions are published, or it will read nothing more."""
        if end == "finished":
            self._finished[key] = None
        else:
            self._read.pop(key, None)
        self._deployments.pop(key, None)

    def partitions_read(self, reads: Sequence[PartitionRead]) -> None:
        """Each read is of a finished attempt that the deployment names."""
        for read in reads:
            identity = parse_partition_name(read.name)
            producer = AttemptKey(*identity.producer)
            deployment = self._deployments.get(read.reader)
            if deployment is None or not _names(deployment, producer, identity.output):
                self.broken(f"{read.reader} read {read.name}, which its deployment does not name")
            if not read.found:
                continue
            if producer not in self._finished:
                self.broken(f"{read.reader} read {read.name}, whose producer has not finished")
            exchange = (producer.vertex_id, read.reader.vertex_id)
            if exchange in self._differing_of(producer.job_id):
                self._read.setdefault(read.reader, {})[producer] = None

    def _differing_of(self, job_id: str) -> frozenset[tuple[str, str]]:
        known = self._differing.get(job_id)
        if known is None:
            job = self.view.jobs.get(job_id)
            known = frozenset(_differing(job.graph) if job is not None else ())
            self._differing[job_id] = known
        return known

    # ------------------------------------------------------------------ what leaders do

    def step(self, step: Step) -> None:
        """What is deployed names current attempts; what counts has read what counts."""
        offered = isinstance(step.signal, sig.WorkerRegistered)
        for event in step.decision.events:
            if event.vertex_finished.adopted or (offered and event.HasField("vertex_finished")):
                # Its process may have died when all was written and nothing told; or been cancelled
                # when a shuffle service was about to publish what it had put.
                key = AttemptKey.from_proto(event.vertex_finished.execution.attempt)
                self._finished[key] = None
        for action in step.decision.actions:
            if isinstance(action, act.Deploy):
                self._check_deployment(step, action.deployment)
            elif isinstance(action, act.CommitSinks) or (
                isinstance(action, act.EndJob) and action.state is JobState.FINISHED
            ):
                self._check_result(step)

    def _check_deployment(self, step: Step, deployment: TaskDeployment) -> None:
        graph, key = step.scheduler.graph, AttemptKey.from_proto(deployment.attempt)
        for gate in deployment.inputs:
            source = graph.vertices[gate.source_vertex_id]
            if len(gate.subtasks) > 1:
                where = (step.job_id, step.epoch, key.vertex_id, gate.input)
                if self._compared.get(where) == source.output_version:
                    continue
                self._compared[where] = source.output_version
            stale = _stale(graph, gate)
            if stale:
                self.broken(f"{key} is deployed by {step.leader} to read {stale}")

    def _check_result(self, step: Step) -> None:
        """The output is decided: what made it has read the attempts that made it."""
        graph = step.scheduler.graph
        if not self._differing_of(step.job_id):
            return
        for vertex in graph.all_subtasks():
            reader = vertex.key(graph.job_id)
            for producer in self._read.get(reader, ()):
                current = graph.find(producer)
                if current is not None and current.key(graph.job_id) != producer:
                    self.broken(
                        f"the result holds {reader}, which read {producer}, and"
                        f" {current.key(graph.job_id)}: two attempts that may give other rows"
                    )


def _differing(graph: JobGraph) -> Iterator[tuple[str, str]]:
    """Producing and reading vertex of each exchange that another attempt may fill otherwise."""
    levels = determinism_of(graph)
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for edge in graph.edges:
        output = vertices[edge.source_vertex_id].outputs[edge.source_output]
        level = exchanged(levels[edge.source_vertex_id], output.distribution.kind)
        if level == DETERMINISM_INDETERMINATE:
            yield edge.source_vertex_id, edge.target_vertex_id


def _names(deployment: TaskDeployment, producer: AttemptKey, output: int) -> bool:
    """Whether a deployment names this attempt's output as an input."""
    return any(
        gate.source_vertex_id == producer.vertex_id
        and gate.source_output == output
        and (at := _place(gate, producer.subtask)) is not None
        and (gate.attempts[at], gate.epochs[at]) == (producer.attempt, producer.epoch)
        for gate in deployment.inputs
    )


def _place(gate: InputGate, subtask: int) -> int | None:
    subtasks = gate.subtasks
    if subtask < len(subtasks) and subtasks[subtask] == subtask:
        return subtask
    return next((at for at, there in enumerate(subtasks) if there == subtask), None)


def _stale(graph: ExecutionGraph, gate: InputGate) -> str:
    """What a gate names that is not the current, finished attempt of its subtask."""
    stale = []
    for subtask, attempt, epoch in zip(gate.subtasks, gate.attempts, gate.epochs, strict=True):
        vertex = graph.vertex_at(gate.source_vertex_id, subtask)
        current = (vertex.attempt, vertex.epoch) == (attempt, epoch)
        if not current or vertex.state is not ExecutionState.FINISHED:
            name = f"{gate.source_vertex_id}[{subtask}]#{attempt}@{epoch}"
            stale.append(f"{name}, which is #{vertex.attempt} {vertex.state.name}")
    return "; ".join(stale)
