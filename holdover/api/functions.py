"""How a user's function travels: as "module:name", or pickled with the user's own modules.

What is installed beside Holdover (the standard library and distributions) is named; everything
else is carried by value, since a TaskManager cannot be expected to have the user's files.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from holdover.errors import JobGraphError

_OURS = ("holdover", "jobmanager", "taskmanager", "shuffle", "simulator")


def function_name(function: Callable[..., Any] | str) -> str:
    """For people: what a function is called."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def pickled(
    function: Callable[..., Any], operator_name: str, attached_modules: frozenset[str]
) -> bytes:
    """The function as cloudpickle bytes.

    Modules in `attached_modules` travel as files, so they are named rather than carried.
    Raises JobGraphError, naming operator and function, when it holds what cannot be pickled.
    """
    import cloudpickle  # only building a job needs it

    try:
        with _carried_by_value(attached_modules):
            content: bytes = cloudpickle.dumps(function)
    except Exception as error:
        # Pickling runs code of the user's objects, which may raise anything.
        raise JobGraphError(
            operator_name,
            f"function {function_name(function)!r} cannot be pickled:"
            f" {type(error).__name__}: {error};"
            " let it make what it needs when it runs, instead of holding it",
        ) from error
    return content


@contextmanager
def _carried_by_value(attached_modules: frozenset[str]) -> Iterator[None]:
    import cloudpickle

    known = frozenset(cloudpickle.list_registry_pickle_by_value())
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name not in known and name not in attached_modules and _is_users(name, module)
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(name: str, module: ModuleType) -> bool:
    """Whether the module is a file of the user's, rather than part of an installation."""
    file = str(getattr(module, "__file__", None) or "")
    if not file or name != getattr(module, "__name__", None) or name.partition(".")[0] in _OURS:
        return False
    return not file.startswith(_standard_library()) and not any(
        f"/{directory}/" in file for directory in ("site-packages", "dist-packages")
    )


@cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(sorted({f"{paths[key].rstrip('/')}/" for key in ("stdlib", "platstdlib")}))
