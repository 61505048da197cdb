"""How large a cluster the simulator bears: thousands of TaskManagers that lose their JobManager."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from math import nan

from benchmarks.report import Report, Series
from holdover.config import PARALLELISM_MAX
from simulator.scenario import Scenario
from simulator.simulate import run_scenario

_SLOTS = 4
_LAST_STAGE_SUBTASKS = 100
#: What a message costs the modelled process that handles it. With a scenario's usual 0.2 ms one
#: JobManager cannot serve this many: it loses its lease while thousands register. This is about
#: the simulator, not about that.
_MESSAGE_COST = "20 us"
#: A simulation wanders through a gigabyte of small objects: it spends much of its time looking up
#: where pages are, unless the pages are large; and it makes and drops more objects of one size than
#: a C library keeps at hand. One that does not know these settings passes them over.
_MEMORY = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=60000",
}
_REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "3"))


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster with a job, and what simulating them may take.

    Attributes:
        taskmanagers: with four slots each.
        subtasks: of the job, about; each stage fills the cluster once, as far as a job may.
        wall_s_max: seconds on a quiet machine.
        memory_gib_max: of the process that simulates.
        repetitions: how often it is run.
    """

    taskmanagers: int
    subtasks: int
    wall_s_max: float
    memory_gib_max: float
    repetitions: int

    @property
    def name(self) -> str:
        """How it is called in the report."""
        return f"{self.taskmanagers} TaskManagers"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run took, and what happened in it."""

    wall_s: float
    cpu_s: float
    callbacks: int
    memory_gib: float
    attempts: int
    rerun: int
    recovery_s: float
    virtual_s: float


_SIZES = (
    Size(2_000, 40_000, wall_s_max=60, memory_gib_max=8, repetitions=_REPETITIONS),
    Size(10_000, 200_000, wall_s_max=480, memory_gib_max=8, repetitions=1),
)


async def run() -> Report:
    """Each size in processes of its own, one after another."""
    report = Report(
        "scale", f"simulated: {_SLOTS} slots each, the JobManager killed amid a job of five stages"
    )
    for size in _SIZES:
        samples = [await _in_a_process(size) for _ in range(size.repetitions)]
        wall = Series(f"{size.name}: wall", "s", [sample.wall_s for sample in samples])
        memory = Series(f"{size.name}: memory", "GiB", [sample.memory_gib for sample in samples])
        report.series += [
            wall,
            Series(f"{size.name}: CPU", "s", [sample.cpu_s for sample in samples]),
            Series(
                f"{size.name}: events per second of CPU",
                "1/s",
                [sample.callbacks / sample.cpu_s for sample in samples],
            ),
            memory,
        ]
        report.add(f"{size.name}: wall_s", wall.median, at_most=size.wall_s_max)
        report.add(f"{size.name}: memory_gib", memory.median, at_most=size.memory_gib_max)
        report.add(f"{size.name}: attempts", samples[0].attempts)
        report.add(f"{size.name}: subtasks rerun", samples[0].rerun)
        report.add(f"{size.name}: recovery, virtual s", samples[0].recovery_s)
        report.add(f"{size.name}: whole run, virtual s", samples[0].virtual_s)
    return report


async def _in_a_process(size: Size) -> Sample:
    """Run it in a new process: memory that was used once is seldom given back."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.scale",
        str(size.taskmanagers),
        str(size.subtasks),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **_MEMORY},
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise RuntimeError(f"simulating {size.name} ended with exit code {process.returncode}")
    return Sample(**json.loads(output))


def scenario(taskmanagers: int, subtasks: int) -> Scenario:
    """Stages that each fill the cluster, a small last one that reads from all of it, and a
    JobManager that dies when the middle one is half done."""
    width = min(taskmanagers * _SLOTS, PARALLELISM_MAX)
    work = {"seconds": "uniform(4 s, 6 s)", "output_bytes": "1 mb"}
    stages: list[dict[str, object]] = [
        {"name": "s0", "parallelism": width, "rows": 1, **work},
    ]
    while (len(stages) + 1) * width + _LAST_STAGE_SUBTASKS <= subtasks:
        stages.append({"name": f"s{len(stages)}", "exchange": "forward", **work})
    middle = stages[(len(stages)) // 2]["name"]
    stages.append(
        {
            "name": "last",
            "exchange": "hash",
            "parallelism": _LAST_STAGE_SUBTASKS,
            "seconds": "2 s",
        }
    )
    return Scenario.model_validate(
        {
            "name": "scale",
            "cluster": {"taskmanagers": taskmanagers, "slots": _SLOTS},
            "jobs": [{"name": "job", "stages": stages}],
            "network": {"message_cost": _MESSAGE_COST},
            # An idle TaskManager is most of a large world.
            "options": {"heartbeat.interval": "10 s"},
            "faults": [
                {
                    "kind": "crash",
                    "victims": "leader",
                    "when": {"stage": middle, "finished": 0.5},
                    "restart_after": "2 s",
                }
            ],
            "duration_max": "600 s",
        }
    )


def simulate(taskmanagers: int, subtasks: int) -> Sample:
    """One run in this process. Raises RuntimeError when anything is wrong with its outcome."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    record = run_scenario(scenario(taskmanagers, subtasks), seed=1, checked=False)
    states = [job.state for job in record.jobs]
    if record.findings or states != ["FINISHED"]:
        raise RuntimeError(f"the run is not a good one: {states} {record.findings[:5]}")
    measures = record.measures
    return Sample(
        wall_s=time.monotonic() - began_s,
        cpu_s=time.process_time() - began_cpu_s,
        callbacks=record.events,
        memory_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        attempts=len(record.attempts),
        rerun=measures.subtasks_rerun,
        recovery_s=nan if measures.recovery_s is None else measures.recovery_s,
        virtual_s=record.duration_s,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(simulate(int(sys.argv[1]), int(sys.argv[2])))))
