"""A process whose children write a job's event log, for tests that kill and stop them.

`python -m tests.cluster.event_writer DIRECTORY`: each line on standard input, an epoch, forks one
child that leads with it. Lines on standard output:

    pid N           the child's process
    replayed E:C .. what it has read: for each epoch the number of events of it
    durable C       so many events of its own are durable, as the log has promised
    ended           the child is gone

An event is `(epoch, number)`, numbered from 1. The state is the highest number of each epoch.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from holdover.runtime.real_disk import LocalDisk
from holdover.v1.events_pb2 import ExecutionVertexReset, JobEvent, JobEventRecord
from jobmanager.event_store import EventWriterSettings, JobEventWriter, replay, settled

JOB_ID = "job"
SETTINGS = EventWriterSettings(
    buffer_bytes=2_000, flush_interval_s=0.005, segment_bytes_max=4_000, compaction_bytes=12_000
)
EVENTS_A_FLUSH = 20

State = dict[int, int]


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """See `Clock`."""
        return round(time.time() * 1000)


def event(epoch: int, number: int) -> JobEvent:
    """One event of a leader."""
    return JobEvent(vertex_reset=ExecutionVertexReset(vertex_id="v", subtasks=[epoch, number]))


async def read_state(directory: str) -> tuple[State, int]:
    """What the log says, and its last sequence. No event may be missing in between."""
    disk = LocalDisk()

    async def read() -> tuple[State, int]:
        state: State = {}

        def apply(record: JobEventRecord) -> None:
            epoch, number = record.event.vertex_reset.subtasks
            before = state.get(epoch)
            if before is not None and number != before + 1:
                raise AssertionError(f"event {number} of epoch {epoch} follows event {before}")
            state[epoch] = number

        findings = await replay(disk, directory, apply, job_id=JOB_ID)
        return state, findings.last_sequence

    return await settled(disk, directory, read)


def say(text: str) -> None:
    """One line, in one system call: what was said before a SIGKILL has been said."""
    os.write(1, f"{text}\n".encode())


async def lead(directory: str, epoch: int) -> None:
    """Record events for as long as the process lives."""
    state, last_sequence = await read_state(directory)
    say("replayed " + " ".join(f"{of}:{number}" for of, number in state.items()))
    writer = JobEventWriter(
        LocalDisk(),
        SystemClock(),
        directory,
        job_id=JOB_ID,
        leader_epoch=epoch,
        snapshot_source=lambda: [event(of, number) for of, number in state.items()],
        replayed_sequence=last_sequence,
        settings=SETTINGS,
    )
    writer.start()
    while True:
        for _ in range(EVENTS_A_FLUSH):
            await writer.wait_for_room()
            state[epoch] = state.get(epoch, 0) + 1
            writer.append(event(epoch, state[epoch]))
            await asyncio.sleep(0)
        durable = state[epoch]
        await writer.flush()
        say(f"durable {durable}")


def main() -> None:
    """See the module."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(lead(sys.argv[1], int(line)))
        say(f"pid {pid}")
        os.waitpid(pid, 0)
        say("ended")


if __name__ == "__main__":
    main()
