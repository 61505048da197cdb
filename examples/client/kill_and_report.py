"""Kills a JobManager in the middle of a job, and reports what that cost.

    python -m examples.client.kill_and_report --address 127.0.0.1:6123 JOB_ID PID

PID is the JobManager's, on this machine. Once half of the first subtasks have finished it is killed
with SIGKILL; somebody starts it again, or a standby takes over. The script follows the next leader,
waits for the job's end, and prints the job's recovery reports. Exit code 0 when nothing that had
finished ran again.
"""

from __future__ import annotations

import os
import signal
import sys

from examples.client import arguments
from examples.client.leader import Leader
from holdover.v1.events_pb2 import ResetReason
from holdover.v1.jobmanager_pb2 import ListRecoveryReportsRequest, RecoveryReport


def main() -> int:
    """The script."""
    parser = arguments.parser(__doc__)
    parser.add_argument("job_id")
    parser.add_argument("pid", type=int)
    given = parser.parse_args()
    with arguments.leader(given) as leader:
        killed_epoch = 0
        for number, status in enumerate(leader.watch(given.job_id)):
            first = status.vertices[0]
            if number == 0:
                print(f"watches {given.job_id}", flush=True)
            if not killed_epoch and first.parallelism:
                if 2 * status.subtasks_finished >= first.parallelism:
                    killed_epoch = leader.epoch
                    os.kill(given.pid, signal.SIGKILL)
                    print(f"killed {given.pid} at {status.subtasks_finished} finished", flush=True)
            elif killed_epoch and leader.epoch > killed_epoch:
                print(f"the leader of epoch {leader.epoch} goes on", flush=True)
                killed_epoch = leader.epoch
        reports = _reports(leader, given.job_id)
    rerun = [_tell(report) for report in reports]
    return 0 if reports and not any(rerun) else 1


def _reports(leader: Leader, job_id: str) -> list[RecoveryReport]:
    request = ListRecoveryReportsRequest(job_id=job_id, leader_epoch=leader.epoch)
    answer = leader.call(lambda stub: stub.ListRecoveryReports(request, timeout=10))
    return list(answer.reports)


def _tell(report: RecoveryReport) -> int:
    """Prints it; the number of finished subtasks that had to run again."""
    print(f"recovered by the leader of epoch {report.leader_epoch}:")
    rerun = 0
    for vertex in report.vertices:
        resets = ", ".join(f"{r.subtasks} {ResetReason.Name(r.reason)}" for r in vertex.resets)
        rerun += sum(reset.subtasks for reset in vertex.resets)
        print(f"  {vertex.name}: kept {vertex.kept}, run again {resets or 'none'}")
    print(f"  {report.bytes_kept} bytes kept, {report.first_deployment_ms} ms to the first task")
    return rerun


if __name__ == "__main__":
    sys.exit(main())
