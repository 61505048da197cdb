"""A world in one process: virtual time, hosts that crash, and a network and disks that fail."""
