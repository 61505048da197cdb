"""Faults as a scenario describes them: what happens, to whom, when, and for how long.

A fault is one pydantic model for each `kind`; all share when it happens (`at` or `when`), to whom
(`victims`), and how often. Making them happen is another module's business. `real` tells whether
local processes can suffer the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from simulator.model import Model
from simulator.quantities import (
    Bytes,
    Fraction,
    Seconds,
    SecondsOrNever,
    SignedSeconds,
    nearest,
)

#: Steps of a leadership and of its jobs that a fault can wait for; `simulator.moments` sees them.
StepName = Literal[
    "noticed",
    "elected",
    "reconciling",
    "registered",
    "ready",
    "running",
    "cancelling",
    "failing",
    "committing",
]

#: Who can be a victim. Those with a number are written "rack:2", numbered from 1.
JOBMANAGERS = ("leader", "standby", "jobmanagers", "jobmanager")
TASKMANAGERS = ("one", "minority", "majority", "all", "holders", "taskmanager", "rack")
SHUFFLE_SERVICES = ("shuffle:one", "shuffle:all", "shuffle:holders", "shuffle")
PROCESSES = (*JOBMANAGERS, *TASKMANAGERS, *SHUFFLE_SERVICES, "leader-service")
ROLES = (*PROCESSES, "shared-storage")
#: Of these there is one at most.
_SINGLE = ("leader", "jobmanager", "taskmanager", "shuffle", "leader-service")
_NUMBERED = ("jobmanager", "taskmanager", "rack", "shuffle")
_ROLE = re.compile(r"(shuffle:[a-z]+|[a-z-]+)(?::([1-9][0-9]{0,5}))?")

JobStateName = Literal[
    "CREATED",
    "RUNNING",
    "RECONCILING",
    "FAILING",
    "CANCELLING",
    "FINISHED",
    "FAILED",
    "CANCELED",
    "PARKED",
]


@dataclass(frozen=True, slots=True)
class Victims:
    """Who suffers a fault, by role; the seed decides where a role leaves a choice.

    leader: the JobManager that leads. standby: those that do not. jobmanagers: all of them.
    jobmanager:N. one, minority (less than half, at least one), majority (more than half), all: of
    the TaskManagers. holders: one TaskManager that holds finished partitions. taskmanager:N.
    rack:N: all TaskManagers there. shuffle:N, shuffle:one, shuffle:all, shuffle:holders (one that
    holds finished partitions): shuffle services. leader-service. shared-storage: for faults of
    disks.
    """

    role: str
    #: From 1; None for roles without a number.
    number: int | None = None

    def __str__(self) -> str:
        return self.role if self.number is None else f"{self.role}:{self.number}"

    @classmethod
    def of(cls, value: object) -> Victims:
        """Read `leader` or `rack:2`; raises ValueError."""
        if isinstance(value, Victims):
            return value
        text = str(value).strip()
        match = _ROLE.fullmatch(text)
        if match is None or match[1] not in ROLES:
            raise ValueError(f"has no role {text!r}{nearest(text, ROLES)}")
        if (match[1] in _NUMBERED) != (match[2] is not None):
            form = f"{match[1]}:1" if match[1] in _NUMBERED else match[1]
            raise ValueError(f"is {text!r}, but is written {form}")
        return cls(match[1], int(match[2]) if match[2] else None)


VictimsField = Annotated[
    Victims, BeforeValidator(Victims.of), PlainSerializer(str, return_type=str)
]


# ------------------------------------------------------------------ when


class StageFinished(Model):
    """When this part of a stage's subtasks is finished."""

    stage: str
    finished: Fraction = 0.5
    #: Name of the job; needed where two jobs have a stage of that name.
    of: str | None = None
    after_s: Seconds = Field(default=0.0, alias="after")


class JobIs(Model):
    """When a job (the one named by `of`, or else any) is in a state."""

    job: JobStateName
    of: str | None = None
    after_s: Seconds = Field(default=0.0, alias="after")


class JobsAre(Model):
    """When all jobs are in a state."""

    jobs: JobStateName
    after_s: Seconds = Field(default=0.0, alias="after")


class FaultMade(Model):
    """After another fault, named by its `id`, was made."""

    fault: str
    after_s: Seconds = Field(default=0.0, alias="after")


class StepReached(Model):
    """When a step is made for the first time in the run or, with `since`, the first time after that
    fault was made: so a fault can be aimed at the recovery from another.

    noticed: a TaskManager has lost its leader. elected: a leader has its epoch, and begins to load.
    reconciling: a job waits for what workers hold. registered: a leader has taken a registration.
    ready: all jobs are loaded. running: a job runs, or runs on. cancelling, failing: a job ends
    so. committing: a job's output is about to be published.
    """

    step: StepName
    since: str | None = None
    after_s: Seconds = Field(default=0.0, alias="after")


