"""Tests of the ladder: its record is complete, counts are reproducible, and its picture suits both themes."""

import re

import pytest

from course.bootstrap import ROOT
from course.brought import definitions, execute_definitions
from course.ladder import Picture, Step, count, measure, percent, recorded, steps
from course.rungs import RUNGS


def answers(lesson):
    """Return the solution's kernel of a rung."""
    notebook = ROOT / "solutions" / f"{RUNGS[lesson].file}.ipynb"
    names = execute_definitions(definitions(notebook), notebook)
    return [names[name] for name in RUNGS[lesson].names]


def test_every_rung_is_recorded_and_its_lesson_shows_it():
    assert list(recorded()["steps"]) == list(RUNGS)
    for lesson, rung in RUNGS.items():
        source = (ROOT / "solutions" / f"{rung.file}.py").read_text(encoding="utf-8")
        shown = f'("{lesson}", {", ".join(rung.names)})'
        assert f"show_ladder{shown}" in source and f"time_rung{shown}" in source


@pytest.mark.parametrize(
    "lesson",
    [pytest.param(lesson, marks=[] if lesson == "18" else [pytest.mark.nightly]) for lesson in RUNGS],
)
def test_the_simulator_counts_what_was_recorded(lesson):
    assert count(lesson, *answers(lesson)) == pytest.approx(recorded()["steps"][lesson]["counted"])


@pytest.mark.gpu
@pytest.mark.parametrize("lesson", RUNGS)
def test_every_rung_is_correct_and_above_its_limit(lesson):
    row = measure(lesson, *answers(lesson))
    assert row["limit_ms"] < row["ms"]


def test_the_ladder_ends_with_the_lesson_and_takes_the_learners_count():
    found = steps("11", counted=7.0)
    assert [step.lesson for step in found] == ["05", "06", "11"] and found[-1].counted == 7.0
    with pytest.raises(ValueError, match="has no rung"):
        steps("01")


def test_the_picture_has_both_themes_and_readable_text():
    timed, other = Step("05", "one thread", 800, 90.0, 7.0, 0.9), Step("06", "one warp", 1000)
    picture = Picture([timed, other]).svg()
    sizes = [int(size) for size in re.findall(r"font:(\d+)px", picture)]
    assert sizes and min(sizes) >= 12  # 12 pixels are 9 points
    assert "prefers-color-scheme:dark" in picture
    assert picture.count("not timed") == 1 and ">1 %<" in picture


def test_percent():
    assert [percent(x) for x in (0.01234, 0.5, 1.5, None)] == ["1.2 %", "50 %", "150 %", "not timed"]
