"""What came of a chaos run: the figures, whether they are good, and the table for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdover.cli.chaos_kills import KillKind
from holdover.config import format_duration


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """What is to happen.

    Attributes:
        seed: draws victims, pauses and queries.
        duration_s: how long processes are killed and jobs submitted.
        scale: of the TPC-H data.
        taskmanagers, slots: of the cluster.
        shuffle_services: where the output of all jobs goes; with none it stays with TaskManagers.
        streams: jobs side by side.
        pause_s: shortest and longest time between two strokes.
        job_timeout_s: a job that takes longer is stuck.
    """

    seed: int
    duration_s: float
    scale: float
    taskmanagers: int = 4
    slots: int = 2
    shuffle_services: int = 0
    streams: int = 3
    pause_s: tuple[float, float] = (2.0, 8.0)
    job_timeout_s: float = 600.0


@dataclass(slots=True)
class ChaosFacts:
    """What was observed, from outside of the cluster.

    Attributes:
        plan: what was to happen.
        took_s: how long it all took, with the end of the last jobs.
        strokes: kills by kind.
        killed: processes killed.
        durations_s: of each finished job, by query.
        subtasks: tasks that had work to do, in all jobs.
        ran_again: of these, those that were not finished when a process died, and ran again.
        unheard: those that had finished less than 3 s before their TaskManager was killed, so
            that the living JobManager need not have heard of it, and began again.
        lost: finished work that ran again although its TaskManager's disk lived; one text each.
        wrong: jobs that failed, or whose result is not DuckDB's.
        stuck: jobs that did not end in time.
        parked: how often a job was parked, and retried.
        unexpected_ends: processes that ended without being killed.
        left_files, left_processes: what was there when everything had ended.
    """

    plan: ChaosPlan
    took_s: float = 0.0
    strokes: dict[KillKind, int] = field(default_factory=dict)
    killed: int = 0
    durations_s: dict[int, list[float]] = field(default_factory=dict)
    subtasks: int = 0
    ran_again: int = 0
    unheard: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    parked: int = 0
    unexpected_ends: list[str] = field(default_factory=list)
    left_files: list[str] = field(default_factory=list)
    left_processes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        """Everything that must not be, by what it is called."""
        return {
            "finished work lost": self.lost,
            "wrong results": self.wrong,
            "stuck jobs": self.stuck,
            "processes that ended by themselves": self.unexpected_ends,
            "files left behind": self.left_files,
            "processes left behind": self.left_processes,
        }

    @property
    def jobs(self) -> int:
        """Jobs that finished with the right result."""
        return sum(map(len, self.durations_s.values()))

    @property
    def good(self) -> bool:
        """Whether nothing happened that must not, and something happened at all."""
        return self.jobs > 0 and self.killed > 0 and not any(self.problems.values())

    def as_json(self) -> dict[str, object]:
        """The figures, as `holdover chaos --json` prints them."""
        return {
            "seed": self.plan.seed,
            "took_s": round(self.took_s, 1),
            "strokes": {kind.name.lower(): count for kind, count in self.strokes.items()},
            "processes_killed": self.killed,
            "jobs": self.jobs,
            "jobs_by_query": {f"q{n}": len(each) for n, each in sorted(self.durations_s.items())},
            "job_s_median": round(self._median_s(), 3),
            "job_s_max": round(self._longest_s(), 3),
            "subtasks": self.subtasks,
            "ran_again_unfinished": self.ran_again,
            "ran_again_unheard": self.unheard,
            "parked": self.parked,
            **{what.replace(" ", "_"): texts for what, texts in self.problems.items()},
        }

    def rows(self) -> Iterator[tuple[str, str]]:
        """The table: what, and how much of it."""
        plan = self.plan
        yield "seed", str(plan.seed)
        services = f", {plan.shuffle_services} shuffle services" if plan.shuffle_services else ""
        taskmanagers = f"{plan.taskmanagers} TaskManagers of {plan.slots} slots"
        yield "cluster", f"1 JobManager, {taskmanagers}{services}"
        yield "time", format_duration(round(self.took_s))
        yield "kill -9", f"{self.killed} processes"
        for kind, count in self.strokes.items():
            yield f"  {kind.value}", f"{count} times"
        yield "jobs", f"{self.jobs} with DuckDB's result, {plan.streams} side by side"
        for number, durations_s in sorted(self.durations_s.items()):
            times = (
                f"median {statistics.median(durations_s):.1f} s, longest {max(durations_s):.1f} s"
            )
            yield f"  TPC-H Q{number}, scale {plan.scale:g}", f"{len(durations_s)}; {times}"
        yield "subtasks", str(self.subtasks)
        yield "  had not finished, ran again", str(self.ran_again)
        yield "  finished unheard, ran again", str(self.unheard)
        yield "jobs parked and retried", str(self.parked)
        for what, texts in self.problems.items():
            yield what, str(len(texts))

    def _median_s(self) -> float:
        times = [seconds for each in self.durations_s.values() for seconds in each]
        return statistics.median(times) if times else 0.0

    def _longest_s(self) -> float:
        return max((seconds for each in self.durations_s.values() for seconds in each), default=0.0)
