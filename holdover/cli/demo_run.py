"""The demonstration itself: a job on a local cluster, and a JobManager that dies in the middle."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from holdover.cli.command_line import human_bytes
from holdover.cli.demo_screen import DemoScreen, JobBar
from holdover.cli.local_cluster import JOBMANAGER, LocalCluster
from holdover.cli.tpch.check import Comparison, compare, read_output, reference
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.ledger import LedgerLine, Subtask, add_ledger, read_ledger
from holdover.cli.tpch.query import Query
from holdover.client import Client, is_terminal, raise_for_end
from holdover.errors import HoldoverError
from holdover.v1.common_pb2 import ExecutionState
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.jobmanager_pb2 import RecoveryReport

TASKMANAGERS = 3
SLOTS = 2
_JOB_ID = "demo"
_AT_WORK = (ExecutionState.EXECUTION_STATE_DEPLOYING, ExecutionState.EXECUTION_STATE_RUNNING)
_NAME_CHARACTERS_MAX = 36
_JOB_TIMEOUT_S = 1800.0


class DemoFailed(HoldoverError):
    """The demonstration cannot show what it should; the message says why and what to do."""


@dataclass(slots=True)
class Facts:
    """What was observed, from outside of the JobManager wherever that is possible.

    Attributes:
        subtasks_total: of the job.
        finished_before_kill: subtasks whose end the client had seen before the kill.
        running_at_kill: subtasks that were deployed or running at that moment.
        killed_wall_s: when the JobManager was gone.
        started_wall_s: when its successor's process was started.
        held: for each TaskManager, partitions on its disk while no JobManager ran: count, bytes.
        lines: the ledger.
        report: the successor's recovery report.
        comparison: the result beside DuckDB's.
        total_s: from the submission to the checked end of the job.
    """

    subtasks_total: int = 0
    finished_before_kill: frozenset[Subtask] = frozenset()
    running_at_kill: frozenset[Subtask] = frozenset()
    killed_wall_s: float = 0.0
    started_wall_s: float = 0.0
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    lines: list[LedgerLine] = field(default_factory=list)
    report: RecoveryReport = field(default_factory=RecoveryReport)
    comparison: Comparison = field(default_factory=lambda: Comparison(0, "not compared"))
    total_s: float = 0.0

    @property
    def ran_afterwards(self) -> frozenset[Subtask]:
        """Subtasks that the successor's attempts ran, by the tasks' own word."""
        starts = [line for line in self.lines if line.what == "start"]
        first_epoch = min((line.epoch for line in starts), default=0)
        return frozenset(line.key for line in starts if line.epoch > first_epoch)

    @property
    def rerun_finished(self) -> frozenset[Subtask]:
        """Subtasks that ran again although the client had seen them finish."""
        return self.ran_afterwards & self.finished_before_kill

    @property
    def rerun_running(self) -> frozenset[Subtask]:
        """Subtasks that were running when the JobManager died, and ran again."""
        return self.ran_afterwards & self.running_at_kill

    @property
    def kept(self) -> int:
        """Subtasks whose finished work the successor kept, by its report."""
        return sum(vertex.kept for vertex in self.report.vertices)

    @property
    def jm_down_s(self) -> float:
        """From the JobManager's death until its successor led."""
        return self.report.leading_wall_ms / 1000 - self.killed_wall_s

    @property
    def recovery_s(self) -> float | None:
        """From the start of the successor's process to its first deployment; None without one."""
        if self.report.first_deployment_ms < 0:
            return None
        first_ms = self.report.process_started_wall_ms + self.report.first_deployment_ms
        return first_ms / 1000 - self.started_wall_s

    @property
    def good(self) -> bool:
        """Whether the demonstration has shown what it should."""
        return self.comparison.equal and not self.rerun_finished

    def as_json(self) -> dict[str, object]:
        """The figures, as `holdover demo --json` prints them."""
        recovery_s = self.recovery_s
        return {
            "subtasks_total": self.subtasks_total,
            "finished_before_kill": len(self.finished_before_kill),
            "kept": self.kept,
            "rerun_finished": len(self.rerun_finished),
            "rerun_running": len(self.rerun_running),
            "jm_down_s": round(self.jm_down_s, 3),
            "recovery_s": None if recovery_s is None else round(recovery_s, 3),
            "early_end": self.report.early_end,
            "result_matches": self.comparison.equal,
            "result_rows": self.comparison.rows,
            "partitions_held": sum(count for count, _ in self.held.values()),
            "partition_bytes_held": sum(size for _, size in self.held.values()),
            "total_s": round(self.total_s, 3),
        }


