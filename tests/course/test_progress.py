"""Tests of the progress list: its contents, its robustness, and its display."""

import json
import multiprocessing
import os
import sys
from types import SimpleNamespace

import pytest

import course
from course.bootstrap import ROOT
from course.check import lessons
from course.check.harness import say_how_far
from course.commands import main
from course.progress import (
    adopt_users_ledger,
    done,
    exercises,
    how_far,
    ledger_path,
    next_exercise,
    reset,
    tick,
)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_tick_is_kept_and_a_second_one_changes_nothing(state_dir):
    tick("1.2")
    tick("1.1")
    kept = (state_dir / "exercises.json").read_text()
    tick("1.2")
    assert set(done()) == {"1.1", "1.2"}
    assert (state_dir / "exercises.json").read_text() == kept
    assert files(state_dir) == ["exercises.json"]


def test_without_a_ledger_nothing_is_done_and_nothing_is_written(state_dir):
    assert done() == {}
    assert not state_dir.exists()


@pytest.mark.parametrize("damage", ["", '{"1.2": "2026-', "[1, 2]", "\x00\x01", b"\xff\xfe\xfa"])
def test_a_damaged_ledger_is_set_aside_whole_with_a_message(state_dir, capsys, damage):
    state_dir.mkdir()
    path = state_dir / "exercises.json"
    damage = damage if isinstance(damage, bytes) else damage.encode()
    path.write_bytes(damage)
    tick("1.2")
    kept, now = [state_dir / name for name in files(state_dir)]
    assert kept.read_bytes() == damage
    assert set(json.loads(now.read_text())) == {"1.2"}
    said = capsys.readouterr().out
    assert said.startswith("Your list of exercises could not be read (") and str(kept) in said


def test_two_damaged_ledgers_are_both_kept(state_dir):
    state_dir.mkdir()
    for damage in ("first", "second"):
        (state_dir / "exercises.json").write_text(damage)
        done()
    assert sorted(path.read_text() for path in state_dir.iterdir()) == ["first", "second"]


def test_a_write_that_breaks_off_leaves_the_old_ledger(state_dir, monkeypatch, capsys):
    tick("1.1")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    tick("1.2")
    assert set(done()) == {"1.1"}
    assert files(state_dir) == ["exercises.json"]
    assert capsys.readouterr().out == "(Your list of exercises could not be saved: disk full)\n"


def test_a_state_directory_that_cannot_be_made_costs_a_message_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "file"))
    tick("1.2")
    assert "could not be saved" in capsys.readouterr().out


def test_without_the_variable_the_ledger_is_in_the_clone(monkeypatch):
    monkeypatch.delenv("COURSE_STATE_DIR")
    assert ledger_path() == ROOT / "my_lessons" / ".progress" / "exercises.json"


def test_the_ledger_that_all_clones_shared_is_copied_once(state_dir, tmp_path, monkeypatch):
    shared = tmp_path / "user" / "exercises.json"
    monkeypatch.setattr(sys.modules["course.progress"], "users_ledger", lambda: shared)
    assert adopt_users_ledger() == "" and not state_dir.exists()
    shared.parent.mkdir()
    shared.write_text('{"1.2": "2026-11-21"}')
    assert str(shared) in adopt_users_ledger() and set(done()) == {"1.2"}
    tick("1.1")
    assert adopt_users_ledger() == "" and set(done()) == {"1.1", "1.2"}
    assert shared.read_text() == '{"1.2": "2026-11-21"}'


def test_a_reset_begins_again_and_keeps_the_old_ledger(state_dir):
    assert "nothing to reset" in reset() and not state_dir.exists()
    tick("1.2")
    said = reset()
    assert done() == {}
    (kept,) = state_dir.glob("exercises-before-reset-*.json")
    assert set(json.loads(kept.read_text())) == {"1.2"} and str(kept) in said


def test_the_commands_list_the_ledger_and_reset_it(state_dir, capsys):
    tick("1.2")
    assert main(["progress"]) == 0
    said = capsys.readouterr().out
    assert "01  1 of 3  · 1.0 predict the factor  · 1.1 online_softmax  ✓ 1.2 merge" in said
    assert str(state_dir / "exercises.json") in said
    assert main(["reset"]) == 0 and done() == {}


def test_the_table_shows_what_is_done_lesson_by_lesson():
    course.check.ex01_0(lambda: 0.37)
    line = repr(course.progress()).splitlines()[0]
    assert line == "01  1 of 3  ✓ 1.0 predict the factor  · 1.1 online_softmax  · 1.2 merge"
    assert "<td>01</td><td>1 of 3</td><td>✓ 1.0 predict the factor" in course.progress()._repr_html_()


def test_the_bar_can_be_told_to_be_quiet(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_QUIET", "1")
    assert list(course.progress_bar(range(3), desc="tiles")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
    monkeypatch.delenv("COURSE_QUIET")
    assert list(course.progress_bar(range(3), desc="tiles")) == [0, 1, 2]
    assert "tiles" in "".join(capsys.readouterr())


def tick_many(lesson):
    for exercise in range(25):
        tick(f"{lesson}.{exercise}")


def test_two_processes_at_once_lose_no_tick(state_dir):
    at_once = multiprocessing.get_context("spawn")
    workers = [at_once.Process(target=tick_many, args=(lesson,)) for lesson in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(done()) == 50


def test_the_exercises_are_those_of_the_checks():
    found = {
        lesson: {each.number: each.title for each in checks.values()} for lesson, checks in lessons().items()
    }
    merged = {}  # a lesson in two notebooks (08 and 08b) has one module of checks
    for lesson, numbered in exercises().items():
        merged.setdefault(lesson[:2], {}).update(numbered)
    assert merged == found and [list(of) for of in merged.values()] == [list(of) for of in found.values()]


def test_how_far_one_is(state_dir):
    total = sum(map(len, exercises().values()))
    tick("1.2")
    assert how_far("1.2") == (
        f"1 of {total} done · next: [2.1](02_flash_attention.ipynb)"
        " · [a solution of 1.2](solutions/01_online_softmax.ipynb)"
    )
    for number in (number for lesson in exercises().values() for number in lesson if number != "1.1"):
        tick(number)
    assert next_exercise("1.2") == "1.1"  # exercise 1.1 was skipped
    tick("1.1")
    assert (
        how_far("1.2") == f"{total} of {total} done · [a solution of 1.2](solutions/01_online_softmax.ipynb)"
    )


def test_a_notebook_says_how_far_one_is_and_a_terminal_does_not(state_dir, monkeypatch):
    shown, shell = [], SimpleNamespace(kernel=None)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.delenv("COURSE_QUIET", raising=False)
    say_how_far("1.2")
    assert not shown
    shell.kernel = object()
    say_how_far("1.2")
    assert [each.data for each in shown] == [how_far("1.2")]
    monkeypatch.setenv("COURSE_QUIET", "1")
    say_how_far("1.2")
    assert len(shown) == 1


def test_a_class_can_work_without_the_solutions(monkeypatch, tmp_path, state_dir):
    """Delete solutions/, as far as the progress list can see: it names the next lesson, and no solution."""
    monkeypatch.setattr(sys.modules["course.progress"], "ROOT", tmp_path)
    tick("1.0")
    assert how_far("1.0").endswith("· next: [1.1](01_online_softmax.ipynb)")
