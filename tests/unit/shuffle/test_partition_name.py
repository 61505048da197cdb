"""Names of partitions, which become paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle.partition_name import PartitionIdentity, parse_partition_name, partition_base

identities = st.builds(
    PartitionIdentity,
    job=st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True),
    vertex=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    output=st.integers(0, 999),
    subtask=st.integers(0, 10**9 - 1),
    attempt=st.integers(0, 999),
    epoch=st.integers(0, 10**18 - 1),
)


@given(identities)
def test_a_name_stands_for_its_identity(identity: PartitionIdentity) -> None:
    assert parse_partition_name(identity.name) == identity


@given(identities, identities)
def test_different_partitions_have_different_names(
    one: PartitionIdentity, other: PartitionIdentity
) -> None:
    assert (one.name == other.name) == (one == other)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "job",
        "job/",
        "../v-0-0-0-1",
        "job/../v-0-0-0-1",
        "job/v-0-0-0-1/..",
        "/etc/passwd",
        "job/v-0-0-0",
        "job/v-0-0-0-1.data",
        "job/v-0-0-0-01",
        "job/v-0-0-0-1\n",
        "job\n/v-0-0-0-1",
        "job/v-0-0-0-\u0661",
        "Job/v-0-0-0-1",
        "j" * 65 + "/v-0-0-0-1",
    ],
)
def test_what_is_not_exactly_a_name_never_becomes_a_path(name: str) -> None:
    with pytest.raises(ValueError, match=r"not a partition name|must match"):
        partition_base("/shuffle", name)


def test_a_bad_part_is_named() -> None:
    with pytest.raises(ValueError, match="subtask -1"):
        PartitionIdentity("job", "v", 0, -1, 0, 1)
