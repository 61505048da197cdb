"""The one table of options. Names, and durations and sizes as text, are Flink's where it has them.

A constant is named after the key. `OPTIONS` holds them all in the order of the documentation.
"""

from __future__ import annotations

import re
from typing import Final

from holdover.config.security_options import SECURITY_OPTIONS
from holdover.config.shuffle_service_options import SHUFFLE_SERVICE_OPTIONS
from holdover.config.values import (
    Boolean,
    Choice,
    Decimal,
    DirectoryPath,
    Duration,
    Endpoints,
    Integer,
    Option,
    Size,
    StoragePath,
    Text,
)
from holdover.ids import RESOURCE_ID

PARALLELISM_MAX: Final = 32_768

_HOST = Text(re.compile(r"[A-Za-z0-9:._-]{1,253}"), "a host name or IP address")
_PORT_OR_ANY = Integer(0, 65_535)
_MS = 0.001
_KB = 1 << 10
_MB = 1 << 20

# --- JobManager ---------------------------------------------------------------------------------

JOBMANAGER_RPC_ADDRESS = Option(
    "jobmanager.rpc.address",
    _HOST,
    "127.0.0.1",
    "Host at which TaskManagers and clients reach the JobManager.",
)
JOBMANAGER_RPC_PORT = Option(
    "jobmanager.rpc.port",
    _PORT_OR_ANY,
    "6123",
    "Port of the JobManager's gRPC services; 0 takes any free port.",
)
JOBMANAGER_BIND_HOST = Option(
    "jobmanager.bind-host",
    _HOST,
    "127.0.0.1",
    "Address that the JobManager listens on.",
)
JOBMANAGER_PARTITION_RELEASE_DURING_JOB_EXECUTION = Option(
    "jobmanager.partition.release-during-job-execution",
    Boolean(),
    "true",
    "Delete a result partition as soon as no unfinished subtask can need it; false keeps all"
    " until the job ends.",
    job_level=True,
)

# --- TaskManager --------------------------------------------------------------------------------

TASKMANAGER_HOST = Option(
    "taskmanager.host",
    _HOST,
    "127.0.0.1",
    "Host that the TaskManager gives to others as its own.",
)
TASKMANAGER_BIND_HOST = Option(
    "taskmanager.bind-host",
    _HOST,
    "127.0.0.1",
    "Address that the TaskManager listens on.",
)
TASKMANAGER_RPC_PORT = Option(
    "taskmanager.rpc.port",
    _PORT_OR_ANY,
    "0",
    "Port of the TaskManager's gRPC service; 0 takes any free port.",
)
TASKMANAGER_DATA_PORT = Option(
    "taskmanager.data.port",
    _PORT_OR_ANY,
    "0",
    "Port of the TaskManager's Arrow Flight server; 0 takes any free port.",
)
TASKMANAGER_NUMBER_OF_TASK_SLOTS = Option(
    "taskmanager.numberOfTaskSlots",
    Integer(1, 4_096),
    "1",
    "Tasks that the TaskManager runs at a time.",
)
TASKMANAGER_RESOURCE_ID = Option(
    "taskmanager.resource-id",
    Text(
        re.compile(f"({RESOURCE_ID.pattern})?"),
        "empty, or at most 64 letters, digits, '.', '_' and '-' that begin with a letter or digit",
    ),
    "",
    "Name of the TaskManager, by which it is known in listings, logs and recovery reports, and"
    " under which it finds its finished partitions after its own restart; empty makes a new name"
    " at every start.",
)
TASKMANAGER_RETAINED_PARTITIONS_MAX_BYTES = Option(
    "taskmanager.retained-partitions.max-bytes",
    Size(0),
    "0 b",
    "Bytes of finished partitions above which a TaskManager asks the JobManager which of them no"
    " unfinished subtask needs, and deletes those, the oldest first; what is needed stays,"
    " however much it is. 0 is no bound.",
)
TASKMANAGER_REGISTRATION_TIMEOUT = Option(
    "taskmanager.registration.timeout",
    Duration(_MS),
    "5 min",
    "How long, from the loss of the JobManager, a TaskManager keeps finished partitions while it"
    " looks for the next leader.",
)
TASKMANAGER_REGISTRATION_INITIAL_BACKOFF = Option(
    "taskmanager.registration.initial-backoff",
    Duration(_MS),
    "100 ms",
    "Pause after the first failed attempt to register; doubles after each further one.",
)
TASKMANAGER_REGISTRATION_MAX_BACKOFF = Option(
    "taskmanager.registration.max-backoff",
    Duration(_MS),
    "1 s",
    "Longest pause between attempts to register.",
)
TASKMANAGER_REGISTRATION_CALL_TIMEOUT = Option(
    "taskmanager.registration.call-timeout",
    Duration(_MS),
    "10 s",
    "How long one attempt to register may take.",
)
TASKMANAGER_MEMORY_TASK_SIZE = Option(
    "taskmanager.memory.task.size",
    Size(16 * _MB),
    "1 gb",
    "Memory that SQL in one task may use before it spills to disk.",
)
TASKMANAGER_TASK_PROCESS_SPARE = Option(
    "taskmanager.task-process.spare",
    Integer(0, 64),
    "1",
    "Idle task processes kept ready beside those that run tasks.",
)
TASK_CANCELLATION_TIMEOUT = Option(
    "task.cancellation.timeout",
    Duration(_MS),
    "2 s",
    "How long a cancelled task may take to stop before its process is killed.",
)
IO_TMP_DIRS = Option(
    "io.tmp.dirs",
    DirectoryPath(),
    "{temp}/holdover",
    "Directory of result partitions and scratch files.",
)

