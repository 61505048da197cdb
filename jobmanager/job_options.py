"""A job's options as the scheduler and the event log want them."""

from __future__ import annotations

from holdover import config as options
from holdover.config import Configuration
from jobmanager.event_store import EventWriterSettings
from jobmanager.scheduler.core import SchedulerOptions
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.parallelism import AdaptiveParallelism

CANCELLATION_MARGIN_S = 10.0


def scheduler_options(config: Configuration) -> SchedulerOptions:
    """What decides."""
    return SchedulerOptions(
        recovery_wait_s=config.get(options.BATCH_JOB_RECOVERY_PREVIOUS_WORKER_RECOVERY_TIMEOUT),
        adoption_wait_s=config.get(options.BATCH_JOB_RECOVERY_ADOPTION_TIMEOUT),
        schedule_while_waiting=config.get(options.BATCH_JOB_RECOVERY_SCHEDULE_WHILE_WAITING),
        release_during_execution=config.get(
            options.JOBMANAGER_PARTITION_RELEASE_DURING_JOB_EXECUTION
        ),
        slot_request_timeout_s=config.get(options.SLOT_REQUEST_TIMEOUT),
        cancellation_timeout_s=config.get(options.TASK_CANCELLATION_TIMEOUT)
        + CANCELLATION_MARGIN_S,
        shuffle_mode=config.get(options.SHUFFLE_MODE),
        recovery_enabled=config.get(options.BATCH_JOB_RECOVERY_ENABLED),
        restart_wait_s=config.get(options.BATCH_JOB_RECOVERY_TASKMANAGER_RESTART_TIMEOUT),
        adaptive=AdaptiveParallelism(
            config.get(options.AUTO_PARALLELISM_MIN_PARALLELISM),
            config.get(options.AUTO_PARALLELISM_MAX_PARALLELISM),
            config.get(options.AUTO_PARALLELISM_AVG_DATA_VOLUME_PER_TASK),
            parallelism_default=max(0, config.get(options.PARALLELISM_DEFAULT)),
        ),
    )


def restart_strategy(config: Configuration) -> RestartStrategy:
    """How failed subtasks run again (`restart-strategy.type`)."""
    kind = config.get(options.RESTART_STRATEGY_TYPE)
    if kind == "none":
        return RestartStrategy(attempts_max=0, delay_s=0.0)
    if kind == "fixed-delay":
        return RestartStrategy(
            attempts_max=config.get(options.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS),
            delay_s=config.get(options.RESTART_STRATEGY_FIXED_DELAY_DELAY),
        )
    return RestartStrategy(
        attempts_max=config.get(options.RESTART_STRATEGY_EXPONENTIAL_DELAY_ATTEMPTS),
        delay_s=config.get(options.RESTART_STRATEGY_EXPONENTIAL_DELAY_INITIAL_BACKOFF),
        backoff_multiplier=config.get(
            options.RESTART_STRATEGY_EXPONENTIAL_DELAY_BACKOFF_MULTIPLIER
        ),
        delay_s_max=config.get(options.RESTART_STRATEGY_EXPONENTIAL_DELAY_MAX_BACKOFF),
        jitter_factor=config.get(options.RESTART_STRATEGY_EXPONENTIAL_DELAY_JITTER_FACTOR),
    )


def event_writer_settings(config: Configuration) -> EventWriterSettings:
    """Bounds and times of the event log."""
    return EventWriterSettings(
        buffer_bytes=config.get(options.JOB_EVENT_STORE_WRITE_BUFFER_SIZE),
        flush_interval_s=config.get(options.JOB_EVENT_STORE_WRITE_BUFFER_FLUSH_INTERVAL),
        buffer_bytes_max=config.get(options.JOB_EVENT_STORE_WRITE_BUFFER_MAX_SIZE),
        segment_bytes_max=config.get(options.JOB_EVENT_STORE_SEGMENT_SIZE),
        compaction_bytes=config.get(options.JOB_EVENT_STORE_COMPACTION_SIZE),
    )
