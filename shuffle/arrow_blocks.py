"""Blocks: record batches as encapsulated Arrow IPC messages, each by itself, not in a stream.

A block can be decoded alone, given the schema, which is what lets one data file serve any range of
subpartitions and lets a broken fetch continue at any block. The price is that dictionaries cannot
be shared between blocks, so dictionary-encoded columns are stored decoded; views, for which Arrow
has no `take`, are stored as plain strings and binaries.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import pyarrow as pa
from pyarrow import compute, ipc

from shuffle.errors import UnsupportedColumnType

#: Blocks are padded to whole cache lines, so that buffers of a mapped file are aligned.
BLOCK_ALIGNMENT_BYTES = 64
COMPRESSIONS = ("none", "lz4", "zstd")


def write_options(compression: str) -> ipc.IpcWriteOptions:
    """IPC options for "none", "lz4" or "zstd"; ValueError names any other value."""
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression {compression!r} must be one of {', '.join(COMPRESSIONS)}")
    codec = None if compression == "none" else compression
    return ipc.IpcWriteOptions(compression=codec, use_threads=False, allow_64bit=True)


def encode_block(batch: pa.RecordBatch, options: ipc.IpcWriteOptions) -> pa.Buffer:
    """The batch as one encapsulated message, padded to BLOCK_ALIGNMENT_BYTES with zeros."""
    schema_bytes = batch.schema.serialize().size
    if options.compression is None:
        # Its size is known: a buffer that grows would copy the rows more than once.
        size = schema_bytes + ipc.get_record_batch_size(batch)
        block = pa.allocate_buffer(size + -(size - schema_bytes) % BLOCK_ALIGNMENT_BYTES)
        _write_block(pa.FixedSizeBufferWriter(block), batch, options, schema_bytes)
        return block.slice(schema_bytes)
    sink = pa.BufferOutputStream()
    _write_block(sink, batch, options, schema_bytes)
    return sink.getvalue().slice(schema_bytes)


def _write_block(
    sink: pa.NativeFile, batch: pa.RecordBatch, options: ipc.IpcWriteOptions, schema_bytes: int
) -> None:
    # Only a stream writer compresses; what it writes first is the schema, which is cut off.
    writer = ipc.new_stream(sink, batch.schema, options=options)
    writer.write_batch(batch)
    sink.write(bytes(-(sink.tell() - schema_bytes) % BLOCK_ALIGNMENT_BYTES))


def decode_block(block: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of a block whose checksum was verified; its arrays alias `block` where they can.

    Raises pa.ArrowException (or OSError, which Arrow uses for bad messages) on undecodable bytes.
    """
    return ipc.read_record_batch(block, schema)


def crc32c(data: bytes | pa.Buffer) -> int:
    """CRC32C of the bytes, without copying them where the buffer is read-only."""
    if isinstance(data, pa.Buffer) and data.is_mutable:
        # The checksum function wants bytes that nobody can change meanwhile: a read-only alias.
        data = pa.foreign_buffer(data.address, data.size, base=data)
    return int(google_crc32c.value(data))


def joined(buffers: Sequence[pa.Buffer]) -> pa.Buffer:
    """One buffer of all bytes in order; the only one itself when it is alone."""
    if len(buffers) == 1:
        return buffers[0]
    # Arrow keeps the memory of what it has freed; Python would ask the system for it each time.
    whole = pa.allocate_buffer(sum(buffer.size for buffer in buffers))
    view = memoryview(whole)
    offset = 0
    for buffer in buffers:
        view[offset : offset + buffer.size] = memoryview(buffer)
        offset += buffer.size
    return whole


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type that a column is stored as: dictionaries decoded, views as their plain types."""
    types = pa.types
    if types.is_dictionary(data_type):
        return plain_type(data_type.value_type)
    if types.is_run_end_encoded(data_type):
        return plain_type(data_type.value_type)
    if types.is_string_view(data_type):
        return pa.string()
    if types.is_binary_view(data_type):
        return pa.binary()
    if types.is_struct(data_type):
        return pa.struct([_plain_field(data_type.field(i)) for i in range(data_type.num_fields)])
    if types.is_map(data_type):
        return pa.map_(
            _plain_field(data_type.key_field),
            _plain_field(data_type.item_field),
            keys_sorted=data_type.keys_sorted,
        )
    if types.is_fixed_size_list(data_type):
        return pa.list_(_plain_field(data_type.value_field), data_type.list_size)
    if types.is_large_list(data_type) or types.is_large_list_view(data_type):
        return pa.large_list(_plain_field(data_type.value_field))
    if types.is_list(data_type) or types.is_list_view(data_type):
        return pa.list_(_plain_field(data_type.value_field))
    return data_type


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that batches of `schema` are stored with."""
    return pa.schema([_plain_field(field) for field in schema], metadata=schema.metadata)


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the types of `schema`, its plain schema; itself when there is nothing to do.

    Raises UnsupportedColumnType for what Arrow cannot decode.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [plain_array(batch.column(i), schema.field(i).type) for i in range(len(schema))]
    if not columns:
        return batch.replace_schema_metadata(schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """`array` as `target`, the plain type of its type; raises UnsupportedColumnType."""
    if array.type.equals(target):
        return array
    try:
        if pa.types.is_dictionary(array.type):
            values = plain_array(array.dictionary, target)
            return values.take(array.indices)
        if pa.types.is_run_end_encoded(array.type):
            return plain_array(compute.run_end_decode(array), target)
        if pa.types.is_struct(array.type):
            return _plain_struct(array, target)
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            return _plain_list(array, target)
        return array.cast(target)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UnsupportedColumnType(str(array.type)) from error


# Arrow's own cast of nested columns goes wrong for slices with lists of nulls in them, so the
# children that need it are cast one by one and put together again.


def _plain_struct(array: pa.StructArray, target: pa.DataType) -> pa.StructArray:
    fields = [target.field(i) for i in range(target.num_fields)]
    children = [plain_array(array.field(i), field.type) for i, field in enumerate(fields)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _plain_list(array: pa.ListArray | pa.LargeListArray, target: pa.DataType) -> pa.Array:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    values = plain_array(array.values.slice(first, last - first), target.value_type)
    offsets = compute.subtract(array.offsets, pa.scalar(first, array.offsets.type))
    mask = array.is_null() if array.null_count else None
    return type(array).from_arrays(offsets, values, type=target, mask=mask)


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all rows in order; the only one itself when it is alone."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
