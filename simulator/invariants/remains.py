"""After a job's end nothing of it remains but its output and its summary (behaviour 6).

Looked at once all faults are healed: cleaning up takes its time, and a worker that was away learns
of the end with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobmanager.sink_commit import staging_directory
from simulator.invariants.stored import archived, exists, files_below, output_directories
from simulator.invariants.view import Invariant, LeaderView, SubmittedJob, WorkerView


class NothingRemains(Invariant):
    """See the module."""

    name = "nothing of an ended job remains"

    def at_end(self) -> list[str]:
        """Everything that is left of jobs that have ended."""
        ended = [
            job for job_id, job in self.view.jobs.items() if archived(self.view, job_id) is not None
        ]
        left = [text for job in ended for text in self._left_on_shared_storage(job)]
        for worker in self.view.workers():
            left += _left_at(worker, ended)
        for leader in self.view.leaders():
            left += _left_with(leader, ended)
        return left

    def _left_on_shared_storage(self, job: SubmittedJob) -> Iterator[str]:
        places = [f"{self.view.storage_directory}/jobs/{job.job_id}"]
        places += [staging_directory(path, job.job_id) for path in output_directories(job.graph)]
        for place in places:
            if exists(self.view.shared, place):
                files = list(files_below(self.view.shared, place))
                yield f"{place} is left of job {job.job_id} ({len(files)} files)"


def _left_at(worker: WorkerView, ended: list[SubmittedJob]) -> Iterator[str]:
    for job in ended:
        job_id = job.job_id
        for key in worker.occupants:
            if key.job_id == job_id:
                yield f"{worker.name} still runs {key}"
        if worker.finished.holds(job_id):
            yield f"{worker.name} still holds partitions of job {job_id}"
        if job_id in worker.jobs:
            yield f"{worker.name} still knows job {job_id}"
        for directory in (worker.shuffle_directory, worker.scratch_directory):
            if exists(worker.disk, f"{directory}/{job_id}"):
                yield f"{directory}/{job_id} is left at {worker.name}"
        if exists(worker.disk, f"{worker.graphs_directory}/{job_id}.pb"):
            yield f"the graph of job {job_id} is left at {worker.name}"


def _left_with(leader: LeaderView, ended: list[SubmittedJob]) -> Iterator[str]:
    for job in ended:
        if leader.job(job.job_id) is not None:
            yield f"{leader.name} still runs job {job.job_id}"
        if leader.slots_held.get(job.job_id):
            held = leader.slots_held[job.job_id]
            yield f"job {job.job_id} still holds {held} slots with {leader.name}"
