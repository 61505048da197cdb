"""Jobs with a known answer, whose tasks keep a ledger and can be held back at gates.

CHAIN(n) is S -> M -> K, JOIN(n) is S1 (hashed) and S2 (broadcast) -> J -> K; n tasks a stage, all
exchanges blocking. Whether a task ran once is asked in the ledger, never from the JobManager.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdover.api import DataSet, Job, Rows
from holdover.task_context import current
from holdover.v1.job_pb2 import DETERMINISM_DETERMINATE, JobGraph, Operator, PythonFunction

#: A task that waits longer than this at a gate fails: no test hangs.
GATE_TIMEOUT_S = 900.0
GATE_POLL_S = 0.01
ROWS_PER_SUBTASK = 100
KEYS = 37

Task = tuple[str, int]
Gold = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line: a task has begun, or has given its last row.

    Attributes:
        what: "start" or "end".
        stage: "S", "M", "K", ...
        vertex_id, subtask, attempt, epoch: the attempt.
        pid: of the task process.
        wall_s: when, by the machine's clock.
    """

    what: str
    stage: str
    vertex_id: str
    subtask: int
    attempt: int
    epoch: int
    pid: int
    wall_s: float

    @property
    def task(self) -> Task:
        """Stage and subtask, whichever attempt."""
        return self.stage, self.subtask


class Ledger:
    """A file outside of the cluster, to which tasks append one line a record."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str, stage: str) -> None:
        """Called in the task. One short write in append mode: lines of many tasks do not mix."""
        task = current()
        line = (
            f"{what} {stage} {task.vertex_id} {task.subtask} {task.attempt} {task.leader_epoch}"
            f" {os.getpid()} {time.time():.6f}\n"
        )
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line.encode("ascii"))
        finally:
            os.close(file)

    def lines(self) -> list[LedgerLine]:
        """All lines, in the order in which they were written."""
        if not self.path.exists():
            return []
        lines = []
        for text in self.path.read_text(encoding="ascii").splitlines():
            what, stage, vertex_id, *numbers, wall_s = text.split()
            subtask, attempt, epoch, pid = map(int, numbers)
            lines.append(
                LedgerLine(what, stage, vertex_id, subtask, attempt, epoch, pid, float(wall_s))
            )
        return lines

    def starts(self, stage: str | None = None) -> Counter[Task]:
        """How often each task has begun."""
        return self._count("start", stage)

    def ends(self, stage: str | None = None) -> Counter[Task]:
        """How often each task has given its last row."""
        return self._count("end", stage)

    def _count(self, what: str, stage: str | None) -> Counter[Task]:
        return Counter(
            line.task for line in self.lines() if line.what == what and stage in (None, line.stage)
        )


class Gates:
    """Files that hold tasks back: a task of a closed stage waits before it reads its input."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def close(self, *stages: str) -> None:
        """From now on tasks of the stages wait."""
        for stage in stages:
            (self.directory / f"closed-{stage}").touch()

    def open(self, stage: str, *subtasks: int) -> None:
        """Let the stage pass, or only some of its subtasks."""
        for subtask in subtasks:
            (self.directory / f"open-{stage}-{subtask}").touch()
        if not subtasks:
            (self.directory / f"closed-{stage}").unlink(missing_ok=True)

    def hold(self, stage: str, subtask: int) -> None:
        """Take back that this subtask alone may pass."""
        (self.directory / f"open-{stage}-{subtask}").unlink()

    def wait(self, stage: str, subtask: int) -> None:
        """Called in the task."""
        deadline_s = time.monotonic() + GATE_TIMEOUT_S
        closed = self.directory / f"closed-{stage}"
        opened = self.directory / f"open-{stage}-{subtask}"
        while closed.exists() and not opened.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"gate {stage}-{subtask} was not opened")
            time.sleep(GATE_POLL_S)


def hold_sinks_back(graph: JobGraph, gates: Gates, stage: str) -> None:
    """Make the tasks of any job that write its output wait at a gate when they have some."""
    held = cloudpickle.dumps(partial(_held, gates, stage))
    for vertex in graph.vertices:
        operators = list(vertex.operators)
        if operators[-1].HasField("sink"):
            gate = Operator(
                name="gate",
                determinism=DETERMINISM_DETERMINATE,
                function=PythonFunction(pickled=held, takes_iterator=True),
            )
            del vertex.operators[:]
            vertex.operators.extend([*operators[:-1], gate, operators[-1]])