class Demonstration:
    """One run; `facts` fills while it goes on."""

    def __init__(
        self,
        query: Query,
        data: TpchData,
        directory: Path,
        screen: DemoScreen,
        options: dict[str, str],
    ) -> None:
        """`options` are for all processes of the cluster."""
        self.facts = Facts()
        self._query = query
        self._data = data
        self._screen = screen
        self._output = directory / "output"
        self._ledger = directory / "ledger"
        self._cluster = LocalCluster(
            directory / "cluster", taskmanagers=TASKMANAGERS, slots=SLOTS, options=options
        )
        self._half_or_over = asyncio.Event()

    async def run(self) -> Facts:
        """Start a cluster, run the job, kill the JobManager, compare the result, stop the cluster.

        Raises DemoFailed, LocalClusterError, JobFailed.
        """
        started_s = time.monotonic()
        async with self._cluster as cluster, cluster.client() as client:
            self._show_cluster(time.monotonic() - started_s)
            graph = self._query.job(self._data, str(self._output)).build(_JOB_ID)
            add_ledger(graph, self._ledger)
            self.facts.subtasks_total = sum(vertex.parallelism for vertex in graph.vertices)
            submitted_s = time.monotonic()
            await client.submit(graph)
            self._screen.step(
                "Job",
                f"TPC-H query {self._query.number}: {len(graph.vertices)} vertices,"
                f" {self.facts.subtasks_total} subtasks on {TASKMANAGERS * SLOTS} slots",
            )
            try:
                async with asyncio.timeout(_JOB_TIMEOUT_S):
                    await self._fail_over(client)
            except TimeoutError:
                raise DemoFailed(
                    f"the job did not end within {_JOB_TIMEOUT_S:g} s; the end of the JobManager's"
                    f" log:\n{cluster.log_tail()}"
                ) from None
            self.facts.total_s = time.monotonic() - submitted_s
            await self._judge(client, graph)
        return self.facts

    async def _fail_over(self, client: Client) -> None:
        """Follow the job to its end, and on the way kill the JobManager and start it again."""
        with self._screen.following(self.facts.subtasks_total) as bar:
            following = asyncio.create_task(self._follow(client, bar))
            try:
                await self._half_finished()
                if not following.done():
                    await self._kill(client)
                    # Nothing but the JobManager is gone: what TaskManagers hold is on their disks.
                    self._look_at_disks()
                    self.facts.started_wall_s = time.time()
                    pid = self._cluster.start_jobmanager()
                    self._screen.step("Restart", f"a new JobManager, pid {pid}, same address")
                await following
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if not self.facts.killed_wall_s:
            raise _too_fast()

    async def _follow(self, client: Client, bar: JobBar) -> None:
        half = self.facts.subtasks_total / 2
        try:
            async with aclosing(client.watch(_JOB_ID)) as statuses:
                async for status in statuses:
                    bar.show(status)
                    if status.subtasks_finished >= half and not is_terminal(status):
                        self._half_or_over.set()
                    raise_for_end(status)
        finally:
            self._half_or_over.set()

    async def _half_finished(self) -> None:
        await self._half_or_over.wait()
        await asyncio.sleep(0)  # lets a watch that has just ended be done

    async def _kill(self, client: Client) -> None:
        described = await client.describe(_JOB_ID, subtasks=True)
        await self._cluster.kill_jobmanager(signal.SIGKILL)
        self.facts.killed_wall_s = time.time()
        if is_terminal(described.status):
            raise _too_fast()
        finished, running = set(), set()
        for subtask in described.subtasks:
            key = (subtask.attempt.vertex_id, subtask.attempt.subtask)
            if subtask.state == ExecutionState.EXECUTION_STATE_FINISHED:
                finished.add(key)
            elif subtask.state in _AT_WORK:
                running.add(key)
        self.facts.finished_before_kill = frozenset(finished)
        self.facts.running_at_kill = frozenset(running)
        self._screen.step(
            "kill -9",
            f"[bold]the JobManager is dead[/bold], at {len(self.facts.finished_before_kill)} of"
            f" {self.facts.subtasks_total} subtasks finished and"
            f" {len(self.facts.running_at_kill)} running",
        )

    def _look_at_disks(self) -> None:
        for index in range(TASKMANAGERS):
            name = self._cluster.taskmanager_name(index)
            # An index is published last: a partition is finished if and only if it has one.
            finished = list((self._cluster.directory / "tmp" / name).rglob("*.index"))
            data = [path.with_suffix(".data") for path in finished]
            size = sum(path.stat().st_size for path in [*finished, *data] if path.exists())
            self.facts.held[name] = (len(finished), size)
        self._screen.say("its TaskManagers live on, and keep what is finished:")
        self._screen.table(
            ["TaskManager", "partitions", "bytes"],
            [(name, count, human_bytes(size)) for name, (count, size) in self.facts.held.items()],
        )

    async def _judge(self, client: Client, graph: JobGraph) -> None:
        reports = await client.recovery_reports(_JOB_ID)
        if not reports:
            raise DemoFailed("the new JobManager has left no recovery report")
        self.facts.report = reports[-1]
        self.facts.lines = read_ledger(self._ledger)
        self._show_recovery(graph)
        expected = await asyncio.to_thread(reference, self._query, self._data)
        result = await asyncio.to_thread(read_output, self._output)
        self.facts.comparison = compare(self._query, result, expected)
        self._show_result()

    def _show_cluster(self, ready_s: float) -> None:
        pids = self._cluster.processes()
        others = ", ".join(f"{name} {pid}" for name, pid in pids.items() if name != JOBMANAGER)
        self._screen.step(
            "Cluster",
            f"JobManager pid {pids.get(JOBMANAGER)} at {self._cluster.address};"
            f" TaskManagers pid {others}; ready in {ready_s:.1f} s",
        )

    def _show_recovery(self, graph: JobGraph) -> None:
        facts, report = self.facts, self.facts.report
        recovery_s = facts.recovery_s
        first = "no task was left to run" if recovery_s is None else f"{recovery_s:.2f} s"
        ended = "ended early" if report.early_end else "ran to its timeout"
        self._screen.step(
            "Recovery",
            f"JobManager down for {facts.jm_down_s:.2f} s; from its start to the first new task"
            f" {first}; {report.events_replayed} events replayed",
        )
        for worker in report.workers:
            self._screen.say(
                f"{worker.worker_id} came back after {max(worker.after_ms, 0)} ms and offered"
                f" {worker.partitions_offered} partitions, {worker.partitions_accepted} accepted"
            )
        self._screen.say(f"the wait for TaskManagers {ended}; then, by vertex:")
        kept = {vertex.vertex_id: vertex.kept for vertex in report.vertices}
        seen = Counter(vertex for vertex, _ in facts.finished_before_kill)
        again = Counter(vertex for vertex, _ in facts.rerun_running)
        lost = Counter(vertex for vertex, _ in facts.rerun_finished)
        self._screen.table(
            ["vertex", "subtasks", "finished", "kept", "rerun: running", "rerun: finished"],
            [
                (
                    " -> ".join(vertex.name.split(" -> ")[:2])[:_NAME_CHARACTERS_MAX],
                    vertex.parallelism,
                    seen[vertex.vertex_id],
                    kept.get(vertex.vertex_id, 0),
                    again[vertex.vertex_id],
                    lost[vertex.vertex_id],
                )
                for vertex in graph.vertices
            ],
        )
        self._screen.say("finished: as the client saw it before the kill; kept: by the new")
        self._screen.say(
            "JobManager's report; rerun: by the ledger that the tasks write themselves"
        )

    def _show_result(self) -> None:
        comparison = self.facts.comparison
        says = (
            "equal to what DuckDB computes from the same files"
            if comparison.equal
            else f"NOT what DuckDB computes: {comparison.difference}"
        )
        self._screen.step("Result", f"{comparison.rows} rows, {says}")


def _too_fast() -> DemoFailed:
    return DemoFailed(
        "the job was over before its JobManager could be killed: choose a larger --scale"
    )
