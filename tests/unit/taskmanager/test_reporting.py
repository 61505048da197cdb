"""When reports of attempts are sent: of an end at once, of a beginning in company."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import grpc
import grpc.aio

from holdover.coordination.jobmanager_connection import JobManagerConnection, Registration
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import EXECUTION_STATE_CANCELED
from holdover.v1.taskmanager_pb2 import (
    ExecutionReport,
    ReportExecutionsRequest,
    ReportExecutionsResponse,
)
from simulator.world.world import World
from taskmanager.execution_report import running_report
from taskmanager.jobmanager_calls import JobManagerCalls
from taskmanager.report_queue import ReportQueue


class Leader:
    """A connection to a JobManager that takes, or at first does not take, reports."""

    def __init__(self, refusals: int = 0) -> None:
        #: When how many reports came.
        self.calls: list[tuple[float, int]] = []
        self.refusals = refusals
        self.suspected = 0

    async def connected(self) -> tuple[Registration, Leader]:
        return Registration("jm:1", 1, "r", 1.0, 5.0), self

    async def ReportExecutions(  # noqa: N802
        self, request: ReportExecutionsRequest, timeout: float
    ) -> ReportExecutionsResponse:
        self.calls.append((asyncio.get_running_loop().time(), len(request.reports)))
        await asyncio.sleep(0.005)
        if len(self.calls) <= self.refusals:
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata)
        return ReportExecutionsResponse(leader_epoch=1)

    def suspect(self) -> None:
        self.suspected += 1


class Reporter:
    """What a TaskExecutor does about reports."""

    def __init__(self, leader: Leader) -> None:
        connection = cast(JobManagerConnection, leader)
        self.calls = JobManagerCalls(connection, "tm-1", call_timeout_s=1.0)
        self.queue = ReportQueue(1_000)

    def begins(self, subtask: int) -> None:
        key = AttemptKey("job", "v", subtask, 0, 1)
        self.queue.add(key, running_report(key))
        self.calls.wake_reporter(urgent=False)

    def ends(self, subtask: int) -> None:
        key = AttemptKey("job", "v", subtask, 0, 1)
        report = ExecutionReport(attempt=key.to_proto(), state=EXECUTION_STATE_CANCELED)
        self.queue.add(key, report)
        self.calls.wake_reporter()


def calls_of(
    plot: Callable[[Reporter], Awaitable[None]], leader: Leader
) -> list[tuple[float, int]]:
    """When how many reports reached the leader."""
    world = World(seed=1)

    async def main() -> None:
        reporter = Reporter(leader)
        reporting = asyncio.ensure_future(reporter.calls.report(reporter.queue))
        await asyncio.sleep(1)
        await plot(reporter)
        await asyncio.sleep(1)
        assert len(reporter.queue) == 0
        reporting.cancel()

    try:
        world.run(main())
    finally:
        world.close()
    return [(round(at_s - 1, 4), count) for at_s, count in leader.calls]


def test_beginnings_wait_a_moment_for_each_other() -> None:
    async def plot(reporter: Reporter) -> None:
        reporter.begins(0)
        await asyncio.sleep(0.015)
        reporter.begins(1)
        await asyncio.sleep(0.1)
        reporter.begins(2)

    assert calls_of(plot, Leader()) == [(0.02, 2), (0.135, 1)]


def test_an_end_is_reported_at_once_and_takes_beginnings_along() -> None:
    async def plot(reporter: Reporter) -> None:
        reporter.begins(0)
        reporter.begins(1)
        await asyncio.sleep(0.01)
        reporter.ends(1)

    assert calls_of(plot, Leader()) == [(0.01, 2)]


def test_what_is_added_during_a_call_follows_it() -> None:
    async def plot(reporter: Reporter) -> None:
        reporter.ends(0)
        await asyncio.sleep(0.001)
        reporter.ends(1)
        reporter.begins(2)
        await asyncio.sleep(0.006)
        reporter.begins(3)

    assert calls_of(plot, Leader()) == [(0.0, 1), (0.005, 2), (0.027, 1)]


def test_what_was_not_taken_is_sent_again() -> None:
    async def plot(reporter: Reporter) -> None:
        reporter.begins(0)

    leader = Leader(refusals=2)
    assert calls_of(plot, leader) == [(0.02, 1), (0.075, 1), (0.18, 1)]
    assert leader.suspected == 2


def test_more_than_one_call_carries_is_sent_in_several() -> None:
    async def plot(reporter: Reporter) -> None:
        for subtask in range(501):
            reporter.ends(subtask)

    assert calls_of(plot, Leader()) == [(0.0, 500), (0.005, 1)]
