"""Logs of earlier versions are replayed to the same records, and left as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import google_crc32c
import pytest
from google.protobuf import text_format

from holdover.runtime.real_disk import LocalDisk
from holdover.v1.events_pb2 import JobEvent
from jobmanager.event_store import FindingKind, UnsupportedLogVersion, replay
from jobmanager.event_store.records import FORMAT_VERSION

GOLDEN = Path(__file__).parent / "golden"
LOGS = sorted(path for path in GOLDEN.glob("format-*/*") if path.is_dir())


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_every_format_version_so_far_is_kept() -> None:
    kept = {path.parent.name for path in LOGS}
    assert kept == {f"format-{version}" for version in range(1, FORMAT_VERSION + 1)}


def test_the_kept_logs_hold_every_kind_of_event() -> None:
    """A kind that is added later needs a golden log of its own."""
    lines = [line for log in LOGS for line in log.with_suffix(".txt").read_text().splitlines()]
    kinds = {text_format.Parse(line, JobEvent()).WhichOneof("kind") for line in lines}
    marks = {"snapshot_begin", "snapshot_end"}
    assert kinds | marks == {field.name for field in JobEvent.DESCRIPTOR.fields}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}-{log.name}")
async def test_a_kept_log_is_replayed_to_what_was_written(log: Path) -> None:
    """P07."""
    before = content(log)
    found: list[JobEvent] = []
    findings = await replay(
        LocalDisk(), str(log), lambda record: found.append(record.event), job_id="golden-job"
    )
    expected = log.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    assert found == [text_format.Parse(line, JobEvent()) for line in expected]
    traces = [FindingKind.TORN_TAIL] if log.name == "torn" else []
    assert [one.kind for one in findings.findings] == traces
    assert content(log) == before


@pytest.mark.parametrize("at", [0, 3, 7])
async def test_a_newer_version_anywhere_in_a_log_is_refused_by_name(
    tmp_path: Path, at: int
) -> None:
    """P07."""
    log = tmp_path / "events"
    shutil.copytree(GOLDEN / "format-1" / "rolled", log)
    newer = sorted(log.iterdir())[at]
    data = newer.read_bytes()
    head = data[:8] + (FORMAT_VERSION + 1).to_bytes(2, "little") + data[10:12]
    newer.write_bytes(head + google_crc32c.value(head).to_bytes(4, "little") + data[16:])
    before = content(log)
    with pytest.raises(UnsupportedLogVersion, match=f"version {FORMAT_VERSION + 1}") as refused:
        await replay(LocalDisk(), str(log), lambda _: None)
    assert refused.value.path == str(newer)
    assert content(log) == before
