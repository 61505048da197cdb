"""What every leader election keeps, by a lease in an object store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdover.coordination.object_leader import ObjectLeaderService
from holdover.runtime import Runtime
from tests.contracts.test_leader_contract import (
    LeaderArm,
    test_a_candidate_may_withdraw,
    test_a_follower_is_told_the_present_leader_and_each_new_one,
    test_a_follower_may_wait_before_there_is_a_leader,
    test_a_second_candidate_leads_only_after_the_first,
    test_each_leadership_has_a_larger_epoch,
    test_one_candidate_may_lead_again,
    test_the_only_candidate_leads_and_is_found,
)

#: So long that no leader loses its lease because the machine is busy.
LEASE_DURATION_S = 10.0

pytestmark = pytest.mark.asyncio(loop_factories=["real"])

__all__ = [
    "test_a_candidate_may_withdraw",
    "test_a_follower_is_told_the_present_leader_and_each_new_one",
    "test_a_follower_may_wait_before_there_is_a_leader",
    "test_a_second_candidate_leads_only_after_the_first",
    "test_each_leadership_has_a_larger_epoch",
    "test_one_candidate_may_lead_again",
    "test_the_only_candidate_leads_and_is_found",
]


@pytest.fixture
async def leader_arm(runtime_arm: Runtime, object_root: str) -> AsyncIterator[LeaderArm]:
    """Candidates and followers that share one runtime."""
    service = ObjectLeaderService(runtime_arm, object_root, LEASE_DURATION_S)
    arm = LeaderArm(service.election, service.retrieval())
    yield arm
    for election in arm.elections:
        await election.step_down()
