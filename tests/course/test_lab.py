"""What `make lab` does before JupyterLab starts: the learner's copies are made once and never overwritten."""

import json

import pytest

from course import lab
from course.progress import tick


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "notebooks"
    (folder / "course").mkdir(parents=True)
    (folder / "01_first.ipynb").write_text("first")
    return folder


def lines(published):
    """What the learner is told about each lesson."""
    return [line.strip() for line in lab.copy_lessons(published, published.parent / "my_lessons")[2:]]


def copies(published):
    return {file.name: file.read_text() for file in (published.parent / "my_lessons").glob("*.ipynb")}


def test_lessons_are_copied_once_and_kept_as_the_learner_leaves_them(published):
    assert lines(published) == ["01_first.ipynb: new"]
    (published.parent / "my_lessons" / "01_first.ipynb").write_text("my answer")
    assert lines(published) == ["01_first.ipynb: yours, kept"]
    assert copies(published) == {"01_first.ipynb": "my answer"}


def test_a_new_lesson_is_added_beside_the_old_ones(published):
    lines(published)
    (published / "02_second.ipynb").write_text("second")
    assert lines(published) == ["01_first.ipynb: yours, kept", "02_second.ipynb: new"]
    assert copies(published) == {"01_first.ipynb": "first", "02_second.ipynb": "second"}


def test_a_lesson_published_anew_is_announced_each_time_and_not_copied_over_the_learners(published):
    lines(published)
    (published / "01_first.ipynb").write_text("first, improved")
    changed = (
        "01_first.ipynb: yours, kept. The published lesson has changed since; to get it, rename your file and"
        " start again"
    )
    assert lines(published) == [changed]
    assert lines(published) == [changed]
    assert copies(published) == {"01_first.ipynb": "first"}


def test_a_renamed_copy_makes_room_for_the_published_lesson(published):
    lines(published)
    (published / "01_first.ipynb").write_text("first, improved")
    mine = published.parent / "my_lessons" / "01_first.ipynb"
    mine.rename(mine.with_name("01_mine.ipynb"))
    assert lines(published) == ["01_first.ipynb: new"]
    assert copies(published) == {"01_first.ipynb": "first, improved", "01_mine.ipynb": "first"}


def test_jupyter_opens_the_first_lesson(published, monkeypatch):
    started = []
    monkeypatch.setattr(lab, "ROOT", published.parent)
    monkeypatch.setattr(lab, "COPIES", published.parent / "my_lessons")
    monkeypatch.setattr(lab.doctor, "main", lambda: 0)
    monkeypatch.setattr(lab, "as_root", lambda given: [])
    monkeypatch.setattr(lab, "hand_over", lambda command: started.append(command) or 0)
    monkeypatch.setattr(lab, "write_settings", lambda environment: None)
    (published.parent / "solutions").mkdir()
    (published.parent / "solutions" / "01_first.ipynb").write_text("solved")
    assert lab.main(["--no-browser"]) == 0
    assert (published.parent / "my_lessons" / "solutions" / "01_first.ipynb").read_text() == "solved"
    assert started[0][1:3] == ["-m", "jupyterlab"]
    assert started[0][3:] == [
        f"--ServerApp.root_dir={published.parent / 'my_lessons'}",
        "--LabApp.default_url=/lab/tree/01_first.ipynb",
        "--no-browser",
    ]


def test_jupyter_goes_on_at_the_next_exercise(tmp_path, state_dir):
    copies = tmp_path / "my_lessons"
    copies.mkdir()
    for lesson in (lab.ROOT / "notebooks").glob("0[0-2]*.ipynb"):
        (copies / lesson.name).write_bytes(lesson.read_bytes())
    opened = lambda: lab.start_options(copies)[1].partition("=")[2]  # noqa: E731
    assert opened() == "/lab/tree/00_start_here.ipynb"
    tick("1.0")
    assert opened() == "/lab/tree/01_online_softmax.ipynb"
    tick("1.2")
    assert opened() == "/lab/tree/02_flash_attention.ipynb"
    (copies / "02_flash_attention.ipynb").unlink()
    assert opened() == "/lab/tree/00_start_here.ipynb"


def test_news_is_off_in_our_environment_and_a_setting_that_is_there_stays(tmp_path):
    settings = tmp_path / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    lab.write_settings(tmp_path)
    assert not settings.exists()  # no JupyterLab there
    settings.parents[1].mkdir(parents=True)
    lab.write_settings(tmp_path)
    assert json.loads(settings.read_text()) == lab.SETTINGS
    own = {next(iter(lab.SETTINGS)): {"fetchNews": "true"}, "other": {}}
    settings.write_text(json.dumps(own))
    lab.write_settings(tmp_path)
    assert json.loads(settings.read_text()) == lab.SETTINGS | own


def test_where_no_lesson_can_run_nothing_is_opened(published, monkeypatch):
    monkeypatch.setattr(lab, "COPIES", published.parent / "my_lessons")
    monkeypatch.setattr(lab.doctor, "main", lambda: 1)
    assert lab.main([]) == 1
    assert not lab.COPIES.exists()


def test_as_root_jupyter_gets_the_argument_it_wants_once(monkeypatch, capsys):
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0, raising=False)
    assert lab.as_root([]) == ["--allow-root"] and "You are root" in capsys.readouterr().out
    assert lab.as_root(["--allow-root"]) == []
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000, raising=False)
    assert lab.as_root([]) == []
