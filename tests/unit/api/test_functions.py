"""Functions travel to processes that have none of the user's files."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from holdover import Job
from holdover.api.functions import function_name, pickled
from holdover.errors import JobGraphError

LOAD_AND_CALL = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(20))"


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module in a file of the user's, which uses another one."""
    (tmp_path / "users_base.py").write_text("def one():\n    return 1\n")
    (tmp_path / "users_steps.py").write_text(
        "import users_base\n\ndef step(n):\n    return n + users_base.one()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("users_steps")
    yield module
    for name in ("users_steps", "users_base"):
        sys.modules.pop(name, None)


def call_elsewhere(content: bytes, directory: Path) -> str:
    """What the function returns for 20 in a process that starts in `directory`."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_CALL],
        input=content,
        capture_output=True,
        cwd=directory,
        timeout=30,
    )
    return (done.stdout + done.stderr).decode().strip()


def test_a_users_module_travels_with_its_function(users_module: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert call_elsewhere(pickled(users_module.step, "f", frozenset()), elsewhere) == "21"


def test_a_closure_travels_with_what_it_holds(tmp_path: Path) -> None:
    offset = 22

    def add(n: int) -> int:
        return n + offset

    assert call_elsewhere(pickled(add, "f", frozenset()), tmp_path) == "42"


def test_an_attached_module_is_named_only(users_module: Any, tmp_path: Path) -> None:
    content = pickled(users_module.step, "f", frozenset({"users_steps"}))
    assert b"users_steps" in content
    assert len(content) < 100
    assert call_elsewhere(content, tmp_path) == "21"


def test_installed_modules_are_named_only() -> None:
    assert len(pickled(json.dumps, "f", frozenset())) < 100
    assert len(pickled(pytest.importorskip, "f", frozenset())) < 100


def test_nothing_stays_registered(users_module: Any) -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    pickled(users_module.step, "f", frozenset())
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_what_cannot_be_pickled_is_refused_naming_operator_and_function() -> None:
    lock = threading.Lock()

    def guarded(batch: Any) -> Any:
        with lock:
            return batch

    job = Job("j")
    job.sequence(0, 1).map_batches(guarded, name="guard")
    with pytest.raises(JobGraphError) as refused:
        job.build("j")
    told = str(refused.value)
    assert told.startswith("guard: function 'guarded' cannot be pickled: TypeError:")
    assert told.endswith("let it make what it needs when it runs, instead of holding it")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("a.b:c", "a.b:c"),
        (json.dumps, "dumps"),
        (functools.partial(json.dumps), "partial"),
        (Path.exists, "Path.exists"),
    ],
)
def test_a_function_has_a_name_for_people(function: Callable[..., Any] | str, name: str) -> None:
    assert function_name(function) == name


# --- Attached files ------------------------------------------------------------------------------


def test_an_attached_file_travels_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("x = 1\n")
    job = Job("j")
    job.sequence(0, 1)
    job.attach(str(tmp_path / "steps.py"))
    job.attach(str(tmp_path / "steps.py"))
    files = job.build("j").files
    assert [(file.name, file.content) for file in files] == [("steps.py", b"x = 1\n")]


def test_two_attached_files_need_two_names(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "steps.py").write_text(directory)
    job = Job("j")
    job.attach(str(tmp_path / "a" / "steps.py"))
    with pytest.raises(JobGraphError, match=r"another file 'steps\.py' is attached already"):
        job.attach(str(tmp_path / "b" / "steps.py"))


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(JobGraphError) as refused:
        Job("j").attach("/no/steps.py")
    assert str(refused.value) == "attach: cannot read /no/steps.py: No such file or directory"
