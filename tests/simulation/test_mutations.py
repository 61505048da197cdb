"""A checker that never fires is worth nothing: every invariant catches a deliberately broken build.

Each mutation has a scenario in `mutations/`, as a seed of the swarm drew it, in which the shipped
build breaks nothing and the broken one is caught. The slow test asks the swarm itself.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from simulator.invariants import Invariants
from simulator.scenario import Scenario
from simulator.scenario_file import load_scenario
from simulator.simulate import run_scenario
from simulator.swarm import SWARM, draw_scenario
from tests.doubles.mutation import Mutation
from tests.doubles.mutations import MUTATIONS
from tests.simulation.broken_runs import caught, findings_of
from tests.unit.simulator.invariants.known_cluster import KnownCluster

SEEDS_MAX = 2_000
_DIRECTORY = Path(__file__).parent / "mutations"
_NAMES = [mutation.name for mutation in MUTATIONS]
_DRAWN = [mutation for mutation in MUTATIONS if not mutation.scenario]


def _name(mutation: Mutation) -> str:
    kind = "seed" if mutation.swarm == SWARM else mutation.swarm.removeprefix(f"{SWARM}-")
    return mutation.scenario or f"{kind}-{mutation.seed}"


_SEEDS = sorted({(_name(mutation), mutation.seed) for mutation in MUTATIONS})


def _scenario(name: str) -> Scenario:
    return load_scenario(str(_DIRECTORY / f"{name}.yaml"))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_NAMES)
def test_a_broken_build_is_caught_by_its_invariant(mutation: Mutation) -> None:
    """By that one, whatever others say."""
    findings = findings_of(mutation, _scenario(_name(mutation)), mutation.seed)
    assert caught(mutation, findings), findings


@pytest.mark.parametrize(("name", "seed"), _SEEDS)
def test_the_shipped_build_breaks_nothing_there(name: str, seed: int) -> None:
    """So it is the mutation that is caught."""
    assert run_scenario(_scenario(name), seed).findings == []


def test_every_invariant_has_a_broken_build() -> None:
    """A new invariant needs one as well."""
    invariants = Invariants(KnownCluster(), random.Random(0))
    assert {mutation.invariant.name for mutation in MUTATIONS} == set(invariants.names())


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("mutation", _DRAWN, ids=lambda mutation: mutation.name)
def test_the_swarm_catches_a_broken_build(mutation: Mutation) -> None:
    """The seed that caught it once comes first; should it draw something else now, others do."""
    assert mutation.seed < SEEDS_MAX
    for seed in (mutation.seed, *range(SEEDS_MAX)):
        if caught(mutation, findings_of(mutation, draw_scenario(seed, mutation.swarm), seed)):
            return
    raise AssertionError(f"{SEEDS_MAX} seeds do not catch it: {mutation.name}")
