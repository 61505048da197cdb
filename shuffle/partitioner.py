"""Which rows go to which subpartition.

A partitioner splits each batch into at most one piece for each subpartition, in ascending order of
subpartition; rows keep their order within a piece. What it does depends on nothing but the rows it
has seen, so that every attempt of a determinate task writes the same partition. Batches have plain
columns (`arrow_blocks.plain_batch`), for Arrow cannot gather rows of views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from shuffle.arrow_blocks import plain_array, plain_type
from shuffle.errors import UnsupportedKeyType
from shuffle.key_hash import hash_rows, key_column, key_type_class

Piece = tuple[int, pa.RecordBatch]

SUBPARTITIONS_MAX = 1 << 16
#: A rebalance deals single rows at first, so that a few heavy rows are spread, then whole runs of
#: rows, which are cheap to cut and to join.
_SINGLE_ROWS = 1024
_RUN_ROWS = 1024


class Partitioner(Protocol):
    """Splits batches over `subpartitions` subpartitions."""

    @property
    def subpartitions(self) -> int:
        """Number of subpartitions, at least 1."""
        ...

    def split(self, batch: pa.RecordBatch) -> list[Piece]:
        """(subpartition, rows) for each subpartition that gets any, ascending."""
        ...


class SinglePartitioner:
    """All rows to the only subpartition: `broadcast` (everybody reads it) and `forward`."""

    subpartitions = 1

    def split(self, batch: pa.RecordBatch) -> list[Piece]:
        """The batch itself."""
        return [(0, batch)] if batch.num_rows else []


class HashPartitioner:
    """`hash(keys)`: rows with equal keys meet (see `key_hash` for what is equal)."""

    def __init__(self, keys: Sequence[str], subpartitions: int) -> None:
        _check_subpartitions(subpartitions)
        if not keys:
            raise ValueError("a hash exchange needs at least one key")
        self.keys = tuple(keys)
        self.subpartitions = subpartitions

    def split(self, batch: pa.RecordBatch) -> list[Piece]:
        """Raises MissingKeyColumn and UnsupportedKeyType."""
        hashes = hash_rows(batch, self.keys)
        if self.subpartitions == 1:
            return [(0, batch)] if batch.num_rows else []
        # The high half, scaled: no division, and no bias that would matter below 2**16.
        high = hashes >> np.uint64(32)
        targets = ((high * np.uint64(self.subpartitions)) >> np.uint64(32)).astype(np.uint16)
        return _gather(batch, targets, self.subpartitions)


class RebalancePartitioner:
    """`rebalance`: rows in turn, whatever they hold.

    The subpartition of a row depends on its number in the task's output and on the subtask, which
    begins at its own index: subtasks with few rows do not all begin with the same consumer.
    """

    def __init__(self, subpartitions: int, subtask: int) -> None:
        _check_subpartitions(subpartitions)
        self.subpartitions = subpartitions
        self._first = subtask % subpartitions
        self._row = 0

    def split(self, batch: pa.RecordBatch) -> list[Piece]:
        """Cuts the batch into runs and joins those of each subpartition."""
        runs: dict[int, list[pa.RecordBatch]] = {}
        start = 0
        while start < batch.num_rows:
            turn, run_rows = self._turn()
            rows = min(run_rows, batch.num_rows - start)
            subpartition = (self._first + turn) % self.subpartitions
            runs.setdefault(subpartition, []).append(batch.slice(start, rows))
            start += rows
            self._row += rows
        return [
            (subpartition, pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces))
            for subpartition, pieces in sorted(runs.items())
        ]

    def _turn(self) -> tuple[int, int]:
        """Whose turn the next row is, counted from the first row, and for how many rows."""
        if self.subpartitions == 1:
            return 0, 1 << 62
        if self._row < _SINGLE_ROWS:
            return self._row, 1
        beyond = self._row - _SINGLE_ROWS
        return _SINGLE_ROWS + beyond // _RUN_ROWS, _RUN_ROWS - beyond % _RUN_ROWS


class RangePartitioner:
    """`range(keys)`: subpartition i gets the keys above boundary i-1, up to boundary i inclusive.

    Keys are compared column by column. NaN is above all numbers, and null above all values; both
    may be keys but not boundaries.
    """

    def __init__(self, keys: Sequence[str], boundaries: Sequence[Sequence[object]]) -> None:
        """`boundaries` are ascending tuples of key values, one less than the subpartitions."""
        if not keys:
            raise ValueError("a range exchange needs at least one key")
        if any(len(boundary) != len(keys) for boundary in boundaries):
            raise ValueError(f"each range boundary must have {len(keys)} values, one for each key")
        if any(value is None or value != value for boundary in boundaries for value in boundary):
            raise ValueError("a range boundary must not be null or NaN")
        self.keys = tuple(keys)
        self.boundaries = tuple(tuple(boundary) for boundary in boundaries)
        self.subpartitions = len(self.boundaries) + 1
        _check_subpartitions(self.subpartitions)

    def split(self, batch: pa.RecordBatch) -> list[Piece]:
        """Raises MissingKeyColumn, UnsupportedKeyType; ValueError for boundaries of other types."""
        columns = [_orderable(key_column(batch, key), key) for key in self.keys]
        limits = [
            _boundary_column(key, column, [boundary[i] for boundary in self.boundaries])
            for i, (key, column) in enumerate(zip(self.keys, columns, strict=True))
        ]
        # For all rows at once: how many boundaries are below the row's key.
        low = np.zeros(batch.num_rows, dtype=np.int64)
        high = np.full(batch.num_rows, len(self.boundaries), dtype=np.int64)
        while (open_rows := low < high).any():
            middle = (low + high) // 2
            probe = pa.array(np.minimum(middle, len(self.boundaries) - 1))
            above = _lexicographically_above(columns, [limit.take(probe) for limit in limits])
            low = np.where(open_rows & above, middle + 1, low)
            high = np.where(open_rows & ~above, middle, high)
        return _gather(batch, low.astype(np.uint16), self.subpartitions)


def _check_subpartitions(subpartitions: int) -> None:
    if not 1 <= subpartitions <= SUBPARTITIONS_MAX:
        raise ValueError(f"subpartitions {subpartitions} must be in 1..{SUBPARTITIONS_MAX}")


def _gather(
    batch: pa.RecordBatch, targets: npt.NDArray[np.uint16], subpartitions: int
) -> list[Piece]:
    """One copy of the batch, ordered by target (a stable counting sort), cut without copying."""
    counts = np.bincount(targets, minlength=subpartitions)
    chosen = np.flatnonzero(counts)
    if len(chosen) == 0:
        return []
    if len(chosen) == 1:
        return [(int(chosen[0]), batch)]
    order = np.argsort(targets, kind="stable")
    ordered = batch.take(pa.array(order))
    ends = np.cumsum(counts)
    return [
        (int(i), ordered.slice(int(ends[i] - counts[i]), int(counts[i]))) for i in chosen.tolist()
    ]


def _orderable(column: pa.Array, key: str) -> pa.Array:
    if key_type_class(column.type, key) == "null":
        raise UnsupportedKeyType(key, str(column.type))
    return plain_array(column, plain_type(column.type))


def _boundary_column(key: str, column: pa.Array, values: list[object]) -> pa.Array:
    try:
        return pa.array(values, type=column.type)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"range boundaries of {key!r} are not of type {column.type}") from error


def _lexicographically_above(
    columns: Sequence[pa.Array], limits: Sequence[pa.Array]
) -> npt.NDArray[np.bool_]:
    above = np.zeros(len(columns[0]), dtype=bool)
    equal_so_far = np.ones(len(columns[0]), dtype=bool)
    for column, limit in zip(columns, limits, strict=True):
        beyond = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        greater = _known(compute.greater(column, limit)) | beyond
        above |= equal_so_far & greater
        equal_so_far &= _known(compute.equal(column, limit)) & ~beyond
    return above


def _known(condition: pa.Array) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = condition.fill_null(False).to_numpy(zero_copy_only=False)
    return known