_WHENS = ("stage", "job", "jobs", "fault", "step")


def _when_tag(value: Any) -> str:
    for name in _WHENS:
        if (name in value) if isinstance(value, dict) else hasattr(value, name):
            return f"when {name}"
    return "when stage"


When = Annotated[
    Annotated[StageFinished, Tag("when stage")]
    | Annotated[JobIs, Tag("when job")]
    | Annotated[JobsAre, Tag("when jobs")]
    | Annotated[FaultMade, Tag("when fault")]
    | Annotated[StepReached, Tag("when step")],
    Discriminator(_when_tag),
]


# ------------------------------------------------------------------ what


class FaultModel(Model):
    """What all faults have."""

    #: Whether it can be made to local processes.
    real: ClassVar[bool] = False
    #: Roles that can suffer it.
    whom: ClassVar[tuple[str, ...]] = PROCESSES

    #: What happens.
    kind: str
    #: By which another fault can refer to it.
    id: str | None = None
    #: Seconds from the beginning of the run; exactly one of `at` and `when` is given.
    at_s: Seconds | None = Field(default=None, alias="at")
    when: When | None = None
    #: How often it is made, the first time included; each choice of victims is a new one.
    repeat: Annotated[int, Field(ge=1, le=10_000)] = 1
    every_s: Seconds | None = Field(default=None, alias="every")

    @model_validator(mode="after")
    def _happens_once_or_regularly(self) -> FaultModel:
        if (self.at_s is None) == (self.when is None):
            raise ValueError("needs one of `at: 12 s` and `when: {...}`, to say when it happens")
        if (self.repeat > 1) != (self.every_s is not None):
            raise ValueError("`repeat: n` and `every: 10 s` belong together")
        return self

    @model_serializer(mode="wrap")
    def _with_kind(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **fields(self)}

    def roles(self) -> tuple[Victims, ...]:
        """Whom it is about."""
        victims: object = getattr(self, "victims", None)
        return (victims,) if isinstance(victims, Victims) else ()

    def unfit(self, victims: Victims) -> str:
        """Why these cannot suffer it; empty if they can."""
        if victims.role in self.whom:
            return ""
        if victims.role == "shared-storage":
            return (
                f"is shared-storage, which is no process that could suffer {self.kind}: make it a"
                " slow-disk, disk-full, disk-error or disk-hang"
            )
        return f"is {victims}, but {self.kind} can happen to {', '.join(self.whom)} only"


class _Lasting(FaultModel):
    """A fault that ends by itself after `for`, or stays until the end, when all is healed."""

    for_s: Seconds | None = Field(default=None, alias="for")


class _Ending(FaultModel):
    """The end of processes. `restart_after`: until they are started again, or "never" (infinite
    seconds); None: as the cluster says."""

    restart_after_s: SecondsOrNever | None = Field(default=None, alias="restart_after")


class Crash(_Ending):
    """SIGKILL: the process is gone at once, its host and disk stay."""

    real: ClassVar[bool] = True
    kind: Literal["crash"] = "crash"
    victims: VictimsField


class Stop(_Ending):
    """SIGTERM: the process may say good-bye."""

    real: ClassVar[bool] = True
    kind: Literal["stop"] = "stop"
    victims: VictimsField


class Pause(FaultModel):
    """SIGSTOP: nothing of the process runs for a while; then it goes on as if nothing were."""

    real: ClassVar[bool] = True
    kind: Literal["pause"] = "pause"
    victims: VictimsField
    for_s: Seconds = Field(alias="for")


class PowerLoss(_Ending):
    """The host goes dark: its peers hear nothing, its disk forgets what was not synced.
    `restart_after` is until the host is on again."""

    kind: Literal["power-loss"] = "power-loss"
    victims: VictimsField


class Cut(_Lasting):
    """No packet passes between two groups; with `one_way` none from the first to the second."""

    kind: Literal["cut"] = "cut"
    between: tuple[VictimsField, VictimsField]
    one_way: bool = False

    def unfit(self, victims: Victims) -> str:
        """See `FaultModel`. Nobody is cut off from itself."""
        if self.between[0] == self.between[1] and victims.role in _SINGLE:
            return f"is {victims} twice, and nobody can be cut off from itself"
        return super().unfit(victims)

    def roles(self) -> tuple[Victims, ...]:
        """Both groups."""
        return self.between


class SlowLink(_Lasting):
    """The victims' packets take longer: latency times `factor`, plus `latency`."""

    kind: Literal["slow-link"] = "slow-link"
    victims: VictimsField
    factor: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    latency_s: Seconds = Field(default=0.0, alias="latency")


