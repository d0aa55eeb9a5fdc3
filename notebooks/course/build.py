"""Build of a lesson's two notebooks from its source: the exercise notebook with stubs, and the executed
solution."""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from course.bootstrap import ROOT

CELL_SECONDS = 600
# The metadata is fixed because the kernel would add its own version, which differs between machines.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
REGION = re.compile(r"^( *)# BEGIN SOLUTION (\S+)\n.*?^ *# END SOLUTION *$", re.DOTALL | re.MULTILINE)


class BuildError(Exception):
    """Error that a lesson cannot be built. The message names the file and the reason."""


def main(arguments: list[str]) -> int:
    """Build the given lessons (`build NN ...`) or all of them; `build --check` only compares. Return the exit
    status."""
    parser = argparse.ArgumentParser(prog="course build", description=__doc__)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="numbers of lessons; all, if none is given")
    parser.add_argument(
        "--check",
        action="store_true",
        help="execute and write nothing; fail if a notebook is not what its source gives",
    )
    options = parser.parse_args(arguments)
    try:
        complaints = find_stale(ROOT, options.lessons) if options.check else write(ROOT, options.lessons)
    except BuildError as error:
        complaints = [str(error)]
    print(*complaints, sep="\n", end="\n" if complaints else "", file=sys.stderr)
    return int(bool(complaints))


def write(root: Path, numbers: Iterable[str] = ()) -> list[str]:
    """Write both notebooks of each lesson and return an empty list of differences.

    A lesson that fails raises BuildError, and neither of its notebooks is written.
    """
    for source in sources(root, numbers):
        print(f"building {source.stem} ...", flush=True)
        stub, solution = read(source)
        compiled = root / "notebooks" / "course" / "recorded" / f"{source.stem}.json"
        with tempfile.TemporaryDirectory() as folder:
            fresh = Path(folder) / "ptx.json"
            execute(solution, source, environment={"COURSE_RECORD_PTX": str(fresh)})
            store_recording(fresh, compiled)
        save(root / "notebooks" / f"{source.stem}.ipynb", stub)
        save(root / "solutions" / f"{source.stem}.ipynb", solution)
    return []


def store_recording(fresh: Path, compiled: Path) -> None:
    """Replace the recorded compiler output of a lesson (see course.ptx).

    A lesson that compiles nothing has no recording.
    """
    compiled.unlink(missing_ok=True)
    if fresh.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fresh, compiled)


def find_stale(root: Path, numbers: Iterable[str] = ()) -> list[str]:
    """Return one line for each notebook that differs from its source, apart from outputs."""
    found = []
    for source in sources(root, numbers):
        stub, solution = map(text, read(source))
        fix = f"python notebooks/course build {number(source)}"
        for folder, wanted, kept in (("notebooks", stub, str), ("solutions", solution, without_outputs)):
            file = root / folder / f"{source.stem}.ipynb"
            if not file.exists() or kept(file.read_text(encoding="utf-8")) != wanted:
                found.append(
                    f"{file.relative_to(root)} is not what {source.relative_to(root)} gives. To fix it: {fix}"
                )
    return found if numbers else found + find_orphans(root)


def find_orphans(root: Path) -> list[str]:
    """Return a line for each notebook that has no source."""
    notebooks = sorted([*root.glob("notebooks/*.ipynb"), *root.glob("solutions/*.ipynb")])
    lost = [
        file.relative_to(root) for file in notebooks if not (root / "solutions" / f"{file.stem}.py").exists()
    ]
    return [f"{file} has no source solutions/{file.stem}.py. To fix it: git rm {file}" for file in lost]


def sources(root: Path, numbers: Iterable[str] = ()) -> list[Path]:
    """Return the source files of the lessons with these numbers, or of all lessons."""
    every = sorted((root / "solutions").glob("[0-9]*.py"))
    unknown = set(numbers) - set(map(number, every))
    if unknown:
        raise BuildError(f"There is no lesson {', '.join(sorted(unknown))} in solutions/.")
    return [source for source in every if not numbers or number(source) in numbers]


def number(source: Path) -> str:
    """Return the lesson number from a file name: 01 for 01_online_softmax.py."""
    return source.stem.partition("_")[0]


def read(source: Path) -> tuple[NotebookNode, NotebookNode]:
    """Return the exercise notebook and the solution notebook of a source, neither of them executed.

    They differ only in the regions that the source marks as solutions.
    """
    lesson = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    return notebook(source.stem, lesson.cells, with_stubs), notebook(source.stem, lesson.cells, str)


def notebook(name: str, cells: list[NotebookNode], change) -> NotebookNode:
    """Return a notebook with these cells, after applying `change` to the source of each code cell.

    A cell's id is a hash of the notebook's name, the cell's position and its stub.
    """
    result = nbformat.v4.new_notebook(metadata=nbformat.from_dict(METADATA))
    for place, cell in enumerate(cells):
        new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        identity = sha256(f"{name} {place} {with_stubs(cell.source)}".encode()).hexdigest()[:12]
        # The "jupyter" metadata says whether a cell is collapsed at first.
        kept = {key: cell.metadata[key] for key in ("tags", "jupyter") if cell.metadata.get(key)}
        result.cells.append(
            new(change(cell.source) if cell.cell_type == "code" else cell.source, id=identity, metadata=kept)
        )
    return result


def with_stubs(code: str) -> str:
    """Replace each marked solution with a line that raises NotImplementedError and names the exercise."""
    stub = REGION.sub(r'\1raise NotImplementedError("exercise \2")', code)
    if re.search(r"# (BEGIN|END) SOLUTION", stub):
        raise BuildError(
            "A marked solution needs both of its lines, `# BEGIN SOLUTION 1.2` and `# END SOLUTION`,"
            f" in\n\n{code}"
        )
    return stub


def execute(
    lesson: NotebookNode, source: Path, going_on: bool = False, environment: dict[str, str] | None = None
) -> None:
    """Run the code cells in place, as on a machine without a GPU.

    going_on: continue after an error or a warning instead of raising BuildError.
    """
    with tempfile.TemporaryDirectory() as state:
        client = NotebookClient(
            lesson,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            allow_errors=going_on,
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": str(source.parent)}},
        )
        try:
            client.execute(
                env=os.environ
                | {"COURSE_QUIET": "1", "COURSE_STATE_DIR": state, "CUDA_VISIBLE_DEVICES": ""}
                | (environment or {})
            )
        except CellExecutionError as error:
            raise BuildError(f"{source.name}: a cell fails\n{error}") from None
    lesson.metadata = nbformat.from_dict(METADATA)
    if not going_on:
        refuse_warnings(lesson, source)


def refuse_warnings(lesson: NotebookNode, source: Path) -> None:
    """Raise BuildError if a cell wrote to stderr.

    Stored notebooks would show that text to learners, and warnings vary between runs.
    """
    for cell in lesson.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise BuildError(f"{source.name}: a cell writes to stderr\n{cell.source}\n\n{output.text}")


def without_outputs(stored: str) -> str:
    """Return the text of a notebook as it was before execution."""
    lesson = nbformat.reads(stored, as_version=4)
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return text(lesson)


def text(lesson: NotebookNode) -> str:
    """Return the JSON text of a notebook, as stored in its file."""
    nbformat.validate(lesson)
    return nbformat.writes(lesson) + "\n"


def save(file: Path, lesson: NotebookNode) -> None:
    """Write a notebook atomically."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(text(lesson), encoding="utf-8", newline="\n")
    unfinished.replace(file)
