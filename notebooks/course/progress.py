"""The ledger: a small file in the learner's folder of lessons that lists the exercises done in this clone."""

import datetime
import functools
import html
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from course.bootstrap import ROOT

SOLUTIONS = ROOT / "solutions"
COPIES = ROOT / "my_lessons"  # the learner's folder
CHECKS = Path(__file__).parent / "check"


def progress():
    """A table of the exercises done, a line a lesson; a notebook shows it as HTML."""
    return Table(exercises(), done())


@functools.cache
def exercises():
    """Every lesson's exercises in order: {"01": {"1.0": "predict the factor", ...}, ...}. They are read from
    the text of the checks, since to import them all takes seconds."""
    found = {}
    for file in sorted(CHECKS.glob("lesson[0-9][0-9].py")):
        numbered = re.findall(r"@exercise\(\s*\"([\d.]+)\",\s*\"([^\"]+)\"", file.read_text(encoding="utf-8"))
        in_order = sorted(numbered, key=lambda pair: int(pair[0].partition(".")[2]))
        found[file.stem.removeprefix("lesson")] = dict(in_order)
    return found


def next_exercise(after=None):
    """The number of the first exercise not done yet, looked for behind the exercise `after` first, then from
    the start; None if all are done."""
    numbers, ticked = [number for lesson in exercises().values() for number in lesson], done()
    start = numbers.index(after) + 1 if after in numbers else 0
    return next((number for number in numbers[start:] + numbers[:start] if number not in ticked), None)


def place(number):
    """Return the notebook of an exercise in the learner's folder, as a link: "01_online_softmax.ipynb"."""
    lesson = f"{int(number.partition('.')[0]):02}"
    return next(file.with_suffix(".ipynb").name for file in sorted(SOLUTIONS.glob(f"{lesson}_*.py")))


def how_far(number):
    """Return what a passed check shows in a notebook, as Markdown: how many exercises are done, the next one,
    and a link to this one's solution."""
    total = sum(map(len, exercises().values()))
    onward = next_exercise(number)
    said = [f"{len(done())} of {total} done"]
    if onward:
        said.append(f"next: [{onward}]({place(onward)})")
    said.append(f"[a solution of {number}](solutions/{place(number)})")
    return " · ".join(said)


def done():
    """{"1.2": "2026-11-21", ...}: the exercises ticked, with the day of the first tick.

    A file that cannot be understood is set aside under a new name, with a message, and the ledger starts
    afresh.
    """
    path = ledger_path()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a table of exercises")
        return found
    except FileNotFoundError:
        return {}
    except ValueError as error:
        print(f"Your ledger of exercises could not be read ({error}); it is kept as {set_aside(path)}.")
        return {}


def tick(number):
    """Note exercise `number` ("1.2") as done. A state directory that cannot be written costs a message, no
    more."""
    try:
        with alone():
            ledger = done()
            if number not in ledger:
                write({**ledger, number: datetime.date.today().isoformat()})
    except OSError as error:
        print(f"(Your ledger of exercises could not be saved: {error})")


def alone():
    """A lock on the ledger, so that of two notebooks that tick at once none loses the other's tick."""
    from filelock import FileLock  # here, so that the doctor can run where it is missing

    path = ledger_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_suffix(".lock"), timeout=30)


def write(ledger):
    """Replace the ledger in one step, so that a reader sees the old file or the new one, never half of
    one."""
    path = ledger_path()
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".draft", text=True)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(ledger, file, indent=1, sort_keys=True)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def ledger_path():
    """Return the ledger's place: in the folder COURSE_STATE_DIR if that is set, else in my_lessons/, so that
    a copy of the folder takes the progress along and a fresh clone begins at the first lesson."""
    return Path(os.environ.get("COURSE_STATE_DIR") or COPIES / ".progress") / "exercises.json"


def users_ledger():
    """Return the place of the ledger that all clones of a user shared in the first versions of the course."""
    from platformdirs import user_state_dir  # here, so that the doctor can run where platformdirs is missing

    return Path(user_state_dir("gpu-attention-course")) / "exercises.json"


def adopt_users_ledger():
    """Copy the ledger that all clones shared into a clone that has none; return what to tell, or ""."""
    if ledger_path().exists() or not users_ledger().exists():
        return ""
    ledger_path().parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(users_ledger(), ledger_path())
    return f"Your progress was copied from {users_ledger()}; it now belongs to this clone."


def reset():
    """Start a new ledger, keep the old one next to it, and return the message."""
    if not done():
        return "No exercise is done yet: there is nothing to reset."
    with alone():
        kept = set_aside(ledger_path(), "before-reset")
    return f"No exercise is done now. The old list is kept as {kept}; your notebooks are as they were."


def set_aside(path, why="damaged"):
    """Rename the ledger to a free name that says why, and return that name."""
    descriptor, kept = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-{why}-", suffix=".json")
    os.close(descriptor)
    os.replace(path, kept)
    return kept


class Table:
    """Lessons and their exercises, ticked or not: text in a terminal, HTML in a notebook."""

    def __init__(self, lessons, ticked):
        self.rows = [
            (name, [(number, title, number in ticked) for number, title in numbered.items()])
            for name, numbered in lessons.items()
        ]

    def __repr__(self):
        return "\n".join(
            f"{lesson}  {count(states)}  {'  '.join(map(label, states))}" for lesson, states in self.rows
        )

    def _repr_html_(self):
        cells = "".join(
            f"<tr><td>{lesson}</td><td>{count(states)}</td>"
            f"<td>{html.escape('   '.join(map(label, states)))}</td></tr>"
            for lesson, states in self.rows
        )
        return f"<table><tr><th>lesson</th><th>done</th><th>exercises</th></tr>{cells}</table>"


def count(states):
    return f"{sum(ticked for _, _, ticked in states)} of {len(states)}"


def label(state):
    number, title, ticked = state
    return f"{'✓' if ticked else '·'} {number} {title}"
