"""The books of a worker: what it holds, and what it says must be deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shuffle.partition_index import PartitionMetrics
from shuffle.partition_name import PartitionIdentity
from shuffle.partition_store import FinishedPartition, PartitionState, PartitionStore

METRICS = PartitionMetrics((10, 20), (1, 2), 30, 0xABCD)


def part(
    job: str = "job", subtask: int = 0, attempt: int = 0, output: int = 0
) -> PartitionIdentity:
    return PartitionIdentity(job, "map", output, subtask, attempt, 1)


@pytest.fixture
def store() -> Iterator[PartitionStore]:
    """A store whose invariants are checked when the test is over."""
    store = PartitionStore("/shuffle")
    yield store
    store.check_invariants()


def test_a_partition_is_offered_from_its_finish_to_its_release(store: PartitionStore) -> None:
    store.begin([part()])
    assert store.lookup(part().name) is None
    assert store.state(part().name) is PartitionState.WRITING
    assert store.finish(part(), METRICS, splits=[4, 2], producer_record=b"note")
    assert store.lookup(part().name) == "/shuffle/job/map-0-0-0-1"
    (offered,) = store.inventory()
    assert offered == FinishedPartition(part(), METRICS, (4, 2), b"note")
    assert (offered.checksum, store.data_bytes()) == (0xABCD, 30)
    assert store.release([part().producer]) == (part(),)
    assert store.lookup(part().name) is None
    assert store.inventory() == ()
    assert store.release([part().producer]) == ()


def test_an_abort_deletes_what_was_not_finished(store: PartitionStore) -> None:
    store.begin([part(output=0), part(output=1), part(subtask=1)])
    assert store.abort(part().producer) == (part(output=0), part(output=1))
    assert not store.finish(part(output=0), METRICS), "its files were deleted"
    assert store.jobs() == ("job",)


def test_a_release_takes_all_outputs_of_one_attempt_only(store: PartitionStore) -> None:
    parts = [part(output=0), part(output=1), part(attempt=1)]
    store.begin(parts)
    for identity in parts:
        store.finish(identity, METRICS)
    assert store.release([part().producer]) == (part(output=0), part(output=1))
    assert [p.identity for p in store.inventory()] == [part(attempt=1)]


def test_losing_the_jobmanager_keeps_what_is_finished(store: PartitionStore) -> None:
    """Behaviour 4: partial output is deleted, never offered."""
    store.begin([part(), part(subtask=1)])
    store.finish(part(), METRICS)
    assert store.retain("job") == (part(subtask=1),)
    assert store.holds("job")
    assert store.retained_jobs() == ("job",)
    store.accept("job")
    assert store.retained_jobs() == ()


def test_losing_the_jobmanager_with_nothing_finished_keeps_nothing(store: PartitionStore) -> None:
    store.begin([part()])
    assert store.retain("job") == (part(),)
    assert not store.holds("job")
    assert store.jobs() == store.retained_jobs() == ()


def test_releasing_a_job_leaves_other_jobs_alone(store: PartitionStore) -> None:
    store.begin([part("one"), part("two"), part("one", subtask=1)])
    store.finish(part("one"), METRICS)
    assert store.release_job("one") == (part("one"), part("one", subtask=1))
    assert store.jobs() == ("two",)


def test_what_was_found_on_disk_is_retained(store: PartitionStore) -> None:
    """A restarted worker offers what its disk holds."""
    store.restore(FinishedPartition(part(), METRICS, (1,)))
    assert store.retained_jobs() == ("job",)
    assert store.lookup(part().name) is not None
    with pytest.raises(ValueError, match="known already"):
        store.restore(FinishedPartition(part(), METRICS))


def test_the_last_release_of_a_retained_job_ends_its_retention(store: PartitionStore) -> None:
    store.restore(FinishedPartition(part(), METRICS))
    store.release([part().producer])
    assert store.retained_jobs() == ()


def test_beginning_or_finishing_twice_is_checked(store: PartitionStore) -> None:
    store.begin([part()])
    with pytest.raises(ValueError, match="begun before"):
        store.begin([part()])
    store.finish(part(), METRICS)
    assert store.finish(part(), METRICS), "a repeated report changes nothing"
    with pytest.raises(ValueError, match="other content"):
        store.finish(part(), PartitionMetrics((1,), (1,), 1, 1))


_PARTS = st.builds(part, st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 1))


class Life(RuleBasedStateMachine):
    """Any order of calls: a partition's files are deleted exactly when it is no longer known."""

    def __init__(self) -> None:
        super().__init__()
        self.store = PartitionStore("/shuffle")
        self.on_disk: set[PartitionIdentity] = set()

    def delete(self, identities: tuple[PartitionIdentity, ...]) -> None:
        assert self.on_disk.issuperset(identities)
        assert len(set(identities)) == len(identities)
        self.on_disk.difference_update(identities)

    @rule(identity=_PARTS)
    def begin(self, identity: PartitionIdentity) -> None:
        self.store.accept(identity.job)
        if self.store.state(identity.name) is None:
            self.store.begin([identity])
            self.on_disk.add(identity)

    @rule(identity=_PARTS)
    def finish(self, identity: PartitionIdentity) -> None:
        known = self.store.state(identity.name) is not None
        assert self.store.finish(identity, METRICS) == known

    @rule(identity=_PARTS)
    def abort(self, identity: PartitionIdentity) -> None:
        self.delete(self.store.abort(identity.producer))

    @rule(identities=st.lists(_PARTS, max_size=3))
    def release(self, identities: list[PartitionIdentity]) -> None:
        self.delete(self.store.release([identity.producer for identity in identities]))

    @rule(job=st.sampled_from(["a", "b"]))
    def retain(self, job: str) -> None:
        self.delete(self.store.retain(job))
        assert self.store.holds(job) == (job in self.store.jobs())

    @rule(job=st.sampled_from(["a", "b"]))
    def release_job(self, job: str) -> None:
        self.delete(self.store.release_job(job))
        assert job not in self.store.jobs()

    @invariant()
    def what_is_known_is_on_disk(self) -> None:
        self.store.check_invariants()
        known = {i for i in self.on_disk if self.store.state(i.name) is not None}
        assert known == self.on_disk
        assert {p.identity for p in self.store.inventory()} <= self.on_disk


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
