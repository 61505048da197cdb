"""Watches a job to its end, over as many JobManagers as it takes.

    python -m examples.client.watch --address 127.0.0.1:6123 JOB_ID

Prints each state that the job has had, also those that came and went while no JobManager could be
reached, and how far it is. Exit code 0 when it has finished.
"""

from __future__ import annotations

import sys

from examples.client import arguments
from holdover.v1.common_pb2 import JobState


def main() -> int:
    """The script."""
    parser = arguments.parser(__doc__)
    parser.add_argument("job_id")
    given = parser.parse_args()
    told, finished = 0, -1
    state = JobState.JOB_STATE_UNSPECIFIED
    with arguments.leader(given) as leader:
        for status in leader.watch(given.job_id):
            for entry in status.history[told:]:
                print(
                    JobState.Name(entry.state), f"seen by the leader of epoch {entry.leader_epoch}"
                )
            if status.subtasks_finished != finished:
                finished = status.subtasks_finished
                print(f"{finished} of {status.subtasks_total} subtasks have finished", flush=True)
            told, state = len(status.history), status.state
        if status.HasField("failure"):
            print(status.failure.message)
    return 0 if state == JobState.JOB_STATE_FINISHED else 3


if __name__ == "__main__":
    sys.exit(main())
