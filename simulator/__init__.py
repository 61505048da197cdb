"""The second world: the same services on a virtual clock, seeded faults, checked invariants."""