# --- Heartbeats and calls -----------------------------------------------------------------------

HEARTBEAT_INTERVAL = Option(
    "heartbeat.interval",
    Duration(_MS),
    "10 s",
    "Time between heartbeats.",
)
HEARTBEAT_TIMEOUT = Option(
    "heartbeat.timeout",
    Duration(_MS),
    "50 s",
    "A peer that was silent for this long counts as lost.",
)
HEARTBEAT_RPC_FAILURE_THRESHOLD = Option(
    "heartbeat.rpc-failure-threshold",
    Integer(1, 1_000, also=-1),
    "2",
    "A peer counts as lost after this many failed calls in a row; -1 waits for the timeout.",
)
RPC_CALL_TIMEOUT = Option(
    "rpc.call-timeout",
    Duration(_MS),
    "10 s",
    "How long a call between parts of the cluster may take.",
)

# --- High availability and storage --------------------------------------------------------------

HIGH_AVAILABILITY_TYPE = Option(
    "high-availability.type",
    Choice(("file", "etcd")),
    "file",
    "How a leader is elected: file locks a file under high-availability.storageDir, or holds a"
    " lease there if that is in an object store; etcd holds a lease in etcd.",
)
HIGH_AVAILABILITY_STORAGE_DIR = Option(
    "high-availability.storageDir",
    StoragePath(),
    "{home}/storage",
    "Where leadership, job graphs, job events and summaries are stored. Credentials of an object"
    " store come from its standard environment variables and files.",
)
HIGH_AVAILABILITY_ETCD_ENDPOINTS = Option(
    "high-availability.etcd.endpoints",
    Endpoints(),
    "127.0.0.1:2379",
    "Members of the etcd cluster that elects the leader, where high-availability.type is etcd. With"
    " https:// in front they are reached by TLS, with the certificates of security.ssl; with http://"
    " without; with neither as security.ssl.enabled says.",
)
HIGH_AVAILABILITY_LEASE_DURATION = Option(
    "high-availability.lease-duration",
    Duration(1.0, 3_600.0),
    "15 s",
    "In etcd or an object store: how long a leader that is not heard of stays in office. It resigns"
    " by itself after 80 % of that in etcd, which counts whole seconds, and after 70 % in an object"
    " store.",
)
HIGH_AVAILABILITY_CLUSTER_ID = Option(
    "high-availability.cluster-id",
    Text(
        re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
        "at most 64 letters, digits, '.', '_' and '-' that begin with a letter or digit",
    ),
    "default",
    "Name of the cluster; keeps clusters apart that share a storage directory or an etcd.",
)

# --- Recovery -----------------------------------------------------------------------------------

