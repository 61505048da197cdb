"""What can go wrong with a partition, told apart by who has to act.

ShuffleError
    PartitionLost            the producer must run again (P34)
        PartitionNotFound    nobody holds it under this name
        PartitionDamaged     it is there, but its bytes are not the ones that were written (P38)
    PartitionUnreachable     its holder did not answer in time; the data may be fine (P41)
    PartitionIncomplete      a writer was used after its commit or abort
    OutputRefused            a shuffle service does not take an output; another one may
    ShuffleUsageError        the job is wrong, and running it again will not help
        MissingKeyColumn
        UnsupportedKeyType
        KeyTypesDiffer
        SchemasDiffer
        UnsupportedColumnType
"""

from __future__ import annotations

from collections.abc import Sequence


class ShuffleError(Exception):
    """Base of all errors of the data plane."""


class PartitionLost(ShuffleError):
    """The partition cannot be had any more: its producer must run again (P34)."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"partition {name} is lost: {reason}")
        self.name = name
        self.reason = reason


class PartitionNotFound(PartitionLost):
    """Nobody holds a finished partition of this name."""

    def __init__(self, name: str, reason: str = "no finished partition of this name") -> None:
        super().__init__(name, reason)


class PartitionDamaged(PartitionLost):
    """The partition's files are there but are not what was written: short, flipped, unreadable."""


class PartitionUnreachable(ShuffleError):
    """The holder of the partition gave no answer within the retry timeout (P41).

    Not a lost partition: whether the holder is dead is for the JobManager to say.
    """

    def __init__(self, name: str, address: str, last_error: str) -> None:
        super().__init__(f"partition {name} cannot be fetched from {address}: {last_error}")
        self.name = name
        self.address = address
        self.last_error = last_error


class PartitionIncomplete(ShuffleError):
    """A writer was used after its commit or abort."""


class OutputRefused(ShuffleError):
    """A shuffle service did not take a task's output: it is full, leaves, or cannot be reached.

    Nothing is wrong with the task: its subtask is to run again with another target.
    """


class ShuffleUsageError(ShuffleError):
    """The job asks for what cannot be done; running it again will not help."""


class MissingKeyColumn(ShuffleUsageError):
    """A key of a hash or range exchange is not a column of the data."""

    def __init__(self, key: str, available: Sequence[str]) -> None:
        columns = ", ".join(available) if available else "none"
        super().__init__(f"key column {key!r} does not exist; the columns are: {columns}")
        self.key = key
        self.available = tuple(available)


class UnsupportedKeyType(ShuffleUsageError):
    """A key column has a type whose values cannot be hashed or ordered."""

    def __init__(self, key: str, type_name: str) -> None:
        super().__init__(
            f"key column {key!r} has type {type_name}, which cannot be a key; "
            "cast it to a number, string, binary, decimal, boolean, date or time"
        )
        self.key = key


class KeyTypesDiffer(ShuffleUsageError):
    """Two hash inputs of one consumer have keys whose equal values would not meet."""

    def __init__(self, left: Sequence[str], right: Sequence[str]) -> None:
        super().__init__(
            f"the inputs' key types differ: ({', '.join(left)}) and ({', '.join(right)}); "
            "cast the keys of one input to the types of the other"
        )
        self.left = tuple(left)
        self.right = tuple(right)


class SchemasDiffer(ShuffleUsageError):
    """Batches that belong together have different schemas."""

    def __init__(self, where: str, expected: str, found: str) -> None:
        super().__init__(f"{where}: expected the schema [{expected}] but found [{found}]")


class UnsupportedColumnType(ShuffleUsageError):
    """A column has a type that cannot be stored in a partition."""

    def __init__(self, type_name: str) -> None:
        super().__init__(
            f"columns of type {type_name} cannot be exchanged; cast them to a plain type"
        )
