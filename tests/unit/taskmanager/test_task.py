"""A task process: what it reports, and what it leaves, however its tasks end."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import (
    FAILURE_KIND_CANCELED,
    FAILURE_KIND_JOB,
    FAILURE_KIND_PARTITION_LOST,
    FAILURE_KIND_TASK,
    ExecutionAttempt,
)
from holdover.v1.job_pb2 import (
    FileFormat,
    JobGraph,
    Operator,
    PythonFunction,
    SequenceSource,
    Sink,
    Source,
    Split,
    Sql,
    SqlInput,
    TextSource,
    Workload,
)
from holdover.v1.taskmanager_pb2 import ShutdownTaskProcess, SplitAnswer, TaskCommand
from shuffle.finished_record import decode_record, files_of, index_is, record_name
from tests.unit.taskmanager.task_process_harness import (
    TaskProcessHarness,
    function,
    gate,
    graph,
    output,
    vertex,
)

NUMBERS = Operator(name="numbers", source=Source(sequence=SequenceSource(start=0, end=1000)))
SPLIT = Split(index=3, start=0, end=100)


def sql(query: str, **inputs: int) -> Operator:
    tables = [SqlInput(name=name, vertex_input=number) for name, number in inputs.items()]
    return Operator(name="query", sql=Sql(query=query, inputs=tables))


def sink(path: Path) -> Operator:
    return Operator(name="out", sink=Sink(path=str(path), format=FileFormat.FILE_FORMAT_PARQUET))


def produce(task: TaskProcessHarness, job: JobGraph, subpartitions: int) -> None:
    """Runs the first attempt of subtask 0 of v0, a source of 100 numbers."""
    task.start(job, subpartitions=[subpartitions])
    task.answer_split(SPLIT)
    task.answer_split(None)
    assert task.finished().rows_out == 100


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskProcessHarness]:
    harness = TaskProcessHarness(tmp_path_factory.mktemp("task"))
    yield harness
    harness.close()


@pytest.fixture
def task(process: TaskProcessHarness) -> Iterator[TaskProcessHarness]:
    """One process for all tests: that it is reused after every kind of end is half the point."""
    yield process
    assert process.process.poll() is None
    for directory in (process.shuffle, process.scratch, process.directory / "out"):
        shutil.rmtree(directory, ignore_errors=True)


def test_a_finished_attempt_reports_its_partition_splits_and_rows(
    task: TaskProcessHarness,
) -> None:
    job = graph(vertex(NUMBERS, outputs=[output("HASH", "value")]))
    attempt = task.start(job, subpartitions=[4])
    task.answer_split(SPLIT)
    task.answer_split(Split(index=1, start=500, end=510))
    task.answer_split(None)
    finished = task.finished()
    assert finished.attempt == attempt
    assert list(finished.splits) == [3, 1]
    assert (finished.rows_in, finished.rows_out) == (110, 110)
    (partition,) = finished.partitions
    assert (partition.output, partition.rows, len(partition.subpartition_bytes)) == (0, 110, 4)
    values = task.read("job/v0-0-0-0-1", 0, 4)["value"].to_pylist()
    assert sorted(values) == [*range(100), *range(500, 510)]


def test_a_finished_attempt_leaves_a_record_of_what_it_reports(task: TaskProcessHarness) -> None:
    job = graph(vertex(NUMBERS, outputs=[output("HASH", "value"), output()]))
    task.start(job, subpartitions=[4, 1], record_finished=True)
    task.answer_split(SPLIT)
    task.answer_split(None)
    finished = task.finished()
    record = (task.shuffle / "job" / "v0-0-0-1.finished").read_bytes()
    key = AttemptKey("job", "v0", 0, 0, 1)
    assert decode_record(record, record_name(key)) == (key, finished)
    for partition in finished.partitions:
        index = task.shuffle / f"{partition_name(key, partition.output)}.index"
        assert index_is(index.read_bytes(), partition.index_crc32c)
    assert sorted(f"shuffle/{file}" for file in files_of(key, finished)) == task.left_files()


def test_a_consumer_reads_its_range_and_writes_every_output(task: TaskProcessHarness) -> None:
    job = graph(
        vertex(NUMBERS, outputs=[output("HASH", "value")]),
        vertex(
            sql("SELECT value % 2 AS odd, sum(value) AS s FROM t GROUP BY odd", t=0),
            vertex_id="v1",
            outputs=[output(), output("REBALANCE")],
        ),
    )
    produce(task, job, 4)
    task.start(job, "v1", inputs=[gate("v0", 0, end=4)], subpartitions=[1, 2])
    finished = task.finished()
    assert [p.rows for p in finished.partitions] == [2, 2]
    assert finished.rows_in == 100
    found = task.read("job/v1-0-0-0-1")
    assert dict(zip(*(c.to_pylist() for c in found.columns), strict=True)) == {0: 2450, 1: 2500}


def test_a_range_exchange_orders_its_subpartitions(task: TaskProcessHarness) -> None:
    bounds = function(lambda batch: pa.record_batch({"value": [9, 49]}))
    job = graph(
        vertex(NUMBERS, outputs=[output()]),
        vertex(bounds, vertex_id="v1", outputs=[output()]),
        vertex(vertex_id="v2", outputs=[output("RANGE", "value", boundaries_input=1)]),
    )
    produce(task, job, 1)
    task.start(job, "v1", inputs=[gate("v0", 0)], subpartitions=[1])
    task.finished()
    task.start(job, "v2", inputs=[gate("v0", 0), gate("v1", 0, number=1)], subpartitions=[4])
    assert task.finished().partitions[0].rows == 100
    parts = [task.read("job/v2-0-0-0-1", i, i + 1).num_rows for i in range(4)]
    assert parts == [10, 40, 0, 50]


def test_a_sink_reports_what_it_staged(task: TaskProcessHarness) -> None:
    out = task.directory / "out"
    task.start(graph(vertex(NUMBERS, sink(out))), subtask=1)
    task.answer_split(SPLIT)
    task.answer_split(None)
    finished = task.finished()
    (staged,) = finished.staged_files
    assert (staged.rows, finished.rows_out) == (100, 100)
    assert staged.final_path == f"{out}/part-v0-00001.parquet"
    assert task.left_files() == ["out/.staging-job/v0-1-0-1/part-00001.parquet"]


def raise_error(batch: pa.RecordBatch) -> object:
    raise ValueError(f"bad value {batch['value'][0]}")


def exit_process(batch: pa.RecordBatch) -> object:
    raise SystemExit(3)


def run_out_of_memory(batch: pa.RecordBatch) -> object:
    return bytearray(1 << 62)


def raise_odd(batch: pa.RecordBatch) -> object:
    class Odd(BaseException):
        pass

    raise Odd


@pytest.mark.parametrize(
    ("called", "message"),
    [
        (raise_error, "ValueError: bad value 0"),
        (exit_process, "ended its process with exit code 3"),
        (run_out_of_memory, "ran out of memory"),
        (raise_odd, "Odd"),
    ],
)
def test_whatever_user_code_raises_fails_that_attempt_alone(
    task: TaskProcessHarness, called: Any, message: str
) -> None:
    """P55: the process lives, says why with a traceback, and nothing of the attempt is left."""
    job = graph(vertex(NUMBERS, function(called), outputs=[output("HASH", "value")]))
    attempt = task.start(job, subpartitions=[2])
    task.answer_split(SPLIT)
    failed = task.failed()
    assert failed.attempt == attempt
    assert failed.failure.kind == FAILURE_KIND_TASK
    assert failed.failure.message.startswith("vertex v0 (step), subtask 0: ")
    assert message in failed.failure.message
    assert called.__name__ in failed.failure.traceback
    assert task.left_files() == []


def test_a_long_traceback_is_bounded(task: TaskProcessHarness) -> None:
    def loud(batch: pa.RecordBatch) -> object:
        raise ValueError("\u00e9" * 1_000_000)

    task.start(graph(vertex(NUMBERS, function(loud))))
    task.answer_split(SPLIT)
    failure = task.failed().failure
    assert len(failure.traceback.encode()) <= 64 << 10
    assert "left out" in failure.traceback


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([sql("SELECT x FROM t", t=-1)], "operator 'query'.*\"x\" not found.*t\\(value int64\\)"),
        (
            [Operator(name="f", function=PythonFunction(reference="nowhere:f"))],
            "operator 'f'.*No module named 'nowhere'",
        ),
    ],
)
def test_a_wrong_job_fails_without_restarts_naming_what_is_wrong(
    task: TaskProcessHarness, operators: list[Operator], message: str
) -> None:
    task.start(graph(vertex(NUMBERS, *operators, outputs=[output()])), subpartitions=[1])
    event = task.receive()
    while event.HasField("split_wanted"):
        task.send(TaskCommand(split=SplitAnswer()))
        event = task.receive()
    failure = event.failed.failure
    assert failure.kind == FAILURE_KIND_JOB
    assert_match(rf"^vertex v0 \(step\), subtask 0: {message}", failure.message)


def test_a_missing_key_column_fails_the_job(task: TaskProcessHarness) -> None:
    job = graph(vertex(NUMBERS, outputs=[output("HASH", "key")]))
    task.start(job, subpartitions=[2])
    task.answer_split(SPLIT)
    event = task.receive()
    while event.HasField("split_wanted"):
        task.send(TaskCommand(split=SplitAnswer()))
        event = task.receive()
    failure = event.failed.failure
    assert failure.kind == FAILURE_KIND_JOB
    assert "key column 'key' does not exist; the columns are: value" in failure.message


def test_hash_inputs_whose_keys_cannot_meet_fail_the_job(task: TaskProcessHarness) -> None:
    texts = function(lambda batch: pa.record_batch({"value": [str(v) for v in batch["value"]]}))
    job = graph(
        vertex(NUMBERS, outputs=[output("HASH", "value")]),
        vertex(texts, vertex_id="v1", outputs=[output("HASH", "value")]),
        vertex(sql("SELECT 1 AS a FROM l, r", l=0, r=1), vertex_id="v2", outputs=[output()]),
    )
    produce(task, job, 1)
    task.start(job, "v1", inputs=[gate("v0", 0)], subpartitions=[1])
    task.finished()
    inputs = [gate("v0", 0), gate("v1", 0, number=1)]
    task.start(job, "v2", inputs=inputs, subpartitions=[1])
    failure = task.failed().failure
    assert failure.kind == FAILURE_KIND_JOB
    assert "key types differ: (integer) and (string)" in failure.message


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_lost_input_names_the_partition(task: TaskProcessHarness, damage: str) -> None:
    """P34, P38: neither a failure of the task's code nor of the job."""
    job = graph(
        vertex(NUMBERS, outputs=[output()]),
        vertex(sql("SELECT sum(value) AS s FROM t", t=0), vertex_id="v1", outputs=[output()]),
    )
    produce(task, job, 1)
    data = task.shuffle / "job/v0-0-0-0-1.data"
    if damage == "missing":
        (task.shuffle / "job/v0-0-0-0-1.index").unlink()
    else:
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    task.start(job, "v1", inputs=[gate("v0", 0)], subpartitions=[1])
    failure = task.failed().failure
    assert failure.kind == FAILURE_KIND_PARTITION_LOST, failure
    assert list(failure.lost_partitions) == ["job/v0-0-0-0-1"]
    assert not any("v1" in name for name in task.left_files())


