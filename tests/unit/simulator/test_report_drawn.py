"""A report as a browser paints it: the timeline shows what happened, at 10 and 10,000 workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.report import write_report
from tests.doubles.headless_browser import Page, browser_path, open_page
from tests.doubles.synthetic_runs import Shape, synthetic_run

READY = "['ready', 'failed'].includes(document.documentElement?.dataset.state)"
STATE = "document.documentElement.dataset.state"
TEXT = "document.body.innerText"
DETAILS = "document.querySelector('.details').innerText"
OPEN_TIMEOUT_MS = 8_000

needs_browser = pytest.mark.skipif(
    browser_path() is None,
    reason="no Chromium: the report was NOT looked at (install `chromium` to do so)",
)
pytestmark = [needs_browser]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("browser")) as opened:
        opened.resize(1300, 1500)
        yield opened


def shown(page: Page, path: Path, address: str = "theme=light") -> None:
    page.troubles.clear()
    page.open(f"{path.as_uri()}#{address}", READY)
    assert page.evaluate(STATE) == "ready", page.evaluate(TEXT)


def fate_colour(page: Page, fate: str) -> str:
    script = f"getComputedStyle(document.documentElement).getPropertyValue('--fate-{fate}')"
    return str(page.evaluate(script)).strip()


def test_ten_workers_are_drawn_attempt_by_attempt(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "ten.html"
    write_report(path, [synthetic_run(Shape(10, racks=2, racks_lost=1))])
    shown(page, path)
    colours = page.colours(page.screenshot(".plot"))
    painted = {fate: colours.get(fate_colour(page, fate), 0) for fate in ("kept", "repeated")}
    assert painted["kept"] > 10_000, painted
    assert painted["repeated"] > 2_000, painted
    # Half of a hatched bar is its colour, the other half the background.
    assert colours.get(fate_colour(page, "rerun"), 0) > 1_000, colours
    assert not page.troubles


def test_ten_thousand_workers_are_drawn_as_densities(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    write_report(path, [synthetic_run(Shape(10_000, racks=40, racks_lost=1, subtasks=200_000))])
    assert path.stat().st_size < 8_000_000
    shown(page, path)
    assert page.evaluate("Number(document.documentElement.dataset.readyMs)") < OPEN_TIMEOUT_MS
    colours = page.colours(page.screenshot(".plot"))
    assert colours.get(fate_colour(page, "kept"), 0) > 10_000, list(colours)[:20]
    assert colours.get(fate_colour(page, "rerun"), 0) > 500, list(colours)[:20]
    assert "10,000 TaskManagers" in page.evaluate(TEXT)
    assert not page.troubles


def test_the_words_tell_the_same_story(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "words.html"
    write_report(path, [synthetic_run(Shape(8, racks=4, racks_lost=1), findings=2)])
    shown(page, path, "theme=dark")
    text = page.evaluate(TEXT)
    for words in (
        "jobmanager-1 was lost at",
        "an invariant did not hold",
        "holdover simulate jobmanager-crash --seed 1",
        "recovered by leader epoch 2",
        "partition missing",
        "power-loss",
    ):
        assert words in text, text
    assert "jobmanager-1 was lost" in page.evaluate(
        "document.querySelector('.plot').getAttribute('aria-label')"
    )
    assert not page.troubles


def test_keys_zoom_and_step_through_what_happened(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "keys.html"
    write_report(path, [synthetic_run(Shape(10))])
    shown(page, path)
    page.evaluate("document.querySelector('.timeline').focus()")
    page.press("+")
    page.press("+")
    assert "from=" in page.evaluate("location.hash")
    found = []
    for _ in range(12):
        page.press("n")
        found.append(page.evaluate(DETAILS))
    assert any("Fault: crash" in text for text in found), found
    assert any("canceled" in text and "attempt 1" in text for text in found), found
    assert not page.troubles


def test_a_click_tells_about_the_attempt_under_it(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "click.html"
    write_report(path, [synthetic_run(Shape(10))])
    shown(page, path)
    x, y = page.evaluate(
        "(() => {const t = shown.timelines[0]; const b = t.canvas.getBoundingClientRect();"
        "return [b.x + timeX({x: t.box.x, width: t.box.width, view: t.view}, 2.5),"
        " b.y + t.box.y + 4]})()"
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.point(kind, x, y)
    assert "read orders, subtask" in page.evaluate(DETAILS)
    assert "taskmanager-1, slot 0" in page.evaluate(DETAILS)
    assert not page.troubles


def test_runs_are_compared_and_picked(page: Page, tmp_path: Path) -> None:
    runs = [
        synthetic_run(Shape(4, 2, 2, 24), seed, world=world, options={"a.retention": value})
        for value in ("5 s", "1 min")
        for world in ("simulated", "real")
        for seed in (1, 2)
    ]
    path = tmp_path / "many.html"
    write_report(path, runs)
    shown(page, path)
    assert page.evaluate("document.querySelectorAll('.plot-small').length") >= 5
    assert page.evaluate("document.querySelectorAll('table.runs tbody tr').length") == len(runs)
    page.evaluate("pick(4, 6)")
    assert page.evaluate("document.querySelectorAll('.plot').length") == 2
    assert "holdover run jobmanager-crash --seed 1" in page.evaluate(TEXT)
    assert not page.troubles


def test_a_run_in_which_nothing_happened_is_drawn_too(page: Page, tmp_path: Path) -> None:
    run = synthetic_run(Shape(2, crash=False, subtasks=8))
    run.held, run.attempts, run.workers, run.epochs, run.jobs = [], [], [], [], []
    path = tmp_path / "nothing.html"
    write_report(path, [run])
    shown(page, path)
    assert "No task ran." in page.evaluate(TEXT)
    assert not page.troubles
