"""The JobManager: leads a cluster, runs its jobs, and recovers them after a failure."""
