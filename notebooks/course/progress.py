"""The ledger: which exercises are done, in a small file in the learner's own state directory."""

import datetime
import html
import json
import os
import tempfile
from pathlib import Path


def progress():
    """A table of the exercises done, a line a lesson; a notebook shows it as HTML."""
    from course.check import lessons  # here, as the checks tick this ledger

    return Table(lessons(), done())


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
        ledger = done()
        if number not in ledger:
            write({**ledger, number: datetime.date.today().isoformat()})
    except OSError as error:
        print(f"(Your ledger of exercises could not be saved: {error})")


def write(ledger):
    """Replace the ledger in one step, so that a reader sees the old file or the new one, never half of
    one."""
    path = ledger_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".draft", text=True)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(ledger, file, indent=1, sort_keys=True)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def ledger_path():
    """Where the ledger is: COURSE_STATE_DIR if set, else the user's state directory as the system names
    it."""
    from platformdirs import user_state_dir  # here, so that the doctor can run where platformdirs is missing

    return (
        Path(os.environ.get("COURSE_STATE_DIR") or user_state_dir("gpu-attention-course")) / "exercises.json"
    )


def set_aside(path):
    """Rename a damaged ledger to a name that is free, and return it."""
    descriptor, kept = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-damaged-", suffix=".json")
    os.close(descriptor)
    os.replace(path, kept)
    return kept


class Table:
    """Lessons and their exercises, ticked or not: text in a terminal, HTML in a notebook."""

    def __init__(self, lessons, ticked):
        self.rows = [
            (name, [(check, check.number in ticked) for check in checks.values()])
            for name, checks in lessons.items()
        ]

    def __repr__(self):
        return "\n".join(
            f"{lesson}  {count(states)}  {'  '.join(map(label, states))}" for lesson, states in self.rows
        )

    def _repr_html_(self):
        cells = "".join(
            f"<tr><td>{lesson}</td><td>{count(states)}</td><td>{html.escape('   '.join(map(label, states)))}</td></tr>"
            for lesson, states in self.rows
        )
        return f"<table><tr><th>lesson</th><th>done</th><th>exercises</th></tr>{cells}</table>"


def count(states):
    return f"{sum(ticked for _, ticked in states)} of {len(states)}"


def label(state):
    check, ticked = state
    return f"{'✓' if ticked else '·'} {check.number} {check.title}"
