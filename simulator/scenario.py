"""A scenario: a cluster, its jobs, its options, and what goes wrong, as data.

Pure models, validated by pydantic; reading them from a file is `simulator.scenario_file`. A field
has one name in a file (`submit_at: 5 s`) and one with its unit in Python (`submit_at_s`).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from holdover import ids
from holdover.config import OPTIONS, Configuration, check_job_option
from holdover.errors import ConfigurationError
from simulator.fault_kinds import (
    CancelJob,
    Fault,
    FaultMade,
    JobIs,
    StageFinished,
    StepReached,
    Victims,
)
from simulator.model import FieldRefused, Model
from simulator.quantities import (
    Bytes,
    BytesDistribution,
    Constant,
    Fraction,
    Seconds,
    SecondsDistribution,
    SecondsOrNever,
    Uniform,
    nearest,
)

ExchangeName = Literal["hash", "rebalance", "broadcast", "forward"]

TASKMANAGERS_MAX = 20_000
STAGES_MAX = 64
JOBS_MAX = 64
FAULTS_MAX = 256
#: Options that follow from the cluster of the scenario, and where they are said there.
DECIDED_OPTIONS = {
    "taskmanager.numberOfTaskSlots": "set `cluster: slots`",
    **dict.fromkeys(
        (
            "jobmanager.rpc.address",
            "jobmanager.rpc.port",
            "jobmanager.bind-host",
            "taskmanager.host",
            "taskmanager.bind-host",
            "taskmanager.rpc.port",
            "taskmanager.data.port",
            "taskmanager.resource-id",
            "shuffle.service.host",
            "shuffle.service.bind-host",
            "shuffle.service.rpc.port",
            "shuffle.service.data.port",
            "shuffle.service.resource-id",
            "io.tmp.dirs",
            "high-availability.type",
            "high-availability.storageDir",
            "high-availability.cluster-id",
        ),
        "leave it out: whoever runs the scenario decides it",
    ),
}


class ClusterSpec(Model):
    """The processes, and how they come back.

    TaskManager number i (from 1) stands in rack 1 + (i - 1) mod `racks`; JobManagers stand in none.
    """

    taskmanagers: Annotated[int, Field(ge=1, le=TASKMANAGERS_MAX)] = 3
    slots: Annotated[int, Field(ge=1, le=4_096)] = 2
    racks: Annotated[int, Field(ge=1, le=1_000)] = 1
    #: One leads, the others stand by.
    jobmanagers: Annotated[int, Field(ge=1, le=9)] = 1
    #: How a leader is elected: by a lease at a service, by etcd, or by a locked file on shared
    #: storage.
    leader: Literal["service", "etcd", "file"] = "service"
    lease_ttl_s: Annotated[Seconds, Field(gt=0)] = Field(default=3.0, alias="lease_ttl")
    #: From the start of a process until it does its work.
    jobmanager_start_s: Seconds = Field(default=0.5, alias="jobmanager_start")
    taskmanager_start_s: Seconds = Field(default=1.0, alias="taskmanager_start")
    #: From the end of a process until somebody starts it again; infinite for "never".
    jobmanager_restart_s: SecondsOrNever = Field(default=2.0, alias="jobmanager_restart")
    taskmanager_restart_s: SecondsOrNever = Field(default=math.inf, alias="taskmanager_restart")
    #: Who keep the output of jobs whose `shuffle.mode` is external; each on a machine of its own.
    shuffle_services: Annotated[int, Field(ge=0, le=1_000)] = 0
    shuffle_service_start_s: Seconds = Field(default=1.0, alias="shuffle_service_start")
    shuffle_service_restart_s: SecondsOrNever = Field(default=2.0, alias="shuffle_service_restart")

    @model_validator(mode="after")
    def _racks_are_filled(self) -> ClusterSpec:
        if self.racks > self.taskmanagers:
            raise ValueError(
                f"has {self.racks} racks for {self.taskmanagers} TaskManagers: some would be empty"
            )
        return self

    def rack_of(self, taskmanager: int) -> int:
        """Rack of a TaskManager, both numbered from 1."""
        return 1 + (taskmanager - 1) % self.racks


def _stage_name(value: str) -> str:
    if not value or len(value) > 40 or not value.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"is {value!r}, but must be 1 to 40 letters, digits, '-' and '_'")
    return value


class StageSpec(Model):
    """A stage of a job: subtasks that take time and write bytes.

    A stage without inputs makes `rows` rows in each subtask, or reads them from a source that has
    as many for each; others pass on every row that they read.
    """

    name: Annotated[str, AfterValidator(_stage_name)]
    #: None is adaptive: decided from the bytes of the inputs, which must then exist.
    parallelism: Annotated[int, Field(ge=1, le=32_768)] | None = None
    #: How long a subtask computes.
    seconds: SecondsDistribution = Constant(1.0)
    #: What a subtask writes.
    output_bytes: BytesDistribution = Constant(float(1 << 20))
    #: Names of earlier stages; the stage before this one where it is left out.
    inputs: tuple[str, ...] = ()
    #: How the rows of the inputs are spread over the subtasks.
    exchange: ExchangeName = "hash"
    rows: Annotated[int, Field(ge=0, le=100_000)] = 10
    #: Of a stage without inputs: its rows are numbers in splits, which its subtasks ask for.
    splits: bool = False
    #: Of each attempt.
    failure_probability: Fraction = 0.0
    #: Another attempt may write the same rows in another order.
    unordered: bool = False
    #: Another attempt may write other rows.
    indeterminate: bool = False

    @field_validator("parallelism", mode="before")
    @classmethod
    def _adaptive_is_none(cls, value: object) -> object:
        return None if value == "adaptive" else value

    @model_serializer(mode="wrap")
    def _with_inputs(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Left out, they would be read as the stage before this one.
        return {**fields(self), "inputs": list(self.inputs)}


class JobSpec(Model):
    """A job: stages, or a stored JobGraph.

    The last stages write their rows as text under /shared/output/<name>. Operators of a stored
    graph other than workloads are modelled: their subtasks take `seconds` and write `output_bytes`.
    """

    #: Also the job's id.
    name: str = "job"
    stages: tuple[StageSpec, ...] = Field(default=(), max_length=STAGES_MAX)
    #: Path of a file that holds a JobGraph message.
    graph: str | None = None
    submit_at_s: Seconds = Field(default=0.0, alias="submit_at")
    options: dict[str, str] = Field(default_factory=dict)
    seconds: SecondsDistribution = Constant(1.0)
    output_bytes: BytesDistribution = Constant(float(1 << 20))

    @field_validator("name")
    @classmethod
    def _name_is_an_id(cls, value: str) -> str:
        return ids.job_id(value)

    @field_validator("stages")
    @classmethod
    def _stages_follow_each_other(cls, stages: tuple[StageSpec, ...]) -> tuple[StageSpec, ...]:
        linked: dict[str, StageSpec] = {}
        for stage in stages:
            if stage.name in linked:
                raise ValueError(f"holds two stages {stage.name!r}: rename one")
            follows = linked and "inputs" not in stage.model_fields_set
            inputs = (list(linked)[-1],) if follows else stage.inputs
            linked[stage.name] = stage.model_copy(update={"inputs": inputs})
            _check_stage(linked[stage.name], linked)
        return tuple(linked.values())

    @field_validator("options", mode="after")
    @classmethod
    def _options_are_the_job_s(cls, options: dict[str, str]) -> dict[str, str]:
        for key, text in options.items():
            try:
                check_job_option(key, text, "the scenario")
            except ConfigurationError as error:
                raise FieldRefused(str(error), (key,)) from None
        return options

    @model_validator(mode="after")
    def _one_form(self) -> JobSpec:
        if (self.graph is None) != bool(self.stages):
            raise ValueError("needs either `stages` or `graph`, the path of a stored JobGraph")
        return self

    def last_stages(self) -> list[StageSpec]:
        """The stages that no other reads: they write the job's output."""
        read = {name for stage in self.stages for name in stage.inputs}
        return [stage for stage in self.stages if stage.name not in read]


