"""Rows of modelled data, and the partition files that hold them.

MODEL: a row is its identity, the number that a source gave it; what real rows carry beside that is
a number of bytes. Where an indeterminate vertex has made rows, each also says which attempt made
it (`maker`), so that mixed outcomes of two attempts can be seen. A partition is an index file and a
data file as a real one has them, with checksums that tell damage, but not in the real format. Hash
and range exchanges both place rows by a hash of their identity; other columns do not exist.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise

import google_crc32c

from holdover.ids import AttemptKey
from holdover.jobgraph.workload_draws import order_shift, row_bytes_until
from holdover.v1.job_pb2 import DistributionKind
from shuffle.finished_record import ends_in_its_crc32c

_MAGIC = 0x484C44524F575331
_WORD_BYTES = 8
_CHECKSUM_BYTES = 4
#: Words before the entries of an index.
_HEAD_WORDS = 7
_ENTRY_WORDS = 3
_HASH_FACTOR = 0x9E3779B97F4A7C15
_WORD_MASK = (1 << 64) - 1

#: Partitions whose content is kept in its form for reading.
_PARTITIONS_KEPT_MAX = 1 << 12

_ATTEMPT_BITS = 16
_EPOCH_BITS = 16
_SUBTASK_BITS = 16


class DamagedRows(Exception):
    """A partition's files are not what was written."""


@dataclass(slots=True)
class Rows:
    """Identities in order, and who made each; `makers` is empty when nobody is told apart."""

    ids: array[int] = field(default_factory=partial(array, "q"))
    makers: array[int] = field(default_factory=partial(array, "q"))

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, other: Rows) -> None:
        """Add the rows of another batch behind."""
        if self.makers or other.makers:
            self.makers.extend([0] * (len(self.ids) - len(self.makers)))
            self.makers.extend(other.makers or [0] * len(other.ids))
        self.ids.extend(other.ids)

    def rotated(self, attempt: int) -> Rows:
        """In the order of an attempt that does not promise one."""
        shift = order_shift(len(self.ids), attempt, ordered=False)
        return Rows(self.ids[shift:] + self.ids[:shift], self.makers[shift:] + self.makers[:shift])

    def made_by(self, maker: int) -> Rows:
        """The same rows, all of one maker."""
        return Rows(self.ids, array("q", [maker]) * len(self.ids))

    def taken(self, positions: Sequence[int]) -> Rows:
        """The rows at these positions."""
        return Rows(
            array("q", [self.ids[i] for i in positions]),
            array("q", [self.makers[i] for i in positions] if self.makers else ()),
        )


def maker_of(key: AttemptKey, vertex: int) -> int:
    """A number that tells attempts of a job apart; `vertex` is the vertex's place in the graph."""
    number = vertex + 1
    for part, bits in (
        (key.subtask, _SUBTASK_BITS),
        (key.epoch, _EPOCH_BITS),
        (key.attempt, _ATTEMPT_BITS),
    ):
        number = number << bits | part & (1 << bits) - 1
    return number


def maker_subtask(maker: int) -> tuple[int, int]:
    """Vertex place and subtask of a maker: all rows of one subtask must have one maker."""
    subtask = maker >> (_EPOCH_BITS + _ATTEMPT_BITS)
    return (subtask >> _SUBTASK_BITS) - 1, subtask & (1 << _SUBTASK_BITS) - 1


