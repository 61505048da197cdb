"""Many simulated runs, in processes of their own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from holdover.errors import HoldoverError
from simulator.record import Finding, RunRecord
from simulator.scenario import Scenario

#: Runs after which a worker process is replaced, so that what it gathers is bounded.
_RUNS_PER_PROCESS = 500


class SimulationBroken(HoldoverError):
    """A process that simulates has died, as when memory ran out."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A run to be made. `name` is what a person calls the scenario by; without a scenario it is
    the swarm that the seed draws from."""

    name: str
    scenario: Scenario | None
    seed: int
    options: Mapping[str, str] = field(default_factory=dict)


def run_once(order: RunOrder, whole: bool, trace_lines_max: int) -> RunRecord:
    """Make the run; without `whole`, only findings and figures of its record are kept."""
    from simulator.simulate import run_scenario
    from simulator.swarm import draw_scenario

    scenario = order.scenario or draw_scenario(order.seed, order.name)
    record = run_scenario(
        scenario, order.seed, options=order.options, trace_lines_max=trace_lines_max
    )
    record.scenario = order.name
    record.options = dict(order.options)
    if not whole:
        _reduce(record)
    return record


def _reduce(record: RunRecord) -> None:
    """Thousands of records are kept until the last run has ended."""
    for rows in (record.attempts, record.workers, record.held, record.faults, record.epochs):
        rows.clear()
    for job in record.jobs:
        job.vertices.clear()
        job.recoveries.clear()


def run_all(
    orders: Sequence[RunOrder],
    workers: int,
    *,
    whole: bool,
    trace_lines_max: int = 0,
    ended: Callable[[RunRecord], None] = lambda _: None,
) -> list[RunRecord]:
    """The records of all runs, in their order; `ended` hears of each as soon as it is there.

    One worker is this process. With more, a run that raises becomes a finding of its record, so
    that the others are not lost. Raises SimulationBroken.
    """
    if workers == 1:
        records = []
        for order in orders:
            records.append(run_once(order, whole, trace_lines_max))
            ended(records[-1])
        return records
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        # Who interrupts this process from a terminal interrupts them too: they end without a word.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
        max_tasks_per_child=_RUNS_PER_PROCESS,
    )
    try:
        return _run_in(pool, orders, workers, whole, ended)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_in(
    pool: ProcessPoolExecutor,
    orders: Sequence[RunOrder],
    workers: int,
    whole: bool,
    ended: Callable[[RunRecord], None],
) -> list[RunRecord]:
    records: dict[int, RunRecord] = {}
    running: dict[Future[RunRecord], int] = {}
    waiting = iter(enumerate(orders))
    while len(records) < len(orders):
        while len(running) < 2 * workers and (following := next(waiting, None)) is not None:
            running[pool.submit(run_once, following[1], whole, 0)] = following[0]
        done, _ = wait(list(running), return_when=FIRST_COMPLETED)
        for future in sorted(done, key=running.__getitem__):
            number = running.pop(future)
            records[number] = _record_of(future, orders[number])
            ended(records[number])
    return [records[number] for number in range(len(orders))]


def _record_of(future: Future[RunRecord], order: RunOrder) -> RunRecord:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenProcessPool):
        raise SimulationBroken(
            "a process that simulates has died, perhaps for want of memory: run fewer at a time"
            f" (--jobs); it may have been with seed {order.seed}"
        ) from error
    told = Finding("the simulation goes on", 0.0, f"{type(error).__name__}: {error}")
    if error.__cause__ is not None:
        told.text += f"\n{error.__cause__}"
    return RunRecord(
        order.name, "simulated", order.seed, options=dict(order.options), findings=[told]
    )