def _check_stage(stage: StageSpec, earlier: dict[str, StageSpec]) -> None:
    for name in stage.inputs:
        if name not in earlier:
            raise ValueError(
                f"has a stage {stage.name!r} that reads {name!r}, which is no stage before it"
                + (nearest(name, list(earlier)) if earlier else "")
            )
        if stage.exchange != "forward":
            continue
        if stage.parallelism not in (None, earlier[name].parallelism):
            raise ValueError(
                f"gives {stage.name!r} {stage.parallelism} subtasks, but {name!r}, which forwards"
                f" to it, has {earlier[name].parallelism or 'an adaptive number'}:"
                " leave out the `parallelism` of the former"
            )
    if not stage.inputs and stage.parallelism is None:
        raise ValueError(f"has a stage {stage.name!r} without inputs: say its `parallelism`")
    if stage.unordered and stage.indeterminate:
        raise ValueError(
            f"has a stage {stage.name!r} that is `unordered` and `indeterminate`: say the latter"
            " alone, whose rows come in any order, too"
        )
    if stage.inputs and stage.splits:
        raise ValueError(
            f"has a stage {stage.name!r} with `inputs` and `splits`: only a source has splits"
        )
    if len(set(stage.inputs)) != len(stage.inputs):
        raise ValueError(f"has a stage {stage.name!r} that names an input twice")


