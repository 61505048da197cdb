"""The decisions of one job: pure, synchronous, deterministic.

`Scheduler.handle(signal)` takes what happened and returns what to remember (job events) and what
to do (actions). Durable state changes only in `ExecutionGraph.apply(event)`, the same function
live and in replay. Nothing here awaits, reads a clock, draws a random number or touches a file;
time enters as timers that the shell sets and reports back.
"""
