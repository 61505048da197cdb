"""Indexes of partitions that are being served, decoded once for their many readers."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from shuffle.partition_file import read_index
from shuffle.partition_index import Index
from shuffle.partition_name import INDEX_SUFFIX

#: Which file it was: another one of the same name is read anew.
_Version = tuple[int, int, int]


class IndexCache:
    """The indexes that were read last, of `blocks_max` blocks together. Thread-safe.

    Whether the file is still there, and still the same, is looked at each time: a partition that is
    lost or damaged meanwhile is found as if nothing were remembered (P34, P38).
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._lock = threading.Lock()
        self._blocks = 0
        self._indexes: OrderedDict[str, tuple[_Version, Index]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._indexes)

    def read(self, base: str, name: str) -> Index:
        """As `read_index`, which see."""
        try:
            stat = os.stat(base + INDEX_SUFFIX)
        except OSError:
            return read_index(base, name)
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        with self._lock:
            found = self._indexes.get(base)
            if found is not None and found[0] == version:
                self._indexes.move_to_end(base)
                return found[1]
        index = read_index(base, name)
        with self._lock:
            self._forget(base)
            self._indexes[base] = (version, index)
            self._blocks += len(index.blocks)
            while self._blocks > self._blocks_max:
                self._forget(next(iter(self._indexes)))
        return index

    def _forget(self, base: str) -> None:
        _, index = self._indexes.pop(base, (None, None))
        if index is not None:
            self._blocks -= len(index.blocks)
