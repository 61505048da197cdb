"""Hashes of key columns: equal values hash equally, whatever type carries them.

Both inputs of a join must send equal keys to the same subtask, though one side may hold them as
int32 and the other as int64, and every attempt must do so in every process. So the hash is ours,
of the value and not of its representation, and must never change: a partition written by one
release may be joined with one written by the next. The tests pin it by examples.

Classes of types whose equal values hash equally (`key_type_class`):
    integer      all widths, signed or not
    float        all widths; -0.0 is 0.0, and all NaNs are one value
    decimal      all widths and scales, by value: 1.50 is 1.5
    boolean, string, binary (each with its large and view forms; a fixed size is binary, too)
    date, time, duration, timestamp, timestamp with zone: all units
    null
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from shuffle.arrow_blocks import plain_type
from shuffle.errors import KeyTypesDiffer, MissingKeyColumn, UnsupportedKeyType

Hashes = npt.NDArray[np.uint64]

#: Rows hashed at a time, so that all intermediate arrays stay in the processor's cache.
_CHUNK_ROWS = 1 << 14
#: Strings above this length are hashed one by one by BLAKE2b; the others eight bytes at a time.
_VECTOR_BYTES_MAX = 256

_NULL_HASH = np.uint64(0x9AE16A3B2F90404F)
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_WORD_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
#: Decimals are hashed as residues modulo this prime, where dividing by ten is exact.
_DECIMAL_PRIME = 2**31 - 1

_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def hash_rows(batch: pa.RecordBatch, keys: Sequence[str]) -> Hashes:
    """A 64-bit hash for each row, of its values in the columns `keys`, in that order.

    Raises MissingKeyColumn and UnsupportedKeyType.
    """
    hashes: Hashes | None = None
    for key in keys:
        column = _hash_column(key_column(batch, key), key)
        # Not commutative, so that (a, b) and (b, a) differ.
        hashes = column if hashes is None else _mixed(hashes * _WORD_MULTIPLIER + column)
    if hashes is None:
        raise ValueError("a hash exchange needs at least one key")
    return hashes


def key_column(batch: pa.RecordBatch, key: str) -> pa.Array:
    """The column named `key`; raises MissingKeyColumn unless there is exactly one."""
    indices = batch.schema.get_all_field_indices(key)
    if len(indices) != 1:
        raise MissingKeyColumn(key, batch.schema.names)
    return batch.column(indices[0])


def key_type_classes(schema: pa.Schema, keys: Sequence[str]) -> tuple[str, ...]:
    """The class of each key's type; raises MissingKeyColumn and UnsupportedKeyType."""
    classes = []
    for key in keys:
        indices = schema.get_all_field_indices(key)
        if len(indices) != 1:
            raise MissingKeyColumn(key, schema.names)
        classes.append(key_type_class(schema.field(indices[0]).type, key))
    return tuple(classes)


def check_key_types_agree(left: Sequence[str], right: Sequence[str]) -> None:
    """Raises KeyTypesDiffer when equal keys of two inputs would not hash equally.

    The arguments are results of `key_type_classes`. A column of nulls agrees with every class.
    """
    pairs = zip(left, right, strict=False)
    if len(left) != len(right) or any(a != b and "null" not in (a, b) for a, b in pairs):
        raise KeyTypesDiffer(left, right)


def key_type_class(data_type: pa.DataType, key: str) -> str:
    """The class of a key column's type; raises UnsupportedKeyType."""
    plain = plain_type(data_type)
    types = pa.types
    if types.is_timestamp(plain):
        return "timestamp" if plain.tz is None else "timestamp with zone"
    tests: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("boolean", types.is_boolean),
        ("string", lambda t: types.is_string(t) or types.is_large_string(t)),
        (
            "binary",
            lambda t: types.is_binary(t) or types.is_large_binary(t) or _is_fixed_size_binary(t),
        ),
        ("date", types.is_date),
        ("time", types.is_time),
        ("duration", types.is_duration),
        ("null", types.is_null),
    )
    for name, is_of_class in tests:
        if is_of_class(plain):
            return name
    raise UnsupportedKeyType(key, str(data_type))


def _is_fixed_size_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(data_type))


def _hash_column(array: pa.Array, key: str) -> Hashes:
    type_class = key_type_class(array.type, key)
    if type_class == "null":
        return np.full(len(array), _NULL_HASH, dtype=np.uint64)
    if pa.types.is_dictionary(array.type):
        # Hashed once for each distinct value, then looked up.
        values = _hash_column(array.dictionary, key)
        indices = compute.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)
        hashes = values[indices] if len(values) else np.zeros(len(array), dtype=np.uint64)
        return _with_nulls(hashes, array.is_null())
    if pa.types.is_run_end_encoded(array.type):
        return _hash_column(compute.run_end_decode(array), key)
    if type_class in ("string", "binary"):
        hashes = _hash_strings(array)
    else:
        hashes = _mixed(_words(array, type_class))
    return _with_nulls(hashes, array.is_null()) if array.null_count else hashes


def _with_nulls(hashes: Hashes, is_null: pa.Array) -> Hashes:
    hashes[is_null.to_numpy(zero_copy_only=False)] = _NULL_HASH
    return hashes


