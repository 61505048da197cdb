"""The client against scripted JobManagers over real loopback gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from holdover.client import Client, ClientTimeouts
from holdover.errors import (
    ClusterUnreachable,
    ConfigurationError,
    InvalidJob,
    JobAlreadyExists,
    JobCanceled,
    JobFailed,
    JobNotFound,
    NotReady,
    RequestRefused,
)
from holdover.runtime import Runtime
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import Failure, JobState
from holdover.v1.events_pb2 import JobEventRecord
from holdover.v1.job_pb2 import FileFormat, JobGraph
from holdover.v1.jobmanager_pb2 import JobStatus, ResultFile
from tests.doubles.jobmanager_double import JobManagerDouble, Jobs, status, until

CREATED, RUNNING = JobState.JOB_STATE_CREATED, JobState.JOB_STATE_RUNNING
RECONCILING, FINISHED = JobState.JOB_STATE_RECONCILING, JobState.JOB_STATE_FINISHED
#: Bounds against hanging; who waits for one to run out has timeouts of his own.
SHORT = ClientTimeouts(call_s=20, search_s=60, failover_s=60, silence_s=5)


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """With a channel of its own: gRPC ends its thread, and waits for it, with the last channel."""
    runtime = real_runtime()
    async with runtime.network.channel("127.0.0.1:9"):
        yield runtime


@pytest.fixture
async def jobmanager(runtime: Runtime) -> AsyncIterator[JobManagerDouble]:
    async with JobManagerDouble(runtime, Jobs()) as double:
        yield double


class Observed:
    """What the client tells its user about leaders."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lost = asyncio.Event()

    def leader_lost(self, reason: str) -> None:
        self.told.append("lost")
        self.lost.set()

    def leader_found(self, address: str, epoch: int) -> None:
        self.told.append(f"found {epoch}")


async def states_seen(statuses: AsyncIterator[JobStatus]) -> list[int]:
    """States in the order in which they were told, from the growth of the history."""
    states: list[int] = []
    async for job in statuses:
        assert len(job.history) - len(states) in (0, 1), "a state was skipped"
        states = [entry.state for entry in job.history]
        assert job.state == states[-1]
    return states


async def test_a_watch_goes_on_after_its_jobmanager_died_and_tells_every_state_once(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    """P46"""
    jobs = jobmanager.jobs
    await jobs.put(status("j", CREATED, RUNNING))
    observed = Observed()
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT, observer=observed) as c:
        watch = asyncio.create_task(states_seen(c.watch("j")))
        await until(lambda: "WatchJob" in jobmanager.calls, "WatchJob called")
        await jobmanager.die()
        await observed.lost.wait()
        await jobs.put(status("j", CREATED, RUNNING, RECONCILING, RUNNING, FINISHED))
        async with JobManagerDouble(runtime, jobs, epoch=2, port=jobmanager.port):
            states = await asyncio.wait_for(watch, 60)
    assert states == [CREATED, RUNNING, RECONCILING, RUNNING, FINISHED]
    assert observed.told == ["found 1", "lost", "found 2"]


