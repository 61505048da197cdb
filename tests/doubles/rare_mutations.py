"""Broken builds that need a rare meeting of faults: each is seen where the swarm once found it."""

from __future__ import annotations

from typing import Any

from jobmanager.job_master import JobMaster
from jobmanager.job_store import JobStore
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.returning_workers import ReturningWorkers
from jobmanager.scheduler.splits import SplitEnumerator
from simulator.invariants.deletions import NothingIsDeletedEarly
from simulator.invariants.output import OutputIsComplete
from simulator.invariants.reruns import NoNeedlessRerun
from tests.doubles.mutation import Mutation, one


async def _reject_at_once(self: JobMaster, signal: sig.WorkerRegistered) -> list[act.RejectOffers]:
    decision = await self.ask(signal)
    return [a for a in decision.actions if isinstance(a, act.RejectOffers) and a.keys]


async def _mark_nothing(self: JobStore, job_id: str, leader_epoch: int) -> None:
    pass


def _somebody_will(*_: Any) -> bool:
    return True


def _refuse(*_: Any) -> bool:
    return False


RARE_MUTATIONS = (
    Mutation(
        "what is rejected is deleted while the reason waits in the buffer",
        NothingIsDeletedEarly,
        8778,
        one(JobMaster, "register_worker", _reject_at_once),
        scenario="../track_record/rejected-before-it-was-durable",
    ),
    Mutation(
        "a leader that was frozen records the end of a job that another has begun anew",
        OutputIsComplete,
        18093,
        one(JobStore, "mark_begun_anew", _mark_nothing),
        scenario="../track_record/ended-by-a-frozen-leader",
    ),
    Mutation(
        "a source finishes while nobody will read what is left of it",
        OutputIsComplete,
        18532,
        one(SplitEnumerator, "_is_asked_by_another", _somebody_will),
        scenario="../track_record/splits-that-nobody-reads",
    ),
    Mutation(
        "a later attempt than the log knows is refused",
        NoNeedlessRerun,
        7983,
        one(ReturningWorkers, "_put_in_its_place", _refuse),
        scenario="../track_record/later-attempt-of-what-was-read",
    ),
)
