"""The `holdover` command, and the local cluster that it starts."""
