"""Tests of the contents page: it and the README list every lesson with the same duration, and it counts the
finished exercises in the progress list."""

import re
from dataclasses import replace

from course import build, contents, progress
from course.bootstrap import ROOT
from course.progress import exercises, tick


def test_every_lesson_is_on_the_page_and_in_the_readme_with_its_minutes():
    lessons = [source.stem for source in build.sources(ROOT) if not source.stem.startswith("00")]
    assert [lesson.file for lesson in contents.LESSONS.values()] == lessons
    readme = re.findall(
        r"\[(\d\d[a-z]?) (.+?)\]\(notebooks/(\w+)\.ipynb\) \| (.+) \| (\d+|\?) \|",
        (ROOT / "README.md").read_text(encoding="utf-8"),
    )
    assert readme == [
        (lesson.number, lesson.title, lesson.file, lesson.builds, str(lesson.minutes or "?"))
        for lesson in contents.LESSONS.values()
    ]


def test_the_pages_for_readers_state_the_size_of_the_course():
    hours = round(sum(lesson.minutes for lesson in contents.LESSONS.values()) / 60)
    total = sum(map(len, exercises().values()))
    for page in ("README.md", "docs/site/learner.md", "docs/site/teacher.md"):
        assert f"whole course takes about {hours} hours" in (ROOT / page).read_text(encoding="utf-8")
    assert f"{total} exercises" in (ROOT / "docs/site/teacher.md").read_text(encoding="utf-8")
    for page in ("README.md", "docs/site/index.md", "docs/site/teacher.md"):
        notebooks = 1 + len(contents.LESSONS)  # with the contents page
        assert re.search(rf"\b{notebooks} (Jupyter )?notebooks", (ROOT / page).read_text("utf-8"))


def test_the_page_counts_what_the_ledger_has():
    assert "| 0 of 3 |" in contents.contents().splitlines()[2]
    tick("1.2")
    assert "| 1 of 3 |" in contents.contents().splitlines()[2]
    assert len(repr(progress()).splitlines()) == len(contents.LESSONS)


def test_lessons_build_on_earlier_ones_and_every_way_is_in_order():
    assert all(before < lesson.number for lesson in contents.LESSONS.values() for before in lesson.after)
    assert all(
        list(way) == sorted(way) and set(way) <= set(contents.LESSONS) for way in contents.WAYS.values()
    )
    assert contents.hours(("01", "02")) == "2 h 25"


def test_a_lesson_that_nobody_was_timed_on_makes_a_plus(monkeypatch):
    monkeypatch.setitem(contents.LESSONS, "15", replace(contents.LESSONS["15"], minutes=None))
    assert contents.hours(("01", "15")) == "1 h 00 +"
