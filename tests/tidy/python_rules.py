"""Tidy rules over Python modules: doors to the outside, shape, names, docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from tests.tidy.source import Finding, Source

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
# Modules that may be longer, each with its reason. An entry that is no longer needed is an error.
LONG_MODULES: dict[str, str] = {}

# Where clock, randomness, disk, network, threads and processes may be touched: the runtime itself,
# the code that runs inside task processes (with the partition files and Flight streams that they
# share with the TaskManager), and places that read what their user names: the command, the
# configuration file, the scenario file, the report, the files attached to a job. A world also tells
# how long it took in real time.
OPEN_DOORS = (
    "holdover/runtime/*",
    "holdover/api/attachments.py",
    "holdover/cli/*",
    "holdover/config/file.py",
    "simulator/report/page.py",
    "simulator/scenario_file.py",
    "simulator/world/world.py",
    "shuffle/environment.py",
    "shuffle/flight*.py",
    "shuffle/partition_file*.py",
    "shuffle/partitioner.py",
    "shuffle/finished_record.py",
    "shuffle/survey.py",
    "taskmanager/operators/*",
    "taskmanager/task.py",
    "taskmanager/task_*.py",
)
# `task_executor` is the service that starts task processes, not code that runs in one.
CLOSED_DOORS = ("taskmanager/task_executor*.py",)


def _of(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


# The simulator draws from sources that a seed determines; all other doors are closed there too.
SEEDED = "random.Random"
SEEDED_DOORS = ("simulator/*",)

# Dotted names behind a door. A name stands for itself and for everything below it.
DOORS: dict[str, tuple[str, ...]] = {
    "reads a clock": (
        "time",
        *_of("datetime", "date.today datetime.now datetime.today datetime.utcnow"),
    ),
    "draws a random number": ("random", "secrets", "os.urandom", "os.getrandom", "numpy.random"),
    "makes a uuid": _of("uuid", "uuid1 uuid3 uuid4 uuid5"),
    "touches the disk": (
        *("open", "io.open", "aiofiles", "glob", "mmap", "shutil", "tempfile"),
        *_of("os", "access fdopen fdatasync fsync ftruncate link listdir lstat makedirs mkdir"),
        *_of("os", "open read readlink remove removedirs rename renames replace rmdir scandir"),
        *_of("os", "stat statvfs symlink truncate unlink walk write"),
        *_of("os.path", "exists getmtime getsize isdir isfile islink realpath"),
        *_of("pyarrow", "OSFile dataset fs input_stream memory_map output_stream"),
    ),
    "starts a thread or process": (
        *("_thread", "concurrent.futures", "multiprocessing", "pty", "subprocess"),
        *("threading.Thread", "threading.Timer"),
        *_of("asyncio", "create_subprocess_exec create_subprocess_shell to_thread"),
        *_of("os", "execl execle execlp execv execve execvp fork forkpty kill killpg popen"),
        *_of("os", "posix_spawn posix_spawnp spawnl spawnv spawnve system"),
    ),
    "opens a socket": (
        *("http", "socket", "socketserver", "urllib.request"),
        *_of("asyncio", "open_connection open_unix_connection start_server start_unix_server"),
    ),
    "makes a gRPC channel or server": (
        *_of("grpc", "insecure_channel secure_channel server"),
        *_of("grpc.aio", "insecure_channel secure_channel server"),
        "pyarrow.flight",
    ),
}
# Methods that open the same doors whatever the object is called.
DOOR_METHODS = {
    "read_text": "touches the disk",
    "read_bytes": "touches the disk",
    "write_text": "touches the disk",
    "write_bytes": "touches the disk",
    "run_in_executor": "starts a thread or process",
}
# Modules whose calls read and write files, unless their argument is `pyarrow.BufferReader(...)`.
FILE_FORMATS = ("pyarrow.csv", "pyarrow.feather", "pyarrow.json", "pyarrow.orc", "pyarrow.parquet")
BANNED_MODULE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
BANNED_CLASS_NAME = re.compile(r"^_?Default[A-Z]|Impl$|Factory$")


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name to dotted name, for every import of the module wherever it stands."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    names[alias.name.split(".")[0]] = alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """The dotted name that an expression refers to, or None when it is not a module's name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id if node.id == "open" else None)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None


