"""The command against a scripted JobManager: output, errors, exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdover.cli.main import app
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import Failure, JobState
from holdover.v1.events_pb2 import (
    ExecutionVertexReset,
    JobEvent,
    JobEventRecord,
    ResetReason,
)
from holdover.v1.job_pb2 import FileFormat, JobGraph
from holdover.v1.jobmanager_pb2 import (
    RecoveryMode,
    RecoveryReport,
    RecoveryStatus,
    ResetCount,
    ResultFile,
    TaskManagerStatus,
    VertexRecovery,
)
from tests.doubles.jobmanager_double import JobManagerDouble, Jobs, status, until

pytestmark = pytest.mark.blocking_allowed("the command may block its own event loop")

CREATED, RUNNING = JobState.JOB_STATE_CREATED, JobState.JOB_STATE_RUNNING
FINISHED, FAILED = JobState.JOB_STATE_FINISHED, JobState.JOB_STATE_FAILED

JOB_FILE = """
from holdover import Job

def build(args):
    job = Job("numbers")
    numbers = job.sequence(0, int(args[0]))
    numbers.map_batches(double).write_csv(args[1])
    return job

def double(batch):
    return batch

if __name__ == "__main__":
    raise AssertionError("the file is not run as a program")
"""


def holdover(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
async def jobmanager() -> AsyncIterator[JobManagerDouble]:
    async with JobManagerDouble(real_runtime(), Jobs()) as double:
        yield double


async def ask(jobmanager: JobManagerDouble, *arguments: str) -> Result:
    """Run a command in a thread of its own, so that the JobManager can answer."""
    return await asyncio.to_thread(holdover, *arguments, "--address", jobmanager.address)


def test_an_unreachable_cluster_gives_exit_code_4_and_one_sentence() -> None:
    result = holdover("list", "--address", "127.0.0.1:9", "-D", "client.timeout=3 s")
    assert result.exit_code == 4
    assert result.stdout == ""
    assert "no JobManager answers at 127.0.0.1:9: connection refused" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cluster_that_was_never_started_is_not_waited_for(tmp_path: Path) -> None:
    result = holdover("list", "--directory", str(tmp_path))
    assert result.exit_code == 4
    assert "start it with `holdover cluster start`" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("list", "--no-such-option"), 2, "No such option"),
        (("list", "-D", "heartbeat.timeuot=1 s"), 1, "did you mean heartbeat.timeout?"),
        (("list", "-D", "client.timeout"), 1, "write it as -D key=value"),
        (("show", "Not A Job"), 1, "job id 'Not A Job' is not allowed"),
        (("submit", "no-such-file.py"), 1, "no-such-file.py: there is no such file"),
        (("list", "--config", "no-such.yaml"), 1, "no-such.yaml"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], exit_code: int, message: str) -> None:
    result = holdover(*arguments, "--address", "127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


async def test_jobs_are_listed_for_people_and_as_json(jobmanager: JobManagerDouble) -> None:
    await jobmanager.jobs.put(status("j", CREATED, RUNNING))
    for_people = await ask(jobmanager, "list")
    assert for_people.exit_code == 0
    assert for_people.stdout.splitlines()[1].split()[:3] == ["j", "RUNNING", "0/0"]
    (job,) = json.loads((await ask(jobmanager, "list", "--json")).stdout)
    assert (job["job_id"], job["state"], job["restarts"]) == ("j", "RUNNING", 0)
    assert [entry["state"] for entry in job["history"]] == ["CREATED", "RUNNING"]


async def test_a_job_is_shown_with_its_subtasks(jobmanager: JobManagerDouble) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    shown = json.loads((await ask(jobmanager, "show", "j", "--subtasks", "--json")).stdout)
    assert [subtask["attempt"]["subtask"] for subtask in shown["subtasks"]] == [0, 1, 2]
    assert "v0[2]" in (await ask(jobmanager, "show", "j", "--subtasks")).stdout


async def test_an_unknown_job_gives_exit_code_1(jobmanager: JobManagerDouble) -> None:
    result = await ask(jobmanager, "show", "unknown")
    assert result.exit_code == 1
    assert "there is no job 'unknown'" in result.stderr


async def test_a_watch_goes_on_after_the_jobmanager_died_and_says_so(
    jobmanager: JobManagerDouble,
) -> None:
    """P46"""
    jobs = jobmanager.jobs
    await jobs.put(status("j", CREATED, RUNNING))
    watch = asyncio.create_task(ask(jobmanager, "watch", "j"))
    await until(lambda: "WatchJob" in jobmanager.calls, "watched")
    await jobmanager.die()
    await jobs.put(status("j", CREATED, RUNNING, JobState.JOB_STATE_RECONCILING, FINISHED))
    async with JobManagerDouble(real_runtime(), jobs, epoch=2, port=jobmanager.port):
        result = await asyncio.wait_for(watch, 60)
    assert result.exit_code == 0
    states = [line.split()[-1] for line in result.stdout.splitlines()]
    assert states == ["CREATED", "RUNNING", "RECONCILING", "FINISHED"]
    assert "waiting for the next leader ..." in result.stderr
    assert f"JobManager found at {jobmanager.address}, epoch 2" in result.stderr


async def test_a_failed_job_gives_exit_code_3_and_the_traceback_of_its_code(
    jobmanager: JobManagerDouble,
) -> None:
    failed = status("j", RUNNING, FAILED)
    failed.failure.CopyFrom(Failure(message="split_words raised", traceback="Traceback: line 3"))
    await jobmanager.jobs.put(failed)
    result = await ask(jobmanager, "watch", "j", "--json")
    assert result.exit_code == 3
    assert "job 'j' failed: split_words raised\nTraceback: line 3" in result.stderr
    statuses = [json.loads(line) for line in result.stdout.splitlines()]
    assert [job["state"] for job in statuses] == ["RUNNING", "FAILED"]


async def test_a_file_is_submitted_with_its_arguments_and_options(
    jobmanager: JobManagerDouble, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB_FILE)
    arguments = [str(tmp_path / "job.py"), "1000", str(tmp_path / "out"), "--detach"]
    options = ["-D", "parallelism.default=3", "--job-id", "chosen", "--json"]
    result = await ask(jobmanager, "submit", *arguments, *options)
    assert json.loads(result.stdout) == {"job_id": "chosen"}
    graph = JobGraph.FromString(jobmanager.jobs.graphs["chosen"])
    assert graph.name == "numbers"
    assert [(entry.key, entry.value) for entry in graph.options] == [("parallelism.default", "3")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines neither build(args) nor job"),
        ("def build(args):\n    return 1", "the job is a int, not a holdover.Job"),
        ("\ndef build(args):\n    return args[7]", "line 3: IndexError: list index out of range"),
        ("def build(:", "line 1: SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "line 1: it exits (3) instead of defining a job"),
    ],
)
def test_a_file_that_defines_no_job_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "job.py").write_text(text)
    result = holdover("submit", str(tmp_path / "job.py"), "--address", "127.0.0.1:9")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


async def test_a_result_is_shown_up_to_a_limit(jobmanager: JobManagerDouble) -> None:
    content = b"word,n\nthe,7\nof,5\n"
    file = ResultFile(path="/out/0.csv", bytes=len(content), rows=2)
    file.format = FileFormat.FILE_FORMAT_CSV
    jobmanager.jobs.files["j"] = [(file, content)]
    result = await ask(jobmanager, "result", "j", "--limit", "1")
    assert result.stdout.splitlines() == ["word  n", "the   7", "1 of 2 rows; --limit 0 shows all"]
    rows = json.loads((await ask(jobmanager, "result", "j", "--json")).stdout)["rows"]
    assert rows == [{"word": "the", "n": 7}, {"word": "of", "n": 5}]
    (listed,) = json.loads((await ask(jobmanager, "result", "j", "--files", "--json")).stdout)
    assert (listed["path"], listed["format"]) == ("/out/0.csv", "CSV")


async def test_events_are_decoded(jobmanager: JobManagerDouble) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    reset = ExecutionVertexReset(vertex_id="v1", subtasks=[0, 2])
    reset.reason = ResetReason.RESET_REASON_WORKER_LOST
    record = JobEventRecord(sequence=1, leader_epoch=2, event=JobEvent(vertex_reset=reset))
    jobmanager.jobs.events["j"] = [record]
    line = (await ask(jobmanager, "events", "j")).stdout
    assert "vertex_reset  vertex_id v1, subtasks [0, 2], reason WORKER_LOST" in line
    event = json.loads((await ask(jobmanager, "events", "j", "--json")).stdout)["event"]
    assert event == {
        "vertex_reset": {"vertex_id": "v1", "subtasks": [0, 2], "reason": "WORKER_LOST"}
    }
    assert (await ask(jobmanager, "events", "--from", "1", "j")).stdout == line


async def test_a_job_that_is_called_like_a_command_is_shown_behind_two_dashes(
    jobmanager: JobManagerDouble,
) -> None:
    await jobmanager.jobs.put(status("verify", RUNNING))
    jobmanager.jobs.events["verify"] = [JobEventRecord(sequence=1, leader_epoch=2)]
    address = ("--address", jobmanager.address)
    shown = await asyncio.to_thread(holdover, "events", *address, "--", "verify")
    assert "epoch 2" in shown.stdout


async def test_show_tells_how_the_events_are_recorded(jobmanager: JobManagerDouble) -> None:
    job = status("j", RUNNING)
    job.recovery.CopyFrom(
        RecoveryStatus(
            mode=RecoveryMode.RECOVERY_MODE_DEGRADED,
            reason="No space left on device",
            events_appended=12,
            durable_sequence=9,
            last_sequence=12,
            buffered_bytes=100,
            written_bytes=2048,
            flushes=4,
            flush_ms_total=20,
            flush_failures=3,
        )
    )
    await jobmanager.jobs.put(job)
    shown = (await ask(jobmanager, "show", "j")).stdout
    assert (
        "recovery: DEGRADED, No space left on device, 12 events, durable up to 9 of 12, 2.0 KiB"
        " written, 100 B buffered, 4 flushes of 5 ms, 3 failed"
    ) in shown


async def test_a_recovery_says_what_was_kept_and_why_the_rest_ran_again(
    jobmanager: JobManagerDouble,
) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    resets = [ResetCount(reason=ResetReason.RESET_REASON_PARTITION_MISSING, subtasks=2)]
    vertex = VertexRecovery(vertex_id="v0", name="scan", kept=5, adopted=1, resets=resets)
    jobmanager.jobs.reports["j"] = [RecoveryReport(leader_epoch=2, vertices=[vertex])]
    text = (await ask(jobmanager, "recovery", "j")).stdout
    assert "5 finished subtasks kept (1 of them adopted), 2 reset, 0 had not finished" in text
    columns, row = (" ".join(line.split()) for line in text.splitlines()[-2:])
    assert columns == "VERTEX KEPT ADOPTED RESET UNFINISHED WHY RESET"
    assert row == "v0 scan 5 1 2 0 2 nobody offered the partition in time"
    (report,) = json.loads((await ask(jobmanager, "recovery", "j", "--json")).stdout)
    assert report["vertices"][0]["kept"] == 5


async def test_taskmanagers_are_listed(jobmanager: JobManagerDouble) -> None:
    jobmanager.jobs.taskmanagers = [
        TaskManagerStatus(resource_id="tm-0", slots=2, slots_free=1, partition_bytes=2048)
    ]
    text = (await ask(jobmanager, "taskmanagers")).stdout
    assert "tm-0" in text
    assert "1/2" in text
    assert "2.0 KiB" in text
    (listed,) = json.loads((await ask(jobmanager, "taskmanagers", "--json")).stdout)
    assert listed["partition_bytes"] == 2048


async def test_cancel_and_retry_say_what_they_did(jobmanager: JobManagerDouble) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    cancelled = await ask(jobmanager, "cancel", "j", "--json")
    assert json.loads(cancelled.stdout) == {"job_id": "j", "state": "CANCELLING"}
    retried = await ask(jobmanager, "retry", "j")
    assert retried.exit_code == 1
    assert "the job is not parked" in retried.stderr


async def test_the_cluster_is_described(jobmanager: JobManagerDouble) -> None:
    result = await ask(jobmanager, "cluster", "status")
    assert f"JobManager {jobmanager.address}, epoch 1, ready" in result.stdout
    assert "3 TaskManagers, 6 of 6 slots free" in result.stdout
    described = json.loads((await ask(jobmanager, "cluster", "status", "--json")).stdout)
    assert described["cluster"]["slots"] == 6


def test_nothing_to_stop_is_fine(tmp_path: Path) -> None:
    result = holdover("cluster", "stop", "--directory", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, f"nothing runs in {tmp_path}\n")


def test_the_version_is_shown() -> None:
    assert holdover("--version").exit_code == 0
