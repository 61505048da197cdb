"""`python -m tests.simulation.digests A B [FILE ...]`: the trace digests of the swarm seeds from A
to B, and of the scenarios in the files.

A program of its own, so that tests and `make determinism` can ask other processes, with other hash
seeds, and other versions of Python.
"""

from __future__ import annotations

import sys

from simulator.scenario_file import load_scenario
from simulator.simulate import run_scenario
from simulator.swarm import draw_scenario


def main() -> None:
    """Print one line a run: seed or file, digest, callbacks."""
    first, last = (int(argument) for argument in sys.argv[1:3])
    for seed in range(first, last + 1):
        record = run_scenario(draw_scenario(seed), seed)
        print(seed, record.digest, record.events)
    for path in sys.argv[3:]:
        scenario = load_scenario(path)
        record = run_scenario(scenario, scenario.seed)
        print(path, record.digest, record.events)


if __name__ == "__main__":
    main()
