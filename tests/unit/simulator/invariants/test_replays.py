"""The log as the invariants read it: what a leader has made of it, and what any cut leaves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdover.v1.events_pb2 import JobEvent
from jobmanager.event_store.records import FrameDecoder
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.states import ExecutionState, JobState
from simulator.invariants.logs import copy_log
from simulator.invariants.replays import CutLogRecovers, StateEqualsReplay, cut_failures
from simulator.invariants.stored import as_it_is
from simulator.invariants.view import Invariant, LeaderView, RunningJob, WrittenLog
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.event_store.event_logs import frame, segment
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import (
    finished,
    initialized,
    replayed,
    reset,
    state_changed,
)
from tests.unit.simulator.invariants.known_cluster import KnownCluster, put, scheduler, step

DIRECTORY = "/shared/ha/jobs/job/events"
HISTORY = [
    state_changed(JobState.RUNNING),
    initialized("s", 2, splits=8),
    finished("s", 0, splits=range(4)),
    finished("s", 1, splits=range(4, 8), worker_id="tm-1"),
    initialized("m", 2, inputs=1),
    finished("m", 0),
    reset("s", 1),
    finished("s", 1, attempt=1, splits=range(4, 8)),
]


def logged(events: Sequence[JobEvent], storage: SimulatedStorage | None = None) -> SimulatedStorage:
    """These events are in the first segment of job `job`."""
    storage = storage or SimulatedStorage()
    data = segment(events, job_id="job")
    put(storage, f"{DIRECTORY}/0000000000000001-000000.log", data)
    return storage


def led(events: Sequence[JobEvent], *, unwritten: int = 0) -> tuple[KnownCluster, RunningJob]:
    """A leader whose graph these events have built; some of them are still in memory."""
    durable = len(events) - unwritten
    frames = tuple(frame(e, durable + at + 1) for at, e in enumerate(events[durable:]))
    log = WrittenLog(DIRECTORY, frames, 0, 1)
    of = scheduler(replayed(chain(2), events))
    for vertex in of.core.graph.all_subtasks():
        if vertex.finished is not None:
            of.core.workers[vertex.stored_at] = f"{vertex.stored_at}:1"
            of.core.graph.set_available(vertex, True)
    of.core.schedule_all()
    job = RunningJob("job", of, log)
    cluster = KnownCluster(leading=[LeaderView("jm-0#0", 1, jobs=(job,))])
    logged(events[:durable], cluster.storage)
    cluster.submit(chain(2))
    return cluster, job


def watched(cluster: KnownCluster, job: RunningJob) -> Invariant:
    """The leader has made a step since it was looked at."""
    invariant = cluster.checked(StateEqualsReplay)
    invariant.step(step(job.scheduler, sig.JobStarted()))
    return invariant


def test_a_graph_that_its_log_has_built_is_right() -> None:
    """Whatever part of the log is still in memory."""
    for unwritten in (0, 3):
        cluster, job = led(HISTORY, unwritten=unwritten)
        watched(cluster, job).check()
        assert cluster.findings == []


def test_a_change_that_has_no_event_is_found() -> None:
    """A subtask that is finished, and a job's state."""
    cluster, job = led(HISTORY)
    invariant, graph = watched(cluster, job), job.scheduler.graph
    graph.apply(finished("m", 1))
    graph.state = JobState.FAILING
    invariant.check()
    assert "state is" in cluster.findings[0]
    assert "m[1] is FINISHED, and CREATED after a replay" in cluster.findings[1]


def test_an_event_that_is_lost_on_its_way_is_found() -> None:
    """It was appended and is neither on disk nor in memory."""
    cluster, job = led(HISTORY)
    logged(HISTORY[:-1], cluster.storage)
    watched(cluster, job).leader_ends(cluster.leading[0])
    assert "s[1]" in cluster.findings[0]


def test_a_leader_that_has_a_successor_is_not_held_against_its_log() -> None:
    cluster, job = led(HISTORY)
    invariant = watched(cluster, job)
    invariant.step(replace(step(job.scheduler, sig.JobStarted()), epoch=2))
    logged(HISTORY[:-1], cluster.storage)
    invariant.leader_ends(cluster.leading[0])
    assert cluster.findings == []


def test_a_log_that_cannot_be_replayed_is_found() -> None:
    """A subtask cannot finish twice."""
    cluster, job = led(HISTORY)
    logged([*HISTORY, finished("m", 0)], cluster.storage)
    watched(cluster, job).check()
    assert "finishes twice" in cluster.findings[0]


def test_a_scheduler_that_contradicts_itself_is_found() -> None:
    """Its own invariants are checked after steps."""
    cluster, job = led(HISTORY)
    invariant = watched(cluster, job)
    assert cluster.findings == []
    vertex = job.scheduler.graph.vertex_at("m", 1)
    vertex.state = ExecutionState.FINISHED
    invariant.step(step(job.scheduler, sig.JobStarted()))
    assert "FINISHED with finished record None" in cluster.findings[0]


def test_a_log_recovers_from_a_cut_at_every_byte() -> None:
    """Many draws; P01."""
    log = copy_log(as_it_is(logged(HISTORY)), DIRECTORY)
    of = scheduler(replayed(chain(2), HISTORY))
    assert cut_failures(log, of, random.Random(1), 400) == []


def test_a_snapshot_whose_predecessors_are_gone_is_not_cut() -> None:
    """Its bytes were durable before they were removed."""
    graph = replayed(chain(2), HISTORY)
    snapshot = segment(
        list(graph.snapshot_events([])), index=1, first=9, durable=8, is_snapshot=True, job_id="job"
    )
    for storage in (SimulatedStorage(), logged(HISTORY)):
        put(storage, f"{DIRECTORY}/0000000000000001-000001.log", snapshot)
        log = copy_log(as_it_is(storage), DIRECTORY)
        assert cut_failures(log, scheduler(graph), random.Random(2), 100) == []


def test_a_reader_that_does_not_check_what_it_reads_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Zeros behind a cut would become part of a record."""

    def unchecked(decoder: FrameDecoder, start: int, length: int) -> bytes:
        return bytes(decoder._buffer[start + 12 : start + 12 + length])

    monkeypatch.setattr(FrameDecoder, "_sound_payload_at", unchecked)
    log = copy_log(as_it_is(logged(HISTORY)), DIRECTORY)
    of = scheduler(replayed(chain(2), HISTORY))
    assert cut_failures(log, of, random.Random(3), 100)


def test_cuts_are_tried_while_a_leader_lives_and_when_it_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The invariant says where it has cut."""
    cluster, job = led(HISTORY)
    invariant = CutLogRecovers(cluster, cluster.findings.append, random.Random(4))
    invariant.step(step(job.scheduler, sig.JobStarted()))
    invariant.check()
    invariant.leader_ends(cluster.leading[0])
    assert cluster.findings == []
    monkeypatch.setattr(FrameDecoder, "finish", _refuse_torn)
    invariant.leader_ends(cluster.leading[0])
    assert "the log of job job, cut at byte" in cluster.findings[0]


def _refuse_torn(decoder: FrameDecoder) -> None:
    """A reader that takes every torn tail for damage."""
    decoder.sound_after = 1
