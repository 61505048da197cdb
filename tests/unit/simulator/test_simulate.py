"""One run of a scenario: what it goes through, and what its record holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from simulator.expected_failures import NO_SLOTS, RESTARTS_USED
from simulator.record import RunRecord
from simulator.scenario import Scenario
from simulator.simulate import SimulatedRun, run_scenario

OPTIONS = {
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "2 s",
    "execution.batch.job-recovery.previous-worker.recovery.timeout": "3 s",
}
CRASH = {
    "kind": "crash",
    "victims": "leader",
    "restart_after": "2 s",
    "when": {"stage": "map", "finished": "50 %"},
}


def scenario(*faults: dict[str, Any], **fields: Any) -> Scenario:
    stages = [
        {"name": "map", "parallelism": 4, "seconds": "1 s", "output_bytes": "64 kb"},
        {"name": "reduce", "parallelism": 2, "seconds": "1 s"},
    ]
    options = {**OPTIONS, **fields.pop("options", {})}
    cluster = {"taskmanagers": 2, "slots": 1, **fields.pop("cluster", {})}
    return Scenario.model_validate(
        {
            "cluster": cluster,
            "jobs": [{"name": "job", "stages": stages}],
            "options": options,
            "faults": list(faults),
            **fields,
        }
    )


def without_wall(record: RunRecord) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    del fields["wall_s"]
    return fields


@pytest.fixture(scope="module")
def crashed() -> RunRecord:
    """A leader is lost when half of the first stage is finished."""
    return run_scenario(scenario(CRASH), seed=3)


# ------------------------------------------------------------------ the record


def test_a_record_holds_every_attempt_with_its_place_and_its_end(crashed: RunRecord) -> None:
    finished = [attempt for attempt in crashed.attempts if attempt.end == "finished"]
    assert len({(attempt.vertex_id, attempt.subtask) for attempt in finished}) == 6
    assert {attempt.worker for attempt in crashed.attempts} == {"tm-1", "tm-2"}
    assert {attempt.slot for attempt in crashed.attempts} == {0}
    assert all(attempt.ended_s is not None for attempt in crashed.attempts)
    first = min(finished, key=lambda attempt: attempt.started_s)
    assert first.bytes > 0


def test_a_record_holds_each_leadership_and_its_wait_for_workers(crashed: RunRecord) -> None:
    [first, second] = crashed.epochs
    [fault] = crashed.faults
    assert (first.epoch, first.jobmanager, first.until_s) == (1, "jm-1", fault.at_s)
    assert second.epoch == 2
    assert second.ready_s is not None
    assert [job for job, _, _ in second.reconciling] == ["job"]


def test_a_record_holds_lives_and_connections_of_workers(crashed: RunRecord) -> None:
    for worker in crashed.workers:
        assert (worker.rack, worker.slots) == ("rack-1", 1)
        assert len(worker.lives) == 1
        assert [epoch for epoch, _, _ in worker.connections] == [1, 2]


def test_a_record_holds_the_fault_the_job_and_its_recovery(crashed: RunRecord) -> None:
    [fault] = crashed.faults
    assert (fault.kind, fault.victims) == ("crash", ["jm-1"])
    assert fault.until_s == pytest.approx(fault.at_s + 2.0)
    [job] = crashed.jobs
    assert (job.state, job.submitted_s, job.failure) == ("FINISHED", 0.0, "")
    assert job.ended_s is not None
    assert [vertex.parallelism for vertex in job.vertices] == [4, 2]
    assert len(job.recoveries) == 1
    assert crashed.measures.finish_s == job.ended_s
    assert crashed.measures.recovery_s is not None


def test_a_record_holds_what_workers_kept_over_time_and_in_the_end_nothing(
    crashed: RunRecord,
) -> None:
    assert max(held.partitions for held in crashed.held) == 4
    assert max(held.bytes for held in crashed.held) > 0
    assert crashed.held[-1].partitions == 0


def test_a_record_is_the_same_after_a_journey_as_json(crashed: RunRecord) -> None:
    assert RunRecord.from_json(crashed.to_json()) == crashed


# ------------------------------------------------------------------ arguments


def test_the_same_arguments_give_the_same_record_but_for_the_time_it_took() -> None:
    first, second = (run_scenario(scenario(CRASH), seed=5) for _ in range(2))
    assert without_wall(first) == without_wall(second)
    assert first.digest
    assert run_scenario(scenario(CRASH), seed=6).digest != first.digest


def test_options_of_a_run_win_over_those_of_the_scenario_and_are_in_its_record() -> None:
    recovery = "execution.batch.job-recovery.enabled"
    swept = {recovery: "false"}
    record = run_scenario(scenario(CRASH, options={recovery: "true"}), seed=3, options=swept)
    assert record.options == swept
    assert record.measures.finished_rerun > 0
    assert run_scenario(scenario(CRASH), seed=3).measures.finished_rerun == 0


def test_the_newest_lines_of_the_trace_are_kept_when_they_are_asked_for() -> None:
    whole = run_scenario(scenario(), seed=1, trace_lines_max=1_000_000).trace
    assert run_scenario(scenario(), seed=1, trace_lines_max=50).trace == whole[-50:]
    assert run_scenario(scenario(), seed=1).trace == []


def test_a_run_that_is_not_checked_goes_the_same_way() -> None:
    checked, unchecked = (
        run_scenario(scenario(CRASH), seed=3, checked=checked) for checked in (True, False)
    )
    assert checked.digest == unchecked.digest


# ------------------------------------------------------------------ two phases


def test_a_run_is_over_soon_after_its_jobs_whatever_faults_were_to_come() -> None:
    late = {"kind": "crash", "victims": "leader", "at": "30 min"}
    record = run_scenario(scenario(late), seed=1)
    assert record.faults == []
    assert record.duration_s < 20


def test_everything_is_healed_when_the_time_is_over_and_the_jobs_end_then() -> None:
    dead = {"kind": "crash", "victims": "jobmanagers", "at": "2 s", "restart_after": "never"}
    record = run_scenario(scenario(dead, duration_max="60 s"), seed=1)
    [job], [fault] = record.jobs, record.faults
    assert fault.until_s == 60.0
    assert job.state == "FINISHED"
    assert job.ended_s is not None
    assert 60.0 < job.ended_s < 80.0
    assert record.findings == []


def test_a_job_that_never_ends_is_a_finding_and_its_state_is_told() -> None:
    """Every attempt fails, for ever."""
    fields = scenario(
        duration_max="10 s",
        options={
            "restart-strategy.fixed-delay.attempts": "1000000",
            "restart-strategy.fixed-delay.delay": "10 s",
            "heartbeat.interval": "30 s",
            "heartbeat.timeout": "90 s",
        },
    ).model_dump(by_alias=True)
    fields["jobs"][0]["stages"][0]["failure_probability"] = 1.0
    record = run_scenario(Scenario.model_validate(fields), seed=1, checked=False)
    assert [finding.invariant for finding in record.findings] == ["every job ends after healing"]
    assert "job job has not ended: jm-1#0: JOB_STATE_RUNNING" in record.findings[0].text
    assert [(job.state, job.ended_s) for job in record.jobs] == [("RUNNING", None)]


def test_a_job_whose_leader_stops_before_it_says_that_it_has_ended_has_ended() -> None:
    """The end is stored, but the storage fails when the leader looks what else is there."""
    broken = {"kind": "disk-error", "victims": "shared-storage", "on": "read", "for": "20 s"}
    faults = (
        {**broken, "at": "2.5 s"},
        {"kind": "stop", "victims": "jobmanagers", "when": {"job": "FINISHED", "after": "20 ms"}},
    )
    record = run_scenario(scenario(*faults), seed=1)
    assert [job.state for job in record.jobs] == ["FINISHED"]
    assert record.jobs[0].ended_s is not None
    assert record.duration_s < 60
    assert record.findings == []


# ------------------------------------------------------------------ clients, and jobs that fail


def test_a_client_that_finds_no_leader_gives_up_and_the_run_is_over() -> None:
    down = {"kind": "crash", "victims": "jobmanagers", "at": "0 s", "restart_after": "never"}
    short = {"client.timeout": "2 s", "client.failover-timeout": "5 s"}
    record = run_scenario(scenario(down, options=short), seed=1)
    [job] = record.jobs
    assert (job.state, job.ended_s) == ("CREATED", None)
    assert job.failure.startswith("not submitted: no JobManager answers")
    assert record.duration_s < 60
    assert record.findings == []


def test_a_client_that_gives_up_without_any_fault_is_a_finding() -> None:
    slow = {"jobmanager_start": "1 min"}
    record = run_scenario(
        scenario(cluster=slow, options={"client.timeout": "2 s"}, duration_max="10 s"), seed=1
    )
    assert any("ClusterUnreachable" in finding.text for finding in record.findings)


@pytest.mark.parametrize(
    ("faults", "fields", "message"),
    [
        (
            [{"kind": "kill-task", "victims": "one", "at": f"{at} s"} for at in (1.6, 2.0)],
            {"options": {"restart-strategy.fixed-delay.attempts": "0"}},
            RESTARTS_USED,
        ),
        (
            [{"kind": "crash", "victims": "all", "at": "2 s", "restart_after": "never"}],
            {"options": {"slot.request.timeout": "20 s"}},
            NO_SLOTS,
        ),
    ],
    ids=["restarts", "slots"],
)
def test_a_job_may_fail_of_what_its_scenario_does_to_it(
    faults: list[dict[str, Any]], fields: dict[str, Any], message: str
) -> None:
    record = run_scenario(scenario(*faults, **fields), seed=1)
    [job] = record.jobs
    assert job.state == "FAILED"
    assert message in job.failure
    assert record.findings == []


def test_a_job_that_fails_without_a_cause_is_a_finding() -> None:
    run = SimulatedRun(scenario(options={"restart-strategy.type": "none"}), 1, {}, 0, checked=True)

    async def whole() -> None:
        run.world.loop.call_later(1.6, kill_tasks)
        await run.main()

    def kill_tasks() -> None:
        node = run.cluster.node("tm-1")
        for task in [process for process in node.host.living() if process is not node.process]:
            run.world.kill(task)

    with run.logs_captured():
        try:
            run.world.run(whole())
            record = run.finish()
        finally:
            run.world.close()
    assert [job.state for job in record.jobs] == ["FAILED"]
    assert [finding.text[:50] for finding in record.findings] == [
        "job job failed, which its scenario gives no cause "
    ]
