"""Errors: one branch for each decision of a caller, and messages that say what to do."""

from __future__ import annotations

import re

from holdover import errors
from holdover.errors import (
    ClusterUnreachable,
    HoldoverError,
    JobAlreadyExists,
    JobFailed,
    JobGraphError,
    StorageError,
)
from holdover.v1.common_pb2 import FAILURE_KIND_TASK, Failure


def test_the_drawn_tree_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for indent, name in re.findall(r"^([|` -]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        if name != "What":
            path[len(indent) // 4 :] = [name]
            drawn[name] = path[-2] if len(path) > 1 else "Exception"
    real = {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, HoldoverError)
    }
    assert drawn == real


def test_messages_say_what_to_do() -> None:
    assert str(ClusterUnreachable(["a:1", "b:2"], "connection refused")) == (
        "no JobManager answers at a:1, b:2: connection refused; check that the cluster runs, and"
        " its address (jobmanager.rpc.address)"
    )
    assert "no address (none is known)" in str(ClusterUnreachable([], "no leader record"))
    assert str(JobGraphError("vertices[2].name", "is empty")) == "vertices[2].name: is empty"
    assert str(JobAlreadyExists("j")).endswith("submit under another job id")
    assert str(StorageError("/s/a", "disk full")) == "/s/a: disk full"


def test_a_failed_job_carries_its_failure() -> None:
    failure = Failure(kind=FAILURE_KIND_TASK, message="v0[1] raised", traceback="Traceback ...")
    error = JobFailed("j", failure)
    assert str(error) == "job 'j' failed: v0[1] raised"
    assert error.traceback == "Traceback ..."