class NetworkSpec(Model):
    """The links between hosts."""

    latency_s: SecondsDistribution = Field(default=Uniform(0.0001, 0.0005), alias="latency")
    #: Of each host, in bytes per second, out and in.
    bandwidth_bytes_per_s: Annotated[Bytes, Field(gt=0)] = Field(
        default=1_250_000_000, alias="bandwidth"
    )
    #: Of each packet.
    loss: Fraction = 0.0
    #: CPU time that a process needs for a message.
    message_cost_s: Seconds = Field(default=0.0002, alias="message_cost")


class DiskSpec(Model):
    """The disk of each host, and the storage that all share."""

    operation_s: Seconds = Field(default=0.0002, alias="operation")
    sync_s: Seconds = Field(default=0.001, alias="sync")
    bandwidth_bytes_per_s: Annotated[Bytes, Field(gt=0)] = Field(
        default=500_000_000, alias="bandwidth"
    )
    #: Bytes of each host's disk.
    capacity_bytes: Annotated[Bytes, Field(gt=0)] = Field(default=1 << 40, alias="capacity")


class Scenario(Model):
    """All that a run needs beside its seed."""

    name: Annotated[str, Field(min_length=1, max_length=80)] = "scenario"
    description: str = ""
    cluster: ClusterSpec = ClusterSpec()
    jobs: tuple[JobSpec, ...] = Field(max_length=JOBS_MAX)
    #: Options of the cluster, as in its configuration file.
    options: dict[str, str] = Field(default_factory=dict)
    faults: tuple[Fault, ...] = Field(default=(), max_length=FAULTS_MAX)
    network: NetworkSpec = NetworkSpec()
    disk: DiskSpec = DiskSpec()
    #: When everything is healed, unless all jobs have ended before; what then has still to run must
    #: end within a bound that follows from its work and the options.
    duration_max_s: Annotated[Seconds, Field(gt=0)] = Field(default=3_600.0, alias="duration_max")
    #: Of a run that names none.
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0

    @field_validator("options", mode="after")
    @classmethod
    def _options_are_known(cls, options: dict[str, str]) -> dict[str, str]:
        check_options(options)
        return options

    @field_validator("jobs")
    @classmethod
    def _jobs_have_names(cls, jobs: tuple[JobSpec, ...]) -> tuple[JobSpec, ...]:
        if not jobs:
            raise ValueError("is empty: describe at least one job")
        for name, count in Counter(job.name for job in jobs).items():
            if count > 1:
                raise ValueError(f"holds {count} jobs {name!r}: give each a `name` of its own")
        return jobs

    @model_validator(mode="after")
    def _faults_name_what_there_is(self) -> Scenario:
        seen: list[str] = []
        for position, fault in enumerate(self.faults):
            if fault.id is not None and fault.id in seen:
                raise FieldRefused(
                    "is another fault's too: choose another", ("faults", position, "id")
                )
            seen += [] if fault.id is None else [fault.id]
        for position, fault in enumerate(self.faults):
            problem = self._problem_of_when(fault)
            if problem:
                raise FieldRefused(problem, ("faults", position, "when"))
            problem = self._problem_of_job(fault.job) if isinstance(fault, CancelJob) else ""
            if problem:
                raise FieldRefused(problem, ("faults", position, "job"))
            for victims in fault.roles():
                problem = fault.unfit(victims) or self._problem_of_victims(victims)
                field = "between" if fault.kind == "cut" else "victims"
                if problem:
                    raise FieldRefused(problem, ("faults", position, field))
        return self

    def _problem_of_when(self, fault: Fault) -> str:
        when = fault.when
        of = when.of if isinstance(when, StageFinished | JobIs) else None
        if of is not None and (problem := self._problem_of_job(of)):
            return problem
        other_id = when.fault if isinstance(when, FaultMade) else None
        other_id = when.since if isinstance(when, StepReached) else other_id
        if other_id is not None:
            others = [other.id for other in self.faults if other.id and other is not fault]
            if other_id not in others:
                return f"waits for a fault {other_id!r}, but no other has that `id`"
        if isinstance(when, StageFinished):
            jobs = [job for job in self.jobs if of in (None, job.name)]
            stages = [stage.name for job in jobs for stage in job.stages]
            if when.stage not in stages and all(job.graph is None for job in jobs):
                return f"names no stage with {when.stage!r}{nearest(when.stage, stages)}"
            if stages.count(when.stage) > 1:
                return f"fits several jobs with a stage {when.stage!r}: say `of: <job's name>`"
        return ""

    def _problem_of_job(self, name: str) -> str:
        names = [job.name for job in self.jobs]
        if name in names:
            return ""
        return f"names the job {name!r}, which does not exist{nearest(name, names)}"

    def _problem_of_victims(self, victims: Victims) -> str:
        there = {
            "rack": self.cluster.racks,
            "taskmanager": self.cluster.taskmanagers,
            "jobmanager": self.cluster.jobmanagers,
            "shuffle": self.cluster.shuffle_services,
        }.get(victims.role)
        if there is not None and victims.number is not None and victims.number > there:
            return f"is {victims}, but the cluster has only {there}"
        if victims.role == "standby" and self.cluster.jobmanagers < 2:
            return "is standby, but there is none: `cluster: jobmanagers` is 1"
        if victims.role.startswith("shuffle:") and not self.cluster.shuffle_services:
            return f"is {victims}, but there is none: `cluster: shuffle_services` is 0"
        if victims.role == "leader-service" and self.cluster.leader == "file":
            return "is leader-service, but there is none: `cluster: leader` is file"
        return ""


def check_options(options: dict[str, str]) -> None:
    """Raises FieldRefused unless a scenario may set these options to these texts."""
    for key in options:
        if key in DECIDED_OPTIONS:
            raise FieldRefused(f"is no option of a scenario: {DECIDED_OPTIONS[key]}", (key,))
        if key not in OPTIONS:
            raise FieldRefused(f"is no option{nearest_option(key)}", (key,))
    try:
        Configuration.of(options)
    except ConfigurationError as error:
        raise FieldRefused(str(error).replace(" from code", ""), (error.key,)) from None


def nearest_option(key: str) -> str:
    """`; did you mean x?`, or where all options are."""
    told = nearest(key, list(OPTIONS))
    return told if "did you mean" in told else "; docs/configuration.md lists all options"
