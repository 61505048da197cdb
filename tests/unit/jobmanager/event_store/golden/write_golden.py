"""Writes the golden logs of the present format version: `python <this file> DIRECTORY`.

Kept are `format-1/*`, each written by the first release that had it. They are never written again:
what matters is that every later version replays them to the same records. With a new format version
run this once, keep its output as `format-<version>`, and leave the older ones as they are.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from google.protobuf import text_format

from holdover.runtime.real_disk import LocalDisk
from holdover.v1 import common_pb2, events_pb2, job_pb2
from holdover.v1.events_pb2 import JobEvent
from jobmanager.event_store import EventWriterSettings, JobEventWriter, replay
from jobmanager.event_store.records import FORMAT_VERSION

JOB_ID = "golden-job"
WALL_MS = 1_750_000_000_000


class StoppedClock:
    """The same moment always, so that the bytes are the same always."""

    def monotonic_s(self) -> float:
        """0."""
        return 0.0

    def wall_ms(self) -> int:
        """A day in June 2025."""
        return WALL_MS


def finished(subtask: int, attempt: int = 0, epoch: int = 1) -> JobEvent:
    """A subtask of v0 has finished."""
    execution = common_pb2.FinishedExecution(
        attempt=common_pb2.ExecutionAttempt(
            job_id=JOB_ID, vertex_id="v0", subtask=subtask, attempt=attempt, leader_epoch=epoch
        ),
        splits=[subtask, 2 * subtask],
        rows_in=1 << 33,
        rows_out=7,
        duration_ms=1250,
    )
    location = common_pb2.PartitionLocation(worker_id=f"tm-{subtask % 3}")
    return JobEvent(
        vertex_finished=events_pb2.ExecutionVertexFinished(
            execution=execution, location=location, adopted=subtask == 2
        )
    )


def moved(subtask: int) -> JobEvent:
    """What a subtask of v0 has left is stored by another worker from now on."""
    attempt = common_pb2.ExecutionAttempt(
        job_id=JOB_ID, vertex_id="v0", subtask=subtask, leader_epoch=1
    )
    location = common_pb2.PartitionLocation(worker_id="shuffle-1")
    return JobEvent(partitions_moved=events_pb2.PartitionsMoved(attempt=attempt, location=location))


def every_kind() -> list[JobEvent]:
    """One event of each kind that the first release had, snapshot marks excepted."""
    return [
        JobEvent(
            job_state_changed=events_pb2.JobStateChanged(
                state=common_pb2.JOB_STATE_RUNNING, leader_epoch=1, wall_ms=WALL_MS
            )
        ),
        JobEvent(
            vertex_initialized=events_pb2.ExecutionJobVertexInitialized(
                vertex_id="v0",
                parallelism=4,
                input_ranges=[events_pb2.InputRanges(bounds=[0, 1, 2, 3, 4])],
                splits=[
                    job_pb2.Split(path="/in/a.csv", start=0, end=100, file_bytes=150),
                    job_pb2.Split(index=1, path="/in/a.csv", start=100, end=150, file_bytes=150),
                ],
            )
        ),
        finished(0),
        JobEvent(
            vertex_reset=events_pb2.ExecutionVertexReset(
                vertex_id="v0",
                subtasks=[0, 3],
                reason=events_pb2.RESET_REASON_PARTITION_LOST,
            )
        ),
        JobEvent(
            attempts_raised=events_pb2.ExecutionAttemptsRaised(
                vertex_id="v0", next_attempts=[1, 0, 300, 1]
            )
        ),
        JobEvent(cancel_requested=events_pb2.JobCancelRequested()),
        JobEvent(
            commit_started=events_pb2.JobCommitStarted(
                files=[
                    common_pb2.StagedFile(
                        staged_path="/out/größe/.staging/0", final_path="/out/größe/0", bytes=9
                    )
                ],
                output_directories=["/out/größe"],
            )
        ),
        JobEvent(
            failure_recorded=events_pb2.JobFailureRecorded(
                failure=common_pb2.Failure(message="the disk is full", traceback="line 1\nline 2")
            )
        ),
    ]


async def write_log(directory: Path, lives: list[list[JobEvent]], segment_bytes: int) -> None:
    """One leader after another writes its events; beside the log stands what replay must give."""
    disk = LocalDisk()
    state: list[JobEvent] = []
    replayed_sequence = 0
    for epoch, events in enumerate(lives, start=1):
        writer = JobEventWriter(
            disk,
            StoppedClock(),
            str(directory),
            job_id=JOB_ID,
            leader_epoch=epoch,
            snapshot_source=lambda: list(state),
            replayed_sequence=replayed_sequence,
            settings=EventWriterSettings(segment_bytes_max=segment_bytes),
        )
        writer.start()
        for event in events:
            state.append(event)
            writer.append(event)
            await writer.flush()
        await writer.close()
        replayed_sequence = (await replay(disk, str(directory), lambda _: None)).last_sequence
    write_expected(directory, state)


def write_expected(directory: Path, events: list[JobEvent]) -> None:
    """What replay of the log must give, one event a line."""
    lines = [text_format.MessageToString(event, as_utf8=True, as_one_line=True) for event in events]
    directory.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


async def main(target: Path) -> None:
    """A log of one leader in several segments, one that was compacted, one with a later kind of
    event, and one with a torn tail."""
    place = target / f"format-{FORMAT_VERSION}"
    many = [finished(number) for number in range(10)]
    await write_log(place / "rolled", [every_kind() + many], 200)
    await write_log(place / "compacted", [every_kind(), many, [finished(11, 1, 3)]], 1 << 20)
    # A kind of event that came later.
    await write_log(place / "moved", [[finished(0), moved(0)]], 1 << 20)
    torn = place / "torn"
    await write_log(torn, [every_kind()], 1 << 20)
    [segment] = torn.iterdir()
    segment.write_bytes(segment.read_bytes()[:-3])
    write_expected(torn, every_kind()[:-1])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