def _door(dotted: str) -> str | None:
    for what, behind in DOORS.items():
        if any(dotted == name or dotted.startswith(f"{name}.") for name in behind):
            return what
    return None


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def doors_are_closed(source: Source) -> Iterator[Finding]:
    """Clock, randomness, disk, network, threads and processes enter through the Runtime only."""
    if not source.is_shipped:
        return
    if _matches(source.path, OPEN_DOORS) and not _matches(source.path, CLOSED_DOORS):
        return
    names = _imported_names(source.tree)
    seen: set[tuple[int, str]] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name, door = _called_door(node, names)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = _dotted(node, names)
            door = _door(name) if name else None
        else:
            continue
        if name in ("random", SEEDED) and _matches(source.path, SEEDED_DOORS):
            door = _unseeded_door(node)
        if name and door and (node.lineno, door) not in seen:
            seen.add((node.lineno, door))
            yield Finding(source.path, node.lineno, f"{name} {door}: take it from Runtime")


def _called_door(call: ast.Call, names: dict[str, str]) -> tuple[str | None, str | None]:
    """Name and door of a call that only its method or its argument gives away."""
    name = _dotted(call.func, names)
    if name and name.startswith(FILE_FORMATS) and not name.endswith("Options"):
        source = call.args[0] if call.args else None
        read_from = _dotted(source.func, names) if isinstance(source, ast.Call) else None
        return name, None if read_from == "pyarrow.BufferReader" else "touches the disk"
    if isinstance(call.func, ast.Attribute) and call.func.attr in DOOR_METHODS:
        return f".{call.func.attr}", DOOR_METHODS[call.func.attr]
    return (name, _door(name)) if name == SEEDED else (None, None)


def _unseeded_door(node: ast.AST) -> str | None:
    """A source of chance without a seed takes one from the operating system."""
    unseeded = isinstance(node, ast.Call) and not node.args and not node.keywords
    return _door(SEEDED) if unseeded else None


def order_is_decided(source: Source) -> Iterator[Finding]:
    """No `as_completed`, and no loop over a set: both have an order that nobody decided."""
    if not source.is_shipped:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            name = {ast.Attribute: "attr", ast.Name: "id", ast.alias: "name"}[type(node)]
            if getattr(node, name) == "as_completed":
                yield Finding(source.path, node.lineno, "as_completed has no fixed order")
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            loop = node.iter
            called = loop.func if isinstance(loop, ast.Call) else None
            if isinstance(loop, ast.Set | ast.SetComp) or (
                isinstance(called, ast.Name) and called.id in {"set", "frozenset"}
            ):
                yield Finding(source.path, loop.lineno, "loop over a set: sort it first")


def services_do_not_know_the_world(source: Source) -> Iterator[Finding]:
    """No condition asks whether it is simulated: services run unchanged on every Runtime.

    The simulator may know what it is, and the command whom it starts.
    """
    if not source.is_shipped or source.path.startswith(("simulator/", "holdover/cli/")):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            for part in ast.walk(node.test):
                name = str(getattr(part, "attr", getattr(part, "id", "")))
                if "simulated" in name.lower():
                    yield Finding(source.path, node.test.lineno, f"condition on {name}")


def names_say_something(source: Source) -> Iterator[Finding]:
    """No module is a drawer for the rest, no class is the default or the implementation of one."""
    if not source.is_python:
        return
    for part in source.path.removesuffix(".py").split("/"):
        if part in BANNED_MODULE_NAMES:
            yield Finding(source.path, 1, f"module name {part!r} says nothing about what is in it")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and BANNED_CLASS_NAME.search(node.name):
            yield Finding(source.path, node.lineno, f"class name {node.name}: name what it is")


def functions_fit_a_screen(source: Source) -> Iterator[Finding]:
    """A function has at most 70 lines, its decorators and docstring included."""
    if not source.is_python:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1 + len(node.decorator_list)
            if length > FUNCTION_LINES_MAX:
                text = f"{node.name} has {length} lines, more than {FUNCTION_LINES_MAX}"
                yield Finding(source.path, node.lineno, text)


def modules_fit_a_sitting(source: Source) -> Iterator[Finding]:
    """A module has at most 500 lines, or a reason in `LONG_MODULES`."""
    if not source.is_python:
        return
    length = len(source.text.splitlines())
    excused = source.path in LONG_MODULES
    if length > MODULE_LINES_MAX and not excused:
        yield Finding(source.path, 1, f"{length} lines, more than {MODULE_LINES_MAX}: split it")
    if length <= MODULE_LINES_MAX and excused:
        yield Finding(source.path, 1, f"only {length} lines: remove it from LONG_MODULES")


def public_things_are_documented(source: Source) -> Iterator[Finding]:
    """Every shipped module, and every public function and class at its top, has a docstring."""
    if not source.is_shipped:
        return
    if ast.get_docstring(source.tree) is None:
        yield Finding(source.path, 1, "module without docstring")
    for node in source.tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield Finding(source.path, node.lineno, f"{node.name} without docstring")