BATCH_JOB_RECOVERY_ENABLED = Option(
    "execution.batch.job-recovery.enabled",
    Boolean(),
    "true",
    "Continue a job from its events after the JobManager's death; false starts it again.",
    job_level=True,
)
BATCH_JOB_RECOVERY_PREVIOUS_WORKER_RECOVERY_TIMEOUT = Option(
    "execution.batch.job-recovery.previous-worker.recovery.timeout",
    Duration(0),
    "30 s",
    "How long a new leader waits for previous workers to offer their partitions.",
    job_level=True,
)
BATCH_JOB_RECOVERY_SNAPSHOT_MIN_PAUSE = Option(
    "execution.batch.job-recovery.snapshot.min-pause",
    Duration(0),
    "3 min",
    "Accepted, and without effect: every event of a source's subtask tells what it has read, so the"
    " state of its enumerator is never older than the log.",
    job_level=True,
)
BATCH_JOB_RECOVERY_SCHEDULE_WHILE_WAITING = Option(
    "execution.batch.job-recovery.schedule-while-waiting",
    Boolean(),
    "true",
    "Run what is ready while a new leader still waits for previous workers; false keeps FLIP-383's"
    " strict order.",
    job_level=True,
)
BATCH_JOB_RECOVERY_ADOPTION_TIMEOUT = Option(
    "execution.batch.job-recovery.adoption-timeout",
    Duration(0),
    "2 s",
    "How long a subtask without a finished event is held back during that wait because a worker"
    " that has not registered yet may offer its finished output.",
    job_level=True,
)
BATCH_JOB_RECOVERY_TASKMANAGER_RESTART_TIMEOUT = Option(
    "execution.batch.job-recovery.taskmanager-restart.timeout",
    Duration(0),
    "0 ms",
    "How long the finished work of a TaskManager that is lost while the JobManager lives waits for"
    " it to be started again with its disk; 0 makes what is needed anew at once. What it brings"
    " back before that is done counts in any case.",
    job_level=True,
)

# --- Job events ---------------------------------------------------------------------------------

JOB_EVENT_STORE_WRITE_BUFFER_SIZE = Option(
    "job-event.store.write-buffer.size",
    Size(1),
    "1 mb",
    "Events are written out when this much is buffered.",
)
JOB_EVENT_STORE_WRITE_BUFFER_FLUSH_INTERVAL = Option(
    "job-event.store.write-buffer.flush-interval",
    Duration(_MS),
    "1 s",
    "Events are written out at least this often.",
)
JOB_EVENT_STORE_WRITE_BUFFER_MAX_SIZE = Option(
    "job-event.store.write-buffer.max-size",
    Size(64 * _KB),
    "16 mb",
    "Upper bound of buffered events; beyond it the job waits for the storage.",
)
JOB_EVENT_STORE_SEGMENT_SIZE = Option(
    "job-event.store.segment-size",
    Size(4 * _KB),
    "64 mb",
    "A new file of the event log is begun when one has reached this size.",
)
JOB_EVENT_STORE_COMPACTION_SIZE = Option(
    "job-event.store.compaction-size",
    Size(4 * _KB),
    "64 mb",
    "The event log is rewritten as a snapshot of the job's state when it has grown by this much"
    " since the last one, and at least doubled; every leader that recovers the job does it too.",
)

# --- Parallelism --------------------------------------------------------------------------------

PARALLELISM_DEFAULT = Option(
    "parallelism.default",
    Integer(1, PARALLELISM_MAX, also=-1),
    "-1",
    "Subtasks of a vertex whose number the job does not say; -1 decides it from the bytes of its"
    " inputs.",
    job_level=True,
)
AUTO_PARALLELISM_MIN_PARALLELISM = Option(
    "execution.batch.adaptive.auto-parallelism.min-parallelism",
    Integer(1, PARALLELISM_MAX),
    "1",
    "Least number of subtasks when it is decided from the inputs.",
    job_level=True,
)
AUTO_PARALLELISM_MAX_PARALLELISM = Option(
    "execution.batch.adaptive.auto-parallelism.max-parallelism",
    Integer(1, PARALLELISM_MAX),
    "128",
    "Greatest number of subtasks when it is decided from the inputs.",
    job_level=True,
)
AUTO_PARALLELISM_AVG_DATA_VOLUME_PER_TASK = Option(
    "execution.batch.adaptive.auto-parallelism.avg-data-volume-per-task",
    Size(1),
    "16 mb",
    "Bytes that one subtask should read when the number is decided from the inputs.",
    job_level=True,
)

# --- Restarts -----------------------------------------------------------------------------------

