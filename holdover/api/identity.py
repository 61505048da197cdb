"""The function of a vertex that only exchanges rows."""

from __future__ import annotations

from typing import TypeVar

B = TypeVar("B")

#: How a JobGraph names `unchanged`.
UNCHANGED = "holdover.api.identity:unchanged"


def unchanged(batch: B) -> B:
    """The batch itself."""
    return batch