def sleep_long(batch: pa.RecordBatch) -> object:
    import time

    time.sleep(60)
    return batch


def spin(batch: pa.RecordBatch) -> object:
    while True:
        pass


HEAVY = "SELECT count(*) AS n FROM range(10000000) a, range(1000000) b, t WHERE a.range % 7 = 1"


@pytest.mark.parametrize(
    "operator",
    [
        function(sleep_long),
        function(spin),
        Operator(name="w", workload=Workload(seconds=60)),
        sql(HEAVY, t=0),
    ],
    ids=["sleeping", "computing", "waiting", "in DuckDB"],
)
def test_a_cancelled_attempt_ends_at_once_and_leaves_nothing(
    task: TaskProcessHarness, operator: Operator
) -> None:
    job = graph(
        vertex(NUMBERS, outputs=[output()]),
        vertex(operator, sink(task.directory / "out"), vertex_id="v1"),
    )
    produce(task, job, 1)
    attempt = task.start(job, "v1", inputs=[gate("v0", 0)])
    task.cancel(attempt)
    failed = task.failed()
    assert (failed.attempt, failed.failure.kind) == (attempt, FAILURE_KIND_CANCELED)
    assert not any("v1" in name or "scratch" in name for name in task.left_files())


def test_a_task_that_waits_for_a_split_can_be_cancelled(task: TaskProcessHarness) -> None:
    attempt = task.start(graph(vertex(NUMBERS, outputs=[output()])), subpartitions=[1])
    assert task.receive().HasField("split_wanted")
    task.cancel(attempt)
    assert task.failed().failure.kind == FAILURE_KIND_CANCELED
    assert task.left_files() == []


