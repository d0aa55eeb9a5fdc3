"""Tests of the published lessons.

They must be up to date, fail exactly at unfinished exercises, and equal the solutions everywhere else.
"""

import json
import re

import nbformat
import pytest

from course import build
from course.bootstrap import ROOT
from course.progress import exercises

LESSONS = [source.stem for source in build.sources(ROOT)]
RECORDED = ROOT / "notebooks" / "course" / "recorded"
each_lesson = pytest.mark.parametrize("lesson", LESSONS)
# All stubs together take 200 s of CPU time; the slowest take 10 to 49 s each. The cells outside the marked
# regions are compared in every CI run.
LONG = {"02_flash_attention", "13_conv_backward", "13b_keys_and_sums", "15_training", "23_many_gpus"}
STUBS = [lesson for lesson in LESSONS if lesson not in LONG][3::18]


def notebook(folder, lesson):
    return nbformat.read(ROOT / folder / f"{lesson}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def test_there_are_lessons_and_their_notebooks_are_fresh():
    assert LESSONS
    assert build.find_stale(ROOT) == []


@each_lesson
def test_every_code_cell_of_a_solution_was_executed(lesson):
    """Find the execution count of each cell, because nbval skips a cell without one."""
    assert [
        cell.source for cell in code_cells(notebook("solutions", lesson)) if cell.execution_count is None
    ] == []


@each_lesson
def test_code_keeps_to_88_columns(lesson):
    """Limit the width of code, so that a cell can be read without scrolling even at 900 pixels."""
    lines = [line for cell in code_cells(notebook("solutions", lesson)) for line in cell.source.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if "09" <= lesson[:2] <= "15"])
def test_a_visible_cell_has_at_most_40_lines_and_the_lesson_says_what_to_read_on(lesson):
    """Check that a learner sees a whole cell on the screen. Cells that only draw are folded."""
    solution = notebook("solutions", lesson)
    visible = [
        cell.source
        for cell in code_cells(solution)
        if not cell.metadata.get("jupyter", {}).get("source_hidden")
    ]
    assert [cell for cell in visible if len(cell.splitlines()) > 40] == []
    assert any("**Read on:**" in cell.source for cell in solution.cells)


@each_lesson
def test_stub_and_solution_differ_inside_marked_regions_only(lesson):
    for stub, solution in zip(
        notebook("notebooks", lesson).cells, notebook("solutions", lesson).cells, strict=True
    ):
        outside = re.split(r" *# BEGIN SOLUTION .*\n(?:.*\n)*? *# END SOLUTION", solution.source)
        pieces = iter(
            re.split(r" *raise NotImplementedError\(.exercise [\d.]+.\)", stub.source)
            if len(outside) > 1
            else [stub.source]
        )
        assert list(pieces) == outside
        assert (stub.cell_type, tags(stub), stub.id) == (solution.cell_type, tags(solution), solution.id)


@pytest.mark.parametrize(
    "lesson", [pytest.param(name, marks=[] if name in STUBS else [pytest.mark.nightly]) for name in LESSONS]
)
def test_with_stubs_exactly_the_cells_that_need_an_exercise_fail_and_each_names_it(lesson):
    stubs = notebook("notebooks", lesson)
    build.execute(stubs, ROOT / "notebooks" / lesson, going_on=True)
    failures = []
    for cell in code_cells(stubs):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        should_fail = bool(tags(cell) & {"check", "uses-exercise"}) and "gpu" not in tags(cell)
        assert bool(errors) == should_fail, f"{sorted(tags(cell))}\n{cell.source}\n{errors}"
        assert all(re.search(r"exercise \d+\.\d+", error.evalue) for error in errors), (
            f"{cell.source}\n{errors}"
        )
        failures += errors
    for stop in failures[:1]:  # "Run All" stops here.
        first, second = stop.traceback
        number = next(iter(exercises()[lesson.partition("_")[0]]))
        assert re.match(rf"✗ exercise {number} .*not written yet", first) and second.startswith(
            "  Put your code in place of raise"
        ), stop.traceback


@pytest.mark.parametrize(
    "lesson",
    [
        pytest.param(lesson, marks=[pytest.mark.nightly] if place else [])
        for place, lesson in enumerate(name for name in LESSONS if (RECORDED / f"{name}.json").exists())
    ],
)
def test_without_the_compiler_a_solution_prints_the_same_but_for_what_it_says_of_the_learners_kernel(lesson):
    solution = build.read(ROOT / "solutions" / f"{lesson}.py")[1]
    build.execute(solution, ROOT / "solutions" / lesson, environment={"COURSE_NO_COMPILER": "1"})
    for cell, stored in zip(solution.cells, notebook("solutions", lesson).cells, strict=True):
        here, there = (
            [output.text for output in each.get("outputs", []) if "text" in output] for each in (cell, stored)
        )
        assert here == there or (
            "check" in tags(cell) and "not compiled" in " ".join(here[0].lower().split())
        ), cell.source


def test_lesson_18_shows_a_race_without_each_of_the_three_barriers():
    """Read the stored output, which nbval compares with a new run."""
    outputs = [
        output for cell in code_cells(notebook("solutions", "18_fast_backward")) for output in cell.outputs
    ]
    text = "".join(output.get("text", "") for output in outputs)
    found = re.findall(r"dQ and dW without (\w):\n(?:  .*\n)*  race-shared +(\w+)", text)
    assert found == [("A", "s_tile"), ("B", "g_tile"), ("C", "s_tile")]


def test_each_live_cell_has_a_recorded_run_with_its_gpu_and_date_and_no_other_has():
    sources = "".join(source.read_text(encoding="utf-8") for source in build.sources(ROOT))
    record = json.loads((RECORDED / "live.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"Recorded on an NVIDIA \w+.*, \d{4}-\d\d-\d\d, .*", record["source"])
    assert set(record["cells"]) == set(re.findall(r"^@live\ndef (\w+)", sources, re.MULTILINE))
    assert all(record["cells"].values())
