"""A job whose log is damaged begins anew, and says so."""

from __future__ import annotations

from functools import partial

from holdover.v1 import common_pb2
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.leader_lives import (
    OUTPUTS,
    PARALLELISM,
    ROOT,
    InstantTaskManager,
    Leader,
    live,
    three_sinks,
)

FINISHED = common_pb2.JOB_STATE_FINISHED
#: Of a segment's first record, behind its header.
PLACE = 200


def test_a_damaged_log_is_set_aside_and_its_job_begins_anew_beside_the_others() -> None:
    """P03: the report names file and offset; the damaged bytes are kept under another name."""
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"m"}))
    damaged: dict[str, bytes] = {}

    async def runs(leader: Leader) -> None:
        await leader.take_office()
        for job_id in ("job", "other"):
            await leader.dispatcher.submit(three_sinks(job_id))
            await leader.until(partial(durable, leader, job_id), "its work is durable")

    async def durable(leader: Leader, job_id: str) -> bool:
        status = await leader.dispatcher.status(job_id)
        recovery = status.recovery
        finished = status.subtasks_finished == PARALLELISM
        return finished and recovery.durable_sequence >= recovery.events_appended > 0

    async def recovers(leader: Leader) -> None:
        taskmanager.hangs = frozenset()
        [segment] = await leader.disk.glob(f"{ROOT}/jobs/job/events/*.log")
        content = bytearray(await leader.disk.read(segment.path))
        content[PLACE] ^= 0xFF
        taskmanager.disk.overwrite(segment.path, bytes(content))
        damaged[segment.path] = bytes(content)
        await leader.take_office()
        [report] = await leader.dispatcher.recovery_reports("job")
        assert segment.path in report.restarted_reason
        assert "at byte" in report.restarted_reason
        [aside] = await leader.disk.glob(f"{ROOT}/jobs/job/events/*.damaged")
        assert await leader.disk.read(aside.path) == bytes(content)
        [other] = await leader.dispatcher.recovery_reports("other")
        assert other.restarted_reason == ""
        for job_id in ("job", "other"):
            await leader.until_cleaned_up(job_id)
            assert (await leader.dispatcher.status(job_id)).state == FINISHED
        published = await leader.disk.glob("/out/*/job/*")
        assert len(published) == len(OUTPUTS) * (PARALLELISM + 1)

    assert live(taskmanager, 1, runs)
    assert live(taskmanager, 2, recovers)
    assert damaged
