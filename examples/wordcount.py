"""Counts the words of text files, and sorts them by how often they occur.

    holdover submit examples/wordcount.py [OUTPUT [GLOB ...]]

OUTPUT is a directory that must be empty or not exist (default: ./wordcount). Without a GLOB, the
text and source files of the installed Python's standard library are read.
"""

from __future__ import annotations

import sysconfig

import pyarrow as pa
import pyarrow.compute as pc

from holdover import DataSet, Job


def build(args: list[str]) -> Job:
    """The job; `holdover submit` passes what stands behind the file's name."""
    output, *globs = args or ["wordcount"]
    library = sysconfig.get_paths()["stdlib"]
    # Directories in "s" are left out: site-packages is one, large, and no part of the library.
    library_globs = [f"{library}/{files}" for files in ("*.py", "[!s]*/**/*.py", "[!s]*/**/*.txt")]
    globs = globs or library_globs

    job = Job("wordcount")
    counted = [job.read_text(glob).map_batches(count_words) for glob in globs]
    sums = (
        union(counted)
        .hash("word")
        .sql("select word, sum(n)::bigint as n from input group by word", name="sum")
    )
    sums.hash("word").sql(
        "select word, n from input order by n desc, word",
        name="sort",
        parallelism=1,
        determinism="determinate",
    ).write_csv(output)
    return job


def count_words(lines: pa.RecordBatch) -> pa.RecordBatch:
    """How often each word occurs in a batch of lines: far less to exchange than the words."""
    words = pc.split_pattern_regex(pc.utf8_lower(lines.column("line")), r"[^a-z]+").flatten()
    counts = words.filter(pc.not_equal(words, "")).value_counts()
    return pa.record_batch([counts.field("values"), counts.field("counts")], ["word", "n"])


def union(parts: list[DataSet]) -> DataSet:
    """All rows of all parts."""
    first, *others = parts
    for part in others:
        first = first.union(part)
    return first
