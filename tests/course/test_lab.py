"""Tests of the steps before JupyterLab starts: `make lab` copies the lessons once and never overwrites a
copy."""

import http.server
import json
import os
import re
import threading
from pathlib import Path

import pytest
from ipykernel.ipkernel import IPythonKernel

from course import build, commands, copies, lab
from course.bootstrap import ROOT
from course.progress import tick


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "notebooks"
    (folder / "course").mkdir(parents=True)
    (folder / "01_first.ipynb").write_text(notebook("first"))
    return folder


def notebook(says):
    """Return the text of a notebook with one cell."""
    return json.dumps({"cells": [{"source": says}], "metadata": dict(build.METADATA), "nbformat": 4})


def lines(published):
    """Return the status line of each lesson."""
    return [line.strip() for line in copies.copy_lessons(published, published.parent / "my_lessons")[2:]]


def mine(published):
    """Return the cells of the learner's copies."""
    folder = published.parent / "my_lessons"
    return {file.name: cell_of(file) for file in folder.glob("*.ipynb")}


def cell_of(file):
    return json.loads(file.read_text())["cells"][0]["source"]


def test_lessons_are_copied_once_and_kept_as_the_learner_leaves_them(published):
    assert lines(published) == ["01_first.ipynb: new"]
    (published.parent / "my_lessons" / "01_first.ipynb").write_text(notebook("my answer"))
    assert lines(published) == ["01_first.ipynb: yours, kept"]
    assert mine(published) == {"01_first.ipynb": "my answer"}


def test_a_new_lesson_is_added_beside_the_old_ones(published):
    lines(published)
    (published / "02_second.ipynb").write_text(notebook("second"))
    assert lines(published) == ["01_first.ipynb: yours, kept", "02_second.ipynb: new"]
    assert mine(published) == {"01_first.ipynb": "first", "02_second.ipynb": "second"}


def test_a_lesson_published_anew_is_announced_each_time_and_not_copied_over_the_learners(published):
    lines(published)
    (published / "01_first.ipynb").write_text(notebook("first, improved"))
    changed = (
        "01_first.ipynb: yours, kept. The published lesson has changed since; to get it, rename your file and"
        " start again"
    )
    assert lines(published) == [changed]
    assert lines(published) == [changed]
    assert mine(published) == {"01_first.ipynb": "first"}


def test_a_renamed_copy_makes_room_for_the_published_lesson(published):
    lines(published)
    (published / "01_first.ipynb").write_text(notebook("first, improved"))
    copy = published.parent / "my_lessons" / "01_first.ipynb"
    copy.rename(copy.with_name("01_mine.ipynb"))
    assert lines(published) == ["01_first.ipynb: new"]
    assert mine(published) == {"01_first.ipynb": "first, improved", "01_mine.ipynb": "first"}


def test_jupyter_opens_the_first_lesson(published, monkeypatch):
    started = []
    monkeypatch.setattr(lab, "ROOT", published.parent)
    monkeypatch.setattr(lab, "COPIES", published.parent / "my_lessons")
    monkeypatch.setattr(lab.doctor, "main", lambda: 0)
    monkeypatch.setattr(lab, "as_root", lambda given: [])
    monkeypatch.setattr(lab, "hand_over", lambda command: started.append(command) or 0)
    monkeypatch.setattr(lab, "write_settings", lambda environment: None)
    monkeypatch.setattr(lab, "running_server", lambda copies: None)
    (published.parent / "solutions").mkdir()
    (published.parent / "solutions" / "01_first.ipynb").write_text(notebook("solved"))
    assert lab.main(["--no-browser"]) == 0
    assert cell_of(published.parent / "my_lessons" / "solutions" / "01_first.ipynb") == "solved"
    assert started[0][1:3] == ["-m", "jupyterlab"]
    assert started[0][3:] == [
        f"--ServerApp.root_dir={published.parent / 'my_lessons'}",
        "--LabApp.default_url=/lab/tree/01_first.ipynb",
        "--no-browser",
    ]


def test_a_copy_has_the_metadata_that_jupyterlab_would_write_into_it(published):
    lines(published)
    metadata = json.loads((published.parent / "my_lessons" / "01_first.ipynb").read_text())["metadata"]
    assert metadata["language_info"] == IPythonKernel.language_info
    assert metadata["kernelspec"]["name"] == build.METADATA["kernelspec"]["name"]


def test_every_link_in_the_copies_leads_to_a_file_in_their_folder(tmp_path):
    """JupyterLab serves only this folder, so a link to any other file fails."""
    folder = tmp_path / "my_lessons"
    copies.copy_lessons(ROOT / "notebooks", folder)
    copies.copy_solutions(ROOT / "solutions", folder / "solutions")
    copies.copy_pages(ROOT, folder)
    found = {
        (file.relative_to(folder), target)
        for file in [*folder.rglob("*.ipynb"), *folder.rglob("*.md")]
        for target in re.findall(r"\]\(([\w./-]+\.(?:ipynb|md))[)#]", file.read_text(encoding="utf-8"))
    }
    broken = [f"{file}: {link}" for file, link in found if not inside(folder, folder / file.parent / link)]
    assert not broken
    assert {link for file, link in found if file.name == "01_online_softmax.ipynb"} > {"docs/glossary.md"}
    assert (Path("docs/glossary.md"), "../06_warps.ipynb") in found