@dataclass(frozen=True, slots=True)
class ModelledPartition:
    """One output of one attempt.

    Attributes:
        subpartitions: how many it has.
        rows: by subpartition, then in writing order.
        entries: subpartition, rows and bytes of each that has rows, ascending.
        data_bytes: size of the data file that a real one would have.
    """

    subpartitions: int
    rows: Rows
    entries: tuple[tuple[int, int, int], ...]
    data_bytes: int

    @classmethod
    def of(
        cls, rows: Rows, kind: int, subpartitions: int, subtask: int, output_bytes: int
    ) -> ModelledPartition:
        """Spread rows as an exchange does, each with its share of the bytes.

        Bytes without rows are spread evenly.
        """
        total = len(rows.ids)
        if total == 0:
            return cls(subpartitions, rows, (), output_bytes)
        data_bytes = row_bytes_until(total, total, output_bytes)
        if subpartitions == 1:
            return cls(1, rows, ((0, total, data_bytes),), data_bytes)
        placed: dict[int, list[int]] = {}
        for position, target in enumerate(_targets(rows.ids, kind, subpartitions, subtask)):
            placed.setdefault(target, []).append(position)
        entries = []
        order: list[int] = []
        for target in sorted(placed):
            positions = placed[target]
            n_bytes = sum(
                row_bytes_until(row + 1, total, output_bytes)
                - row_bytes_until(row, total, output_bytes)
                for row in positions
            )
            entries.append((target, len(positions), n_bytes))
            order += positions
        return cls(subpartitions, rows.taken(order), tuple(entries), data_bytes)

    def subpartition_bytes(self) -> list[int]:
        """Bytes of each subpartition."""
        if not self.entries:
            total, count = self.data_bytes, self.subpartitions
            return [
                end - start for start, end in pairwise(total * i // count for i in range(count + 1))
            ]
        sizes = [0] * self.subpartitions
        for subpartition, _, n_bytes in self.entries:
            sizes[subpartition] = n_bytes
        return sizes

    def encode(self) -> tuple[bytes, bytes]:
        """Contents of the index file and of the data file."""
        data = (self.rows.ids + self.rows.makers).tobytes()
        head = [_MAGIC, zlib.crc32(data), self.subpartitions, self.data_bytes]
        head += [len(self.rows.ids), len(self.rows.makers), len(self.entries)]
        body = array("q", [*head, *chain.from_iterable(self.entries), 0])
        checked = body.tobytes()[:-_CHECKSUM_BYTES]
        return checked + google_crc32c.value(checked).to_bytes(_CHECKSUM_BYTES, "little"), data


def index_checksum(index: bytes) -> int:
    """What stands for the whole content of a partition: the index ends in it, as a real one."""
    return int.from_bytes(index[-_CHECKSUM_BYTES:], "little")


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition as its files describe it.

    Attributes:
        subpartitions: how many it has.
        data_bytes: as in `ModelledPartition`.
        rows: all of them, by subpartition.
        targets: the subpartitions that have rows, ascending.
        row_ends: for each of `targets`, how many rows there are up to its end.
        byte_ends: likewise for bytes.
    """

    subpartitions: int
    data_bytes: int
    rows: Rows
    targets: array[int]
    row_ends: array[int]
    byte_ends: array[int]

    def part(self, first: int, end: int) -> tuple[Rows, int]:
        """Rows and bytes of subpartitions `first <= s < end`; the rows are not to be changed."""
        if not self.targets:
            total, count = self.data_bytes, self.subpartitions
            return self.rows, total * end // count - total * first // count
        low = bisect_left(self.targets, first)
        high = bisect_left(self.targets, end, low)
        if low == high:
            return NO_ROWS, 0
        start, from_byte = (self.row_ends[low - 1], self.byte_ends[low - 1]) if low else (0, 0)
        until = self.row_ends[high - 1]
        rows = Rows(self.rows.ids[start:until], self.rows.makers[start:until])
        return rows, self.byte_ends[high - 1] - from_byte


#: Never changed.
NO_ROWS = Rows()


@lru_cache(maxsize=_PARTITIONS_KEPT_MAX)
def stored_partition(index: bytes, data: bytes) -> StoredPartition:
    """What these files hold. Raises DamagedRows. Many read one partition, about at one time."""
    words = _checked_index(index)
    _, checksum, subpartitions, data_bytes, n_rows, _, n_entries = words[:_HEAD_WORDS]
    if zlib.crc32(data) != checksum:
        raise DamagedRows("the data is not what the index describes")
    entries_end = _HEAD_WORDS + n_entries * _ENTRY_WORDS
    numbers = array("q")
    numbers.frombytes(data)
    return StoredPartition(
        subpartitions,
        data_bytes,
        Rows(numbers[:n_rows], numbers[n_rows:]),
        words[_HEAD_WORDS:entries_end:_ENTRY_WORDS],
        array("q", accumulate(words[_HEAD_WORDS + 1 : entries_end : _ENTRY_WORDS])),
        array("q", accumulate(words[_HEAD_WORDS + 2 : entries_end : _ENTRY_WORDS])),
    )


def _checked_index(index: bytes) -> array[int]:
    if len(index) < (_HEAD_WORDS + 1) * _WORD_BYTES or len(index) % _WORD_BYTES:
        raise DamagedRows(f"the index has {len(index)} bytes")
    words = array("q")
    words.frombytes(index)
    if words[0] != _MAGIC or not ends_in_its_crc32c(index):
        raise DamagedRows("the index is not what was written")
    return words


def _targets(ids: array[int], kind: int, subpartitions: int, subtask: int) -> Iterable[int]:
    if kind == DistributionKind.DISTRIBUTION_KIND_REBALANCE:
        return [(subtask + row) % subpartitions for row in range(len(ids))]
    # The high half, scaled, as the real one does with another hash.
    return [((number * _HASH_FACTOR & _WORD_MASK) >> 32) * subpartitions >> 32 for number in ids]
