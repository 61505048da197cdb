"""The event log keeps pace with a job on slow storage, and a loss of power costs it little."""

from __future__ import annotations

import pytest

from holdover.v1 import common_pb2
from holdover.v1.events_pb2 import JobEventRecord
from jobmanager.job_master import JobMaster
from jobmanager.job_store import JobStore
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.signals import ExecutionReported, Signal
from simulator.cluster import JOBS_DIRECTORY, Node
from simulator.invariants.logs import copy_log, replay_copy
from simulator.invariants.stored import as_it_is
from simulator.quantities import Constant, Uniform
from simulator.scenario import ClusterSpec, JobSpec, Scenario, StageSpec
from simulator.world.storages import DiskSettings
from tests.simulation.story import Story, tell

EVENTS = 2_000
INTERVAL_S = 1.0
WRITE_S = 0.2


@pytest.mark.slow
def test_writes_are_few_and_hardly_an_event_is_lost_with_the_power() -> None:
    """P08: some 2,000 events in 5 s, 200 ms a write; the power goes at a moment of the seed's."""

    async def plot(story: Story) -> None:
        known_s: dict[int, float] = {}

        def note(node: Node, master: JobMaster, signal: Signal, decision: Decision) -> None:
            if isinstance(signal, ExecutionReported) and signal.state == FINISHED:
                known_s.setdefault(signal.key.subtask, story.now_s)

        story.cluster.on_step.append(note)
        story.world.storages.serve_shared(DiskSettings(sync_latency_s=WRITE_S))
        story.world.storages.shared.keep_operations = True
        await story.stage_finished("map", 0.1)
        began_s, before = story.now_s, _syncs(story)
        await story.at(began_s + 1.5 + 2.0 * story.world.random("moment").random())
        syncs = _syncs(story) - before
        assert 1 <= syncs <= (story.now_s - began_s) / INTERVAL_S + 1, "no buffer was full"
        durable_s = story.now_s - INTERVAL_S - WRITE_S - SLACK_S
        dark = story.power_loss("jm-1")
        kept = _logged(story)
        due = [subtask for subtask, at_s in known_s.items() if at_s < durable_s]
        assert len(due) > 0.1 * EVENTS
        assert [subtask for subtask in due if subtask not in kept] == []
        story.heal(dark)

    tell(_many_events(), plot)


FINISHED = common_pb2.EXECUTION_STATE_FINISHED
#: Of the operations that are no sync.
SLACK_S = 0.01


def _syncs(story: Story) -> int:
    directory = _events_directory(story)
    operations = story.world.storages.shared.operations
    return sum(what == "sync" and path.startswith(directory) for what, path in operations)


def _logged(story: Story) -> set[int]:
    """Subtasks that the log on the storage calls finished."""
    log = copy_log(as_it_is(story.world.storages.shared), _events_directory(story))
    records = map(JobEventRecord.FromString, replay_copy(log, story.graph()).records.values())
    return {
        record.event.vertex_finished.execution.attempt.subtask
        for record in records
        if record.event.HasField("vertex_finished")
    }


def _events_directory(story: Story) -> str:
    return JobStore(story.world.storages.shared, JOBS_DIRECTORY).events_directory(story.job)


def _many_events() -> Scenario:
    maps = StageSpec(
        name="map",
        parallelism=EVENTS,
        seconds=Uniform(0.5, 1.5),
        output_bytes=Constant(1e3),
        rows=0,
    )
    reduce = StageSpec(name="reduce", parallelism=1, seconds=Constant(1.0))
    return Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=20, slots=20),
        jobs=(JobSpec(name="job", stages=(maps, reduce)),),
        options={"job-event.store.write-buffer.size": "64 kb"},
    )
