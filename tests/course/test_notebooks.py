"""The published lessons: fresh, failing exactly where an exercise is not done, and equal to the solutions everywhere else."""

import re

import nbformat
import pytest

from course import build
from course.bootstrap import ROOT

LESSONS = [source.stem for source in build.sources(ROOT)]
each_lesson = pytest.mark.parametrize("lesson", LESSONS)


def notebook(folder, lesson):
    return nbformat.read(ROOT / folder / f"{lesson}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def test_there_are_lessons_and_their_notebooks_are_fresh():
    assert LESSONS
    assert build.stale(ROOT) == []


@each_lesson
def test_every_code_cell_of_a_solution_was_executed(lesson):
    """nbval compares no cell without an execution count."""
    missing = [cell for cell in code_cells(notebook("solutions", lesson)) if cell.execution_count is None]
    assert [cell.source for cell in missing if "gpu" not in tags(cell)] == []


@each_lesson
def test_stub_and_solution_differ_inside_marked_regions_only(lesson):
    for stub, solution in zip(notebook("notebooks", lesson).cells, notebook("solutions", lesson).cells, strict=True):
        outside = re.split(r" *# BEGIN SOLUTION .*\n(?:.*\n)*? *# END SOLUTION", solution.source)
        pieces = iter(re.split(r" *raise NotImplementedError\(.exercise [\d.]+.\)", stub.source) if len(outside) > 1 else [stub.source])
        assert list(pieces) == outside
        assert (stub.cell_type, tags(stub), stub.id) == (solution.cell_type, tags(solution), solution.id)


@each_lesson
def test_with_stubs_exactly_the_cells_that_need_an_exercise_fail_and_each_names_it(lesson):
    stubs = notebook("notebooks", lesson)
    build.execute(stubs, ROOT / "notebooks" / lesson, going_on=True)
    for cell in code_cells(stubs):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        should_fail = bool(tags(cell) & {"check", "uses-exercise"}) and "gpu" not in tags(cell)
        assert bool(errors) == should_fail, f"{sorted(tags(cell))}\n{cell.source}\n{errors}"
        assert all(re.search(r"exercise \d+\.\d+", error.evalue) for error in errors), f"{cell.source}\n{errors}"
