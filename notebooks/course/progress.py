"""The progress list: a small file among the learner's lessons that records which exercises are done."""

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

LESSONS = ROOT / "notebooks"  # the published notebooks; a class may work without the folder solutions/
COPIES = ROOT / "my_lessons"  # folder with the learner's copies of the lessons
CHECKS = Path(__file__).parent / "check"


def progress():
    """Return a table of the exercises that are done, one line per lesson. A notebook shows it as HTML."""
    return Table(exercises(), done())


@functools.cache
def exercises():
    """Return every lesson's exercises in order, {"01": {"1.0": "predict the factor", ...}, ...}.

    They are parsed from the source of the checks, because importing all checks takes seconds. A lesson in
    several notebooks (08 and 08b) has one or several modules of checks; each exercise belongs to the notebook
    with its stub.
    """
    found, sources = {}, {}
    for file in sorted(CHECKS.glob("lesson[0-9][0-9]*.py")):
        lesson = file.stem.removeprefix("lesson")[:2]
        sources[lesson] = sources.get(lesson, "") + file.read_text(encoding="utf-8")
    for lesson, source in sources.items():
        numbered = re.findall(r"@exercise\(\s*\"([\d.]+)\",\s*\"([^\"]+)\"", source)
        in_order = sorted(numbered, key=lambda pair: int(pair[0].partition(".")[2]))
        parts = sorted(LESSONS.glob(f"{lesson}[a-z_]*.ipynb"))
        texts = {part.stem.partition("_")[0]: part.read_text(encoding="utf-8") for part in parts[1:]}
        found |= {part: {} for part in (lesson, *texts)}  # 11b has no exercise
        for number, title in in_order:
            part = next((name for name, text in texts.items() if stub_text(number) in text), lesson)
            found[part][number] = title
    return found


def stub_text(number):
    """Return the text that marks the stub of an exercise in the file of a published notebook."""
    return f'NotImplementedError(\\"exercise {number}\\")'


def next_exercise(after=None):
    """Return the first unfinished exercise after `after`, or else from the start. Return None if all are
    done."""
    numbers, ticked = [number for lesson in exercises().values() for number in lesson], done()
    start = numbers.index(after) + 1 if after in numbers else 0
    return next((number for number in numbers[start:] + numbers[:start] if number not in ticked), None)


def place(number):
    """Return the file name of an exercise's notebook in the learner's folder, "01_online_softmax.ipynb"."""
    lesson = next(lesson for lesson, numbers in exercises().items() if number in numbers)
    return next(file.name for file in sorted(LESSONS.glob(f"{lesson}_*.ipynb")))


def lesson_file(number):
    """Return the file name of a lesson's notebook by its number, such as "1", "01" or "10b", or None."""
    name = number.lower().zfill(3 if number[-1].isalpha() else 2)
    return next((file.name for file in LESSONS.glob(f"{name}_*.ipynb")), None)


def how_far(number):
    """Return the Markdown that a notebook shows after a passed check.

    It contains the number of exercises done, the next exercise, and a link to the solution.
    """
    total = sum(map(len, exercises().values()))
    onward = next_exercise(number)
    said = [f"{len(done())} of {total} done"]
    if onward:
        said.append(f"next: [{onward}]({place(onward)})")
    if (ROOT / "solutions" / place(number)).exists():
        said.append(f"[a solution of {number}](solutions/{place(number)})")
    return " · ".join(said)


def done():
    """Return the finished exercises with the date of their first success, {"1.2": "2026-11-21", ...}."""
    return load(ledger_path())


def tick(number):
    """Mark exercise `number` ("1.2") as done. If the file cannot be written, print a message and continue."""
    record(ledger_path(), number, datetime.date.today().isoformat(), replace=False)


def load(path):
    """Return the table in this file, or {} if there is no file.

    A damaged file is renamed, a message names the new file, and an empty table is started.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a table")
        return found
    except FileNotFoundError:
        return {}
    except ValueError as error:
        print(f"Your list of {path.stem} could not be read ({error}); it is kept as {set_aside(path)}.")
        return {}


def record(path, key, value, replace=True):
    """Set one entry of the table in this file, unless it is set and `replace` is false. If that fails, print
    a message and continue."""
    try:
        with alone(path):
            table = load(path)
            if replace or key not in table:
                write(path, {**table, key: value})
    except OSError as error:
        print(f"(Your list of {path.stem} could not be saved: {error})")


def alone(path):
    """Lock a table, so that no entry is lost if two notebooks update it at the same time."""
    from filelock import FileLock  # imported here so that the doctor runs even if filelock is missing

    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_suffix(".lock"), timeout=30)


def write(path, table):
    """Replace a table atomically."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".draft", text=True)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1, sort_keys=True)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def ledger_path():
    """Return the path of the progress list."""
    return stored("exercises")


def stored(name):
    """Return the path of the table `name`, in COURSE_STATE_DIR if that is set, else in my_lessons/.

    A copy of my_lessons/ thus includes the progress, and a new clone starts at the first lesson.
    """
    return Path(os.environ.get("COURSE_STATE_DIR") or COPIES / ".progress") / f"{name}.json"


def users_ledger():
    """Return the path of the list that all clones of a user shared in early versions of the course."""
    # imported here so that the doctor runs even if platformdirs is missing
    from platformdirs import user_state_dir

    return Path(user_state_dir("gpu-attention-course")) / "exercises.json"


def adopt_users_ledger():
    """Copy the formerly shared list into a clone that has no list. Return a message, or ""."""
    if ledger_path().exists() or not users_ledger().exists():
        return ""
    ledger_path().parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(users_ledger(), ledger_path())
    return f"Your progress was copied from {users_ledger()}; it now belongs to this clone."


def reset():
    """Start a new progress list, keep the old one next to it, and return a message."""
    if not done():
        return "No exercise is done yet: there is nothing to reset."
    with alone(ledger_path()):
        kept = set_aside(ledger_path(), "before-reset")
    return f"No exercise is done now. The old list is kept as {kept}; your notebooks are as they were."


def set_aside(path, why="damaged"):
    """Rename the progress list to an unused name that contains `why`, and return that name."""
    descriptor, kept = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-{why}-", suffix=".json")
    os.close(descriptor)
    os.replace(path, kept)
    return kept


class Table:
    """Lessons with their finished and unfinished exercises. A terminal shows text, a notebook HTML."""

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
