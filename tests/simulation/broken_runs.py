"""A run of a broken build, which ends as soon as the break is caught."""

from __future__ import annotations

import asyncio

from simulator.record import Finding
from simulator.scenario import Scenario
from simulator.simulate import SimulatedRun
from tests.doubles.mutation import Mutation

_LOOK_INTERVAL_S = 0.25


def findings_of(mutation: Mutation, scenario: Scenario, seed: int) -> list[Finding]:
    """What the invariants say, up to the first finding of the one that the mutation breaks."""
    with mutation.applied():
        run = SimulatedRun(scenario, seed, {}, 0, checked=True)
        with run.logs_captured():
            try:
                run.world.run(_until_caught(run, mutation))
                # What tasks say that the end of the world interrupts is of no interest.
                return list(run.invariants.findings)
            finally:
                run.world.close()


def caught(mutation: Mutation, findings: list[Finding]) -> bool:
    """Whether the invariant that it breaks is among those that speak."""
    return mutation.invariant.name in {finding.invariant for finding in findings}


async def _until_caught(run: SimulatedRun, mutation: Mutation) -> None:
    main = asyncio.get_running_loop().create_task(run.main())
    while not main.done() and not caught(mutation, run.invariants.findings):
        await asyncio.wait([main], timeout=_LOOK_INTERVAL_S)
    if main.done():
        main.result()