def _mixed(words: Hashes) -> Hashes:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014) for each word, in place."""
    if not words.flags.writeable:
        words = words.copy()
    for start in range(0, len(words), _CHUNK_ROWS):
        chunk = words[start : start + _CHUNK_ROWS]
        shifted = np.empty_like(chunk)
        chunk += _INCREMENT
        np.right_shift(chunk, np.uint64(30), out=shifted)
        chunk ^= shifted
        chunk *= _MULTIPLIER_1
        np.right_shift(chunk, np.uint64(27), out=shifted)
        chunk ^= shifted
        chunk *= _MULTIPLIER_2
        np.right_shift(chunk, np.uint64(31), out=shifted)
        chunk ^= shifted
    return words


# ------------------------------------------------------------------------- fixed-width values


def _words(array: pa.Array, type_class: str) -> Hashes:
    """One word for each value, equal for equal values of the class; of nulls, any."""
    if type_class == "decimal":
        return _decimal_words(array)
    if type_class == "boolean":
        return _filled(array.cast(pa.uint8())).astype(np.uint64)
    if type_class == "float":
        return _float_words(array)
    if type_class == "integer":
        return _filled(array).astype(np.int64).view(np.uint64)
    if type_class == "date":
        return _filled(array.cast(pa.date32()).cast(pa.int32())).astype(np.int64).view(np.uint64)
    # Of times: nanoseconds modulo 2**64, which are equal when the instants are, whatever the unit.
    unit_ns = np.int64(_UNIT_NS[array.type.unit])
    raw = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return (_filled(raw).astype(np.int64) * unit_ns).view(np.uint64)


def _filled(array: pa.Array) -> npt.NDArray[Any]:
    filled = compute.fill_null(array, 0) if array.null_count else array
    values: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _float_words(array: pa.Array) -> Hashes:
    values = _filled(array.cast(pa.float64())) + np.float64(0.0)  # -0.0 + 0.0 is 0.0
    words = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    words[np.isnan(words.view(np.float64))] = np.uint64(0x7FF8000000000000)
    return words


def _decimal_words(array: pa.Array) -> Hashes:
    """unscaled / 10**scale modulo a prime, in which the same value has one residue at any scale."""
    limbs = array.type.bit_width // 64
    if limbs == 0:
        array, limbs = array.cast(pa.decimal64(18, array.type.scale)), 1
    data = array.buffers()[1]
    words = np.frombuffer(data, dtype=np.uint64)[
        array.offset * limbs : (array.offset + len(array)) * limbs
    ].reshape(-1, limbs)
    prime = np.int64(_DECIMAL_PRIME)
    radix = np.int64(2**64 % _DECIMAL_PRIME)
    residue = words[:, -1].view(np.int64) % prime
    for limb in range(limbs - 2, -1, -1):
        low = (words[:, limb] % np.uint64(_DECIMAL_PRIME)).astype(np.int64)
        residue = (residue * radix + low) % prime
    inverse = np.int64(pow(10, -array.type.scale, _DECIMAL_PRIME))
    return (residue * inverse % prime).view(np.uint64)


# ------------------------------------------------------------------------------------ strings


def _hash_strings(array: pa.Array) -> Hashes:
    plain = plain_type(array.type)
    if _is_fixed_size_binary(plain):
        plain = pa.binary()
    array = array if array.type.equals(plain) else array.cast(plain)
    if array.null_count:
        # What lies under a null is not a value; the caller overwrites these hashes.
        array = array.fill_null(b"" if plain in (pa.binary(), pa.large_binary()) else "")
    large = plain in (pa.large_string(), pa.large_binary())
    _, offset_buffer, data = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.zeros(len(array), dtype=np.uint64)
    all_offsets = np.frombuffer(offset_buffer, dtype=np.int64 if large else np.int32)
    offsets = all_offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    used = raw[int(offsets[0]) : int(offsets[-1])]
    hashes = _hash_slices(_windows(used), starts - offsets[0], lengths)
    for row in np.flatnonzero(lengths > _VECTOR_BYTES_MAX).tolist():
        value = raw[offsets[row] : offsets[row + 1]].tobytes()
        digest = hashlib.blake2b(value, digest_size=8).digest()
        hashes[row] = np.frombuffer(digest, dtype="<u8")[0]
    return hashes


def _windows(data: npt.NDArray[np.uint8]) -> Hashes:
    """For each byte the eight bytes from it on, as little-endian words that overlap."""
    padded = np.zeros(len(data) + 8, dtype=np.uint8)
    padded[: len(data)] = data
    return np.ndarray(len(data) + 1, dtype="<u8", buffer=padded.data, strides=(1,))


def _hash_slices(
    windows: Hashes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Hashes:
    """Folds the words of each slice, the last one masked to the slice's end, into its length."""
    hashes = lengths.astype(np.uint64) * _INCREMENT
    for first in range(0, len(starts), _CHUNK_ROWS):
        rows = slice(first, first + _CHUNK_ROWS)
        _fold_slices(windows, starts[rows], lengths[rows], hashes[rows])
    return _mixed(hashes)


def _fold_slices(
    windows: Hashes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    hashes: Hashes,
) -> None:
    lengths = np.where(lengths > _VECTOR_BYTES_MAX, 0, lengths)
    for done in range(0, int(lengths.max(initial=0)), 8):
        active = np.flatnonzero(lengths > done)
        missing = np.maximum(8 - (lengths[active] - done), 0).astype(np.uint64)
        words = windows[starts[active] + done]
        # A word's bytes beyond the end are its high ones: shifted out, and zeros shifted in.
        words = (words << (missing * np.uint64(8))) * _WORD_MULTIPLIER
        folded = (hashes[active] ^ words) * _MULTIPLIER_1
        folded ^= folded >> np.uint64(32)
        hashes[active] = folded