def _held(gates: Gates, stage: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gates.wait(stage, current().subtask)
    yield from batches


@dataclass(frozen=True)
class LedgerJob:
    """A job under one directory: `ledger`, gates and output. Made by `chain` and `join`.

    Attributes:
        job_id: the job.
        ledger: what its tasks say.
        gates: what holds them back.
        output: where its result will be.
        gold: the only right result: (key, total, count) by key.
        describe: builds the job.
    """

    job_id: str
    ledger: Ledger
    gates: Gates
    output: Path
    gold: Gold
    describe: Callable[[LedgerJob], Job]

    def build(self) -> JobGraph:
        """The JobGraph."""
        return self.describe(self).build(self.job_id)

    def result(self) -> Gold:
        """What the job has written, sorted; each row once, or it is not GOLD."""
        assert (self.output / "_SUCCESS").exists(), f"{self.output} is not complete"
        columns = pq.read_table(self.output).to_pydict()
        return sorted(zip(columns["key"], columns["total"], columns["count"], strict=True))


def chain(
    directory: Path,
    n: int,
    job_id: str = "chain",
    options: Mapping[str, str] | None = None,
    *,
    consumers: int | None = None,
    record_splits: bool = True,
) -> LedgerJob:
    """CHAIN(n); with `consumers`, stages M and K have so many tasks instead. Without
    `record_splits` S reads files, and the job does not remember who has read which of them.
    """
    readers = consumers or n

    def describe(it: LedgerJob) -> Job:
        job = Job("chain", options)
        if record_splits:
            numbers = job.sequence(0, n * ROWS_PER_SUBTASK, parallelism=n)
        else:
            files = _files_of_numbers(directory / f"{job_id}-input", n)
            numbers = job.read_parquet(files, parallelism=n, record_splits=False)
        read = _stage(it, "S", n, numbers, _same)
        keyed = _stage(it, "M", readers, read.hash("value"), _keyed)
        _stage(it, "K", readers, keyed.hash("key"), _summed).write_parquet(str(it.output))
        return job

    gold = _gold((value % KEYS, 3 * value + 1) for value in range(n * ROWS_PER_SUBTASK))
    return _job(directory, job_id, gold, describe)


def join(
    directory: Path, n: int, job_id: str = "join", options: Mapping[str, str] | None = None
) -> LedgerJob:
    """JOIN(n). S2 has a row for every second row of S1."""

    def describe(it: LedgerJob) -> Job:
        job = Job("join", options)
        rows = n * ROWS_PER_SUBTASK
        facts = _stage(it, "S1", n, job.sequence(0, rows, name="facts", parallelism=n), _same)
        names = _stage(
            it, "S2", n, job.sequence(0, rows // 2, name="names", parallelism=n), _doubled
        )
        matched = job.sql(
            "select facts.value as value from facts join names on facts.value = names.value",
            parallelism=n,
            facts=facts.hash("value"),
            names=names.broadcast(),
        )
        keyed = _stage(it, "J", n, matched, _keyed)
        _stage(it, "K", n, keyed.hash("key"), _summed).write_parquet(str(it.output))
        return job

    gold = _gold((value % KEYS, 3 * value + 1) for value in range(0, n * ROWS_PER_SUBTASK, 2))
    return _job(directory, job_id, gold, describe)


def _job(
    directory: Path, job_id: str, gold: Gold, describe: Callable[[LedgerJob], Job]
) -> LedgerJob:
    place = directory / job_id
    gates = Gates(place / "gates")
    return LedgerJob(job_id, Ledger(place / "ledger"), gates, place / "output", gold, describe)


def _files_of_numbers(directory: Path, n: int) -> str:
    """As many files as subtasks; the glob that finds them."""
    directory.mkdir()
    for file in range(n):
        values = range(file * ROWS_PER_SUBTASK, (file + 1) * ROWS_PER_SUBTASK)
        table = pa.table({"value": pa.array(values, pa.int64())})
        pq.write_table(table, directory / f"{file}.parquet")
    return str(directory / "*.parquet")


def _gold(keyed: Iterable[tuple[int, int]]) -> Gold:
    totals: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for key, amount in keyed:
        totals[key] += amount
        counts[key] += 1
    return sorted((key, totals[key], counts[key]) for key in counts)


def _stage(
    it: LedgerJob, stage: str, n: int, rows: Rows, work: Callable[[pa.Table], pa.Table]
) -> DataSet:
    """Do `work` on all rows of each of n subtasks, with ledger and gate; chained if possible."""
    run = partial(_run, it.ledger, it.gates, stage, work)
    return rows.map_partition(run, name=stage, parallelism=n)


def _run(
    ledger: Ledger,
    gates: Gates,
    stage: str,
    work: Callable[[pa.Table], pa.Table],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.Table]:
    ledger.note("start", stage)
    gates.wait(stage, current().subtask)
    read = list(batches)
    columns = ("key", "amount") if stage == "K" else ("value",)
    empty = pa.schema([(column, pa.int64()) for column in columns])
    yield work(pa.Table.from_batches(read) if read else empty.empty_table())
    ledger.note("end", stage)


def _same(rows: pa.Table) -> pa.Table:
    return rows


def _doubled(rows: pa.Table) -> pa.Table:
    return pa.table({"value": pc.multiply(rows["value"], 2)})


def _keyed(rows: pa.Table) -> pa.Table:
    values = rows["value"].to_pylist()
    return pa.table(
        {
            "key": pa.array([value % KEYS for value in values], pa.int64()),
            "amount": pa.array([3 * value + 1 for value in values], pa.int64()),
        }
    )


def _summed(rows: pa.Table) -> pa.Table:
    grouped = rows.group_by("key").aggregate([("amount", "sum"), ("amount", "count")])
    return grouped.select(["key", "amount_sum", "amount_count"]).rename_columns(
        ["key", "total", "count"]
    )
