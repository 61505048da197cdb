"""What a chaos run sees: who is killed, which finished work ran again, and what is left."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdover.cli.chaos_evidence import FinishedWork, finished_on_disk, left_files, orphans
from holdover.cli.chaos_facts import ChaosFacts, ChaosPlan
from holdover.cli.chaos_kills import KillKind, strokes
from holdover.cli.main import app
from holdover.cli.tpch.ledger import LedgerLine
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.finished_record import encode_record, record_name

PLAN = ChaosPlan(seed=1, duration_s=60.0, scale=0.25)


def line(what: str, vertex: str, attempt: int, wall_s: float) -> LedgerLine:
    """What an attempt of subtask 0 says."""
    return LedgerLine(what, vertex, 0, attempt, 1, 77, wall_s)


WITHOUT_SERVICES = {
    KillKind.JOBMANAGER,
    KillKind.TASKMANAGER,
    KillKind.BOTH,
    KillKind.TASKMANAGERS,
    KillKind.EVERYTHING,
}


def test_a_seed_draws_the_same_strokes_and_all_kinds_of_them() -> None:
    drawn = list(itertools.islice(strokes(7, 4, (2.0, 8.0)), 400))
    assert drawn == list(itertools.islice(strokes(7, 4, (2.0, 8.0)), 400))
    assert drawn != list(itertools.islice(strokes(8, 4, (2.0, 8.0)), 400))
    assert {stroke.kind for stroke in drawn} == WITHOUT_SERVICES
    for stroke in drawn:
        assert 2.0 <= stroke.pause_s <= 8.0
        assert stroke.jobmanager or stroke.taskmanagers
        assert set(stroke.taskmanagers) <= set(range(4))
    (everything, *_) = (stroke for stroke in drawn if stroke.kind is KillKind.EVERYTHING)
    assert everything.jobmanager
    assert everything.taskmanagers == (0, 1, 2, 3)


def test_with_shuffle_services_these_are_struck_too_alone_and_with_others() -> None:
    drawn = list(itertools.islice(strokes(7, 4, (2.0, 8.0), shuffle_services=2), 400))
    struck = {stroke.kind: stroke for stroke in drawn}
    assert WITHOUT_SERVICES < set(struck) == set(KillKind)
    assert struck[KillKind.EVERYTHING].shuffle_services == (0, 1)
    alone = struck[KillKind.SERVICE]
    assert (alone.jobmanager, alone.taskmanagers, len(alone.shuffle_services)) == (False, (), 1)
    others = struck[KillKind.ALL_BUT_SERVICES]
    assert (others.jobmanager, len(others.taskmanagers), others.shuffle_services) == (True, 4, ())


def test_finished_work_is_lost_when_its_subtask_begins_again_after_it_was_seen() -> None:
    work = FinishedWork()
    work.look(("a", 0), 10.0, only_workers_killed=False)
    work.look(("b", 0), 10.0, only_workers_killed=False)
    work.look(("a", 0), 13.0, only_workers_killed=True)
    said = [line("start", "a", 0, 5.0), line("end", "a", 0, 9.5), line("start", "b", 0, 9.5)]
    assert work.reruns(said) == []
    assert work.reruns([*said, line("start", "c", 1, 12.0)]) == []
    (rerun,) = work.reruns([*said, line("start", "a", 1, 12.0)])
    assert rerun.subtask == ("a", 0)
    assert not rerun.unheard
    assert str(rerun) == (
        "a-0 was on a disk at 10.000: start 0/1 at 5.000, end 0/1 at 9.500, start 1/1 at 12.000"
    )


@pytest.mark.parametrize(("ended_s", "unheard"), [(7.5, True), (6.5, False)])
def test_work_need_not_be_heard_of_when_its_taskmanager_dies_at_once(
    ended_s: float, unheard: bool
) -> None:
    work = FinishedWork()
    work.look(("a", 0), 10.0, only_workers_killed=True)
    said = [line("start", "a", 0, 5.0), line("end", "a", 0, ended_s), line("start", "a", 1, 12.0)]
    assert [rerun.unheard for rerun in work.reruns(said)] == [unheard]


def test_finished_work_and_everything_that_may_not_be_left_are_found(tmp_path: Path) -> None:
    partitions, storage, outputs = (tmp_path / name for name in ("tmp", "storage", "jobs"))
    shuffle = partitions / "tm-0" / "tm-0" / "shuffle" / "job"
    files = [
        shuffle / record_name(AttemptKey("job", "a", 3, 0, 1)).removeprefix("job/"),
        shuffle / "a-0-3-0-1.data",
        storage / "default" / "jobs" / "job" / "graph.pb",
        outputs / "job-output" / ".staging-1" / "part-0.parquet",
    ]
    allowed = [
        partitions / "tm-0" / "tm-0" / "lock",
        partitions / "tm-0" / "tm-0" / "tasks.log",
        storage / "default" / "archive" / "job.pb",
        outputs / "job-output" / "part-0.parquet",
    ]
    for file in [*files, *allowed]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert list(finished_on_disk(partitions)) == [], "a record that is cut off"
    files[0].write_bytes(encode_record(FinishedExecution()))
    assert list(finished_on_disk(partitions)) == [("tm-0", "job", ("a", 3))]
    left = left_files(partitions, storage, outputs)
    assert left == sorted(map(str, [files[0], files[1], files[2].parent, files[3].parent]))


def test_a_process_is_an_orphan_when_no_recorded_one_is_above_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert orphans([child.pid], [os.getpid()]) == []
        (found,) = orphans([child.pid], [])
        assert found.startswith(f"{child.pid} ")
        assert found.endswith("-c input()")


def test_a_run_is_good_only_when_something_happened_and_nothing_went_wrong() -> None:
    assert ChaosFacts(PLAN, killed=3, durations_s={9: [1.0]}).good
    assert not ChaosFacts(PLAN, killed=3).good
    assert not ChaosFacts(PLAN, durations_s={9: [1.0]}).good
    for what in ChaosFacts(PLAN).problems:
        facts = ChaosFacts(PLAN, killed=3, durations_s={9: [1.0]})
        facts.problems[what].append("it happened")
        assert not facts.good


@pytest.mark.parametrize("wrong", ["soon", "0 s", "5"])
def test_a_duration_that_is_none_is_wrong_usage(wrong: str) -> None:
    result = CliRunner().invoke(app, ["chaos", "--duration", wrong])
    assert result.exit_code == 2
    assert "must be a duration" in " ".join(result.stderr.split())
