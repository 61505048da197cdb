"""The execution graph: what is true of a job.

Two kinds of state live here. *Durable* state (parallelism, splits, finished subtasks, resets, the
job's own state) changes only in `apply(event)`, the same function live and in replay, so that the
state after a replay equals the state before the crash, less the lost tail. *Volatile* state (which
attempt is scheduled, deployed, running, where) changes through the named methods and is gone with
the JobManager.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from holdover.ids import AttemptKey
from holdover.jobgraph import determinism_of, exchanged
from holdover.v1 import common_pb2, events_pb2, job_pb2
from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.states import (
    ACTIVE_EXECUTION_STATES,
    EXECUTION_TRANSITIONS,
    ExecutionState,
    InvalidTransition,
    JobState,
    check_job_transition,
)
from jobmanager.scheduler.vertices import Edge, ExecutionJobVertex, ExecutionVertex, SubtaskId


class ReplayError(Exception):
    """An event contradicts the state that the events before it built: the log is not this job's
    history.
    """


# An event, or what a finished subtask has left behind and where: most of a large snapshot.
_SnapshotPart = events_pb2.JobEvent | tuple[common_pb2.FinishedExecution, str]


class SnapshotEvents(Collection[events_pb2.JobEvent]):
    """The events of a snapshot, in order.

    They are of the moment at which the snapshot was taken, but those of finished subtasks are made
    when they are read, for to make all of a large job's at once would hold up the event loop.
    """

    def __init__(self, parts: Sequence[_SnapshotPart]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, event: object) -> bool:
        return any(event == each for each in self)

    def __iter__(self) -> Iterator[events_pb2.JobEvent]:
        for part in self._parts:
            if isinstance(part, events_pb2.JobEvent):
                yield part
                continue
            execution, worker_id = part
            finished = events_pb2.ExecutionVertexFinished(
                execution=execution, location=common_pb2.PartitionLocation(worker_id=worker_id)
            )
            yield events_pb2.JobEvent(vertex_finished=finished)


class ExecutionGraph:
    """All vertices of a job, the job's state, and nothing else."""

    def __init__(self, job: job_pb2.JobGraph) -> None:
        self.job = job
        self.job_id = job.job_id
        self.state = JobState.CREATED
        self.failure: common_pb2.Failure | None = None
        self.cancel_requested = False
        self.commit: events_pb2.JobCommitStarted | None = None
        #: Subtasks, and vertices with all of theirs, that may have become ready or ceased to be
        #: since `take_readiness_changes`.
        self._changed_subtasks: dict[SubtaskId, None] = {}
        self._changed_vertices: dict[str, None] = {}
        #: Subtasks by `ExecutionVertex.worker_id`.
        self._at_worker: dict[str, dict[SubtaskId, None]] = {}
        self._order = {vertex.vertex_id: place for place, vertex in enumerate(job.vertices)}
        levels = determinism_of(job)
        self.vertices: dict[str, ExecutionJobVertex] = {
            vertex.vertex_id: ExecutionJobVertex(vertex, levels[vertex.vertex_id])
            for vertex in job.vertices
        }
        for index, edge in enumerate(job.edges):
            output = self.vertices[edge.source_vertex_id].vertex.outputs[edge.source_output]
            record = Edge(
                index,
                edge.source_vertex_id,
                edge.source_output,
                edge.target_vertex_id,
                edge.target_input,
                output.distribution.kind,
                exchanged(levels[edge.source_vertex_id], output.distribution.kind)
                == job_pb2.DETERMINISM_INDETERMINATE,
            )
            self.vertices[edge.source_vertex_id].out_edges.append(record)
            self.vertices[edge.target_vertex_id].in_edges.append(record)

    # Durable state

    def apply(self, event: events_pb2.JobEvent) -> None:
        """Change the durable state as the event says.

        Raises:
            ReplayError: the event contradicts the state (a log that is not this job's history).
        """
        kind = event.WhichOneof("kind")
        if kind == "vertex_finished":
            self._apply_finished(event.vertex_finished)
        elif kind == "vertex_reset":
            for subtask in event.vertex_reset.subtasks:
                self._apply_reset(self.vertex_at(event.vertex_reset.vertex_id, subtask))
        elif kind == "vertex_initialized":
            self._apply_initialized(event.vertex_initialized)
        elif kind == "partitions_moved":
            self._apply_moved(event.partitions_moved)
        elif kind == "job_state_changed":
            self._apply_job_state(event.job_state_changed.state)
        elif kind == "cancel_requested":
            self.cancel_requested = True
        elif kind == "commit_started":
            if not self.all_finished:
                raise ReplayError("the output is published before every subtask has finished")
            self.commit = event.commit_started
        elif kind == "failure_recorded":
            self.failure = event.failure_recorded.failure
        elif kind == "attempts_raised":
            self._apply_attempts_raised(event.attempts_raised)
        elif kind not in ("snapshot_begin", "snapshot_end"):
            raise ReplayError(f"event of unknown kind {kind!r}")

    def _apply_initialized(self, event: events_pb2.ExecutionJobVertexInitialized) -> None:
        vertex = self._job_vertex(event.vertex_id)
        if vertex.initialized or event.parallelism < 1:
            raise ReplayError(f"vertex {event.vertex_id} is initialized twice or with no subtask")
        if len(event.input_ranges) != len(vertex.in_edges):
            raise ReplayError(f"vertex {event.vertex_id} has other inputs than its event")
        if any(len(r.bounds) not in (0, event.parallelism + 1) for r in event.input_ranges):
            raise ReplayError(f"vertex {event.vertex_id} has ranges for another parallelism")
        vertex.initialize(event.parallelism)
        vertex.input_bounds = [tuple(ranges.bounds) for ranges in event.input_ranges]
        vertex.splits = tuple(event.splits)

    def _apply_finished(self, event: events_pb2.ExecutionVertexFinished) -> None:
        execution = event.execution
        key = execution.attempt
        vertex = self.vertex_at(key.vertex_id, key.subtask)
        if vertex.state is ExecutionState.FINISHED:
            raise ReplayError(f"subtask {vertex.vertex_id}/{vertex.subtask} finishes twice")
        owner = self.vertices[vertex.vertex_id]
        known = len(owner.splits) if owner.splits_recorded else sys.maxsize
        for index in execution.splits:
            if not 0 <= index < known:
                name = f"{vertex.vertex_id}/{vertex.subtask}"
                raise ReplayError(f"subtask {name} reads unknown splits")
        before = vertex.worker_id
        # An adopted attempt belongs to an earlier leader: whatever this leader had begun is over
        # by now.
        self.transition(vertex, ExecutionState.FINISHED)
        vertex.attempt = key.attempt
        vertex.next_attempt = max(vertex.next_attempt, key.attempt + 1)
        vertex.epoch = key.leader_epoch
        vertex.finished = execution
        vertex.stored_at = event.location.worker_id
        vertex.slot = None
        vertex.held = False
        vertex.splits = list(execution.splits)
        owner.add_output(execution)
        owner.output_version += 1
        self._moved(vertex, before, vertex.stored_at)

    def _apply_moved(self, event: events_pb2.PartitionsMoved) -> None:
        key = AttemptKey.from_proto(event.attempt)
        vertex = self.vertex_at(key.vertex_id, key.subtask)
        if vertex.finished is None or vertex.key(self.job_id) != key:
            raise ReplayError(f"the output of {key} moves and is not what counts")
        before, vertex.stored_at = vertex.worker_id, event.location.worker_id
        self.vertices[vertex.vertex_id].output_version += 1
        self._moved(vertex, before, vertex.stored_at)

    def _apply_job_state(self, state: int) -> None:
        try:
            after = JobState(state)
        except ValueError:
            raise ReplayError(f"the job changes to unknown state {state}") from None
        check_job_transition(self.state, after)
        self.state = after

    def _apply_attempts_raised(self, event: events_pb2.ExecutionAttemptsRaised) -> None:
        subtasks = self._job_vertex(event.vertex_id).subtasks
        if len(subtasks) != len(event.next_attempts):
            raise ReplayError(
                f"vertex {event.vertex_id} has {len(subtasks)} subtasks, and not"
                f" {len(event.next_attempts)}"
            )
        for vertex, attempt in zip(subtasks, event.next_attempts, strict=True):
            vertex.next_attempt = max(vertex.next_attempt, attempt)
            if vertex.state is not ExecutionState.FINISHED:
                vertex.attempt = max(vertex.attempt, attempt)

    def _apply_reset(self, vertex: ExecutionVertex) -> None:
        if vertex.state is not ExecutionState.FINISHED:
            raise ReplayError(f"subtask {vertex.vertex_id}/{vertex.subtask} is reset unfinished")
        owner = self._job_vertex(vertex.vertex_id)
        if owner.source is not None and owner.splits_recorded:
            vertex.pinned_splits = tuple(vertex.splits)
        self.set_available(vertex, False)
        owner.output_version += 1
        owner.released = False
        if vertex.finished is not None:
            owner.remove_output(vertex.finished)
        vertex.finished = None
        before, vertex.stored_at = vertex.worker_id, ""
        self._moved(vertex, before, "")
        self.renew(vertex)

    def _job_vertex(self, vertex_id: str) -> ExecutionJobVertex:
        if vertex_id not in self.vertices:
            raise ReplayError(f"the job has no vertex {vertex_id!r}")
        return self.vertices[vertex_id]

    def vertex_at(self, vertex_id: str, subtask: int) -> ExecutionVertex:
        """The subtask of that name.

        Raises:
            ReplayError: there is none.
        """
        owner = self._job_vertex(vertex_id)
        if not 0 <= subtask < owner.parallelism:
            raise ReplayError(f"vertex {vertex_id} has no subtask {subtask}")
        return owner.subtasks[subtask]

    def find(self, key: AttemptKey) -> ExecutionVertex | None:
        """The subtask that a report or an offer is about, whatever its current attempt; None if
        unknown.
        """
        owner = self.vertices.get(key.vertex_id)
        if owner is None or not 0 <= key.subtask < owner.parallelism:
            return None
        return owner.subtasks[key.subtask]

    def snapshot_events(self, history: Iterable[events_pb2.JobStateChanged]) -> SnapshotEvents:
        """Events that lead a fresh graph to the present durable state (not the markers around
        them).

        `history` are the changes of the job's state up to the present one, with their epochs and
        times.
        """
        events: list[_SnapshotPart] = []
        for owner in self.vertices.values():
            if not owner.initialized:
                continue
            initialized = events_pb2.ExecutionJobVertexInitialized(
                vertex_id=owner.vertex_id,
                parallelism=owner.parallelism,
                input_ranges=[events_pb2.InputRanges(bounds=b) for b in owner.input_bounds],
                splits=owner.splits,
            )
            events.append(events_pb2.JobEvent(vertex_initialized=initialized))
            events.extend(self._snapshot_subtasks(owner))
        if self.cancel_requested:
            events.append(events_pb2.JobEvent(cancel_requested=events_pb2.JobCancelRequested()))
        if self.failure is not None:
            recorded = events_pb2.JobFailureRecorded(failure=self.failure)
            events.append(events_pb2.JobEvent(failure_recorded=recorded))
        if self.commit is not None:
            events.append(events_pb2.JobEvent(commit_started=self.commit))
        events.extend(events_pb2.JobEvent(job_state_changed=change) for change in history)
        return SnapshotEvents(events)

    def _snapshot_subtasks(self, owner: ExecutionJobVertex) -> Iterator[_SnapshotPart]:
        for vertex in owner.subtasks:
            if vertex.state is not ExecutionState.FINISHED and vertex.pinned_splits is not None:
                # A finished source that was reset: its splits stay with it. The reset raises the
                # attempt to what it is now.
                attempt = vertex.key(self.job_id).to_proto()
                attempt.attempt -= 1
                pinned = common_pb2.FinishedExecution(attempt=attempt, splits=vertex.pinned_splits)
                finished = events_pb2.ExecutionVertexFinished(execution=pinned)
                yield events_pb2.JobEvent(vertex_finished=finished)
                yield events_pb2.JobEvent(
                    vertex_reset=events_pb2.ExecutionVertexReset(
                        vertex_id=owner.vertex_id, subtasks=[vertex.subtask]
                    )
                )
            elif vertex.finished is not None:
                yield vertex.finished, vertex.stored_at
        yield events_pb2.JobEvent(
            attempts_raised=events_pb2.ExecutionAttemptsRaised(
                vertex_id=owner.vertex_id,
                next_attempts=[_attempts_begun(v) for v in owner.subtasks],
            )
        )

    # Volatile state

    def transition(self, vertex: ExecutionVertex, after: ExecutionState) -> None:
        """Move the current attempt of a subtask to another state (FINISHED and a reset are events).

        Raises:
            InvalidTransition: the state may not follow the present one.
        """
        if after not in EXECUTION_TRANSITIONS[vertex.state]:
            raise InvalidTransition(
                f"{vertex.vertex_id}/{vertex.subtask}: {vertex.state.name} -> {after.name}"
            )
        counts = self.vertices[vertex.vertex_id].state_counts
        counts[vertex.state] -= 1
        counts[after] += 1
        vertex.state = after

    def deploy(self, vertex: ExecutionVertex, slot: SlotId, epoch: int) -> None:
        """The current attempt is being started in a slot by the leader of that epoch."""
        self.transition(vertex, ExecutionState.DEPLOYING)
        vertex.epoch = epoch
        vertex.next_attempt = max(vertex.next_attempt, vertex.attempt + 1)
        vertex.slot = slot
        self._moved(vertex, "", slot.worker_id)  # it was SCHEDULED, and so nowhere

    def renew(self, vertex: ExecutionVertex) -> None:
        """Take a subtask whose attempt is over back to CREATED with the next attempt."""
        self.transition(vertex, ExecutionState.CREATED)
        before = vertex.worker_id
        vertex.attempt = vertex.next_attempt = max(vertex.attempt + 1, vertex.next_attempt)
        vertex.epoch = 0
        vertex.slot = None
        vertex.splits = []
        vertex.asks_for_splits = True
        self._moved(vertex, before, vertex.stored_at)
        self._changed_subtasks[vertex.id] = None

    def _moved(self, vertex: ExecutionVertex, before: str, after: str) -> None:
        """`ExecutionVertex.worker_id` was another before."""
        if after == before:
            return
        if before:
            del self._at_worker[before][vertex.id]
            if not self._at_worker[before]:
                del self._at_worker[before]
        if after:
            self._at_worker.setdefault(after, {})[vertex.id] = None

    def set_available(self, vertex: ExecutionVertex, available: bool) -> None:
        """Say whether the partitions of a finished subtask are at a registered worker."""
        if vertex.available == available:
            return
        owner = self.vertices[vertex.vertex_id]
        before = owner.available_count == owner.parallelism
        vertex.available = available
        owner.available_count += 1 if available else -1
        changed = before is not (owner.available_count == owner.parallelism)
        for edge in owner.out_edges:
            if edge.forward:
                self._changed_subtasks[edge.target, vertex.subtask] = None
            elif changed:
                self._changed_vertices[edge.target] = None

    def take_readiness_changes(self) -> list[ExecutionVertex]:
        """The subtasks whose readiness may have changed since the last call, in the graph's order.

        So a step costs what it changes, however large the job is.
        """
        vertices, subtasks = self._changed_vertices, self._changed_subtasks
        if not vertices and not subtasks:
            return []
        self._changed_vertices, self._changed_subtasks = {}, {}
        by_vertex: dict[str, list[int]] = {}
        for vertex_id, subtask in subtasks:
            by_vertex.setdefault(vertex_id, []).append(subtask)
        changed: list[ExecutionVertex] = []
        for vertex_id in sorted({**vertices, **by_vertex}, key=self._order.__getitem__):
            owner = self.vertices[vertex_id]
            if vertex_id in vertices:
                changed.extend(owner.subtasks)
            else:
                places = sorted(by_vertex[vertex_id])
                changed.extend(owner.subtasks[i] for i in places if i < len(owner.subtasks))
        return changed

    # Questions

    def all_subtasks(self) -> Iterator[ExecutionVertex]:
        """Every subtask of every initialized vertex, in the graph's order."""
        for owner in self.vertices.values():
            yield from owner.subtasks

    def at_worker(self, worker_id: str) -> list[ExecutionVertex]:
        """Subtasks whose current attempt occupies a slot of a worker, or has left its partitions
        there.
        """
        there = self._at_worker.get(worker_id, ())
        return [self.vertices[vertex_id].subtasks[subtask] for vertex_id, subtask in there]

    def workers(self) -> list[str]:
        """Workers where any subtask's attempt occupies a slot or has left its partitions, in the
        order in which the first one has come there.
        """
        return list(self._at_worker)

    def active(self) -> Iterator[ExecutionVertex]:
        """Subtasks whose current attempt may occupy a slot."""
        return (v for v in self.all_subtasks() if v.state in ACTIVE_EXECUTION_STATES)

    def producers(self, vertex: ExecutionVertex) -> Iterator[ExecutionVertex]:
        """The subtasks whose partitions a subtask reads."""
        for edge in self.vertices[vertex.vertex_id].in_edges:
            source = self.vertices[edge.source].subtasks
            if edge.forward:
                if vertex.subtask < len(source):
                    yield source[vertex.subtask]
            else:
                yield from source

    def consumers(self, vertex: ExecutionVertex) -> Iterator[ExecutionVertex]:
        """The (initialized) subtasks that read a subtask's partitions."""
        for edge in self.vertices[vertex.vertex_id].out_edges:
            target = self.vertices[edge.target].subtasks
            if edge.forward:
                if vertex.subtask < len(target):
                    yield target[vertex.subtask]
            else:
                yield from target

    def needed(self, vertex: ExecutionVertex) -> bool:
        """Whether some consumer of a finished subtask is unfinished or not yet initialized
        ("reserve").
        """
        for edge in self.vertices[vertex.vertex_id].out_edges:
            target = self.vertices[edge.target]
            if not target.initialized:
                return True
            if edge.forward:
                if target.subtasks[vertex.subtask].state is not ExecutionState.FINISHED:
                    return True
            elif not target.all_finished:
                return True
        return False

    def inputs_available(self, vertex: ExecutionVertex) -> bool:
        """Whether everything that a subtask reads is finished and at registered workers, and its
        source, if it has one, is listed.

        Computed from state, so that recovered, rerun and never-lost inputs count the same (P13).
        """
        owner = self.vertices[vertex.vertex_id]
        if owner.splits_unknown:
            return False
        for edge in owner.in_edges:
            source = self.vertices[edge.source]
            if edge.forward:
                if not source.initialized or not source.subtasks[vertex.subtask].available:
                    return False
            elif not source.initialized or source.available_count < source.parallelism:
                return False
        return True

    @property
    def all_finished(self) -> bool:
        """Whether every subtask of every vertex is FINISHED; the last vertex seldom is."""
        for owner in reversed(self.vertices.values()):  # noqa: SIM110  after every signal: fewer calls
            if not owner.all_finished:
                return False
        return True


def _attempts_begun(vertex: ExecutionVertex) -> int:
    finished = vertex.state is ExecutionState.FINISHED
    return vertex.next_attempt if finished else vertex.attempt