def test_a_cancel_for_another_attempt_and_a_bare_sigint_change_nothing(
    task: TaskProcessHarness,
) -> None:
    job = graph(vertex(NUMBERS, outputs=[output()]))
    attempt = task.start(job, subpartitions=[1])
    other = ExecutionAttempt()
    other.CopyFrom(attempt)
    other.attempt = 5
    task.cancel(other)
    task.answer_split(SPLIT)
    task.answer_split(None)
    assert task.finished().rows_out == 100


def test_a_late_cancel_does_not_hit_the_next_attempt(task: TaskProcessHarness) -> None:
    job = graph(vertex(NUMBERS, outputs=[output()]))
    produce(task, job, 1)
    task.cancel(ExecutionAttempt(job_id="job", vertex_id="v0", leader_epoch=1))
    attempt = task.start(job, subpartitions=[1], attempt=1)
    task.answer_split(SPLIT)
    task.answer_split(None)
    assert task.finished().attempt == attempt


def test_prints_go_to_the_log(task: TaskProcessHarness) -> None:
    def talk(batch: pa.RecordBatch) -> pa.RecordBatch:
        print("hello from a task")
        return batch

    task.start(graph(vertex(NUMBERS, function(talk))))
    task.answer_split(SPLIT)
    task.answer_split(None)
    task.finished()
    assert "hello from a task" in task.log.read_text()


