"""What is held of finished attempts is offered and served as one, or not at all."""

from __future__ import annotations

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition, StagedFile
from shuffle.finished_record import files_of
from shuffle.partition_store import PartitionStore


def attempt(subtask: int, job: str = "job-a") -> AttemptKey:
    return AttemptKey(job, "v0", subtask, attempt=0, epoch=1)


def execution(key: AttemptKey, outputs: int = 1) -> FinishedExecution:
    return FinishedExecution(
        attempt=key.to_proto(),
        partitions=[ResultPartition(output=output) for output in range(outputs)],
    )


def holding(*keys: AttemptKey, outputs: int = 1) -> PartitionStore:
    held = PartitionStore("/shuffle")
    for key in keys:
        held.add(key, execution(key, outputs))
    held.check()
    return held


def test_every_output_of_a_held_attempt_is_served() -> None:
    held = holding(attempt(0), outputs=2)
    names = [partition_name(attempt(0), output) for output in range(3)]
    assert [held.path_of(name) for name in names] == [
        "/shuffle/job-a/v0-0-0-0-1",
        "/shuffle/job-a/v0-1-0-0-1",
        None,
    ]


def test_released_attempts_are_neither_served_nor_offered_and_are_named_once() -> None:
    held = holding(attempt(0), attempt(1), outputs=2)
    names = [partition_name(attempt(0), output) for output in range(2)]
    files = ["job-a/v0-0-0-1.finished"]
    files += [name + suffix for name in names for suffix in (".index", ".data")]
    assert held.release([attempt(0), attempt(7)]) == [files]
    assert held.release([attempt(0)]) == []
    assert held.inventory() == [execution(attempt(1), outputs=2)]
    assert not any(held.path_of(name) for name in names)
    held.check()


def test_a_job_is_held_until_its_last_attempt_is_released() -> None:
    """P21"""
    held = holding(attempt(0), attempt(0, "job-b"))
    assert held.holds("job-a")
    held.release([attempt(0)])
    assert not held.holds("job-a")
    assert held.jobs == ["job-b"]
    assert held.release_job("job-b") == [files_of(attempt(0, "job-b"), execution(attempt(0)))]
    assert held.inventory() == []
    held.check()


def test_a_sink_attempt_is_held_although_it_has_no_partition() -> None:
    held = PartitionStore("/shuffle")
    staged = FinishedExecution(
        attempt=attempt(0).to_proto(), staged_files=[StagedFile(staged_path="/s", final_path="/f")]
    )
    held.add(attempt(0), staged)
    assert held.holds("job-a")
    assert held.inventory() == [staged]


def test_adding_twice_changes_nothing() -> None:
    held = holding(attempt(0), attempt(0))
    assert len(held.inventory()) == 1


def test_the_oldest_are_named_by_age_over_all_jobs_and_their_bytes_are_counted() -> None:
    held = PartitionStore("/shuffle")
    keys = [attempt(0), attempt(0, "job-b"), attempt(1), attempt(2)]
    for key in keys:
        partitions = [ResultPartition(output=output, data_bytes=5) for output in range(2)]
        held.add(key, FinishedExecution(attempt=key.to_proto(), partitions=partitions))
    assert held.oldest(1, 2) == keys[1:3]
    assert (held.bytes, held.partitions) == (40, 8)
    held.release([keys[0]])
    held.check()
    assert held.oldest(0, 9) == keys[1:]
    assert (held.bytes, held.partitions) == (30, 6)
