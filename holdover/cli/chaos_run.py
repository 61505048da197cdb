"""A chaos run: jobs on a local cluster whose processes are killed all the time."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdover.cli.chaos_evidence import FinishedWork, finished_on_disk, left_files, orphans
from holdover.cli.chaos_facts import ChaosFacts, ChaosPlan
from holdover.cli.chaos_kills import Killer, Stroke, strokes
from holdover.cli.local_cluster import LocalCluster
from holdover.cli.tpch.check import compare, read_output, reference
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.ledger import add_ledger, read_ledger
from holdover.cli.tpch.queries import QUERIES
from holdover.client import Client, state_name
from holdover.errors import HoldoverError, JobEnded
from holdover.v1.common_pb2 import JobState

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS = {
    # Whoever is killed is back in some seconds, and what it had finished is waited for: work that
    # is made again nevertheless is lost work, and that is looked for here.
    "execution.batch.job-recovery.previous-worker.recovery.timeout": "2 min",
    "execution.batch.job-recovery.adoption-timeout": "2 min",
    "execution.batch.job-recovery.taskmanager-restart.timeout": "2 min",
    # The end of a process counts as a failure of its tasks.
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "100 ms",
}
_CLEAN_S = 30.0
_READY_S = 60.0
_LOOK_S = 0.2
_ANSWER_S = 20.0


@dataclass(slots=True)
class _Run:
    """One job."""

    number: int
    job_id: str
    directory: Path
    finished_work: FinishedWork
    began_s: float

    @property
    def output(self) -> Path:
        """Where its result will be."""
        return self.directory / f"{self.job_id}-output"

    @property
    def ledger(self) -> Path:
        """What its tasks say."""
        return self.directory / f"{self.job_id}-ledger"

    def forget(self) -> None:
        """Delete what a right result has no more use for."""
        for path in self.output.iterdir():
            path.unlink()
        self.output.rmdir()
        self.ledger.unlink()


class Chaos:
    """One run; `facts` fills while it goes on."""

    def __init__(
        self, plan: ChaosPlan, data: TpchData, directory: Path, say: Callable[[str], None]
    ) -> None:
        """Nothing is started yet.

        Args:
            plan: what is to happen.
            data: the tables.
            directory: new and empty; holds everything that the run leaves.
            say: is told each kill and each end of a job, for people.
        """
        self.facts = ChaosFacts(plan)
        self._plan = plan
        self._data = data
        self._say = say
        self._outputs = directory / "jobs"
        self._cluster = LocalCluster(
            directory / "cluster",
            taskmanagers=plan.taskmanagers,
            slots=plan.slots,
            shuffle_services=plan.shuffle_services,
            options=OPTIONS,
        )
        self._killer = Killer(self._cluster, say, self._look)
        self._expected: dict[int, pa.Table] = {}
        self._running: dict[str, _Run] = {}
        self._over = asyncio.Event()

    async def run(self) -> ChaosFacts:
        """Start the cluster, kill and work until the time is over, and look what is left.

        Whatever happens, all processes have ended when this returns. Raises LocalClusterError.
        """
        began_s = time.monotonic()
        self._outputs.mkdir(parents=True)
        for number, query in QUERIES.items():
            self._expected[number] = await asyncio.to_thread(reference, query, self._data)
        try:
            await self._cluster.start()
            async with self._cluster.client() as client:
                await self._work_and_kill(client)
            await self._look_for_leftovers()
        finally:
            await self._cluster.stop()
        self.facts.strokes = self._killer.made
        self.facts.killed = self._killer.killed
        self.facts.unexpected_ends = self._killer.unexpected_ends
        self.facts.took_s = time.monotonic() - began_s
        return self.facts

    async def _work_and_kill(self, client: Client) -> None:
        """Returns when the time is over and the last jobs have ended."""
        plan = self._plan
        asyncio.get_running_loop().call_later(plan.duration_s, self._over.set)
        planned = strokes(plan.seed, plan.taskmanagers, plan.pause_s, plan.shuffle_services)
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._killer.watch())
                killing = group.create_task(self._killer.run(planned, self._over))
                jobs = [group.create_task(self._jobs(client, n)) for n in range(plan.streams)]
                await asyncio.wait([killing, *jobs])
                watching.cancel()
        except* HoldoverError as errors:
            raise errors.exceptions[0] from None

    # ------------------------------------------------------------------ jobs

    async def _jobs(self, client: Client, stream: int) -> None:
        """One job after the other, until the time is over."""
        chance = random.Random(f"queries of {self._plan.seed}, stream {stream}")
        for turn in itertools.count():
            if self._over.is_set():
                return
            number = chance.choice(list(QUERIES))
            await self._job(client, number, f"q{number}-{stream}-{turn}")

    async def _job(self, client: Client, number: int, job_id: str) -> None:
        output = self._outputs / f"{job_id}-output"
        graph = QUERIES[number].job(self._data, str(output)).build(job_id)
        run = _Run(number, job_id, self._outputs, FinishedWork(), time.monotonic())
        add_ledger(graph, run.ledger)
        self._running[job_id] = run
        try:
            async with asyncio.timeout(self._plan.job_timeout_s):
                await client.submit(graph)
                await self._end_of(client, job_id)
        except TimeoutError:
            await self._stuck(client, run)
        except HoldoverError as error:
            self._wrong(f"{job_id}: {error}")
        else:
            await self._judge(run)
        finally:
            del self._running[job_id]

    async def _end_of(self, client: Client, job_id: str) -> None:
        """Wait for it; a job that was parked, because three JobManagers died of us in a row before
        it got anything done, is taken up again.
        """
        while True:
            try:
                await client.wait(job_id)
                return
            except JobEnded:
                described = await client.describe(job_id)
                if described.status.state != JobState.JOB_STATE_PARKED:
                    raise
                self.facts.parked += 1
                self._say(f"{job_id} is parked: retrying it")
                await client.retry(job_id)

    async def _judge(self, run: _Run) -> None:
        """The result beside DuckDB's, and what the tasks say of their runs."""
        took_s = time.monotonic() - run.began_s
        query = QUERIES[run.number]
        result = await asyncio.to_thread(read_output, run.output)
        compared = compare(query, result, self._expected[run.number])
        lines = read_ledger(run.ledger)
        starts = Counter(line.key for line in lines if line.what == "start")
        reruns = run.finished_work.reruns(lines)
        lost = [f"{run.job_id} {rerun}" for rerun in reruns if not rerun.unheard]
        unfinished = sum(count > 1 for count in starts.values()) - len(reruns)
        self.facts.subtasks += len(starts)
        self.facts.ran_again += unfinished
        self.facts.unheard += len(reruns) - len(lost)
        self.facts.lost += lost
        for text in lost:
            self._say(f"finished work lost: {text}")
        if not compared.equal:
            self._wrong(f"{run.job_id}: {compared.difference}")
            return
        self.facts.durations_s.setdefault(run.number, []).append(took_s)
        self._say(f"{run.job_id} finished after {took_s:.1f} s")
        run.forget()

    def _wrong(self, text: str) -> None:
        self.facts.wrong.append(text)
        self._say(f"wrong: {text}")

    async def _stuck(self, client: Client, run: _Run) -> None:
        """What the cluster says of it; then it is cancelled, so that the others have its slots."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = (await client.describe(run.job_id)).status
                told = (
                    f"{state_name(status.state)}, {status.subtasks_finished} of"
                    f" {status.subtasks_total} subtasks finished, {status.recoveries} recoveries"
                    f" {status.waiting}"
                )
                await client.cancel(run.job_id)
        except (TimeoutError, HoldoverError) as error:
            told = f"nobody says anything about it: {error!r}"
        text = f"{run.job_id} had not ended after {self._plan.job_timeout_s:g} s: {told}"
        self.facts.stuck.append(text)
        self._say(f"stuck: {text}")

    # ------------------------------------------------------------------ evidence

    def _look(self, stroke: Stroke) -> None:
        """Note all finished work that is on the disks while the victims of a stroke are dead."""
        wall_s = time.time()
        victims = self._killer.workers_of(stroke)
        services = range(self._plan.shuffle_services)
        names = {self._cluster.shuffle_service_name(index) for index in services}
        for worker, job_id, subtask in finished_on_disk(self._partitions):
            # Who has made what a shuffle service holds cannot be seen: any of the victims, perhaps.
            struck = worker in victims or (worker in names and bool(victims))
            if job_id in self._running:
                work = self._running[job_id].finished_work
                work.look(subtask, wall_s, only_workers_killed=struck and not stroke.jobmanager)

    @property
    def _partitions(self) -> Path:
        return self._cluster.directory / "tmp"

    async def _look_for_leftovers(self) -> None:
        """Nothing of the jobs may be left while the cluster lives, and nothing at all after it."""
        await self._cluster.wait_until_ready(
            self._plan.taskmanagers, _READY_S, self._plan.shuffle_services
        )
        self.facts.left_files = await _until_empty(
            lambda: left_files(self._partitions, self._cluster.storage_directory, self._outputs)
        )
        living = self._cluster.processes()
        self.facts.left_processes = await _until_empty(
            lambda: orphans(self._cluster.all_processes(), living.values())
        )
        for name in living:
            self._cluster.send_signal(name, signal.SIGTERM)
        self.facts.left_processes += await _until_empty(
            lambda: [f"{pid} after the end" for pid in self._cluster.all_processes()]
        )


async def _until_empty(look: Callable[[], list[str]]) -> list[str]:
    """Look again until nothing is found; what is still there when the time is over."""
    deadline_s = time.monotonic() + _CLEAN_S
    while found := await asyncio.to_thread(look):
        if time.monotonic() > deadline_s:
            break
        await asyncio.sleep(_LOOK_S)
    return found
