"""The states that a job has had, as its log and its clients are told of them."""

from __future__ import annotations

import pytest

from holdover.v1 import common_pb2, job_pb2
from jobmanager.job_status import JobHistory
from jobmanager.job_store import StoredJob
from jobmanager.scheduler.states import TERMINAL_JOB_STATES, JobState
from simulator.world.process import Host, Process
from simulator.world.world import World


@pytest.mark.parametrize("end", TERMINAL_JOB_STATES, ids=lambda state: state.name)
def test_a_job_s_end_is_told_to_clients_and_not_to_the_log(end: JobState) -> None:
    """A leader that dies before the summary is stored leaves the end to the next one."""
    world = World(seed=1)
    clock = world.runtime(Process(world.loop, Host("jm"), "jm")).clock
    stored = StoredJob("job", job_pb2.JobGraph(job_id="job"), "", 0, recovery_attempts=0)
    history = JobHistory(stored, 1, clock)
    history.add(JobState.RUNNING)
    history.add(end)
    assert [change.state for change in history.changes()] == [common_pb2.JOB_STATE_RUNNING]
    assert [entry.state for entry in history.entries()] == [
        common_pb2.JOB_STATE_CREATED,
        common_pb2.JOB_STATE_RUNNING,
        end.value,
    ]
    world.close()
