"""Jobs as the Python API builds them run as their author meant, one attempt after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdover.api import Job
from holdover.v1.common_pb2 import PartitionLocation, StagedFile
from holdover.v1.job_pb2 import DistributionKind, JobEdge, JobGraph, JobVertex, Split
from holdover.v1.taskmanager_pb2 import InputGate, SplitAnswer, TaskCommand
from tests.unit.taskmanager.operators.chain_harness import file_splits
from tests.unit.taskmanager.task_process_harness import DATA_ADDRESS, TaskProcessHarness

PARALLELISM = {"parallelism.default": "2"}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskProcessHarness]:
    harness = TaskProcessHarness(tmp_path_factory.mktemp("jobs"))
    yield harness
    harness.close()


def run(
    process: TaskProcessHarness, graph: JobGraph, splits: Mapping[str, list[Split]]
) -> list[StagedFile]:
    """Runs all subtasks in order; the subtasks of a source share its splits, given by its glob.

    Returns the files that the sinks have staged.
    """
    parallelism = {vertex.vertex_id: vertex.parallelism or 2 for vertex in graph.vertices}
    staged: list[StagedFile] = []
    for vertex in graph.vertices:
        count = parallelism[vertex.vertex_id]
        for subtask in range(count):
            process.start(
                graph,
                vertex.vertex_id,
                subtask=subtask,
                inputs=[
                    _gate(graph, edge, subtask, parallelism)
                    for edge in graph.edges
                    if edge.target_vertex_id == vertex.vertex_id
                ],
                subpartitions=[output.subpartitions for output in vertex.outputs],
            )
            own = splits[_glob(vertex)] if _is_source(vertex) else []
            staged += _finish(process, own[subtask::count])
    return staged


def _is_source(vertex: JobVertex) -> bool:
    return bool(vertex.operators) and vertex.operators[0].HasField("source")


def _glob(vertex: JobVertex) -> str:
    source = vertex.operators[0].source
    return source.text.glob or source.parquet.glob


def _finish(process: TaskProcessHarness, splits: list[Split]) -> Sequence[StagedFile]:
    while (event := process.receive()).HasField("split_wanted"):
        split = splits.pop(0) if splits else None
        process.send(TaskCommand(split=SplitAnswer(split=split)))
    assert event.HasField("finished"), event
    return event.finished.staged_files


def _gate(graph: JobGraph, edge: JobEdge, subtask: int, parallelism: dict[str, int]) -> InputGate:
    producers = parallelism[edge.source_vertex_id]
    (source,) = [v for v in graph.vertices if v.vertex_id == edge.source_vertex_id]
    output = source.outputs[edge.source_output]
    kind = output.distribution.kind
    subtasks = list(range(producers))
    first, end = 0, 1
    if kind == DistributionKind.DISTRIBUTION_KIND_FORWARD:
        subtasks = [subtask]
    elif kind != DistributionKind.DISTRIBUTION_KIND_BROADCAST:
        consumers = parallelism[edge.target_vertex_id]
        first = subtask * output.subpartitions // consumers
        end = (subtask + 1) * output.subpartitions // consumers
    return InputGate(
        input=edge.target_input,
        source_vertex_id=edge.source_vertex_id,
        source_output=edge.source_output,
        first_subpartition=first,
        end_subpartition=end,
        locations=[PartitionLocation(worker_id="tm", data_address=DATA_ADDRESS)],
        subtasks=subtasks,
        attempts=[0] * len(subtasks),
        epochs=[1] * len(subtasks),
        location_indexes=[0] * len(subtasks),
    )


def rows(files: Sequence[StagedFile]) -> list[tuple[Any, ...]]:
    """The rows of all files in the order of their final names."""
    ordered = sorted(files, key=lambda file: file.final_path)
    table = pa.concat_tables([pq.read_table(file.staged_path) for file in ordered])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def split_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    words = [word for line in batch["line"].to_pylist() for word in line.split()]
    return pa.record_batch({"word": pa.array(words, pa.string())})


def test_wordcount(process: TaskProcessHarness, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("to be or not to be\n" * 50 + "that is the question\n")
    job = Job("wordcount", options=PARALLELISM)
    words = job.read_text(str(file)).map_batches(split_words)
    counts = words.hash("word").sql("SELECT word, count(*) AS n FROM input GROUP BY word")
    counts.write_parquet(str(tmp_path / "out"))
    found = run(process, job.build("wordcount"), {str(file): file_splits(file, 300)})
    assert sorted(rows(found)) == [
        ("be", 100), ("is", 1), ("not", 50), ("or", 50), ("question", 1), ("that", 1),
        ("the", 1), ("to", 100),
    ]  # fmt: skip


def test_a_broadcast_join_chained_to_a_scan(process: TaskProcessHarness, tmp_path: Path) -> None:
    facts, names = tmp_path / "facts.parquet", tmp_path / "names.parquet"
    duckdb.execute(
        f"COPY (SELECT range AS v, range % 50 AS k FROM range(10000)) TO '{facts}'"
        " (ROW_GROUP_SIZE 2048)"
    )
    pq.write_table(pa.table({"k": list(range(25)), "name": [f"n{i}" for i in range(25)]}), names)
    job = Job("join", options=PARALLELISM)
    joined = job.sql(
        "SELECT name, v FROM l JOIN p USING (k)",
        l=job.read_parquet(str(facts)),
        p=job.read_parquet(str(names)).broadcast(),
    )
    totals = joined.hash("name").sql("SELECT name, sum(v) AS s FROM input GROUP BY name")
    totals.write_parquet(str(tmp_path / "out"))
    graph = job.build("join")
    splits = {str(facts): file_splits(facts, 30_000), str(names): file_splits(names, 10**6)}
    found = run(process, graph, splits)
    expected = duckdb.execute(
        f"SELECT name, sum(v) FROM '{facts}' JOIN '{names}' USING (k) GROUP BY name"
    ).fetchall()
    assert sorted(rows(found)) == sorted(expected)


def test_a_range_exchange_sorts_over_subtasks(process: TaskProcessHarness, tmp_path: Path) -> None:
    job = Job("sort", options=PARALLELISM)
    numbers = job.sequence(0, 5000).sql("SELECT hash(value) % 1000 AS k, value FROM input")
    ordered = numbers.range("k").sql("SELECT k FROM input ORDER BY k", parallelism=3)
    ordered.write_parquet(str(tmp_path / "out"))
    splits = [Split(index=i, start=i * 1000, end=i * 1000 + 1000) for i in range(5)]
    found = run(process, job.build("sort"), {"": splits})
    keys = [row[0] for row in rows(found)]
    assert len(keys) == 5000
    assert keys == sorted(keys)
    assert all(file.rows > 1000 for file in found), [file.rows for file in found]
