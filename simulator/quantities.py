"""Numbers as a scenario writes them: durations, sizes, parts of a whole, and what chance draws.

Pure. Texts are read by the parsers of Holdover's own options ("30 s", "64 mb"), to which "MiB" and
its like are added; in Python the values are seconds, bytes and fractions of one. What a model
gives back as text can be read again (`PlainSerializer`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, GetCoreSchemaHandler, PlainSerializer
from pydantic_core import CoreSchema, core_schema

from holdover.config.values import Duration, Size

YEAR_S = 365 * 86_400.0
_BYTES_MAX = 1 << 50
_DURATION = Duration(0.0, YEAR_S)
_SIZE = Size(0, _BYTES_MAX)
_BINARY_UNIT = re.compile(r"(?<=[kKmMgGtT])i(?=[bB]$)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?", re.ASCII)
_SMALL_UNITS_PER_S = {"us": 1e6, "ns": 1e9}
_SMALL = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ns)", re.ASCII)

Unit = Literal["seconds", "bytes"]


def seconds_of(value: object) -> float:
    """The seconds that a duration stands for; a number is seconds already. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= YEAR_S:
            raise ValueError(f"must be {_DURATION.allowed}")
        return float(value)
    text = str(value).strip()
    small = _SMALL.fullmatch(text)
    if small is not None:
        return float(small[1]) / _SMALL_UNITS_PER_S[small[2]]
    try:
        return _DURATION.parse(text)
    except ValueError:
        raise ValueError(
            f"is {text!r}, but must be a duration with its unit, such as 300 ms, 12 s or 2 min"
        ) from None


def signed_seconds_of(value: object) -> float:
    """As `seconds_of`, and "-12 s" is a time backwards."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return -seconds_of(-value) if value < 0 else seconds_of(value)
    text = str(value).strip()
    return -seconds_of(text[1:]) if text.startswith("-") else seconds_of(text)


def bytes_of(value: object) -> int:
    """The bytes that a size stands for; a number is bytes already. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= _BYTES_MAX:
            raise ValueError(f"must be {_SIZE.allowed}")
        return int(value)
    text = str(value).strip()
    try:
        return _SIZE.parse(_BINARY_UNIT.sub("", text))
    except ValueError:
        raise ValueError(
            f"is {text!r}, but must be a size with its unit, such as 64 kb, 16 MiB or 2 gb"
        ) from None


def fraction_of(value: object) -> float:
    """The fraction of one that "30 %" or 0.3 stands for. Raises ValueError."""
    text = str(value).strip()
    number = text.removesuffix("%").strip()
    if _NUMBER.fullmatch(number) is not None:
        fraction = float(number) / (100 if text.endswith("%") else 1)
        if fraction <= 1:
            return fraction
    raise ValueError(f"is {text!r}, but must be a part of the whole, such as 30 % or 0.3")


def duration_text(seconds: float) -> str:
    """A duration that `signed_seconds_of` reads as the same seconds."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds == 0 or abs(seconds) >= scale:
            return f"{_plain(round(seconds / scale, 9))} {unit}"
    return f"{_plain(round(seconds / 1e-9, 9))} ns"


def size_text(size_bytes: float) -> str:
    """A size that `bytes_of` reads as the same bytes."""
    whole = int(size_bytes)
    for unit, scale in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
        if whole and whole % scale == 0:
            return f"{whole // scale} {unit}"
    return f"{whole} b"


def fraction_text(fraction: float) -> str:
    """As percent."""
    return f"{_plain(round(fraction * 100, 9))} %"


def _plain(number: float) -> str:
    return f"{number:.9f}".rstrip("0").rstrip(".")


Seconds = Annotated[
    float, BeforeValidator(seconds_of), PlainSerializer(duration_text, return_type=str)
]
SignedSeconds = Annotated[
    float, BeforeValidator(signed_seconds_of), PlainSerializer(duration_text, return_type=str)
]
Bytes = Annotated[int, BeforeValidator(bytes_of), PlainSerializer(size_text, return_type=str)]
Fraction = Annotated[
    float, BeforeValidator(fraction_of), PlainSerializer(fraction_text, return_type=str)
]
#: Infinite for "never".
SecondsOrNever = Annotated[
    float,
    BeforeValidator(lambda value: math.inf if value in ("never", math.inf) else seconds_of(value)),
    PlainSerializer(
        lambda value: "never" if value == math.inf else duration_text(value), return_type=str
    ),
]


# ------------------------------------------------------------------ distributions


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same."""

    value: float


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything from `minimum` to `maximum`, all as likely."""

    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Exponential:
    """Mostly short, sometimes long; `mean` on the average."""

    mean: float


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Stragglers: half is below `median`, and the logarithm has the deviation `sigma`."""

    median: float
    sigma: float


Distribution = Constant | Uniform | Exponential | Lognormal

_CALL = re.compile(r"([a-z]+)\s*\(([^()]*)\)")
_FORMS = "2 s, uniform(1 s, 3 s), exponential(2 s) or lognormal(2 s, 0.5)"
_Parse = Callable[[object], float]


def distribution_of(value: object, unit: Unit) -> Distribution:
    """What `2`, `2 s`, `uniform(1 s, 3 s)`, `exponential(2 s)` or `lognormal(2 s, 0.5)` stands for.

    Numbers without a unit are seconds or bytes. Raises ValueError.
    """
    if isinstance(value, Distribution):
        return value
    parse: _Parse = seconds_of if unit == "seconds" else bytes_of
    text = str(value).strip()
    call = _CALL.fullmatch(text)
    if call is None:
        return Constant(_number(text, parse))
    name, arguments = call[1], [part.strip() for part in call[2].split(",")]
    match name, arguments:
        case "uniform", [low, high]:
            minimum, maximum = _number(low, parse), _number(high, parse)
            if minimum > maximum:
                raise ValueError(f"is {text!r}, but {low} is more than {high}")
            return Uniform(minimum, maximum)
        case "exponential", [mean]:
            return Exponential(_number(mean, parse))
        case "lognormal", [median, sigma]:
            if _NUMBER.fullmatch(sigma) is None or float(sigma) > 5:
                raise ValueError(f"has the deviation {sigma!r}, but it must be from 0 to 5")
            return Lognormal(_number(median, parse), float(sigma))
    raise ValueError(f"is {text!r}, but must be one of the forms {_FORMS}")


def distribution_text(distribution: Distribution, unit: Unit) -> str:
    """A text that `distribution_of` reads as the same distribution."""
    show: Callable[[float], str] = duration_text if unit == "seconds" else size_text
    match distribution:
        case Constant(value):
            return show(value)
        case Uniform(minimum, maximum):
            return f"uniform({show(minimum)}, {show(maximum)})"
        case Exponential(mean):
            return f"exponential({show(mean)})"
        case Lognormal(median, sigma):
            return f"lognormal({show(median)}, {_plain(sigma)})"


def _number(text: str, parse: _Parse) -> float:
    return parse(float(text)) if _NUMBER.fullmatch(text) else parse(text)


class _DistributionField:
    """How pydantic reads and writes a distribution of this unit."""

    def __init__(self, unit: Unit) -> None:
        self._unit: Unit = unit

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: distribution_of(value, self._unit),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: distribution_text(value, self._unit)
            ),
        )


SecondsDistribution = Annotated[Distribution, _DistributionField("seconds")]
BytesDistribution = Annotated[Distribution, _DistributionField("bytes")]


def nearest(name: str, names: Sequence[str]) -> str:
    """`; did you mean x?`, or the names there are."""
    import difflib

    near = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(names)}"
