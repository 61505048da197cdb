"""`python -m tests.simulation.digests A B`: the trace digests of the swarm seeds from A to B.

A program of its own, so that tests and `make determinism` can ask other processes, with other hash
seeds, and other versions of Python.
"""

from __future__ import annotations

import sys

from simulator.simulate import run_scenario
from simulator.swarm import draw_scenario


def main() -> None:
    """Print one line a seed: seed, digest, callbacks."""
    first, last = (int(argument) for argument in sys.argv[1:])
    for seed in range(first, last + 1):
        record = run_scenario(draw_scenario(seed), seed)
        print(seed, record.digest, record.events)


if __name__ == "__main__":
    main()
