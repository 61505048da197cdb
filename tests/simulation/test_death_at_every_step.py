"""A leader, or a worker, dies after each single step of its own; again in the recovery; and again.

A small job (a source with splits, a hash exchange, an adaptive vertex, a sink) is run once for each
step of a process, with a fault right after it. All invariants are on, the output must be right,
and the job must end in time. `make test` takes every so-many-th step; with HOLDOVER_EVERY_STEP=1 in
the environment none is left out.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from simulator import fault_kinds as kinds
from simulator.scenario import Scenario
from tests.simulation.strikes import Step, Strike, StruckRun, run_with

EVERY_STEP = bool(os.environ.get("HOLDOVER_EVERY_STEP"))
#: What a fault may cost the job beyond what it would have taken: start, wait, and work again.
DELAY_S_MAX = 8.0
#: When all is healed, and parked jobs are retried.
DURATION_S_MAX = 40.0
_TOLD_MAX = 10
#: After so many leaders that died in its recovery a job is parked.
_DEATHS_TO_PARK = 3
_CLUSTER = {
    "taskmanagers": 2,
    "slots": 2,
    "leader": "file",
    "jobmanager_start": 0.1,
    "jobmanager_restart": 0.2,
    "taskmanager_start": 0.1,
    "taskmanager_restart": 0.3,
}
_OPTIONS = {
    "heartbeat.interval": "5 s",
    "heartbeat.timeout": "20 s",
    "execution.batch.job-recovery.previous-worker.recovery.timeout": "2 s",
    "execution.batch.job-recovery.adoption-timeout": "500 ms",
    "job-event.store.write-buffer.flush-interval": "100 ms",
    "taskmanager.registration.max-backoff": "500 ms",
    "execution.batch.adaptive.auto-parallelism.max-parallelism": "2",
    "execution.batch.adaptive.auto-parallelism.avg-data-volume-per-task": "100 kb",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "restart-strategy.fixed-delay.attempts": "1000",
}
WITHOUT_RECOVERY = {"execution.batch.job-recovery.enabled": "false"}


def small_job(
    faults: Sequence[dict[str, Any]] = (),
    options: dict[str, str] | None = None,
    failure_probability: float = 0.0,
    **cluster: Any,
) -> Scenario:
    """About a second of work on two TaskManagers."""
    takes = {"seconds": "300 ms", "output_bytes": "100 kb"}
    source = {"name": "read", "parallelism": 3, "splits": True, "rows": 4, **takes}
    last = {"name": "sum", "failure_probability": failure_probability, **takes}
    return Scenario.model_validate(
        {
            "name": "small",
            "cluster": _CLUSTER | cluster,
            "jobs": [{"name": "job", "stages": [source, last]}],
            "options": _OPTIONS | (options or {}),
            "faults": list(faults),
            "duration_max": DURATION_S_MAX,
        }
    )


def fault(kind: str, victims: str, **fields: Any) -> kinds.FaultModel:
    """A fault of that kind, to be made at any time."""
    models: dict[str, type[kinds.FaultModel]] = {
        "crash": kinds.Crash,
        "stop": kinds.Stop,
        "power-loss": kinds.PowerLoss,
        "pause": kinds.Pause,
        "lose-partitions": kinds.LosePartitions,
        "drain": kinds.Drain,
    }
    return models[kind].model_validate({"victims": victims, "at": 0.0, **fields})


LEADER_DIES = fault("crash", "jobmanager:1", restart_after=0.2)


def some(steps: Sequence[Step], count: int) -> list[Step]:
    """All of the steps where that is asked for; else so many, at even distances."""
    if EVERY_STEP or len(steps) <= count:
        return list(steps)
    return [steps[(2 * place + 1) * len(steps) // (2 * count)] for place in range(count)]


def judge(
    scenario: Scenario,
    tried: Iterable[Sequence[Strike]],
    *,
    watched: str = "jm-1",
    states: Sequence[str] = ("FINISHED",),
) -> None:
    """Run each of the combinations; tells all that went wrong, not only what did so first."""
    calm = run_with(scenario, [], watched=watched)
    assert problems(calm, states, DURATION_S_MAX) == []
    [undisturbed] = calm.record.jobs
    wrong = []
    runs = 0
    for strikes in tried:
        runs += 1
        ended_s_max = (undisturbed.ended_s or 0.0) + DELAY_S_MAX * len(strikes)
        if len(strikes) >= _DEATHS_TO_PARK:
            ended_s_max += DURATION_S_MAX
        found = problems(run_with(scenario, strikes, watched=watched), states, ended_s_max)
        if found:
            at = ", ".join(f"{s.fault.kind} after {s.life}/{s.number}" for s in strikes)
            wrong.append(f"{at}: {found[0]}")
    print(f"{runs} runs, {len(wrong)} with findings")
    assert runs, "there is no step to try"
    assert wrong == [], f"{len(wrong)} of {runs}:\n" + "\n".join(wrong[:_TOLD_MAX])


def problems(run: StruckRun, states: Sequence[str], ended_s_max: float) -> list[str]:
    """What is wrong with a run."""
    [job] = run.record.jobs
    found = [f"{finding.invariant}: {finding.text}" for finding in run.record.findings]
    if job.state not in states:
        found.append(f"the job is {job.state}")
    if job.ended_s is None or job.ended_s > ended_s_max:
        found.append(f"the job ended at {job.ended_s} s, and not by {ended_s_max:.1f} s")
    return found


def judge_in_a_recovery(scenario: Scenario, second: kinds.FaultModel, count: int) -> None:
    """The leader has died when half of the work was done, and is back; then something happens."""
    first = run_with(scenario, []).of_life(0)
    death = Strike(0, first[len(first) * 2 // 3].number, LEADER_DIES)
    steps = run_with(scenario, [death]).of_life(1)
    judge(scenario, [[death, Strike(1, s.number, second)] for s in some(steps, count)])


def singly(steps: Iterable[Step], *made: kinds.FaultModel) -> list[list[Strike]]:
    """Each of these faults after each of these steps."""
    return [[Strike(step.life, step.number, each)] for step in steps for each in made]


pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400 if EVERY_STEP else 1_800)]


# ------------------------------------------------------------------ leaders


@pytest.mark.parametrize(
    ("kind", "count", "options"),
    [("crash", 26, {}), ("power-loss", 14, {}), ("stop", 12, {}), ("crash", 12, WITHOUT_RECOVERY)],
    ids=["crash", "power-loss", "stop", "crash-without-recovery"],
)
def test_a_leader_ends_after_any_step(kind: str, count: int, options: dict[str, str]) -> None:
    """Each handled signal, each message sent, each operation of its disk; commit included."""
    scenario = small_job(options=options)
    steps = run_with(scenario, []).of_life(0)
    judge(scenario, singly(some(steps, count), fault(kind, "jobmanager:1", restart_after=0.2)))


def test_a_leader_dies_again_after_any_step_of_its_recovery() -> None:
    """The first death is in each phase of the job, the second at each step of the next leader."""
    scenario = small_job()
    tried = []
    for first in some(run_with(scenario, []).of_life(0), 6):
        death = Strike(0, first.number, LEADER_DIES)
        again = run_with(scenario, [death]).of_life(1)
        tried += [[death, Strike(1, step.number, LEADER_DIES)] for step in some(again, 10)]
    judge(scenario, tried)


def test_leaders_die_any_number_of_times() -> None:
    """Three to six, each after some step that the one before did not come to."""
    scenario = small_job()
    tried = []
    for number in range(400 if EVERY_STEP else 16):
        chance = random.Random(number)
        early = chance.choice((15, 40, 90))
        tried.append(
            [
                Strike(life, 1 + int(early * chance.random()), LEADER_DIES)
                for life in range(chance.randint(3, 6))
            ]
        )
    judge(scenario, tried)


@pytest.mark.parametrize("for_s", [1.0, 2.0])
@pytest.mark.parametrize("options", [{}, WITHOUT_RECOVERY], ids=["recovery", "no-recovery"])
def test_a_leader_freezes_after_any_step_and_goes_on_beside_its_successor(
    options: dict[str, str], for_s: float
) -> None:
    """Publishing the output included: an operation of its disk that it had begun is carried out
    when it wakes, when its successor may have finished; no file can tell the one from the other.
    """
    scenario = small_job(options=options, leader="service", lease_ttl=0.5, jobmanagers=2)
    seen = {name: run_with(scenario, [], watched=name).of_life(0) for name in ("jm-1", "jm-2")}
    leader = max(seen, key=lambda name: len(seen[name]))
    steps = seen[leader]
    last = len(steps) * 4 // 5
    freezes = fault("pause", f"jobmanager:{leader[-1]}", **{"for": for_s})
    tried = [*some(steps[:last], 24), *some(steps[last:], 12)]
    judge(scenario, singly(tried, freezes), watched=leader)


@pytest.mark.parametrize("for_s", [1.0, 2.0])
@pytest.mark.parametrize("options", [{}, WITHOUT_RECOVERY], ids=["recovery", "no-recovery"])
def test_a_leader_freezes_and_its_successor_dies_after_any_step(
    options: dict[str, str], for_s: float
) -> None:
    """The one freezes in each phase of the job, and wakes while the other is dead, or is back."""
    cluster: dict[str, Any] = {"leader": "service", "lease_ttl": 0.5, "jobmanagers": 2}
    calm = small_job((), options, **cluster)
    seen = {name: run_with(calm, [], watched=name).of_life(0) for name in ("jm-1", "jm-2")}
    leader, successor = sorted(seen, key=lambda name: len(seen[name]), reverse=True)
    judged = 0
    for first in some(seen[leader], 6):
        when = {"at": f"{first.at_s} s", "for": f"{for_s} s"}
        freezes = {"kind": "pause", "victims": f"jobmanager:{leader[-1]}", **when}
        scenario = small_job([freezes], options, **cluster)
        steps = run_with(scenario, [], watched=successor).of_life(0)
        dies = fault("crash", f"jobmanager:{successor[-1]}", restart_after=0.2)
        if after := [step for step in steps if step.at_s > first.at_s]:
            judged += 1
            judge(scenario, singly(some(after, 8), dies), watched=successor)
    assert judged > 3, "in most phases the other one takes over"


# ------------------------------------------------------------------ workers


@pytest.mark.parametrize("watched", ["jm-1", "tm-1"])
@pytest.mark.parametrize("back_s", [0.01, 3.0])
def test_a_worker_dies_after_any_step_of_the_leader_or_its_own(watched: str, back_s: float) -> None:
    """It is back at once, or after the others have done its work."""
    scenario = small_job()
    steps = run_with(scenario, [], watched=watched).of_life(0)
    dies = fault("crash", "taskmanager:1", restart_after=back_s)
    judge(scenario, singly(some(steps, 14), dies), watched=watched)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("crash", {"restart_after": 0.01}),
        ("crash", {"restart_after": 6.0}),
        ("power-loss", {"restart_after": 0.5}),
        ("pause", {"for": 3.0}),
        ("lose-partitions", {}),
    ],
)
def test_something_happens_to_a_worker_at_any_step_of_a_recovery(
    kind: str, fields: dict[str, Any]
) -> None:
    judge_in_a_recovery(small_job(), fault(kind, "taskmanager:1", **fields), 10)


# ------------------------------------------------------------------ shuffle services


def job_with_services(faults: Sequence[dict[str, Any]] = ()) -> Scenario:
    """The same job; what it passes on goes to two shuffle services."""
    services = {
        "shuffle_services": 2,
        "shuffle_service_start": 0.1,
        "shuffle_service_restart": 0.3,
    }
    return small_job(faults, {"shuffle.mode": "external"}, **services)


@pytest.mark.parametrize("kind", ["crash", "power-loss", "stop"])
def test_a_leader_ends_after_any_step_while_output_goes_to_shuffle_services(kind: str) -> None:
    scenario = job_with_services()
    steps = run_with(scenario, []).of_life(0)
    judge(scenario, singly(some(steps, 10), fault(kind, "jobmanager:1", restart_after=0.2)))


@pytest.mark.parametrize("watched", ["jm-1", "ss-1", "tm-1"])
@pytest.mark.parametrize("back_s", [0.01, 3.0])
def test_a_shuffle_service_dies_after_any_step_of_any_process(watched: str, back_s: float) -> None:
    """It is back at once, or after what it held has been made again."""
    scenario = job_with_services()
    steps = run_with(scenario, [], watched=watched).of_life(0)
    dies = fault("crash", "shuffle:1", restart_after=back_s)
    judge(scenario, singly(some(steps, 8), dies), watched=watched)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("crash", {"restart_after": 0.3}),
        ("power-loss", {"restart_after": 0.3}),
        ("pause", {"for": 1.0}),
        ("drain", {}),
    ],
)
def test_something_happens_to_a_shuffle_service_at_any_step_of_a_recovery(
    kind: str, fields: dict[str, Any]
) -> None:
    judge_in_a_recovery(job_with_services(), fault(kind, "shuffle:1", **fields), 8)


# ------------------------------------------------------------------ while a job ends


@pytest.mark.parametrize("options", [{}, WITHOUT_RECOVERY], ids=["recovery", "no-recovery"])
def test_a_leader_dies_after_any_step_of_a_cancellation(options: dict[str, str]) -> None:
    """P47: that is acknowledged or not; the job never rises again once it is."""
    cancel = {"kind": "cancel-job", "job": "job", "when": {"stage": "read", "finished": 0.3}}
    scenario = small_job([cancel], options)
    ending = steps_from(run_with(scenario, []), "CANCELLING")
    judge(scenario, singly(some(ending, 10), LEADER_DIES), states=("CANCELED", "FINISHED"))


def test_a_leader_dies_after_any_step_of_a_failure() -> None:
    scenario = small_job(
        failure_probability=1.0, options={"restart-strategy.fixed-delay.attempts": "1"}
    )
    ending = steps_from(run_with(scenario, []), "FAILING")
    judge(scenario, singly(some(ending, 12), LEADER_DIES), states=("FAILED",))


@pytest.mark.skipif(EVERY_STEP, reason="every two steps are tried above")
def test_a_leader_dies_twice_while_it_publishes_output() -> None:
    """Each step of the last third, and each step of what the next leader does of it."""
    scenario = small_job()
    steps = run_with(scenario, []).of_life(0)
    tried = []
    for first in some(steps[len(steps) * 2 // 3 :], 4):
        death = Strike(0, first.number, LEADER_DIES)
        again = run_with(scenario, [death]).of_life(1)
        tried += [[death, Strike(1, s.number, LEADER_DIES)] for s in some(again, 6)]
    judge(scenario, tried)


def steps_from(run: StruckRun, state: str) -> list[Step]:
    """The steps of the first leader since a little before the job was in a state."""
    steps = run.of_life(0)
    first = next(place for place, step in enumerate(steps) if step.job_state == state)
    return steps[max(0, first - 8) :]
