"""Ids: what may name a job, a vertex, a worker, an attempt and a partition."""

from __future__ import annotations

import pytest

from holdover import ids
from holdover.errors import InvalidId
from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import ExecutionAttempt

KEY = AttemptKey("job-1", "v0", 3, 2, 5)


def test_names_that_are_allowed_come_back() -> None:
    assert ids.job_id("wordcount-1") == "wordcount-1"
    assert ids.vertex_id("v12") == "v12"
    assert ids.resource_id("tm_A.1-x") == "tm_A.1-x"


@pytest.mark.parametrize(
    "value", ["", "-a", "A", "a/b", "..", "a\n", "a" * 65, "ä", "a_b", "a\0", "٣"]
)
def test_other_job_ids_are_refused(value: str) -> None:
    with pytest.raises(InvalidId) as refused:
        ids.job_id(value)
    assert str(refused.value) == (
        f"job id {value!r} is not allowed: it must match [a-z0-9][a-z0-9-]{{0,63}}"
    )


@pytest.mark.parametrize("value", ["", "v-0", "V0", "v0\n", "v" * 33])
def test_other_vertex_ids_are_refused(value: str) -> None:
    with pytest.raises(InvalidId, match="vertex id"):
        ids.vertex_id(value)


@pytest.mark.parametrize("value", ["", ".", "../x", "-x", "a b", "a" * 65])
def test_other_resource_ids_are_refused(value: str) -> None:
    with pytest.raises(InvalidId, match="resource id"):
        ids.resource_id(value)


def test_an_attempt_key_survives_its_message() -> None:
    assert AttemptKey.from_proto(KEY.to_proto()) == KEY


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (ExecutionAttempt(job_id="../x", vertex_id="v0"), "job id"),
        (ExecutionAttempt(job_id="j", vertex_id=""), "vertex id"),
        (ExecutionAttempt(job_id="j", vertex_id="v0", subtask=-1), "subtask"),
        (ExecutionAttempt(job_id="j", vertex_id="v0", attempt=-1), "attempt"),
        (ExecutionAttempt(job_id="j", vertex_id="v0", leader_epoch=-1), "leader epoch"),
    ],
)
def test_a_key_from_outside_is_validated(message: ExecutionAttempt, field: str) -> None:
    with pytest.raises(InvalidId) as refused:
        AttemptKey.from_proto(message)
    assert refused.value.field == field


def test_attempts_are_ordered_and_distinct() -> None:
    assert AttemptKey("job-1", "v0", 3, 3, 4) > KEY
    assert len({KEY, AttemptKey("job-1", "v0", 3, 2, 6)}) == 2


def test_a_partition_is_named_by_its_attempt() -> None:
    assert partition_name(KEY, 1) == "job-1/v0-1-3-2-5"
