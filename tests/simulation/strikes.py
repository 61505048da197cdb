"""Faults after a chosen step of a process, counted, so that every step can be tried.

A step is a callback of the process that others can see something of, were it after its death (it
has sent a message, or an operation of its disk was over), or in which a job's scheduler has handled
a signal. Between two steps only its memory changes, which dies with it: to die after each step is
to die at every moment that makes a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from jobmanager.job_master import JobMaster
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.signals import Signal
from simulator import fault_kinds as kinds
from simulator.cluster import Node
from simulator.record import RunRecord
from simulator.scenario import Scenario
from simulator.simulate import SimulatedRun
from simulator.world.process import Process
from simulator.world.trace import Trace

#: What the trace tells of a process that is no step of its own.
_NO_STEPS = ("starts", "ends", "killed", "interrupted", "log ")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one life of the watched process; both numbers begin with 0 and 1."""

    life: int
    number: int
    at_s: float
    #: The job's last known state; "" before it has one.
    job_state: str


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that is made right after a step of the watched process. Of that life nothing runs
    any more when the fault ends or freezes it."""

    life: int
    number: int
    fault: kinds.FaultModel


@dataclass(frozen=True, slots=True)
class StruckRun:
    """What came of a run: its record, and the steps of all lives of the watched process."""

    record: RunRecord
    steps: Sequence[Step]

    def of_life(self, life: int) -> list[Step]:
        """The steps of one life."""
        return [step for step in self.steps if step.life == life]


def run_with(
    scenario: Scenario, strikes: Sequence[Strike], *, watched: str = "jm-1", seed: int = 1
) -> StruckRun:
    """Run a scenario, strike after those steps of the watched process, and check all invariants."""
    watch = _Watch(watched, {(strike.life, strike.number): strike.fault for strike in strikes})
    with _told_of_notes(watch.noted):
        run = SimulatedRun(scenario, seed, {}, 0, checked=True)
        watch.run = run
        run.cluster.on_step.append(watch.stepped)
        with run.logs_captured():
            try:
                run.world.run(run.main())
                record = run.finish()
            finally:
                run.world.close()
    return StruckRun(record, watch.steps)


@contextmanager
def _told_of_notes(told: Callable[[str, str], None]) -> Iterator[None]:
    """Tell of everything that any trace notes meanwhile."""
    note = Trace.note

    def noted(trace: Trace, who: str, what: str, detail: str = "") -> None:
        note(trace, who, what, detail)
        told(who, what)

    with mock.patch.object(Trace, "note", noted):
        yield


class _Watch:
    """Counts the steps of a process, and strikes."""

    def __init__(self, watched: str, strikes: dict[tuple[int, int], kinds.FaultModel]) -> None:
        self.run: SimulatedRun | None = None
        self.steps: list[Step] = []
        self._watched = watched
        self._strikes = strikes
        self._counts: Counter[int] = Counter()
        self._last_callback = -1

    def noted(self, who: str, what: str) -> None:
        """The world has noted something."""
        if who == self._watched and not what.startswith(_NO_STEPS):
            self._step()

    def stepped(self, node: Node, _master: JobMaster, _signal: Signal, _decision: Decision) -> None:
        """A job's scheduler has handled a signal."""
        if node.name == self._watched:
            self._step()

    def _step(self) -> None:
        run = self.run
        assert run is not None, "nothing happens before the run"
        process, loop = run.cluster.node(self._watched).process, run.world.loop
        if process is None or not process.alive or self._last_callback == loop.callbacks:
            return
        self._last_callback = loop.callbacks
        self._counts[process.life] += 1
        number = self._counts[process.life]
        state = run.cluster.job_states.get(run.scenario.jobs[0].name, "")
        self.steps.append(Step(process.life, number, run.world.now_s, state))
        fault = self._strikes.get((process.life, number))
        if fault is not None:
            self._strike(run, process, fault)

    def _strike(self, run: SimulatedRun, process: Process, fault: kinds.FaultModel) -> None:
        # This callback is its last: no other of it comes before the fault, which comes next.
        process.pause()

        def strike() -> None:
            process.resume()
            run.injector.make(fault)

        loop = run.world.loop
        loop.call_soon(strike, context=loop.world_process.context)
