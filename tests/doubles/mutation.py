"""One deliberately broken build. See `tests.doubles.mutations`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from simulator.invariants.view import Invariant
from simulator.swarm import SWARM

Patches = Callable[[], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A broken build.

    Attributes:
        name: what is broken, for people.
        invariant: what it breaks.
        seed: of a run of the swarm that catches it.
        patches: the replacements, entered one after the other.
        swarm: the swarm of the seed.
        scenario: a scenario of its own, by its path from `tests/simulation/mutations`: one where a
            swarm's runs are too short to tell, or that is kept already for what it once found.
    """

    name: str
    invariant: type[Invariant]
    seed: int
    patches: Patches
    swarm: str = SWARM
    scenario: str = ""

    @contextmanager
    def applied(self) -> Generator[None, None, None]:
        """The services are broken inside."""
        with ExitStack() as stack:
            for replacement in self.patches():
                stack.enter_context(replacement)
            yield


def one(owner: Any, name: str, replacement: Any) -> Patches:
    """Replace one attribute."""
    return lambda: [patch.object(owner, name, replacement)]
