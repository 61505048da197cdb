"""What the scheduler does about losses and failures (behaviour 6)."""

from __future__ import annotations

from collections.abc import Iterable

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler.core import SchedulerCore, job_failure
from jobmanager.scheduler.failover import LostSubtask, ResetPlan, RestartStrategy, plan_resets
from jobmanager.scheduler.restarted_workers import RestartedWorkers
from jobmanager.scheduler.signals import ShuffleLoad
from jobmanager.scheduler.states import ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId

RESTART_TIMER = "restart/"
REFUSAL_PAUSE_S = 0.1
#: One event tells of so many subtasks at most, so that no event takes a replay long.
RESETS_AN_EVENT = 1_000
_ENDING = (JobState.FAILING, JobState.CANCELLING)


class FailureHandling:
    """Resets, restarts and their limits."""

    def __init__(
        self, core: SchedulerCore, restart_strategy: RestartStrategy, restarts: RestartedWorkers
    ) -> None:
        self._core = core
        self._restarts = restarts
        self._graph = core.graph
        self._restart_strategy = restart_strategy

    def lose_worker(self, worker_id: str) -> None:
        """A worker is gone: its attempts, and what is needed of its partitions, run again; the
        latter when it has not been started again in time, should the job wait for that.
        """
        core = self._core
        core.workers.pop(worker_id, None)
        core.slots.lose_worker(worker_id)
        self.cancel_writers(worker_id, core.shuffle.lost(worker_id))
        awaited = self._restarts.await_restart(worker_id)
        lost: list[LostSubtask] = []
        for vertex in self._graph.at_worker(worker_id):
            if vertex.finished is not None:
                if vertex.available:
                    self._graph.set_available(vertex, False)
                    if not awaited:
                        lost.append((vertex, events_pb2.RESET_REASON_WORKER_LOST))
            else:
                # Should the worker be back already, under the same name, it must not go on.
                core.act(act.Cancel(worker_id, vertex.key(self._graph.job_id)))
                self._restarts.remember_unheard(vertex)
                core.abandon(vertex)
        self.reset(lost)
        core.reschedule()

    def cancel_writers(self, worker_id: str, subtasks: Iterable[SubtaskId]) -> None:
        """What these still write to that service goes nowhere any more; they would find out
        later."""
        for subtask in subtasks:
            if self._core.shuffle.target_of(subtask) == worker_id:
                self._core.cancel(self._graph.vertex_at(*subtask))

    def shuffle_load(self, worker_id: str, load: ShuffleLoad) -> None:
        """A registered shuffle service told how it is: output may have somewhere to go again."""
        if worker_id in self._core.workers and self._core.shuffle.told(worker_id, load):
            self._core.ready.bring_back()

    def attempt_failed(
        self, vertex: ExecutionVertex, failure: common_pb2.Failure
    ) -> common_pb2.Failure | None:
        """The current attempt failed. Returns the reason if the whole job fails with it."""
        core = self._core
        if failure.kind == common_pb2.FAILURE_KIND_OUTPUT_REFUSED:
            core.shuffle.refused(vertex.id)
        core.abandon(vertex)
        if self._graph.state in _ENDING:
            return None
        if failure.kind == common_pb2.FAILURE_KIND_JOB:
            return failure
        stages = self._graph.vertices[vertex.vertex_id].sink_paths
        if failure.kind == common_pb2.FAILURE_KIND_TASK and stages:
            core.act(act.MakeStaging())
        if failure.kind == common_pb2.FAILURE_KIND_PARTITION_LOST:
            if not self._reset_lost_partitions(failure):
                # Somebody reported the same loss before, and its producer runs again already; or
                # its worker is lost, and awaited.
                core.reschedule()
                return None
        elif failure.kind == common_pb2.FAILURE_KIND_OUTPUT_REFUSED:
            return self._output_refused(vertex, failure)
        elif failure.kind != common_pb2.FAILURE_KIND_TASK:
            core.enqueue_subtask(vertex)
            return None
        delay_s = self._restart_strategy.next_delay_s()
        if delay_s is None:
            allowed = self._restart_strategy.attempts_max
            where = f"subtask {vertex.vertex_id}/{vertex.subtask}"
            failure.message += f" ({where}; the job has used all {allowed} restarts it may have)"
            return failure
        if failure.kind == common_pb2.FAILURE_KIND_TASK and delay_s > 0:
            self._hold(vertex, delay_s)
        core.reschedule()
        return None

    def _output_refused(
        self, vertex: ExecutionVertex, failure: common_pb2.Failure
    ) -> common_pb2.Failure | None:
        """No service took the output, through no fault of the task: it runs again, for a while."""
        pause_s = self._core.refusals.refused(vertex.id, failure.message)
        if pause_s is not None:
            self._hold(vertex, pause_s)
            return None
        return job_failure(
            f"slot.request.timeout has passed; no shuffle service has taken the output of subtask"
            f" {vertex.vertex_id}/{vertex.subtask} in that time: {failure.message}; give them more"
            " room, or start others"
        )

    def deployment_refused(self, vertex: ExecutionVertex) -> None:
        """The current attempt did not start; the next one is not to meet the same refusal at
        once.
        """
        self._core.abandon(vertex)
        self._hold(vertex, REFUSAL_PAUSE_S)

    def _hold(self, vertex: ExecutionVertex, delay_s: float) -> None:
        vertex.held = True
        timer = f"{RESTART_TIMER}{vertex.vertex_id}/{vertex.subtask}"
        self._core.act(act.SetTimer(timer, delay_s))

    def restart_delay_over(self, timer: str) -> None:
        """A failed subtask may run again."""
        vertex_id, subtask = timer.removeprefix(RESTART_TIMER).split("/")
        vertex = self._graph.vertex_at(vertex_id, int(subtask))
        vertex.held = False
        self._core.enqueue_subtask(vertex)

    def staged_files_lost(self, missing: Iterable[str]) -> common_pb2.Failure | None:
        """Sink subtasks whose staged files are gone run again; a failure if that was too often."""
        gone = set(missing)
        lost: list[LostSubtask] = [
            (vertex, events_pb2.RESET_REASON_STAGED_FILES_LOST)
            for vertex in self._graph.all_subtasks()
            if vertex.finished is not None
            and any(file.staged_path in gone for file in vertex.finished.staged_files)
        ]
        if self._restart_strategy.next_delay_s() is None:
            return common_pb2.Failure(
                kind=common_pb2.FAILURE_KIND_JOB,
                message=f"staged output files are gone again: {min(gone)}",
            )
        self.reset(lost)
        self._core.reschedule()
        return None

    def _reset_lost_partitions(self, failure: common_pb2.Failure) -> bool:
        """Reset the producers of unreadable partitions; False if none is current (P34)."""
        lost: list[LostSubtask] = []
        for name in failure.lost_partitions:
            producer = self._producer_of(name)
            if producer is not None and producer.stored_at not in self._core.expected_back:
                self._graph.set_available(producer, False)
                lost.append((producer, events_pb2.RESET_REASON_PARTITION_LOST))
                key = producer.key(self._graph.job_id)
                self._core.act(act.ReleasePartitions(producer.stored_at, (key,)))
        self.reset(lost)
        return bool(lost)

    def _producer_of(self, name: str) -> ExecutionVertex | None:
        """The finished subtask whose current attempt wrote the partition of that name."""
        try:
            job_id, rest = name.split("/", 1)
            vertex_id, _output, subtask, attempt, epoch = rest.split("-")
            key = AttemptKey(job_id, vertex_id, int(subtask), int(attempt), int(epoch))
        except ValueError:
            return None
        vertex = self._graph.find(key)
        if vertex is None or vertex.finished is None or vertex.key(self._graph.job_id) != key:
            return None
        return vertex

    def reset(self, lost: Iterable[LostSubtask]) -> None:
        """Reset lost finished subtasks and all that their loss takes along, in one step.

        Once the output is being published nothing may run again: the job fails instead of mixing
        two outcomes (behaviour 5.6). Of a job that ends without output nothing will.
        """
        if self._graph.state in _ENDING:
            return
        plan = plan_resets(self._graph, lost, self._core.may_come_back)
        if self._graph.commit is not None:
            if plan.resets:
                self._core.doom = _published_already(plan)
            return
        recovery = self._core.reconciliation
        if recovery is not None and self._graph.state is JobState.RECONCILING:
            recovery.awaited.update(plan.awaited)
            for subtask, reason in plan.resets.items():
                vertex = self._graph.vertex_at(*subtask)
                recovery.not_awaited(vertex)
                if vertex.epoch < self._core.epoch:
                    recovery.count_reset(vertex, reason)
        self._restarts.remember(plan)
        for subtask in plan.restarts:
            self._core.cancel(self._graph.vertex_at(*subtask))
        grouped: dict[tuple[str, events_pb2.ResetReason.ValueType], list[int]] = {}
        for (vertex_id, subtask_index), reason in plan.resets.items():
            grouped.setdefault((vertex_id, reason), []).append(subtask_index)
        for (vertex_id, reason), subtasks in grouped.items():
            self._release_superseded(vertex_id, subtasks)
            self._give_splits_back(vertex_id, subtasks)
            ordered = sorted(subtasks)
            for start in range(0, len(ordered), RESETS_AN_EVENT):
                some = ordered[start : start + RESETS_AN_EVENT]
                reset = events_pb2.ExecutionVertexReset(
                    vertex_id=vertex_id, subtasks=some, reason=reason
                )
                self._core.emit(events_pb2.JobEvent(vertex_reset=reset))

    def _give_splits_back(self, vertex_id: str, subtasks: Iterable[int]) -> None:
        """Of a source whose splits are not recorded; with the others they stay with the subtask."""
        enumerator = self._core.enumerators.get(vertex_id)
        if enumerator is not None and not self._graph.vertices[vertex_id].splits_recorded:
            for subtask in subtasks:
                enumerator.give_back(self._graph.vertex_at(vertex_id, subtask).splits)

    def _release_superseded(self, vertex_id: str, subtasks: Iterable[int]) -> None:
        """Output that a reset supersedes, and that is still at a worker, is deleted."""
        for subtask in subtasks:
            vertex = self._graph.vertex_at(vertex_id, subtask)
            if vertex.available and vertex.state is ExecutionState.FINISHED:
                key = vertex.key(self._graph.job_id)
                self._core.act(act.ReleasePartitions(vertex.stored_at, (key,)))


def _published_already(plan: ResetPlan) -> common_pb2.Failure:
    vertex_id, subtask = next(iter(plan.resets))
    return job_failure(
        f"{len(plan.resets)} subtasks ({vertex_id}/{subtask} first) would have to run again after"
        " the job's output has begun to be published, and what they give may differ from what is"
        " published; remove the output and submit the job under another id"
    )
