"""Job and DataSet: what a user writes, and the JobGraph that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdover import DataSet, Job
from holdover.errors import ConfigurationError, InvalidId, JobGraphError
from holdover.jobgraph import determinism_of, validate
from holdover.v1 import job_pb2

KINDS = {
    job_pb2.DISTRIBUTION_KIND_HASH: "hash",
    job_pb2.DISTRIBUTION_KIND_REBALANCE: "rebalance",
    job_pb2.DISTRIBUTION_KIND_BROADCAST: "broadcast",
    job_pb2.DISTRIBUTION_KIND_FORWARD: "forward",
    job_pb2.DISTRIBUTION_KIND_RANGE: "range",
}


def same(batch: Any) -> Any:
    return batch


def numbers(job: Job, parallelism: int | None = None) -> DataSet:
    return job.sequence(0, 10, parallelism=parallelism)


def vertices(job: Job) -> list[str]:
    """ "id: chain * parallelism" of each vertex, adaptive without a number."""
    return [
        f"{v.vertex_id}: {v.name}" + (f" * {v.parallelism}" if v.parallelism else "")
        for v in job.build("j").vertices
    ]


def edges(job: Job) -> list[str]:
    """ "producer.output -kind(keys)/subpartitions-> consumer.input" of each edge."""
    graph = job.build("j")
    by_id = {vertex.vertex_id: vertex for vertex in graph.vertices}
    lines = []
    for edge in graph.edges:
        output = by_id[edge.source_vertex_id].outputs[edge.source_output]
        keys = ",".join(output.distribution.keys)
        kind = KINDS[output.distribution.kind] + (f"({keys})" if keys else "")
        lines.append(
            f"{edge.source_vertex_id}.{edge.source_output} -{kind}/{output.subpartitions}->"
            f" {edge.target_vertex_id}.{edge.target_input}"
        )
    return lines


# --- Chains and exchanges ------------------------------------------------------------------------


def test_a_word_count() -> None:
    job = Job("wordcount")
    words = job.read_text("/docs/**/*.md").map_batches(same, name="split")
    counts = words.hash("word").sql(
        "select word, count(*) as n from input group by word", parallelism=4
    )
    counts.write_parquet("/out")
    assert vertices(job) == ["v0: read_text -> split", "v1: sql -> write_parquet * 4"]
    assert edges(job) == ["v0.0 -hash(word)/4-> v1.0"]


def test_a_build_is_the_same_at_every_call() -> None:
    job = Job("j", options={"shuffle.compression": "none", "parallelism.default": 2})
    numbers(job).map_batches(same).range("value").map_partition(same).write_csv("/out")
    assert job.build("a") == job.build("a")
    assert job.build("b").job_id == "b"
    assert [entry.key for entry in job.build("a").options] == [
        "parallelism.default",
        "shuffle.compression",
    ]


def test_an_adaptive_reader_has_as_many_subpartitions_as_it_may_have_subtasks() -> None:
    job = Job("j", {"execution.batch.adaptive.auto-parallelism.max-parallelism": 16})
    numbers(job).hash("value").map_batches(same)
    numbers(job).rebalance().map_batches(same)
    assert edges(job) == ["v0.0 -hash(value)/16-> v1.0", "v2.0 -rebalance/16-> v3.0"]


def test_the_jobs_default_parallelism_is_for_all_that_do_not_say() -> None:
    job = Job("j", {"parallelism.default": 3})
    numbers(job).hash("value").map_batches(same, name="f", parallelism=2)
    assert vertices(job) == ["v0: sequence * 3", "v1: f * 2"]


def test_equal_exchanges_share_one_output() -> None:
    job = Job("j")
    data = numbers(job)
    for name in ("a", "b"):
        data.hash("value").map_batches(same, name=name, parallelism=2)
    data.hash("value").map_batches(same, name="c", parallelism=3)
    assert edges(job) == [
        "v0.0 -hash(value)/2-> v1.0",
        "v0.0 -hash(value)/2-> v2.0",
        "v0.1 -hash(value)/3-> v3.0",
    ]


def test_a_data_set_with_several_readers_is_forwarded_to_each() -> None:
    job = Job("j")
    data = numbers(job, parallelism=2)
    data.map_batches(same, name="a")
    data.map_batches(same, name="b")
    assert vertices(job) == ["v0: sequence * 2", "v1: a * 2", "v2: b * 2"]
    assert edges(job) == ["v0.0 -forward/1-> v1.0", "v0.0 -forward/1-> v2.0"]


def test_another_number_of_subtasks_means_rebalance() -> None:
    job = Job("j")
    numbers(job, parallelism=2).map_batches(same, name="f", parallelism=3)
    assert vertices(job) == ["v0: sequence * 2", "v1: f * 3"]
    assert edges(job) == ["v0.0 -rebalance/3-> v1.0"]


def test_an_explicit_forward_is_never_chained() -> None:
    job = Job("j")
    numbers(job).forward().map_batches(same, name="f")
    assert edges(job) == ["v0.0 -forward/1-> v1.0"]


def test_forward_between_different_parallelisms_is_refused() -> None:
    job = Job("j")
    numbers(job, parallelism=2).forward().map_batches(same, name="f", parallelism=3)
    with pytest.raises(JobGraphError) as refused:
        job.build("j")
    assert str(refused.value) == (
        "f: cannot read 'sequence' subtask by subtask: 2 subtasks there, 3 here; exchange it with"
        " hash(), broadcast() or rebalance(), or give both the same parallelism"
    )


def test_a_reader_of_only_broadcast_rows_runs_once() -> None:
    job = Job("j", {"parallelism.default": 4})
    numbers(job).broadcast().sql("select sum(value) as s from input", name="total")
    assert vertices(job) == ["v0: sequence * 4", "v1: total * 1"]


def test_a_union_reads_both_through_one_input() -> None:
    job = Job("j")
    both = numbers(job).union(job.sequence(10, 20))
    both.hash("value").map_batches(same, parallelism=2)
    assert edges(job) == ["v0.0 -hash(value)/2-> v2.0", "v1.0 -hash(value)/2-> v2.0"]


def test_a_union_of_exchanges_keeps_each_ones_rule() -> None:
    job = Job("j")
    either = numbers(job).hash("value").union(numbers(job).rebalance())
    either.map_batches(same, parallelism=2)
    assert edges(job) == ["v0.0 -hash(value)/2-> v2.0", "v1.0 -rebalance/2-> v2.0"]


def test_a_union_without_exchange_is_dealt_out() -> None:
    job = Job("j")
    numbers(job).union(numbers(job)).write_csv("/out", parallelism=2)
    assert edges(job) == ["v0.0 -rebalance/2-> v2.0", "v1.0 -rebalance/2-> v2.0"]


def test_a_workload_can_begin_a_graph() -> None:
    job = Job("j")
    job.workload(0.5, 1000, parallelism=3).hash("value").workload(0.1, parallelism=2)
    assert vertices(job) == ["v0: workload * 3", "v1: workload * 2"]
    assert job.build("j").vertices[0].operators[0].workload.output_bytes == 1000


def test_a_workload_may_draw_its_time_and_hand_rows_on() -> None:
    job = Job("w")
    seconds = job_pb2.NumberDistribution(
        lognormal=job_pb2.LognormalDistribution(median=2, sigma=0.5)
    )
    made = job.workload(seconds, 10, rows=5, seed=7, parallelism=2, determinism="unordered")
    made.hash("value").workload(0, pass_rows=True, failure_probability=0.1, parallelism=2)
    graph = job.build("j")
    validate(graph)
    first, last = (vertex.operators[0] for vertex in graph.vertices)
    assert first.determinism == job_pb2.DETERMINISM_UNORDERED
    assert first.workload.seconds_distribution == seconds
    assert (first.workload.rows, first.workload.seed) == (5, 7)
    assert (last.workload.pass_rows, last.workload.failure_probability) == (True, 0.1)


# --- SQL over several inputs ---------------------------------------------------------------------


def test_a_broadcast_join_is_chained_to_its_scan() -> None:
    job = Job("j")
    lineitem = job.read_parquet("/l/*.parquet", name="lineitem")
    part = job.read_parquet("/p/*.parquet", name="part")
    job.sql("select * from p join l using (k)", name="join", p=part.broadcast(), l=lineitem)
    graph = job.build("j")
    assert vertices(job) == ["v0: part", "v1: lineitem -> join"]
    assert edges(job) == ["v0.0 -broadcast/1-> v1.0"]
    assert [(t.name, t.vertex_input) for t in graph.vertices[1].operators[1].sql.inputs] == [
        ("p", 0),
        ("l", -1),
    ]


def test_a_hash_join_reads_both_sides_equally_partitioned() -> None:
    job = Job("j")
    left, right = numbers(job), numbers(job)
    left.hash("value").sql("select * from input join r using (value)", r=right.hash("value"))
    assert edges(job) == ["v0.0 -hash(value)/128-> v2.0", "v1.0 -hash(value)/128-> v2.1"]


def test_a_scan_is_not_chained_to_an_operator_over_which_other_rows_are_spread() -> None:
    job = Job("j")
    job.sql("select * from a, b", name="q", a=numbers(job), b=numbers(job).hash("value"))
    assert vertices(job) == ["v0: sequence", "v1: sequence", "v2: q"]
    assert edges(job) == ["v0.0 -forward/1-> v2.0", "v1.0 -hash(value)/128-> v2.1"]


def test_a_second_table_without_exchange_is_forwarded() -> None:
    job = Job("j")
    left, right = numbers(job, parallelism=2), numbers(job, parallelism=2)
    job.sql("select * from a join b using (value)", name="join", a=left, b=right)
    assert vertices(job) == ["v0: sequence * 2", "v1: sequence -> join * 2"]
    assert edges(job) == ["v0.0 -forward/1-> v1.0"]


def test_two_adaptive_tables_without_exchange_are_refused() -> None:
    job = Job("j")
    job.sql("select * from a join b using (value)", name="join", a=numbers(job), b=numbers(job))
    with pytest.raises(JobGraphError, match="join: cannot read 'sequence' subtask by subtask"):
        job.build("j")


def test_a_data_set_can_be_joined_with_itself() -> None:
    job = Job("j")
    data = numbers(job, parallelism=2)
    job.sql("select * from a join b using (value)", a=data, b=data.broadcast())
    assert edges(job) == ["v0.0 -forward/1-> v1.0", "v0.1 -broadcast/1-> v1.1"]


# --- Range ---------------------------------------------------------------------------------------


def test_a_range_samples_first_and_spreads_then() -> None:
    job = Job("j")
    numbers(job, parallelism=2).range("value").map_partition(same, name="f", parallelism=3)
    assert vertices(job) == [
        "v0: sequence * 2",
        "v1: sample(value) * 2",
        "v2: boundaries(value) * 1",
        "v3: range(value) * 2",
        "v4: f * 3",
    ]
    assert edges(job) == [
        "v0.0 -forward/1-> v1.0",
        "v1.0 -broadcast/1-> v2.0",
        "v0.0 -forward/1-> v3.0",
        "v2.0 -broadcast/1-> v3.1",
        "v3.0 -range(value)/3-> v4.0",
    ]
    graph = job.build("j")
    assert graph.vertices[2].operators[0].range_boundaries.ranges == 3
    assert graph.vertices[3].outputs[0].distribution.boundaries_input == 1
    assert set(determinism_of(graph).values()) == {job_pb2.DETERMINISM_DETERMINATE}


def test_an_adaptive_reader_gets_as_many_ranges_as_it_may_have_subtasks() -> None:
    job = Job("j", {"execution.batch.adaptive.auto-parallelism.max-parallelism": 7})
    numbers(job).range("value").map_partition(same)
    assert edges(job)[-1] == "v3.0 -range(value)/7-> v4.0"


def test_equal_ranges_are_spread_once() -> None:
    job = Job("j")
    data = numbers(job)
    for _ in range(2):
        data.range("value").map_partition(same, parallelism=3)
    assert edges(job)[-2:] == ["v3.0 -range(value)/3-> v4.0", "v3.0 -range(value)/3-> v5.0"]


def test_a_union_is_spread_over_common_ranges() -> None:
    job = Job("j")
    numbers(job).union(numbers(job)).range("value").map_partition(same, parallelism=3)
    graph = job.build("j")
    names = [vertex.name for vertex in graph.vertices]
    assert names.count("boundaries(value)") == 1
    assert names.count("range(value)") == 2


def test_ranges_over_different_keys_are_not_one_input() -> None:
    job = Job("j")
    mixed = numbers(job).range("value").union(numbers(job).range("other"))
    mixed.map_batches(same, name="f")
    with pytest.raises(JobGraphError, match="f: reads a union of ranges over different keys"):
        job.build("j")


# --- Operators -----------------------------------------------------------------------------------


def test_paths_are_absolute_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home-of-me")
    job = Job("j")
    job.read_text("in/*.txt").write_text("../out")
    job.read_csv("~/a.csv").write_parquet("/out/../fine")
    first, second = job.build("j").vertices
    assert first.operators[0].source.text.glob == f"{tmp_path}/in/*.txt"
    assert first.operators[1].sink.path == f"{tmp_path.parent}/out"
    assert second.operators[0].source.csv.glob == "/home-of-me/a.csv"
    assert second.operators[1].sink.path == "/fine"


def test_an_object_store_is_not_a_path_yet() -> None:
    job = Job("j")
    job.read_text("s3://bucket/a")
    with pytest.raises(JobGraphError, match="'s3://bucket/a' is not absolute"):
        job.build("j")


def test_csv_columns_and_types() -> None:
    job = Job("j")
    job.read_csv("/a", delimiter="|", columns=["x", "y"], types={"y": "int64"})
    source = job.build("j").vertices[0].operators[0].source.csv
    assert (source.delimiter, source.header, list(source.column_names)) == ("|", False, ["x", "y"])
    assert (list(source.typed_columns), list(source.column_types)) == (["y"], ["int64"])


def test_columns_are_a_list() -> None:
    with pytest.raises(JobGraphError, match="read_parquet: columns is one text"):
        Job("j").read_parquet("/a", columns="xyz")


def test_a_query_promises_no_order_unless_the_user_does() -> None:
    job = Job("j")
    numbers(job).sql("select * from input")
    numbers(job).sql("select * from input limit 3")
    numbers(job).sql("select * from input limit 3", determinism="determinate")
    numbers(job).map_batches(same, determinism="indeterminate")
    levels = [vertex.operators[1].determinism for vertex in job.build("j").vertices]
    assert levels == [
        job_pb2.DETERMINISM_UNORDERED,
        job_pb2.DETERMINISM_INDETERMINATE,
        job_pb2.DETERMINISM_DETERMINATE,
        job_pb2.DETERMINISM_INDETERMINATE,
    ]


def test_a_very_long_chain_has_a_short_name() -> None:
    job = Job("j")
    data = numbers(job)
    for _ in range(100):
        data = data.map_batches("m:f", name="step")
    assert vertices(job)[0].endswith("...")
    assert len(job.build("j").vertices[0].name) == 200


def test_every_kind_of_operator_passes_validation() -> None:
    job = Job("j")
    job.read_text("/t", with_path=True).write_text("/o1")
    job.read_csv("/c").write_csv("/o2")
    job.read_parquet("/p").write_parquet("/o3")
    numbers(job).hash("value").workload(0).map_partition("a.b:c.d").write_csv("/o4")
    validate(job.build("j"))


# --- What is refused -----------------------------------------------------------------------------


def test_a_job_without_operators_is_refused() -> None:
    with pytest.raises(JobGraphError) as refused:
        Job("empty").build("j")
    assert str(refused.value) == "job 'empty' does nothing: begin with a read_ method"


def test_a_bad_job_id_is_refused() -> None:
    with pytest.raises(InvalidId, match="job id 'A/b' is not allowed"):
        Job("j").build("A/b")


def test_a_bad_option_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option 'paralelism\.default'"):
        Job("j", {"paralelism.default": 1})
    with pytest.raises(ConfigurationError, match=r"heartbeat\.timeout .* cannot be set by a job"):
        Job("j", {"heartbeat.timeout": "1 s"})


def test_inputs_of_another_job_are_refused() -> None:
    one, other = Job("one"), Job("other")
    numbers(one)
    with pytest.raises(JobGraphError) as refused:
        one.sql("select * from a", name="q", a=numbers(other))
    assert str(refused.value) == "q: its input 'sequence' belongs to another job"


def test_a_data_set_and_an_exchange_have_no_union() -> None:
    job = Job("j")
    with pytest.raises(JobGraphError, match="union: both sides must be exchanged, or neither"):
        numbers(job).hash("value").union(numbers(job))  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="union: both sides must be exchanged, or neither"):
        numbers(job).union(numbers(job).hash("value"))  # type: ignore[arg-type]


@pytest.mark.parametrize("parallelism", [0, -1, True])
def test_a_parallelism_below_one_is_refused(parallelism: int) -> None:
    with pytest.raises(JobGraphError, match=r"f: parallelism .* must be at least 1"):
        numbers(Job("j")).map_batches(same, name="f", parallelism=parallelism)


def test_other_mistakes_are_refused_where_they_are_made() -> None:
    data = numbers(Job("j"))
    with pytest.raises(JobGraphError, match="hash: names no column"):
        data.hash()
    with pytest.raises(JobGraphError, match="range: names no column"):
        data.range()
    with pytest.raises(JobGraphError, match="3 is neither a function nor 'module:name'"):
        data.map_batches(3, name="f")  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="f: determinism 'sure' must be one of determinate"):
        data.map_batches(same, name="f", determinism="sure")  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="table 'input' is the data set that sql"):
        data.sql("select 1 from input", input=data)
    with pytest.raises(JobGraphError, match="input 'a' is 3, which is no data set"):
        data.sql("select 1 from input, a", a=3)  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="the query has no input"):
        Job("j").sql("select 1")
    with pytest.raises(JobGraphError, match="sequence: 2 to 1 is no ascending range"):
        Job("j").sequence(2, 1)


def test_what_only_the_whole_graph_shows_is_refused_by_the_build() -> None:
    job = Job("j")
    numbers(job).map_batches("not a reference")
    with pytest.raises(JobGraphError, match="must be written as 'module:name'"):
        job.build("j")
    job = Job("j")
    numbers(job).write_csv("/out")
    numbers(job).write_csv("/out/")
    with pytest.raises(JobGraphError, match="'/out' is also the directory of"):
        job.build("j")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_source_may_leave_its_splits_unrecorded(recorded: bool) -> None:
    """Behaviour 5.7: what it gives another time is then anybody's guess."""
    job = Job("j")
    texts = job.read_text("/in/*", record_splits=recorded).map_batches(same)
    rows = job.read_csv("/csv/*", record_splits=recorded)
    job.sql("select * from t, r", t=texts, r=rows.broadcast()).write_csv("/out")
    job.read_parquet("/pq/*", record_splits=recorded).range("k").write_csv("/other")
    graph = job.build("j")
    validate(graph)
    sources = [o.source for v in graph.vertices for o in v.operators if o.HasField("source")]
    assert [source.splits_unrecorded for source in sources] == [not recorded] * 3
    known = job_pb2.DETERMINISM_DETERMINATE
    assert (determinism_of(graph)["v0"] == known) is recorded
