"""Types of option values: how each is written, what it means, and what is allowed.

Durations and sizes always carry a unit ("50 s", "64 kb"): a number that means seconds here and
milliseconds there makes workers flap without a word (P63).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

# No user, password, port or query: what has no place there cannot get into a log.
_OBJECT_URL = re.compile(
    r"(s3|gs|az|memory)://[A-Za-z0-9][A-Za-z0-9._-]{0,254}(/[A-Za-z0-9._=-]{1,255}){0,32}"
)
_ENDPOINT = re.compile(
    r"(?:https?://)?((?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5}))", re.ASCII
)
_ENDPOINTS_MAX = 9
_PORT_MAX = 65_535
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", re.ASCII)
#: Milliseconds in each unit of time.
_DURATION_UNITS: dict[str, int] = {
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
#: Bytes in each unit of size.
_SIZE_UNITS: dict[str, int] = {
    "bytes": 1,
    "b": 1,
    "kb": 1 << 10,
    "mb": 1 << 20,
    "gb": 1 << 30,
    "tb": 1 << 40,
}


class ValueType(Protocol[T_co]):
    """How the text of an option becomes a value."""

    @property
    def name(self) -> str:
        """For the documentation: "duration", "size", ..."""
        ...

    @property
    def allowed(self) -> str:
        """What may be written, to complete the sentence "... must be"."""
        ...

    def parse(self, text: str) -> T_co:
        """The value that `text` stands for; ValueError when it is none of the allowed."""
        ...


def format_duration(seconds: float) -> str:
    """A duration in the largest unit that gives a whole number: 90.0 is "90 s"."""
    milliseconds = round(seconds * 1000)
    for unit, size in reversed(_DURATION_UNITS.items()):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def format_size(size_bytes: int) -> str:
    """A size in the largest unit that gives a whole number: 65536 is "64 kb"."""
    for unit, size in reversed(_SIZE_UNITS.items()):
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size} {unit}"
    return f"{size_bytes} b"


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time; the value is seconds. Written as number and unit: "300 ms", "1.5 h"."""

    minimum_s: float
    maximum_s: float = 365 * 86_400.0

    @property
    def name(self) -> str:
        return "duration"

    @property
    def allowed(self) -> str:
        units = ", ".join(_DURATION_UNITS)
        return (
            f"a duration of {format_duration(self.minimum_s)} to {format_duration(self.maximum_s)},"
            f" with one of the units {units}"
        )

    def parse(self, text: str) -> float:
        match = _NUMBER_AND_UNIT.fullmatch(text)
        if match is None or match[2].lower() not in _DURATION_UNITS:
            raise ValueError(text)
        seconds = float(match[1]) * _DURATION_UNITS[match[2].lower()] / 1000
        if not self.minimum_s <= seconds <= self.maximum_s:
            raise ValueError(text)
        return seconds


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes. Written as number and unit: "64 kb"; a kb has 1024 bytes."""

    minimum_bytes: int
    maximum_bytes: int = 1 << 50

    @property
    def name(self) -> str:
        return "size"

    @property
    def allowed(self) -> str:
        units = ", ".join(_SIZE_UNITS)
        return (
            f"a size of {format_size(self.minimum_bytes)} to {format_size(self.maximum_bytes)},"
            f" with one of the units {units}"
        )

    def parse(self, text: str) -> int:
        match = _NUMBER_AND_UNIT.fullmatch(text)
        if match is None or match[2].lower() not in _SIZE_UNITS:
            raise ValueError(text)
        size_bytes = int(float(match[1]) * _SIZE_UNITS[match[2].lower()])
        if not self.minimum_bytes <= size_bytes <= self.maximum_bytes:
            raise ValueError(text)
        return size_bytes


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number. `also` is one more number that is allowed, with a meaning of its own."""

    minimum: int
    maximum: int
    also: int | None = None

    @property
    def name(self) -> str:
        return "integer"

    @property
    def allowed(self) -> str:
        also = "" if self.also is None else f"{self.also} or "
        return f"{also}a whole number from {self.minimum} to {self.maximum}"

    def parse(self, text: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise ValueError(text)
        number = int(text)
        if number != self.also and not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number with a fraction."""

    minimum: float
    maximum: float

    @property
    def name(self) -> str:
        return "number"

    @property
    def allowed(self) -> str:
        return f"a number from {self.minimum:g} to {self.maximum:g}"

    def parse(self, text: str) -> float:
        if _DECIMAL.fullmatch(text) is None:
            raise ValueError(text)
        number = float(text)
        if not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number


@dataclass(frozen=True, slots=True)
class Boolean:
    """true or false."""

    @property
    def name(self) -> str:
        return "boolean"

    @property
    def allowed(self) -> str:
        return "true or false"

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return "choice"

    @property
    def allowed(self) -> str:
        return self.words[0] if len(self.words) == 1 else f"one of {', '.join(self.words)}"

    def parse(self, text: str) -> str:
        for word in self.words:
            if text.lower() == word.lower():
                return word
        raise ValueError(text)


@dataclass(frozen=True, slots=True)
class Text:
    """Text of one form. `meaning` says in words what `pattern` allows."""

    pattern: re.Pattern[str]
    meaning: str

    @property
    def name(self) -> str:
        return "text"

    @property
    def allowed(self) -> str:
        return self.meaning

    def parse(self, text: str) -> str:
        if self.pattern.fullmatch(text) is None:
            raise ValueError(text)
        return text


@dataclass(frozen=True, slots=True)
class DirectoryPath:
    """A directory: absolute, or beginning with "~" for the user's home, or with a placeholder."""

    @property
    def name(self) -> str:
        return "path"

    @property
    def allowed(self) -> str:
        return "one absolute path (~ stands for the home directory)"

    def parse(self, text: str) -> str:
        path = posixpath.expanduser(text)
        if not path.startswith("/") or "\0" in path:
            raise ValueError(text)
        return posixpath.normpath(path)


@dataclass(frozen=True, slots=True)
class FilePath:
    """A file, or none: as in `DirectoryPath`, or empty."""

    @property
    def name(self) -> str:
        return "path"

    @property
    def allowed(self) -> str:
        return f"empty, or {DirectoryPath().allowed}"

    def parse(self, text: str) -> str:
        return DirectoryPath().parse(text) if text else ""


@dataclass(frozen=True, slots=True)
class StoragePath:
    """A directory as in `DirectoryPath`, or one in an object store."""

    @property
    def name(self) -> str:
        return "path or URL"

    @property
    def allowed(self) -> str:
        return f"{DirectoryPath().allowed}, or s3://, gs://, az:// or memory://BUCKET/PREFIX"

    def parse(self, text: str) -> str:
        if "://" not in text:
            return DirectoryPath().parse(text)
        url = text.rstrip("/")
        if _OBJECT_URL.fullmatch(url) is None or {".", ".."} & set(url.split("/")):
            raise ValueError(text)
        return url


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Members of a service outside the cluster; the value is their host:port, each once, and kept
    in front of it the scheme by which somebody said whether TLS is spoken with them."""

    @property
    def name(self) -> str:
        return "endpoints"

    @property
    def allowed(self) -> str:
        return (
            "HOST:PORT of up to nine members with commas between, each once, with http:// or"
            " https:// in front or neither"
        )

    def parse(self, text: str) -> tuple[str, ...]:
        endpoints = tuple(part.strip() for part in text.split(","))
        matches = [_ENDPOINT.fullmatch(endpoint) for endpoint in endpoints]
        members = {match[1] for match in matches if match and 0 < int(match[2]) <= _PORT_MAX}
        if len(endpoints) > _ENDPOINTS_MAX or len(members) < len(endpoints):
            raise ValueError(text)
        return endpoints


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Option(Generic[V]):
    """One option of the table.

    Attributes:
        key: its name, Flink's where Flink has the option.
        type: how its value is written and what is allowed.
        default: the value, as text, where nobody sets it. "{home}" stands for the state directory
            ($HOLDOVER_HOME, else ~/.holdover/local), "{temp}" for the system's temporary one.
        description: what it does, for the documentation.
        job_level: whether a job may set it for itself.
    """

    key: str
    type: ValueType[V]
    default: str
    description: str
    job_level: bool = False

    @property
    def environment_name(self) -> str:
        """The environment variable that sets the option."""
        return "HOLDOVER_" + re.sub(r"[^A-Z0-9]", "_", self.key.upper())


@dataclass(frozen=True, slots=True)
class Relation:
    """`lesser` must be below (or, when `or_equal`, at most) `greater`, because of `reason`."""

    lesser: Option[int] | Option[float]
    greater: Option[int] | Option[float]
    or_equal: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """When `switch` is on, all of `needed` must be set.

    When they or `optional` are set and nobody has said whether the switch is on, somebody believes
    to have what he has not.
    """

    switch: Option[bool]
    needed: tuple[Option[str], ...]
    optional: tuple[Option[str], ...]
