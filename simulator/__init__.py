"""The second world: the same services on a virtual clock, with seeded faults and checked invariants."""
