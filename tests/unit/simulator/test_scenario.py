"""A scenario is validated as a whole: what it says about jobs, options and faults fits together."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from simulator.fault_kinds import ROLES, Crash, Fault, FaultModel, StageFinished, Victims
from simulator.model import FieldRefused
from simulator.scenario import (
    DECIDED_OPTIONS,
    ClusterSpec,
    JobSpec,
    Scenario,
    StageSpec,
    check_options,
)

MAP = {"name": "map", "parallelism": 4}
JOBS = [{"name": "job", "stages": [MAP, {"name": "reduce"}]}]
FAULT_MODELS = get_args(get_args(Fault)[0])


def refused(**fields: Any) -> str:
    """What is said about a scenario with these fields."""
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate({"jobs": JOBS, **fields})
    return "\n".join(str(error["msg"]) for error in caught.value.errors())


def with_fault(**fields: Any) -> dict[str, Any]:
    return {"faults": [{"kind": "crash", "victims": "leader", "at": "1 s", **fields}]}


def test_a_stage_reads_the_one_before_it_unless_it_says_otherwise() -> None:
    job = JobSpec.model_validate(
        {"stages": [MAP, {"name": "b"}, {"name": "c", "parallelism": 1, "inputs": []}]}
    )
    assert [stage.inputs for stage in job.stages] == [(), ("map",), ()]
    assert [stage.name for stage in job.last_stages()] == ["b", "c"]


def test_a_stage_is_read_from_its_own_text_form() -> None:
    stages = [MAP, {"name": "second-source", "parallelism": 2, "inputs": []}]
    job = JobSpec.model_validate({"stages": stages})
    assert JobSpec.model_validate(job.model_dump(exclude_defaults=True)) == job


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ([{"name": "a"}], "without inputs: say its `parallelism`"),
        ([MAP, MAP], "two stages 'map'"),
        ([MAP, {"name": "b", "inputs": ["mab"]}], "did you mean map"),
        ([MAP, {"name": "b", "exchange": "forward", "parallelism": 3}], "leave out"),
        ([MAP, {"name": "b", "inputs": ["map", "map"]}], "an input twice"),
        ([{**MAP, "unordered": True, "indeterminate": True}], "say the latter alone"),
        ([MAP, {"name": "b", "splits": True}], "only a source has splits"),
        ([], "either `stages` or `graph`"),
    ],
)
def test_stages_that_cannot_be_joined_are_refused(stages: list[Any], reason: str) -> None:
    assert reason in refused(jobs=[{"stages": stages}])


def test_a_stage_may_be_adaptive() -> None:
    stage = StageSpec.model_validate({"name": "a", "parallelism": "adaptive"})
    assert stage.parallelism is None


def test_jobs_have_names_of_their_own() -> None:
    assert "holds 2 jobs 'job'" in refused(jobs=JOBS * 2)
    assert "is empty" in refused(jobs=[])


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    assert "did you mean heartbeat.timeout?" in refused(options={"heartbeat.timout": "9 s"})


def test_options_that_contradict_each_other_are_refused() -> None:
    assert "heartbeat.interval" in refused(options={"heartbeat.timeout": "1 s"})


@pytest.mark.parametrize("key", DECIDED_OPTIONS)
def test_what_the_cluster_decides_is_no_option(key: str) -> None:
    with pytest.raises(FieldRefused, match="is no option of a scenario") as caught:
        check_options({key: "1"})
    assert caught.value.path == (key,)


def test_a_job_sets_only_its_own_options() -> None:
    jobs = [{**JOBS[0], "options": {"heartbeat.timeout": "90 s"}}]
    assert "cannot be set by a job" in refused(jobs=jobs)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"at": None}, "one of `at: 12 s` and `when"),
        ({"when": {"stage": "map"}}, "one of `at: 12 s` and `when"),
        ({"at": None, "when": {"stage": "mab"}}, "did you mean map?"),
        ({"at": None, "when": {"stage": "map", "of": "jib"}}, "did you mean job?"),
        ({"at": None, "when": {"fault": "f"}}, "no other has that `id`"),
        ({"at": None, "when": {"job": "RUNING"}}, "'RUNNING'"),
        ({"repeat": 3}, "belong together"),
        ({"victims": "leadr"}, "did you mean leader?"),
        ({"victims": "rack"}, "is written rack:1"),
        ({"victims": "rack:2"}, "the cluster has only 1"),
        ({"victims": "taskmanager:4"}, "the cluster has only 3"),
        ({"victims": "shuffle:1"}, "the cluster has only 0"),
        ({"victims": "shuffle:one"}, "`cluster: shuffle_services` is 0"),
        ({"victims": "shuffle:some"}, "has no role"),
        ({"victims": "standby"}, "`cluster: jobmanagers` is 1"),
        ({"restart_after": "soon"}, "duration"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(fields: dict[str, Any], reason: str) -> None:
    assert reason in refused(**with_fault(**fields))


@pytest.mark.parametrize("model", FAULT_MODELS)
def test_a_fault_that_its_victims_cannot_suffer_is_refused_by_name(
    model: type[FaultModel],
) -> None:
    """The shared storage is no process, JobManagers run no tasks, only leaders write logs."""
    needed: dict[str, dict[str, Any]] = {
        "pause": {"for": 1},
        "lose-packets": {"probability": 0.5},
        "slow-disk": {"factor": 2},
        "clock-jump": {"by": 1},
        "clock-drift": {"rate": 1.1},
    }
    kind = model.model_fields["kind"].default
    if "victims" not in model.model_fields:
        return
    for role in ROLES:
        numbered = ("jobmanager", "taskmanager", "rack", "shuffle")
        text = f"{role}:1" if role in numbered else role
        fault = {"kind": kind, "at": 1, "victims": text, **needed.get(kind, {})}
        fields = {"cluster": {"jobmanagers": 2, "shuffle_services": 2}, "faults": [fault]}
        if role in model.whom:
            Scenario.model_validate({"jobs": JOBS, **fields})
        else:
            assert f"is {text}" in refused(**fields)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (["leader", "shared-storage"], "is shared-storage, which is no process"),
        (["leader", "leader"], "nobody can be cut off from itself"),
        (["taskmanager:2", "taskmanager:2"], "nobody can be cut off from itself"),
    ],
)
def test_a_cut_is_between_processes(between: list[str], reason: str) -> None:
    assert reason in refused(faults=[{"kind": "cut", "at": 1, "between": between}])
    both = {"kind": "cut", "at": 1, "between": ["all", "all"]}
    Scenario.model_validate({"jobs": JOBS, "faults": [both]})


def test_a_fault_without_a_leader_service_cannot_stop_it() -> None:
    faults = [{"kind": "leader-service-down", "at": "1 s", "for": "1 s"}]
    Scenario.model_validate({"jobs": JOBS, "faults": faults})
    cut = [{"kind": "cut", "at": "1 s", "between": ["all", "leader-service"]}]
    assert "leader` is file" in refused(faults=cut, cluster={"leader": "file"})
    assert "leader` is file" in refused(faults=faults, cluster={"leader": "file"})


def test_faults_are_told_apart_by_their_ids() -> None:
    fault = {"kind": "crash", "victims": "leader", "at": "1 s", "id": "f"}
    assert "is another fault's too" in refused(faults=[fault, fault])


def test_a_stage_that_two_jobs_have_needs_the_job_s_name() -> None:
    jobs = [{"name": name, "stages": [MAP]} for name in ("one", "two")]
    faults = with_fault(at=None, when={"stage": "map"})
    assert "say `of: <job's name>`" in refused(jobs=jobs, **faults)
    chosen = with_fault(at=None, when={"stage": "map", "of": "two"})
    scenario = Scenario.model_validate({"jobs": jobs, **chosen})
    assert scenario.faults[0].when == StageFinished(stage="map", of="two")


def test_never_is_an_infinite_delay() -> None:
    assert ClusterSpec().taskmanager_restart_s == math.inf
    fault = Crash(victims=Victims("one"), at=1.0, restart_after=math.inf)
    assert fault.model_dump()["restart_after"] == "never"


def test_taskmanagers_are_dealt_out_to_the_racks() -> None:
    cluster = ClusterSpec(taskmanagers=5, racks=2)
    assert [cluster.rack_of(number) for number in range(1, 6)] == [1, 2, 1, 2, 1]
    assert "some would be empty" in refused(cluster={"racks": 4})


@pytest.mark.parametrize("model", FAULT_MODELS)
def test_every_kind_of_fault_is_explained_and_says_whether_it_can_be_made(model: Any) -> None:
    assert model.__doc__
    assert isinstance(model.real, bool)
    assert model.model_fields["kind"].default
