"""Holdover: a batch cluster whose finished work outlives its JobManager.

The public names of this package are loaded when they are first used, so that server processes,
which live under it too, start without importing what only a user's program needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdover.api.dataset import DataSet, Exchange
    from holdover.api.job import Job
    from holdover.client.client import Client

__version__ = "0.1.0"

__all__ = ["Client", "DataSet", "Exchange", "Job"]

# Public name to the module that defines it.
_HOMES = {
    "Client": "holdover.client.client",
    "DataSet": "holdover.api.dataset",
    "Exchange": "holdover.api.dataset",
    "Job": "holdover.api.job",
}


def __getattr__(name: str) -> object:
    """Loads a public name; raises AttributeError for any other."""
    if name not in _HOMES:
        raise AttributeError(f"module 'holdover' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
