"""The word count example, without a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from holdover import jobgraph
from holdover.cli.job_file import load_job

EXAMPLE = Path(__file__).parents[3] / "examples" / "wordcount.py"


@pytest.mark.parametrize("arguments", [[], ["out"], ["out", "a/*.txt", "b/*.txt", "c/*.txt"]])
def test_it_builds_a_valid_graph(arguments: list[str]) -> None:
    graph = load_job(EXAMPLE, arguments).build("wordcount")
    jobgraph.validate(graph)
    assert graph.vertices[-1].parallelism == 1


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        (["The cat,", "the Dog's"], {"the": 2, "cat": 1, "dog": 1, "s": 1}),
        (["", " 1 "], {}),
        ([], {}),
    ],
)
def test_it_counts_the_words_of_a_batch(lines: list[str], counts: dict[str, int]) -> None:
    load_job(EXAMPLE, [])
    count_words = sys.modules["holdover_job_file"].count_words
    batch = count_words(pa.record_batch([pa.array(lines, pa.string())], ["line"]))
    assert batch.schema == pa.schema({"word": pa.string(), "n": pa.int64()})
    assert dict(zip(*batch.to_pydict().values(), strict=True)) == counts