RESTART_STRATEGY_TYPE = Option(
    "restart-strategy.type",
    Choice(("fixed-delay", "exponential-delay", "none")),
    "fixed-delay",
    "What happens when a task fails: run it again after a fixed delay, after a growing one, or"
    " fail the job.",
    job_level=True,
)
RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS = Option(
    "restart-strategy.fixed-delay.attempts",
    Integer(0, 2**31 - 1),
    "3",
    "Restarts that a job may have before a further failure of a task ends it.",
    job_level=True,
)
RESTART_STRATEGY_FIXED_DELAY_DELAY = Option(
    "restart-strategy.fixed-delay.delay",
    Duration(0),
    "1 s",
    "Pause before a failed task runs again.",
    job_level=True,
)
RESTART_STRATEGY_EXPONENTIAL_DELAY_INITIAL_BACKOFF = Option(
    "restart-strategy.exponential-delay.initial-backoff",
    Duration(_MS),
    "1 s",
    "Pause before the first restart.",
    job_level=True,
)
RESTART_STRATEGY_EXPONENTIAL_DELAY_MAX_BACKOFF = Option(
    "restart-strategy.exponential-delay.max-backoff",
    Duration(_MS),
    "1 min",
    "Longest pause before a restart.",
    job_level=True,
)
RESTART_STRATEGY_EXPONENTIAL_DELAY_BACKOFF_MULTIPLIER = Option(
    "restart-strategy.exponential-delay.backoff-multiplier",
    Decimal(1.0, 100.0),
    "1.5",
    "Factor from one pause to the next.",
    job_level=True,
)
RESTART_STRATEGY_EXPONENTIAL_DELAY_JITTER_FACTOR = Option(
    "restart-strategy.exponential-delay.jitter-factor",
    Decimal(0.0, 1.0),
    "0.1",
    "Greatest part of a pause by which it is made longer or shorter at random.",
    job_level=True,
)
RESTART_STRATEGY_EXPONENTIAL_DELAY_ATTEMPTS = Option(
    "restart-strategy.exponential-delay.attempts",
    Integer(0, 2**31 - 1),
    "10",
    "Restarts that a job may have before a further failure of a task ends it.",
    job_level=True,
)
SLOT_REQUEST_TIMEOUT = Option(
    "slot.request.timeout",
    Duration(_MS),
    "5 min",
    "A job fails when a subtask that could run has waited this long for any slot.",
    job_level=True,
)

# --- Data ---------------------------------------------------------------------------------------

SHUFFLE_MODE = Option(
    "shuffle.mode",
    Choice(("taskmanager", "external")),
    "taskmanager",
    "Who stores result partitions: the TaskManager whose task wrote them, or shuffle services"
    " (external), where they outlive every TaskManager.",
    job_level=True,
)
SHUFFLE_COMPRESSION = Option(
    "shuffle.compression",
    Choice(("lz4", "none", "zstd")),
    "lz4",
    "Compression of result partitions.",
    job_level=True,
)
SHUFFLE_WRITE_BUFFER_SIZE = Option(
    "shuffle.write-buffer.size",
    Size(64 * _KB),
    "64 mb",
    "Memory in which a task gathers rows of one output before it writes them.",
    job_level=True,
)
SHUFFLE_FETCH_RETRY_TIMEOUT = Option(
    "shuffle.fetch.retry-timeout",
    Duration(0),
    "30 s",
    "How long a task tries to reach a worker for a partition before it gives the partition up.",
    job_level=True,
)
SOURCE_SPLIT_MAX_BYTES = Option(
    "source.split.max-bytes",
    Size(1),
    "32 mb",
    "Largest part of a file that a source subtask reads as one split.",
    job_level=True,
)

# --- Clients and logs ---------------------------------------------------------------------------

CLIENT_TIMEOUT = Option(
    "client.timeout",
    Duration(_MS),
    "30 s",
    "How long one call of a client may take.",
)
CLIENT_FAILOVER_TIMEOUT = Option(
    "client.failover-timeout",
    Duration(0),
    "10 min",
    "How long a client goes on trying while no JobManager leads.",
)
LOG_LEVEL = Option(
    "log.level",
    Choice(("DEBUG", "INFO", "WARNING", "ERROR")),
    "INFO",
    "Least important messages that are logged.",
)

#: All options by key, in the order of the documentation.
OPTIONS: Final[dict[str, Option[object]]] = {
    option.key: option
    for option in (*globals().values(), *SHUFFLE_SERVICE_OPTIONS, *SECURITY_OPTIONS)
    if isinstance(option, Option)
}