class LosePackets(_Lasting):
    """Packets of the victims are lost and sent again: delay, never a lost message."""

    kind: Literal["lose-packets"] = "lose-packets"
    victims: VictimsField
    probability: Fraction


class _DiskFault(_Lasting):
    """A fault of the victims' own disks, or of the storage that all share. What a JobManager keeps
    is on the latter; its own disk matters to nobody."""

    whom: ClassVar[tuple[str, ...]] = ROLES


class SlowDisk(_DiskFault):
    """Every operation of the victims' disks takes `factor` times as long."""

    kind: Literal["slow-disk"] = "slow-disk"
    victims: VictimsField
    factor: Annotated[float, Field(ge=1, le=1e6)]


class DiskFull(_DiskFault):
    """Only `left` bytes can still be written to the victims' disks."""

    kind: Literal["disk-full"] = "disk-full"
    victims: VictimsField
    left_bytes: Bytes = Field(default=0, alias="left")


class DiskError(_DiskFault):
    """Operations of this sort fail with EIO on the victims' disks."""

    kind: Literal["disk-error"] = "disk-error"
    victims: VictimsField
    on: Literal["read", "write", "sync"] = "write"


class DiskHang(_DiskFault):
    """No operation on the victims' disks ends before the fault does."""

    kind: Literal["disk-hang"] = "disk-hang"
    victims: VictimsField


class ClockJump(FaultModel):
    """The victims' wall clocks are set forward or, below zero, back."""

    kind: Literal["clock-jump"] = "clock-jump"
    victims: VictimsField
    by_s: SignedSeconds = Field(alias="by")


class ClockDrift(_Lasting):
    """The victims' clocks run `rate` times as fast as time."""

    kind: Literal["clock-drift"] = "clock-drift"
    victims: VictimsField
    rate: Annotated[float, Field(ge=0.5, le=2.0)]


class LeaderServiceDown(FaultModel):
    """Nobody can reach the leader service: leases run out, nobody is elected."""

    kind: Literal["leader-service-down"] = "leader-service-down"
    for_s: Seconds = Field(alias="for")

    def roles(self) -> tuple[Victims, ...]:
        """The leader service."""
        return (Victims("leader-service"),)


class AddressChange(FaultModel):
    """The victim's host gets another address; its name leads there, connections break."""

    kind: Literal["address-change"] = "address-change"
    victims: VictimsField


class KillTask(FaultModel):
    """The process of a running task dies, as when the kernel is out of memory; its TaskManager
    lives. `tasks`: one of each victim's, or all."""

    whom: ClassVar[tuple[str, ...]] = TASKMANAGERS
    kind: Literal["kill-task"] = "kill-task"
    victims: VictimsField
    tasks: Literal["one", "all"] = "one"


class LosePartitions(FaultModel):
    """Files of finished partitions vanish from the victims' disks. `part` of them, at least one."""

    real: ClassVar[bool] = True
    whom: ClassVar[tuple[str, ...]] = (*TASKMANAGERS, *SHUFFLE_SERVICES)
    kind: Literal["lose-partitions"] = "lose-partitions"
    victims: VictimsField
    part: Fraction = 1.0


class Drain(FaultModel):
    """An operator wants shuffle services to leave; each does when no live job needs what it holds,
    and is started again as the cluster says. Those that cannot (there is no other to take over what
    is needed) are told to end when all is healed."""

    real: ClassVar[bool] = True
    whom: ClassVar[tuple[str, ...]] = SHUFFLE_SERVICES
    kind: Literal["drain"] = "drain"
    victims: VictimsField


class CutLog(_Ending):
    """The victim is killed, and before it is started again the newest file of each job's event
    log loses its end from a byte that the seed draws, at most `bytes_max` of it. Only those can
    suffer it who are the logs' only writers."""

    whom: ClassVar[tuple[str, ...]] = ("leader", "jobmanagers")
    kind: Literal["cut-log"] = "cut-log"
    victims: VictimsField = Victims("leader")
    bytes_max: Bytes | None = None


class CancelJob(FaultModel):
    """A client asks for the cancellation of a job: nothing that goes wrong, but it can come at any
    moment of what does."""

    kind: Literal["cancel-job"] = "cancel-job"
    job: str


Fault = Annotated[
    Crash
    | Stop
    | Pause
    | PowerLoss
    | Cut
    | SlowLink
    | LosePackets
    | SlowDisk
    | DiskFull
    | DiskError
    | DiskHang
    | ClockJump
    | ClockDrift
    | LeaderServiceDown
    | AddressChange
    | KillTask
    | LosePartitions
    | Drain
    | CutLog
    | CancelJob,
    Field(discriminator="kind"),
]
