"""Durations, sizes, fractions and distributions are read as a person writes them, and back."""

from __future__ import annotations

import math

import pytest

from simulator.quantities import (
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    Uniform,
    bytes_of,
    distribution_of,
    distribution_text,
    duration_text,
    fraction_of,
    nearest,
    seconds_of,
    signed_seconds_of,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12 s", 12.0), ("300 ms", 0.3), ("2min", 120.0), ("250 us", 0.00025), (3, 3.0), (0.5, 0.5)],
)
def test_a_duration_has_a_unit_in_text_and_none_in_python(text: object, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["3", "-3 s", "3 parsecs", "", -1, True, math.inf])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds_of(text)


@pytest.mark.parametrize("seconds", [0.0, 0.3, 2.393, 90.0, 3_600.0, 0.0001, 2.5e-7, 1e-9, 86_400])
def test_a_duration_s_text_is_read_as_the_same_seconds(seconds: float) -> None:
    assert seconds_of(duration_text(seconds)) == pytest.approx(seconds, rel=1e-12)
    assert signed_seconds_of(duration_text(-seconds)) == pytest.approx(-seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "count"), [("64 MiB", 64 << 20), ("64 mb", 64 << 20), ("1.5kb", 1536), (7, 7)]
)
def test_a_size_is_read_in_either_spelling(text: object, count: int) -> None:
    assert bytes_of(text) == count
    assert bytes_of(size_text(count)) == count


@pytest.mark.parametrize(("text", "fraction"), [("30 %", 0.3), ("0.3", 0.3), (1, 1.0), ("0%", 0.0)])
def test_a_part_is_written_in_percent_or_as_a_fraction(text: object, fraction: float) -> None:
    assert fraction_of(text) == fraction


@pytest.mark.parametrize("text", ["120 %", "2", "-0.1", "half"])
def test_more_than_the_whole_is_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="part of the whole"):
        fraction_of(text)


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("2", Constant(2.0)),
        ("200 ms", Constant(0.2)),
        ("uniform(1 s, 3 s)", Uniform(1.0, 3.0)),
        ("exponential(2)", Exponential(2.0)),
        ("lognormal( 2 min , 0.5 )", Lognormal(120.0, 0.5)),
    ],
)
def test_a_distribution_is_a_number_or_a_call(text: str, distribution: Distribution) -> None:
    assert distribution_of(text, "seconds") == distribution
    assert distribution_of(distribution_text(distribution, "seconds"), "seconds") == distribution


def test_a_distribution_of_bytes_has_sizes() -> None:
    assert distribution_of("uniform(1 kb, 1 MiB)", "bytes") == Uniform(1 << 10, 1 << 20)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("uniform(3 s, 1 s)", "3 s is more than 1 s"),
        ("pareto(1 s)", "must be one of the forms"),
        ("uniform(1 s)", "must be one of the forms"),
        ("lognormal(1 s, 9)", "from 0 to 5"),
        ("exponential(1 kb)", "duration"),
    ],
)
def test_a_wrong_distribution_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        distribution_of(text, "seconds")


def test_the_nearest_name_is_offered_or_all_of_them() -> None:
    assert nearest("leadr", ["leader", "standby"]) == "; did you mean leader?"
    assert nearest("xyz", ["leader", "standby"]) == "; there are: leader, standby"
