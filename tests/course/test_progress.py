"""The ledger of exercises: what it keeps, what it survives, and how it looks."""

import json
import os

import platformdirs
import pytest

import course
from course.progress import done, ledger_path, tick


def files(folder):
    return sorted(path.name for path in folder.iterdir())


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
    assert said.startswith("Your ledger of exercises could not be read (") and str(kept) in said


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
    assert capsys.readouterr().out == "(Your ledger of exercises could not be saved: disk full)\n"


def test_a_state_directory_that_cannot_be_made_costs_a_message_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("COURSE_STATE_DIR", str(tmp_path / "file"))
    tick("1.2")
    assert "could not be saved" in capsys.readouterr().out


def test_without_the_variable_it_is_the_users_own_state_directory(monkeypatch):
    monkeypatch.delenv("COURSE_STATE_DIR")
    assert str(ledger_path().parent) == platformdirs.user_state_dir("gpu-attention-course")


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
