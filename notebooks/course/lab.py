"""Opens the lessons: the doctor first, then copies that belong to the learner, then JupyterLab at the lesson
of the first exercise not done yet, or at the contents page, 00_start_here."""

import json
import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from course import doctor
from course.bootstrap import ROOT, hand_over
from course.progress import done, next_exercise, place

COPIES = ROOT / "my_lessons"
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # beside the dates the names of lessons do not fit
    "@jupyterlab/filebrowser-extension:browser": {"showLastModifiedColumn": False},
}
RECORD = ".as_copied.json"  # which published text each copy was made from


def main(jupyter_arguments: list[str]) -> int:
    """Start JupyterLab on the learner's copies; its exit status, or 1 if something is missing that every
    lesson needs."""
    if doctor.main():
        return 1
    print(*copy_lessons(ROOT / "notebooks", COPIES), sep="\n")
    copy_solutions(ROOT / "solutions", COPIES / "solutions")
    write_settings(Path(sys.prefix))
    return hand_over(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            *start_options(COPIES),
            *as_root(jupyter_arguments),
            *jupyter_arguments,
        ]
    )


def as_root(given: list[str]) -> list[str]:
    """Where JupyterLab would refuse to start for root, as in a container, the argument that it wants."""
    if getattr(os, "geteuid", lambda: 1)() or "--allow-root" in given:
        return []
    print("You are root, as in a container: JupyterLab is started with --allow-root.", flush=True)
    return ["--allow-root"]


def start_options(copies: Path) -> list[str]:
    """JupyterLab's options that open the lesson of the first exercise not done yet, or, where none is done,
    the first notebook of the folder: the contents page. No fragment names the exercise, since Jupyter Server
    puts its token behind one, and then asks for a password."""
    lessons = sorted(copies.glob("[0-9]*.ipynb"))
    page = f"/lab/tree/{quote(first_page(copies, lessons))}" if lessons else "/lab"
    return [f"--ServerApp.root_dir={copies}", f"--LabApp.default_url={page}"]


def first_page(copies: Path, lessons: list[Path]) -> str:
    onward = next_exercise(max(done(), key=in_order, default=None))
    if not done() or onward is None or not (copies / place(onward)).exists():
        return lessons[0].name
    return place(onward)


def in_order(number: str) -> tuple[int, ...]:
    return tuple(map(int, number.split(".")))


def copy_solutions(published: Path, copies: Path) -> None:
    """Put the executed solutions where the lessons can link to them. These are no work of the learner's, and
    are written anew each time."""
    copies.mkdir(exist_ok=True)
    for solution in published.glob("[0-9]*.ipynb"):
        shutil.copyfile(solution, copies / solution.name)


def write_settings(environment: Path) -> None:
    """In our own environment JupyterLab neither asks whether to fetch news nor looks for updates, and shows
    names without dates; a learner's own setting wins, in an overrides.json that is there already too."""
    file = environment / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    if file.parent.parent.is_dir():
        file.parent.mkdir(exist_ok=True)
        given = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(SETTINGS | given, indent=1), encoding="utf-8")


def copy_lessons(published: Path, copies: Path) -> list[str]:
    """Copy each lesson that has no copy yet; never touch one that has. Returns a line a lesson."""
    copies.mkdir(exist_ok=True)
    record_file = copies / RECORD
    record = json.loads(record_file.read_text(encoding="utf-8")) if record_file.exists() else {}
    lines = [
        "",
        f"Your lessons are in {copies.name}/: write in them as you like, nothing here ever overwrites them.",
    ]
    for lesson in sorted(published.glob("[0-9]*.ipynb")):
        content = lesson.read_bytes()
        lines.append("  " + copy_lesson(copies / lesson.name, content, record))
    record_file.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    return lines


def copy_lesson(copy: Path, content: bytes, record: dict[str, str]) -> str:
    """Write content to copy unless that file exists, and note in record what it was made from; returns what
    to tell."""
    now = sha256(content).hexdigest()
    try:
        with copy.open("xb") as file:
            file.write(content)
    except FileExistsError:
        if record.get(copy.name, now) == now:
            return f"{copy.name}: yours, kept"
        return (
            f"{copy.name}: yours, kept. The published lesson has changed since; to get it, rename your file"
            " and start again"
        )
    record[copy.name] = now
    return f"{copy.name}: new"
