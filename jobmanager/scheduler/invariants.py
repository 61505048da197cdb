"""What is always true of a scheduler between two signals. Every test checks it after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.splits import will_ask
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from jobmanager.scheduler.vertices import SubtaskId


class InvariantBroken(AssertionError):
    """The scheduler's state contradicts itself; the message says where."""


def check(scheduler: Scheduler) -> None:
    """Raise InvariantBroken, naming every contradiction, if there is one.

    Between two parts of one signal nothing is looked at.
    """
    core = scheduler.core
    if core.decision.unfinished:
        return
    checks = (_counts, _executions, _readiness, _places, _slots, _splits, _recovery, _absent)
    broken = [contradiction for each in checks for contradiction in each(core)]
    if broken:
        raise InvariantBroken("; ".join(broken))


def _counts(core: SchedulerCore) -> Iterator[str]:
    for owner in core.graph.vertices.values():
        counts = Counter(int(vertex.state) for vertex in owner.subtasks)
        states = [counts[state] for state in range(len(owner.state_counts))]
        available = sum(v.available for v in owner.subtasks)
        if owner.state_counts != states:
            yield f"{owner.vertex_id}: {states} in each state, counted {owner.state_counts}"
        outputs = [v.finished for v in owner.subtasks if v.finished is not None]
        rows = (sum(o.rows_in for o in outputs), sum(o.rows_out for o in outputs))
        if rows != (owner.rows_in, owner.rows_out):
            yield f"{owner.vertex_id}: {rows} rows, counted {owner.rows_in, owner.rows_out}"
        if owner.available_count != available:
            yield f"{owner.vertex_id}: {available} available, counted {owner.available_count}"
        if len(owner.subtasks) != owner.parallelism:
            yield f"{owner.vertex_id}: {len(owner.subtasks)} of {owner.parallelism} subtasks"


def _executions(core: SchedulerCore) -> Iterator[str]:
    for vertex in core.graph.all_subtasks():
        where = f"{vertex.vertex_id}/{vertex.subtask}"
        finished = vertex.state is ExecutionState.FINISHED
        if finished is not (vertex.finished is not None):
            yield f"{where}: {vertex.state.name} with finished record {vertex.finished}"
        if vertex.available and (not finished or vertex.stored_at not in core.workers):
            yield f"{where}: available, {vertex.state.name} at {vertex.stored_at!r}"
        if (vertex.state is ExecutionState.SCHEDULED) is not (vertex.id in core.ready):
            yield f"{where}: {vertex.state.name}, in the ready queue: {vertex.id in core.ready}"
        if vertex.state in (ExecutionState.CANCELED, ExecutionState.FAILED):
            yield f"{where}: rests in {vertex.state.name}"


def _readiness(core: SchedulerCore) -> Iterator[str]:
    """Exactly what can run is scheduled, however it came to that (P13)."""
    if core.graph.state not in (JobState.RUNNING, JobState.RECONCILING):
        return
    for vertex in core.graph.all_subtasks():
        ready = core.graph.inputs_available(vertex)
        if vertex.state is ExecutionState.SCHEDULED and not ready:
            yield f"{vertex.id} is scheduled without its inputs"
        if vertex.state is ExecutionState.CREATED and ready and not vertex.held:
            yield f"{vertex.id} is ready and not scheduled"


def _places(core: SchedulerCore) -> Iterator[str]:
    places: dict[str, set[SubtaskId]] = {}
    for vertex in core.graph.all_subtasks():
        if vertex.worker_id:
            places.setdefault(vertex.worker_id, set()).add(vertex.id)
    for worker_id, there in places.items():
        indexed = {v.id for v in core.graph.at_worker(worker_id)}
        if indexed != there:
            yield f"{sorted(indexed ^ there)} are listed wrongly at {worker_id}"


def _slots(core: SchedulerCore) -> Iterator[str]:
    occupied = core.slots.occupied
    for slot, subtask in occupied.items():
        vertex = core.graph.vertex_at(*subtask)
        if vertex.slot != slot or vertex.state not in ACTIVE_EXECUTION_STATES:
            yield f"slot {slot} holds {subtask}, which is {vertex.state.name} in {vertex.slot}"
    for vertex in core.graph.active():
        if vertex.slot is None or occupied.get(vertex.slot) != vertex.id:
            yield f"{vertex.id} is {vertex.state.name} and occupies no slot"


def _splits(core: SchedulerCore) -> Iterator[str]:
    """Every split is unread, or read by exactly one subtask: nothing lost, nothing twice."""
    for vertex_id, enumerator in core.enumerators.items():
        owner = core.graph.vertices[vertex_id]
        places = Counter(enumerator.unread())
        for vertex in owner.subtasks:
            taken = vertex.splits if vertex.pinned_splits is None else vertex.pinned_splits
            places.update(taken)
        wrong = [s.index for s in enumerator.splits if places[s.index] != 1]
        if wrong or len(places) != len(enumerator.splits):
            yield f"{vertex_id}: splits {wrong} are lost or read twice"
        if enumerator.unread() and not any(map(will_ask, owner.subtasks)):
            yield f"{vertex_id}: nobody will read the splits {enumerator.unread()}"


def _recovery(core: SchedulerCore) -> Iterator[str]:
    recovery = core.reconciliation
    if recovery is None:
        return
    for subtask in (*recovery.awaited, *(recovery.missing if recovery.waiting else ())):
        vertex = core.graph.vertex_at(*subtask)
        if vertex.available:
            yield f"{subtask} is awaited and available"


def _absent(core: SchedulerCore) -> Iterator[str]:
    """Finished work that somebody needs and nobody has is awaited, or about to run again."""
    if core.graph.state not in (JobState.RUNNING, JobState.RECONCILING) or core.graph.commit:
        return
    recovery = core.reconciliation
    known: dict[SubtaskId, None] = {}
    if recovery is not None and recovery.waiting:
        known = {**recovery.awaited, **recovery.missing}
    for vertex in core.graph.all_subtasks():
        if vertex.finished is None or vertex.available or not core.graph.needed(vertex):
            continue
        if vertex.stored_at not in core.expected_back and vertex.id not in known:
            yield f"{vertex.id} is needed, has no worker, and nothing is done about it"
