"""Configuration: settings that cannot work are refused at start, naming what is wrong (P63)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdover import config
from holdover.config import OPTIONS, RELATIONS, Configuration
from holdover.config.document import configuration_page
from holdover.errors import ConfigurationError
from holdover.v1.common_pb2 import ConfigEntry

RECOVERY_TIMEOUT = "execution.batch.job-recovery.previous-worker.recovery.timeout"
ADAPTIVE = "execution.batch.adaptive.auto-parallelism"
ROOT = Path(__file__).parents[2]


def entry(key: str, value: str) -> ConfigEntry:
    return ConfigEntry(key=key, value=value)


# --- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_default_is_allowed(option: config.Option[object]) -> None:
    assert Configuration().get(option) is not None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50 s", 50), ("300 ms", 0.3), ("5 min", 300), ("1.5 h", 5400), ("2d", 172_800), ("7 S", 7)],
)
def test_a_duration_is_read_in_its_unit(text: str, seconds: float) -> None:
    loaded = Configuration.of({"heartbeat.timeout": text, "heartbeat.interval": "1 ms"})
    assert loaded.get(config.HEARTBEAT_TIMEOUT) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1 mb", 1 << 20), ("64kb", 65_536), ("1.5 KB", 1536), ("7 b", 7), ("2 bytes", 2)],
)
def test_a_size_is_read_in_its_unit(text: str, size_bytes: int) -> None:
    loaded = Configuration.of({"source.split.max-bytes": text})
    assert loaded.get(config.SOURCE_SPLIT_MAX_BYTES) == size_bytes


def test_other_values_have_their_python_type() -> None:
    loaded = Configuration.of(
        {
            "shuffle.compression": "ZSTD",
            "taskmanager.numberOfTaskSlots": "7",
            "execution.batch.job-recovery.enabled": "False",
            "restart-strategy.exponential-delay.jitter-factor": "0.25",
            "io.tmp.dirs": "/a/../b/",
        }
    )
    assert loaded.get(config.SHUFFLE_COMPRESSION) == "zstd"
    assert loaded.get(config.TASKMANAGER_NUMBER_OF_TASK_SLOTS) == 7
    assert loaded.get(config.BATCH_JOB_RECOVERY_ENABLED) is False
    assert loaded.get(config.RESTART_STRATEGY_EXPONENTIAL_DELAY_JITTER_FACTOR) == 0.25
    assert loaded.get(config.IO_TMP_DIRS) == "/b"


@pytest.mark.parametrize(("seconds", "text"), [(90, "90 s"), (60, "1 min"), (0.3, "300 ms")])
def test_durations_are_written_in_the_largest_whole_unit(seconds: float, text: str) -> None:
    assert config.format_duration(seconds) == text


@pytest.mark.parametrize(("size_bytes", "text"), [(65_536, "64 kb"), (1 << 30, "1 gb"), (0, "0 b")])
def test_sizes_are_written_in_the_largest_whole_unit(size_bytes: int, text: str) -> None:
    assert config.format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("heartbeat.timeout=50", "one of the units ms, s, min, h, d"),
        ("heartbeat.timeout=50 sec", "one of the units ms, s, min, h, d"),
        ("heartbeat.timeout=0 s", "a duration of 1 ms to 365 d"),
        ("heartbeat.timeout=-5 s", "a duration of 1 ms to 365 d"),
        ("heartbeat.timeout=nan s", "a duration of 1 ms to 365 d"),
        ("heartbeat.timeout=400 d", "a duration of 1 ms to 365 d"),
        ("heartbeat.rpc-failure-threshold=0", "-1 or a whole number from 1 to 1000"),
        ("taskmanager.numberOfTaskSlots=0", "a whole number from 1 to 4096"),
        ("taskmanager.numberOfTaskSlots=2.5", "a whole number from 1 to 4096"),
        ("jobmanager.rpc.port=65536", "a whole number from 0 to 65535"),
        ("jobmanager.rpc.address=a b", "a host name or IP address"),
        ("taskmanager.resource-id=../tm", "at most 64 letters, digits"),
        ("high-availability.type=zookeeper", "one of file, etcd"),
        ("high-availability.etcd.endpoints=etcd-0", "HOST:PORT of up to nine members"),
        ("high-availability.etcd.endpoints=etcd-0:0", "HOST:PORT of up to nine members"),
        ("high-availability.etcd.endpoints=tcp://etcd-0:2379", "HOST:PORT of up to nine"),
        ("high-availability.etcd.endpoints=a:2379,https://a:2379", "each once"),
        ("high-availability.storageDir=storage", "one absolute path"),
        ("job-event.store.segment-size=64", "one of the units bytes, b, kb, mb, gb, tb"),
        ("parallelism.default=0", "-1 or a whole number from 1 to 32768"),
        ("restart-strategy.type=always", "one of fixed-delay, exponential-delay, none"),
        ("restart-strategy.exponential-delay.backoff-multiplier=0.5", "a number from 1 to 100"),
        ("restart-strategy.exponential-delay.jitter-factor=1e9", "a number from 0 to 1"),
        ("execution.batch.job-recovery.enabled=yes", "true or false"),
        ("log.level=", "one of DEBUG, INFO, WARNING, ERROR"),
    ],
)
def test_an_impossible_value_is_refused(setting: str, allowed: str) -> None:
    key, _, text = setting.partition("=")
    with pytest.raises(ConfigurationError) as refused:
        Configuration.load(overrides=[setting])
    message = str(refused.value)
    assert message.startswith(f"{key} is {text!r} from -D {setting}, but must be ")
    assert allowed in message
    assert refused.value.key == key


# --- Keys ----------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_naming_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Configuration.load(overrides=["heartbeat.time-out=1 s"])
    assert str(refused.value) == (
        "unknown option 'heartbeat.time-out' (from -D heartbeat.time-out=1 s);"
        " did you mean heartbeat.timeout?"
    )


def test_a_key_like_no_other_leads_to_the_list() -> None:
    with pytest.raises(ConfigurationError, match=r"docs/configuration\.md lists all options"):
        Configuration.of({"zzzzzzzz": "1"})


def test_an_override_without_value_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"-D heartbeat\.timeout: write it as -D key=value"
    ):
        Configuration.load(overrides=["heartbeat.timeout"])


# --- Relations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"heartbeat.interval": "50 s"},
            (
                "heartbeat.interval ('50 s' from code) must be less than heartbeat.timeout"
                " ('50 s', the default): otherwise a peer would count as lost between two"
                " heartbeats"
            ),
        ),
        (
            {"taskmanager.registration.timeout": "10 s"},
            (
                f"{RECOVERY_TIMEOUT} ('30 s', the default) must be less than"
                " taskmanager.registration.timeout ('10 s' from code): otherwise workers would"
                " release their partitions while a new leader still waits for them"
            ),
        ),
        (
            {"taskmanager.registration.initial-backoff": "2 s"},
            (
                "taskmanager.registration.initial-backoff ('2 s' from code) must be at most"
                " taskmanager.registration.max-backoff ('1 s', the default): otherwise the first"
                " pause would be longer than the longest"
            ),
        ),
        (
            {"restart-strategy.exponential-delay.max-backoff": "10 ms"},
            (
                "restart-strategy.exponential-delay.initial-backoff ('1 s', the default) must be at"
                " most restart-strategy.exponential-delay.max-backoff ('10 ms' from code):"
                " otherwise the first pause would be longer than the longest"
            ),
        ),
        (
            {f"{ADAPTIVE}.min-parallelism": "9", f"{ADAPTIVE}.max-parallelism": "8"},
            (
                f"{ADAPTIVE}.min-parallelism ('9' from code) must be at most"
                f" {ADAPTIVE}.max-parallelism ('8' from code): otherwise no number of subtasks"
                " would be allowed"
            ),
        ),
        (
            {"job-event.store.write-buffer.size": "17 mb"},
            (
                "job-event.store.write-buffer.size ('17 mb' from code) must be at most"
                " job-event.store.write-buffer.max-size ('16 mb', the default): otherwise the"
                " buffer would be full before it is written out"
            ),
        ),
    ],
    ids=[relation.lesser.key for relation in RELATIONS],
)
def test_options_that_contradict_each_other_are_refused(
    values: dict[str, str], message: str
) -> None:
    """Both names and both values are in the message (P63)."""
    with pytest.raises(ConfigurationError) as refused:
        Configuration.of(values)
    assert str(refused.value) == message


# --- Sources -------------------------------------------------------------------------------------


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "holdover.yaml"
    file.write_text("log.level: DEBUG\nclient:\n  timeout: 1 s\nslot.request.timeout: 1 s\n")
    loaded = Configuration.load(
        str(file),
        {"HOLDOVER_CLIENT_TIMEOUT": "2 s", "HOLDOVER_SLOT_REQUEST_TIMEOUT": "2 s", "PATH": "/"},
        ["slot.request.timeout=3 s"],
    )
    assert loaded.get(config.LOG_LEVEL) == "DEBUG"
    assert loaded.get(config.CLIENT_TIMEOUT) == 2
    assert loaded.get(config.SLOT_REQUEST_TIMEOUT) == 3


def test_every_option_has_its_own_environment_variable() -> None:
    names = [option.environment_name for option in OPTIONS.values()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(config.RESERVED_ENVIRONMENT)
    assert "HOLDOVER_TASKMANAGER_NUMBEROFTASKSLOTS" in names


def test_an_environment_variable_that_sets_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Configuration.load(env={"HOLDOVER_HEARTBEAT_TIMOUT": "1 s"})
    assert str(refused.value) == (
        "environment variable HOLDOVER_HEARTBEAT_TIMOUT sets no option;"
        " did you mean HOLDOVER_HEARTBEAT_TIMEOUT?"
    )


def test_the_environment_says_where_default_directories_are() -> None:
    loaded = Configuration.load(env={"HOLDOVER_HOME": "/state", "TMPDIR": "/scratch/"})
    assert loaded.get(config.HIGH_AVAILABILITY_STORAGE_DIR) == "/state/storage"
    assert loaded.get(config.IO_TMP_DIRS) == "/scratch/holdover"
    derived = loaded.with_overrides([entry("parallelism.default", "2")])
    assert derived.get(config.IO_TMP_DIRS) == "/scratch/holdover"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not YAML"),
        ("- heartbeat.timeout", "must hold keys and values"),
        ("heartbeat:\n  timeout:\n", "heartbeat.timeout has no value in {file} line 2"),
        ("log.level: [INFO]", "log.level must have one value in {file} line 1"),
        (
            "log:\n  level: INFO\nlog.level: DEBUG\n",
            "log.level is set twice: in {file} line 2 and {file} line 3",
        ),
        (
            "\nheartbeat.timeout: 5\n",
            "heartbeat.timeout is '5' from {file} line 2, but must be a duration",
        ),
        ("hartbeat.timeout: 5 s", "unknown option 'hartbeat.timeout' (from {file} line 1)"),
        ("? [a]\n: 1\n", "{file} line 1: an option's key must be text"),
        ("a: &a {b: *a}", "must have one value"),
        ("a: !!python/object/apply:os.system [b]", "a must have one value"),
    ],
)
def test_a_bad_file_is_refused_naming_file_and_line(
    content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "holdover.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        Configuration.load(str(file))
    assert message.format(file=file) in str(refused.value)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "holdover.yaml").write_text("# nothing\n")
    assert Configuration.load(str(tmp_path / "holdover.yaml")) == Configuration()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"/no/such\.yaml: No such file or directory"):
        Configuration.load("/no/such.yaml")


# --- Jobs and messages ---------------------------------------------------------------------------


def test_a_jobs_options_win_over_the_clusters() -> None:
    cluster = Configuration.of({"parallelism.default": "2", "log.level": "DEBUG"})
    job = cluster.with_overrides([entry("parallelism.default", "4")])
    assert job.get(config.PARALLELISM_DEFAULT) == 4
    assert job.get(config.LOG_LEVEL) == "DEBUG"
    assert cluster.get(config.PARALLELISM_DEFAULT) == 2


def test_a_jobs_options_may_not_contradict_the_clusters() -> None:
    cluster = Configuration.of({f"{ADAPTIVE}.max-parallelism": "4"})
    with pytest.raises(ConfigurationError, match=r"min-parallelism .*must be at most"):
        cluster.with_overrides([entry(f"{ADAPTIVE}.min-parallelism", "5")])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("heartbeat.timeout", "1 s", "heartbeat.timeout (from the job's options) cannot be set"),
        ("paralellism.default", "1", "did you mean parallelism.default?"),
        ("parallelism.default", "x", "parallelism.default is 'x' from the job's options, but"),
        (RECOVERY_TIMEOUT, "5 min", "must be less than taskmanager.registration.timeout"),
    ],
)
def test_a_job_cannot_set_everything(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Configuration().with_overrides([entry(key, value)])
    assert message in str(refused.value)


def test_what_was_set_travels_as_entries() -> None:
    loaded = Configuration.of({"log.level": "DEBUG", "client.timeout": "1 s"})
    assert loaded.to_entries() == [entry("client.timeout", "1 s"), entry("log.level", "DEBUG")]
    assert Configuration.from_entries(loaded.to_entries()) == loaded


def test_chosen_options_travel_with_their_defaults() -> None:
    assert Configuration().to_entries(config.SHUFFLE_COMPRESSION, config.LOG_LEVEL) == [
        entry("log.level", "INFO"),
        entry("shuffle.compression", "lz4"),
    ]


# --- The module ----------------------------------------------------------------------------------


def test_the_documentation_is_up_to_date() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), "run `make docs`"


def test_every_option_is_exported() -> None:
    exported = [getattr(config, name) for name in config.__all__]
    assert [o.key for o in OPTIONS.values() if o not in exported] == []


def test_importing_it_loads_no_other_library() -> None:
    program = (
        "import holdover.config, sys;"
        "print(*{'yaml', 'google.protobuf', 'grpc', 'pydantic', 'difflib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == ""
