"""Storage in an object store when requests are throttled, fail, are lost, or come too late."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback

import pytest

from holdover.coordination.object_leader import ObjectLeaderElection, ObjectLeaderRetrieval
from holdover.runtime import ObjectStoreFenced, ObjectStoreUnavailable, Runtime
from holdover.runtime.object_bucket import Bucket, RequestPolicy
from holdover.runtime.object_stores import open_store
from holdover.runtime.real import SystemClock, SystemRandomness, real_runtime
from holdover.v1.events_pb2 import JobEvent
from jobmanager.event_store.errors import LogDamaged
from jobmanager.event_store.reader import replay
from jobmanager.event_store.segments import list_segments, set_aside
from jobmanager.event_store.settings import EventWriterSettings
from jobmanager.event_store.writer import JobEventWriter
from jobmanager.job_store import JobStore
from tests.doubles.s3_server import ACCESS_KEY, NO_ANSWER, SECRET_KEY, Fault, S3Proxy
from tests.unit.jobgraph_builders import valid

#: So long that no leader loses its lease because the machine is busy.
LEASE_S = 8.0
WATCHDOG_S = 120.0
FAST = RequestPolicy(attempts_max=4, attempt_s=60.0, delay_first_s=0.01, delay_max_s=0.05)
#: Four attempts that get no answer, and three for a server that is slow to give one.
IMPATIENT = RequestPolicy(attempts_max=4, attempt_s=2.0, delay_first_s=0.01, delay_max_s=0.05)


@pytest.fixture
def runtime() -> Runtime:
    return real_runtime()


def bucket_of(root: str, policy: RequestPolicy = FAST) -> Bucket:
    url = root.removesuffix("/some/prefix")
    return Bucket(url, open_store(url), SystemClock(), SystemRandomness(), policy)


# --- Requests


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_request_that_is_throttled_or_fails_is_repeated(
    s3: S3Proxy, s3_root: str, status: int
) -> None:
    s3.faults = [Fault(status, count=3)]
    bucket = bucket_of(s3_root)
    await bucket.put("a", b"data")
    assert await bucket.get("a") == b"data"
    assert len([request for request in s3.requests if request.startswith("PUT")]) == 4


async def test_repetition_has_a_bound_and_the_error_says_what_to_do(
    s3: S3Proxy, s3_root: str
) -> None:
    s3.faults = [Fault(503, count=1000)]
    bucket = bucket_of(s3_root)
    with pytest.raises(ObjectStoreUnavailable) as raised:
        await bucket.put("jobs/a", b"data")
    assert len(s3.requests) == FAST.attempts_max
    told = str(raised.value)
    assert "HTTP 503 SlowDown" in told
    assert f"{bucket.url_of('jobs/a')}" in told
    assert "check the object store" in told
    assert raised.value.filename == bucket.url_of("jobs/a")


async def test_a_request_without_an_answer_has_a_time_limit(s3: S3Proxy, s3_root: str) -> None:
    s3.faults = [Fault(NO_ANSWER, count=1)]
    bucket = bucket_of(s3_root, IMPATIENT)
    await bucket.put("a", b"data")
    s3.faults = [Fault(NO_ANSWER, count=1000)]
    with pytest.raises(ObjectStoreUnavailable, match="no answer in time"):
        await bucket.get("a")


async def test_a_refusal_is_not_repeated_and_the_error_says_what_to_do(
    s3: S3Proxy, s3_root: str
) -> None:
    s3.faults = [Fault(403, count=1, code="AccessDenied")]
    with pytest.raises(OSError, match=r"check that the bucket .* exists, and that the credentials"):
        await bucket_of(s3_root).put("a", b"data")
    assert len(s3.requests) == 1


@pytest.mark.parametrize("call", ["put", "get", "list_below"])
async def test_a_missing_bucket_is_named(s3: S3Proxy, call: str) -> None:
    bucket = bucket_of("s3://nobody-made-this")
    with pytest.raises(OSError, match="the bucket does not exist; check that the bucket s3://nob"):
        await (bucket.put("a", b"") if call == "put" else getattr(bucket, call)("a"))


async def test_a_conditional_put_whose_answer_was_lost_counts_as_done(
    s3: S3Proxy, s3_root: str
) -> None:
    s3.faults = [Fault(0, count=1, method="PUT")]
    bucket = bucket_of(s3_root)
    await bucket.put_new("a", b"data")
    s3.faults = [Fault(0, count=1, method="PUT")]
    found = await bucket.get_versioned("a")
    assert found is not None
    version = await bucket.replace("a", b"more", found.version)
    await bucket.replace("a", b"most", version)
    assert await bucket.get("a") == b"most"


async def test_a_request_of_a_process_that_may_not_write_any_more_is_not_repeated(
    s3: S3Proxy, s3_root: str
) -> None:
    """As after SIGSTOP and SIGCONT between two attempts."""
    bucket = bucket_of(s3_root)
    bucket.fence("some", lambda: not s3.requests)
    s3.faults = [Fault(503, count=1)]
    with pytest.raises(ObjectStoreFenced, match="the leadership of this process is over"):
        await bucket.put("some/prefix/a", b"data")
    assert len(s3.requests) == 1
    await bucket.put("other/a", b"data")


async def test_no_credentials_get_into_logs_and_errors(
    s3: S3Proxy, s3_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the store answers with a part of them."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    for status in (503, 403, 400):
        s3.faults = [Fault(status, count=1000, code="SignatureDoesNotMatch")]
        with pytest.raises(OSError) as raised:  # noqa: PT011  whichever it is
            await bucket_of(s3_root).put("a", b"data")
        told += [repr(raised.value), *traceback.format_exception(raised.value)]
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in caplog.text + "".join(told)
    assert "object store request failed" in caplog.text


# --- Jobs and events


def event_writer(runtime: Runtime, directory: str, epoch: int) -> JobEventWriter:
    settings = EventWriterSettings(flush_interval_s=0.05, retry_delay_max_s=0.2)
    return JobEventWriter(
        runtime.disk,
        runtime.clock,
        directory,
        job_id="job",
        leader_epoch=epoch,
        snapshot_source=lambda: [JobEvent() for _ in ()],
        settings=settings,
    )


def an_event(number: int) -> JobEvent:
    event = JobEvent()
    event.vertex_reset.vertex_id = f"v{number}"
    return event


async def replayed(runtime: Runtime, directory: str) -> list[str]:
    found: list[str] = []
    await replay(
        runtime.disk,
        directory,
        lambda record: found.append(record.event.vertex_reset.vertex_id),
        job_id="job",
    )
    return found


async def test_jobs_are_stored_listed_and_removed(runtime: Runtime, object_root: str) -> None:
    store = JobStore(runtime.disk, object_root)
    await store.open()
    assert await store.load_all() == []
    graph = valid()
    assert await store.store(graph, submitted_wall_ms=1, leader_epoch=1)
    assert not await store.store(graph, submitted_wall_ms=1, leader_epoch=2)
    assert await store.raise_recovery_attempts(graph.job_id) == 1
    (job,) = await JobStore(real_runtime().disk, object_root).load_all()
    assert job.job_id == graph.job_id
    await store.remove(graph.job_id)
    assert await store.load_all() == []


async def test_events_are_written_part_by_part_and_read_back(
    runtime: Runtime, object_root: str
) -> None:
    directory = f"{object_root}/jobs/job/events"
    writer = event_writer(runtime, directory, epoch=1)
    writer.start()
    for number in range(30):
        writer.append(an_event(number))
        if number % 10 == 9:
            await writer.flush()
    await writer.close()
    assert await replayed(real_runtime(), directory) == [f"v{number}" for number in range(30)]
    (segment,) = await list_segments(runtime.disk, directory)
    assert segment.bytes == writer.status.written_bytes


async def test_an_event_log_outlives_throttling(
    runtime: Runtime, s3: S3Proxy, s3_root: str
) -> None:
    directory = f"{s3_root}/jobs/job/events"
    writer = event_writer(runtime, directory, epoch=1)
    writer.start()
    s3.faults = [Fault(503, count=5)]
    for number in range(5):
        writer.append(an_event(number))
    await writer.flush(WATCHDOG_S)
    await writer.close()
    assert await replayed(runtime, directory) == [f"v{number}" for number in range(5)]


@pytest.mark.parametrize("removals", [0, 1])
async def test_a_damaged_log_stays_damaged_if_setting_it_aside_is_interrupted(
    runtime: Runtime, s3: S3Proxy, s3_root: str, removals: int
) -> None:
    directory = f"{s3_root}/events"
    writer = event_writer(runtime, directory, epoch=1)
    writer.start()
    for number in range(3):
        writer.append(an_event(number))
        await writer.flush()
    await writer.close()
    (segment,) = await list_segments(runtime.disk, directory)
    whole = await runtime.disk.read(segment.path)
    s3.faults = [Fault(403, count=1000, code="AccessDenied", method="POST", skip=removals)]
    with pytest.raises(OSError, match="AccessDenied"):
        await set_aside(runtime.disk, directory)
    s3.faults.clear()
    if removals:
        with pytest.raises(LogDamaged):
            await replayed(real_runtime(), directory)
    else:
        assert await replayed(real_runtime(), directory) == ["v0", "v1", "v2"]
    (aside,) = await set_aside(runtime.disk, directory)
    assert await runtime.disk.read(aside) == whole, "nothing is deleted"
    assert await replayed(real_runtime(), directory) == []


# --- Leadership


def election(root: str) -> tuple[Runtime, ObjectLeaderElection]:
    """A candidate in a runtime of its own, as in a process of its own."""
    runtime = real_runtime()
    return runtime, ObjectLeaderElection(runtime, root, LEASE_S)


async def test_of_many_candidates_one_leads_and_epochs_grow(s3_root: str) -> None:
    candidates = [election(s3_root)[1] for _ in range(6)]
    epochs: list[int] = []

    async def campaign(number: int) -> None:
        leadership = await candidates[number].campaign(f"jm-{number}:1")
        assert [each.is_leader() for each in candidates].count(True) == 1
        epochs.append(leadership.epoch)
        await candidates[number].step_down()

    async with asyncio.timeout(WATCHDOG_S * 2):
        await asyncio.gather(*(campaign(number) for number in range(6)))
    assert epochs == sorted(set(epochs))


async def test_a_leader_that_does_not_renew_is_succeeded_and_adds_nothing(
    s3: S3Proxy, s3_root: str
) -> None:
    """Its requests fail; it resigns before its successor leads, and its disk writes nothing."""
    old_runtime, old = election(s3_root)
    _, new = election(s3_root)
    first = await old.campaign("jm-1:1")
    waiting = asyncio.create_task(new.campaign("jm-2:1"))
    await asyncio.sleep(LEASE_S / 4)  # it has seen the lease
    s3.faults = [Fault(503, count=100_000, matching=lambda target: "lease" in target, method="PUT")]
    async with asyncio.timeout(WATCHDOG_S):
        await old.lost.wait()
    assert not old.is_leader()
    assert not waiting.done()
    s3.faults.clear()
    async with asyncio.timeout(WATCHDOG_S):
        second = await waiting
    assert second.epoch > first.epoch
    with pytest.raises(ObjectStoreFenced):
        await old_runtime.disk.publish(f"{s3_root}/workers.pb", b"stale")
    file = await old_runtime.disk.open_append(f"{s3_root}/log")
    await file.write(b"stale")
    with pytest.raises(ObjectStoreFenced):
        await file.sync()
    await old.step_down()
    assert new.is_leader()
    await new.step_down()


async def test_a_leader_in_office_outlives_short_throttling(s3: S3Proxy, s3_root: str) -> None:
    runtime, leader = election(s3_root)
    await leader.campaign("jm-1:1")
    s3.faults = [Fault(503, count=2, method="PUT")]
    started_s = time.monotonic()
    while s3.faults[0].count or time.monotonic() - started_s < LEASE_S:
        assert leader.is_leader()
        await asyncio.sleep(0.05)
    await runtime.disk.publish(f"{s3_root}/a", b"")
    await leader.step_down()


async def test_an_epoch_does_not_come_back_with_a_lost_lease(
    runtime: Runtime, s3_root: str
) -> None:
    _, leader = election(s3_root)
    first = await leader.campaign("jm-1:1")
    await leader.step_down()
    await runtime.disk.remove(f"{s3_root}/leader/lease.json")
    assert await ObjectLeaderRetrieval(runtime, s3_root, LEASE_S).current() is None
    assert (await leader.campaign("jm-1:1")).epoch > first.epoch
    await leader.step_down()
