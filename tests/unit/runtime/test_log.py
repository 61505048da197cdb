"""Log lines are one line each, and can be read back by their keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from holdover.runtime.log import Log, configure


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_has_time_level_process_event_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure("jobmanager")
    Log("x").bind(epoch=3).info("leadership won", address="host:1", lag_s=0.12345)
    line = capsys.readouterr().err.rstrip("\n")
    stamp, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    assert rest == "info    jobmanager leadership won epoch=3 address=host:1 lag_s=0.123"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("two words", 'a="two words"'),
        ('a "quote"', r'a="a \"quote\""'),
        ("line\nbreak", r'a="line\nbreak"'),
        ("", 'a=""'),
        (None, "a=None"),
    ],
)
def test_values_that_need_quotes_have_them(
    capsys: pytest.CaptureFixture[str], value: object, written: str
) -> None:
    configure("p")
    Log("x").info("event", a=value)
    assert capsys.readouterr().err.endswith(f"event {written}\n")


def test_the_level_is_a_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    configure("p", "warning")
    log = Log("x")
    log.info("not this")
    log.warning("but this")
    assert "not this" not in (written := capsys.readouterr().err)
    assert "but this" in written


def test_an_error_has_the_traceback_of_its_exception(capsys: pytest.CaptureFixture[str]) -> None:
    configure("p")
    try:
        raise KeyError("gone")
    except KeyError as exception:
        caught = exception
    Log("x").error("failed", exception=caught)
    assert "Traceback" in (written := capsys.readouterr().err)
    assert "KeyError: 'gone'" in written


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="one of debug, info, warning, error, not 'loud'"):
        configure("p", "loud")
