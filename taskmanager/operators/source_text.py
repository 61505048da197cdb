"""Lines of text files."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdover.v1.job_pb2 import Split, TextSource
from taskmanager.operators.errors import JobError
from taskmanager.operators.source_files import LINE_BYTES_MAX, ByteRange, file_splits, line_range
from taskmanager.operators.stream import BatchStream, OperatorContext

_CHUNK_BYTES = 1 << 20


def open_text(context: OperatorContext, source: TextSource) -> BatchStream:
    """One row for each line, in a column "line" without its line end (LF or CR LF).

    Text is UTF-8. As in Flink's and Hadoop's line readers, bytes that are not are replaced by
    U+FFFD, so that one stray file does not stop a job over many. With `with_path`, a column "path"
    says which file the line is from.
    """
    fields = [pa.field("line", pa.string())]
    if source.with_path:
        fields.append(pa.field("path", pa.string()))
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for split in file_splits(context):
            for lines in _lines(split):
                columns = [lines]
                if source.with_path:
                    columns.append(pa.repeat(pa.scalar(split.path, pa.string()), len(lines)))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return BatchStream(schema, context.counted(batches()))


def _lines(split: Split) -> Iterator[pa.StringArray]:
    with open(split.path, "rb") as file:
        start, end = line_range(file, split)
        part = ByteRange(file, start, end)
        unfinished = b""
        while chunk := part.read(_CHUNK_BYTES):
            # A line end is never a part of another character, so text may be cut behind it.
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                yield _split_lines(unfinished + whole)
                unfinished = rest
            else:
                unfinished += chunk
            if len(unfinished) > LINE_BYTES_MAX:
                raise JobError(f"{split.path} has a line of more than {LINE_BYTES_MAX} bytes")
        if unfinished:
            yield _split_lines(unfinished)


def _split_lines(text: bytes) -> pa.StringArray:
    """The lines of a text that does not end in a line end."""
    lines = pc.split_pattern(pa.array([text.decode("utf-8", "replace")]), "\n").flatten()
    if b"\r\n" in text or text.endswith(b"\r"):
        lines = pc.replace_substring_regex(lines, r"\r$", "")
    return lines