def test_a_function_knows_which_attempt_it_is(task: TaskProcessHarness) -> None:
    def who(batch: pa.RecordBatch) -> pa.RecordBatch:
        from holdover.task_context import current

        me = current()
        return pa.record_batch(
            {"me": [f"{me.job_id} {me.vertex_id} {me.subtask} {me.attempt} {me.parallelism}"]}
        )

    job = graph(vertex(NUMBERS, function(who), outputs=[output()]))
    task.start(job, subpartitions=[1], subtask=1, attempt=4)
    task.answer_split(SPLIT)
    task.answer_split(None)
    task.finished()
    assert task.read("job/v0-0-1-4-1")["me"].to_pylist() == ["job v0 1 4 2"]


def test_two_jobs_may_attach_different_modules_of_one_name(task: TaskProcessHarness) -> None:
    for job_id, word in (("one", "first"), ("two", "second"), ("one", "third")):
        result = f"pa.record_batch({{'w': ['{word}']}})"
        source = f"import pyarrow as pa\ndef f(batch):\n    return {result}\n"
        operator = Operator(name="f", function=PythonFunction(reference="attached:f"))
        job = graph(
            vertex(NUMBERS, operator, outputs=[output()]),
            job_id=job_id,
            files=[("attached.py", source)],
        )
        task.start(job, subpartitions=[1])
        task.answer_split(SPLIT)
        task.answer_split(None)
        task.finished()
        assert task.read(f"{job_id}/v0-0-0-0-1")["w"].to_pylist() == [word]


def test_a_traceback_shows_the_lines_of_an_attached_module(task: TaskProcessHarness) -> None:
    operator = Operator(name="f", function=PythonFunction(reference="broken:f"))
    files = [("broken.py", "def f(batch):\n    return batch / 'this line'\n")]
    task.start(graph(vertex(NUMBERS, operator), job_id="shown", files=files))
    task.answer_split(SPLIT)
    failure = task.failed().failure
    assert failure.kind == FAILURE_KIND_TASK
    assert "return batch / 'this line'" in failure.traceback


def test_a_gone_source_file_is_named(task: TaskProcessHarness, tmp_path: Path) -> None:
    source = Source(text=TextSource(glob=str(tmp_path / "*.txt")))
    task.start(graph(vertex(Operator(name="text", source=source))))
    path = str(tmp_path / "gone.txt")
    task.answer_split(Split(path=path, end=1, file_bytes=1))
    failure = task.failed().failure
    assert failure.kind == FAILURE_KIND_TASK
    assert path in failure.message


def test_a_job_graph_that_cannot_be_read_is_named(task: TaskProcessHarness) -> None:
    attempt = task.start(graph(vertex(NUMBERS)), vertex_id="v9")
    failed = task.failed()
    assert failed.attempt == attempt
    assert failed.failure.kind == FAILURE_KIND_JOB
    assert "no vertex 'v9'" in failed.failure.message


def test_shutdown_ends_the_process(tmp_path: Path) -> None:
    harness = TaskProcessHarness(tmp_path)
    harness.send(TaskCommand(shutdown=ShutdownTaskProcess()))
    assert harness.process.wait(timeout=60) == 0
    harness.close()


def test_a_task_process_does_not_outlive_its_taskmanager(tmp_path: Path) -> None:
    harness = TaskProcessHarness(tmp_path)
    harness.start(graph(vertex(Operator(name="w", workload=Workload(seconds=600)))))
    harness._socket.close()
    assert harness.process.wait(timeout=60) == 1
    harness.close()


def assert_match(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.DOTALL), text