def inside(folder, target):
    return target.exists() and target.resolve().is_relative_to(folder.resolve())


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """Return serving(folder), which starts a fake Jupyter server on the folder and records it as Jupyter
    would.

    It answers every request with status 403, like a server that asks for a password.
    """

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def note(folder):
        url = f"http://127.0.0.1:{server.server_port}/"
        noted = {"root_dir": str(folder), "url": url, "token": "secret", "pid": os.getpid()}
        (tmp_path / f"jpserver-{os.getpid()}.json").write_text(json.dumps(noted))
        return server

    yield note
    server.shutdown()
    server.server_close()


def test_a_second_lab_opens_the_first_ones_address(published, serving, monkeypatch, capsys):
    opened, started = [], []
    monkeypatch.setattr(lab, "ROOT", published.parent)
    monkeypatch.setattr(lab, "COPIES", published.parent / "my_lessons")
    monkeypatch.setattr(lab.doctor, "main", lambda: 0)
    monkeypatch.setattr(lab, "write_settings", lambda environment: None)
    monkeypatch.setattr(lab, "hand_over", lambda command: started.append(command) or 0)
    monkeypatch.setattr(lab.webbrowser, "open", opened.append)
    server = serving(published.parent / "my_lessons")
    address = f"http://127.0.0.1:{server.server_port}/lab/tree/01_first.ipynb?token=secret"
    assert lab.main([]) == 0
    assert opened == [address] and not started
    assert f"already runs on these lessons (process {os.getpid()})" in capsys.readouterr().out
    assert lab.main(["--no-browser"]) == 0
    assert opened == [address] and not started and address in capsys.readouterr().out


def test_a_server_that_is_gone_or_elsewhere_is_no_first_lab(tmp_path, serving):
    server = serving(tmp_path / "another")
    assert lab.running_server(tmp_path) is None
    serving(tmp_path)
    assert lab.running_server(tmp_path)["token"] == "secret"
    server.shutdown()
    server.server_close()
    assert lab.running_server(tmp_path) is None


def test_going_on_elsewhere_than_at_the_first_page_says_so_and_how_to_start_again(published, state_dir):
    lines(published)
    folder = published.parent / "my_lessons"
    assert lab.resume_message(folder) == ""
    tick("1.0")
    assert lab.resume_message(folder) == ""  # The lesson does not exist, so the contents page opens.
    (folder / "01_online_softmax.ipynb").touch()
    said = lab.resume_message(folder)
    assert "1 of " in said and "1.1 is the next: 01_online_softmax.ipynb opens" in said
    assert "make progress" in said and "make reset" in said


def test_jupyter_goes_on_at_the_next_exercise(tmp_path, state_dir):
    copies = tmp_path / "my_lessons"
    copies.mkdir()
    for lesson in (lab.ROOT / "notebooks").glob("0[0-2]*.ipynb"):
        (copies / lesson.name).write_bytes(lesson.read_bytes())
    opened = lambda: lab.page_path(lab.first_page(copies))  # noqa: E731
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
    assert not settings.exists()  # JupyterLab is not installed there.
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


@pytest.mark.parametrize(
    ("number", "name"), [("1", "01_online_softmax.ipynb"), ("10B", "10b_published_tiles.ipynb")]
)
def test_a_lesson_is_opened_by_its_number(monkeypatch, number, name):
    monkeypatch.setattr(lab.doctor, "main", lambda: 0)
    monkeypatch.setattr(copies, "copy_lessons", lambda *_: [])
    monkeypatch.setattr(copies, "copy_solutions", lambda *_: None)
    monkeypatch.setattr(copies, "copy_pages", lambda *_: None)
    monkeypatch.setattr(lab, "running_server", lambda copies: {"url": "http://x/", "token": "", "pid": 1})
    opened = []
    monkeypatch.setattr(lab.webbrowser, "open", opened.append)
    assert commands.main(["lab", number]) == 0 and opened == [f"http://x/lab/tree/{name}"]
    started = []
    monkeypatch.setattr(lab, "running_server", lambda copies: None)
    monkeypatch.setattr(lab, "as_root", lambda given: [])
    monkeypatch.setattr(lab, "write_settings", lambda environment: None)
    monkeypatch.setattr(lab, "hand_over", lambda command: started.append(command[3:]) or 0)
    assert commands.main(["lab", number, "--no-browser"]) == 0
    assert started[0][1:] == [f"--LabApp.default_url=/lab/tree/{name}", "--no-browser"]