async def test_a_silent_watch_is_opened_anew(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    """P54"""
    await jobmanager.jobs.put(status("j", RUNNING))
    jobmanager.silent = True
    timeouts = ClientTimeouts(silence_s=0.2)
    async with Client(jobmanager.address, runtime=runtime, timeouts=timeouts) as client:
        watch = asyncio.create_task(states_seen(client.watch("j")))
        await until(lambda: jobmanager.calls.count("WatchJob") > 1, "watched twice")
        await jobmanager.jobs.put(status("j", RUNNING, FINISHED))
        assert await asyncio.wait_for(watch, 60) == [RUNNING, FINISHED]


async def test_a_leader_that_is_not_ready_is_asked_again_and_never_means_not_found(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    """P46"""
    jobmanager.ready = False
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT) as client:
        finished = asyncio.create_task(client.wait("j"))
        await until(lambda: jobmanager.not_ready_answers > 1, "two answers not ready")
        await jobmanager.jobs.put(status("j", FINISHED))
        jobmanager.ready = True
        assert (await asyncio.wait_for(finished, 60)).state == FINISHED


async def test_a_leader_that_stays_not_ready_is_reported_as_such(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    jobmanager.ready = False
    timeouts = ClientTimeouts(failover_s=0.3)
    async with Client(jobmanager.address, runtime=runtime, timeouts=timeouts) as client:
        with pytest.raises(NotReady, match="not ready, retry"):
            await client.list_jobs()


async def test_a_ready_leader_says_which_job_it_does_not_know(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT) as client:
        with pytest.raises(JobNotFound, match="'no-such-job'"):
            await client.wait("no-such-job")


async def test_a_submission_whose_acknowledgement_is_lost_is_one_submission(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    """P43"""
    jobmanager.lose_acknowledgements = 3
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT) as client:
        job_id = await client.submit(JobGraph(name="Word Count"))
    assert jobmanager.jobs.submissions == [job_id]
    assert jobmanager.calls == ["SubmitJob"] * 4
    assert job_id.startswith("word-count-")


async def test_a_submission_is_finished_by_the_next_leader_under_the_same_id(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    """P42, P43"""
    jobmanager.ready = False
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT) as client:
        submission = asyncio.create_task(client.submit(JobGraph(name="x"), "chosen"))
        await until(lambda: jobmanager.not_ready_answers > 0, "an answer not ready")
        await jobmanager.die()
        async with JobManagerDouble(runtime, jobmanager.jobs, epoch=2, port=jobmanager.port):
            assert await asyncio.wait_for(submission, 60) == "chosen"
    assert jobmanager.jobs.submissions == ["chosen"]


async def test_a_graph_of_several_mebibytes_arrives_whole(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    graph = JobGraph(name="large")
    graph.files.add(name="data.py", content=b"#" * 20_000_000)
    async with Client(jobmanager.address, runtime=runtime) as client:
        job_id = await client.submit(graph)
    assert len(JobGraph.FromString(jobmanager.jobs.graphs[job_id]).files[0].content) == 20_000_000


async def test_refusals_of_a_submission_pass_on_what_the_leader_said(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT) as client:
        with pytest.raises(InvalidJob, match=r"vertices\[0\]\.name: is invalid"):
            await client.submit(JobGraph(name="invalid"))
        await client.submit(JobGraph(name="a"), "same")
        with pytest.raises(JobAlreadyExists, match="same"):
            await client.submit(JobGraph(name="b"), "same")
        with pytest.raises(ConfigurationError, match="cannot be set by a job"):
            await client.submit(JobGraph(name="a"), options={"jobmanager.rpc.port": "1"})


async def test_options_of_a_submission_win_over_those_of_the_job(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    graph = JobGraph(name="a")
    graph.options.add(key="parallelism.default", value="1")
    async with Client(jobmanager.address, runtime=runtime) as client:
        job_id = await client.submit(graph, options={"parallelism.default": "7"})
    stored = JobGraph.FromString(jobmanager.jobs.graphs[job_id])
    assert [(entry.key, entry.value) for entry in stored.options] == [("parallelism.default", "7")]


async def test_a_submission_that_takes_long_gets_more_time_at_each_attempt(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    """P43: the acknowledgement comes later than any first attempt waits for it."""
    jobmanager.acknowledge_after_s = 0.5
    timeouts = ClientTimeouts(call_s=0.2, failover_s=20)
    async with Client(jobmanager.address, runtime=runtime, timeouts=timeouts) as client:
        job_id = await client.submit(JobGraph(name="slow"))
    assert jobmanager.jobs.submissions == [job_id]


async def test_a_jobmanager_that_does_not_lead_points_to_the_one_that_does(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    await jobmanager.jobs.put(status("j", FINISHED))
    async with JobManagerDouble(runtime, jobmanager.jobs) as standby:
        standby.leads, standby.leader_address = False, jobmanager.address
        async with Client(standby.address, runtime=runtime, timeouts=SHORT) as client:
            assert (await client.cluster()).leader_address == jobmanager.address
            assert [job.job_id for job in await client.list_jobs()] == ["j"]


async def test_a_leader_that_moved_is_found_by_the_lookup(runtime: Runtime) -> None:
    jobs, recorded = Jobs(), ""

    async def lookup() -> str | None:
        return recorded or None

    async with Client(runtime=runtime, timeouts=SHORT, leader_lookup=lookup) as client:
        async with JobManagerDouble(runtime, jobs) as first:
            recorded = first.address
            await client.list_jobs()
        async with JobManagerDouble(runtime, jobs, epoch=2) as second:
            recorded = second.address
            await client.list_jobs()
            assert second.calls == ["ListJobs"]


async def test_an_older_leader_that_thawed_is_not_believed(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    newer = JobManagerDouble(runtime, Jobs(), epoch=2)
    async with newer, Client(newer.address, runtime=runtime) as client:
        await client.list_jobs()
        await newer.die()
        jobmanager.jobs.statuses["stale"] = status("stale", RUNNING)
        async with JobManagerDouble(runtime, jobmanager.jobs, epoch=1, port=newer.port) as old:
            listing = asyncio.create_task(client.list_jobs())
            await until(lambda: "ListJobs" in old.calls, "the old leader was asked")
        async with JobManagerDouble(runtime, Jobs(), epoch=3, port=newer.port):
            assert await asyncio.wait_for(listing, 60) == []


async def test_an_unreachable_cluster_is_named_with_its_addresses(runtime: Runtime) -> None:
    addresses = ["127.0.0.1:9", "127.0.0.1:10"]
    timeouts = ClientTimeouts(call_s=2, search_s=3)
    async with Client(addresses, runtime=runtime, timeouts=timeouts) as client:
        with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:9, 127\.0\.0\.1:10: connec"):
            await client.list_jobs()


async def test_a_wait_ends_with_the_reason_of_a_job_that_did_not_finish(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    failed = status("failed", JobState.JOB_STATE_FAILED)
    failed.failure.CopyFrom(Failure(message="it broke", traceback="Traceback ..."))
    await jobmanager.jobs.put(failed)
    await jobmanager.jobs.put(status("canceled", JobState.JOB_STATE_CANCELED))
    await jobmanager.jobs.put(status("parked", JobState.JOB_STATE_PARKED))
    async with Client(jobmanager.address, runtime=runtime, timeouts=SHORT) as client:
        with pytest.raises(JobFailed, match="it broke") as raised:
            await client.wait("failed")
        assert raised.value.traceback == "Traceback ..."
        with pytest.raises(JobCanceled):
            await client.wait("canceled")
        with pytest.raises(JobFailed, match="parked, retry or cancel it"):
            await client.wait("parked")


async def test_listings_are_read_page_by_page(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    for number in range(5):
        await jobmanager.jobs.put(status(f"j{number}", RUNNING))
    async with Client(jobmanager.address, runtime=runtime) as client:
        assert [job.job_id for job in await client.list_jobs()] == ["j0", "j1", "j2", "j3", "j4"]


async def test_a_fetch_goes_on_where_it_broke(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    csv = FileFormat.FILE_FORMAT_CSV
    contents = [b"word,n\na,1\nb,2\n", b"word,n\nc,3\n"]
    jobmanager.jobs.files["j"] = [
        (ResultFile(index=i, path=f"/out/{i}", bytes=len(c), rows=2 - i, format=csv), c)
        for i, c in enumerate(contents)
    ]
    jobmanager.break_fetch_after_bytes = 8
    async with Client(jobmanager.address, runtime=runtime) as client:
        table = await client.result_table("j")
        first = await client.result_table("j", rows_max=1)
    assert table.to_pydict() == {"word": ["a", "b", "c"], "n": [1, 2, 3]}
    assert first.to_pydict() == {"word": ["a"], "n": [1]}
    assert jobmanager.calls.count("FetchResult") == 4  # two files, one break, one short read


async def test_a_watch_can_be_left_early(runtime: Runtime, jobmanager: JobManagerDouble) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    async with (
        Client(jobmanager.address, runtime=runtime) as client,
        aclosing(client.watch("j")) as statuses,
    ):
        assert (await anext(statuses)).state == RUNNING


async def test_a_description_holds_all_subtasks_when_asked(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    async with Client(jobmanager.address, runtime=runtime) as client:
        assert (await client.describe("j")).subtasks == ()
        described = await client.describe("j", subtasks=True)
    assert [subtask.attempt.subtask for subtask in described.subtasks] == [0, 1, 2]


async def test_events_come_in_order_from_the_sequence_number_asked_for(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    jobmanager.jobs.events["j"] = [JobEventRecord(sequence=number) for number in range(1, 5)]
    async with Client(jobmanager.address, runtime=runtime) as client:
        assert [record.sequence async for record in client.events("j", 2)] == [2, 3, 4]


async def test_a_retry_whose_answer_is_lost_has_taken_the_job_up(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    await jobmanager.jobs.put(status("j", JobState.JOB_STATE_PARKED))
    jobmanager.lose_acknowledgements = 1
    async with Client(jobmanager.address, runtime=runtime) as client:
        await client.retry("j")
    assert jobmanager.calls.count("RetryJob") == 2


async def test_what_the_leader_refuses_is_said_in_its_words(
    runtime: Runtime, jobmanager: JobManagerDouble
) -> None:
    await jobmanager.jobs.put(status("j", RUNNING))
    async with Client(jobmanager.address, runtime=runtime) as client:
        with pytest.raises(RequestRefused, match="the job is not parked"):
            await client.retry("j")
