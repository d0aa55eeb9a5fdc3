"""Tests of the build.

The build must create stubs and solutions from one source, reproduce its output, and write nothing for a
lesson that fails.
"""

import shutil
from pathlib import Path

import nbformat
import pytest

from course import build

TINY = Path(__file__).parent / "tiny" / "01_tiny.py"


@pytest.fixture
def root(tmp_path):
    """Return an otherwise empty project with one source and a learner's file."""
    for folder in ("notebooks", "solutions", "my_lessons"):
        (tmp_path / folder).mkdir()
    shutil.copy(TINY, tmp_path / "solutions")
    (tmp_path / "my_lessons" / "01_tiny.ipynb").write_text("mine")
    return tmp_path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a project whose lesson has been built. Tests must not change it."""
    root = tmp_path_factory.mktemp("built")
    for folder in ("notebooks", "solutions", "my_lessons"):
        (root / folder).mkdir()
    shutil.copy(TINY, root / "solutions")
    (root / "my_lessons" / "01_tiny.ipynb").write_text("mine")
    assert build.write(root) == []
    return root


def copy_of(project, to):
    """Return a copy of a project that a test may change."""
    return Path(shutil.copytree(project, to / "project"))


def notebook(root, folder):
    return nbformat.read(root / folder / "01_tiny.ipynb", as_version=4)


def source(root, old, new):
    """Replace the text of the lesson's source."""
    file = root / "solutions" / "01_tiny.py"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_stub_raises_in_place_of_the_solution(built):
    exercise = notebook(built, "notebooks").cells[2]
    assert (
        exercise.source == 'def add(a, b):\n    """The sum."""\n    raise NotImplementedError("exercise 1.1")'
    )
    assert exercise.metadata == {"tags": ["exercise"]}


def test_a_stub_notebook_has_no_outputs(built):
    code = [cell for cell in notebook(built, "notebooks").cells if cell.cell_type == "code"]
    assert len(code) == 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_the_solution_is_executed_quietly_with_an_empty_ledger_as_on_a_machine_without_a_gpu(built):
    cells = notebook(built, "solutions").cells
    assert cells[1].outputs[0].text == "quiet: 1 · empty ledger: True\n"
    assert cells[3].outputs[0].text == "✓ exercise 1.1\n"
    assert cells[4].outputs[0].data == {"text/plain": "[2, 4]"}
    assert cells[5].outputs[0].text == "no GPU here\n"
    assert [cell.execution_count for cell in cells[1:]] == [1, 2, 3, 4, 5]


def test_nothing_in_the_notebooks_tells_when_or_on_what_they_were_built(built):
    for folder in ("notebooks", "solutions"):
        lesson = notebook(built, folder)
        assert lesson.metadata == build.METADATA
        assert all(set(cell.metadata) <= {"tags"} for cell in lesson.cells)


def test_both_notebooks_share_cell_ids_that_differ_within_each(built):
    stub, solution = (
        [cell.id for cell in notebook(built, folder).cells] for folder in ("notebooks", "solutions")
    )
    assert stub == solution
    assert len(set(stub)) == len(stub)


def test_a_changed_cell_changes_its_own_id_only(root):
    before = [cell.id for cell in build.read(root / "solutions" / "01_tiny.py")[0].cells]
    source(root, "add(2, 2)", "add(2, 3)")
    after = [cell.id for cell in build.read(root / "solutions" / "01_tiny.py")[0].cells]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True] * 4 + [False, True]


def test_a_fresh_build_is_not_stale_and_touches_no_learners_file(built):
    assert build.find_stale(built) == []
    assert (built / "my_lessons" / "01_tiny.ipynb").read_text() == "mine"
    assert sorted(file.name for file in built.rglob("*") if file.is_file()) == ["01_tiny.ipynb"] * 3 + [
        "01_tiny.py"
    ]


@pytest.mark.parametrize(
    ("folder", "old", "new"), [("notebooks", "exercise 1.1", "exercise 1.2"), ("solutions", "a + b", "b + a")]
)
def test_an_edited_notebook_is_stale_and_the_message_says_what_mends_it(built, tmp_path, folder, old, new):
    root = copy_of(built, tmp_path)
    file = root / folder / "01_tiny.ipynb"
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert build.find_stale(root) == [
        f"{folder}/01_tiny.ipynb is not what solutions/01_tiny.py gives. To fix it: python notebooks/course"
        " build 01"
    ]


def test_outputs_are_none_of_the_freshness_tests_business(built, tmp_path):
    root = copy_of(built, tmp_path)
    file = root / "solutions" / "01_tiny.ipynb"
    file.write_text(file.read_text(encoding="utf-8").replace("[2, 4]", "[2, 5]"), encoding="utf-8")
    assert build.find_stale(root) == []


def test_a_changed_source_a_missing_and_a_lost_notebook_are_stale(built, tmp_path, capsys, monkeypatch):
    root = copy_of(built, tmp_path)
    source(root, "small enough", "tiny enough")
    (root / "notebooks" / "01_tiny.ipynb").unlink()
    (root / "notebooks" / "02_lost.ipynb").write_text("{}")
    monkeypatch.setattr(build, "ROOT", root)
    assert build.main(["--check"]) == 1
    assert (
        capsys.readouterr().err
        == "notebooks/01_tiny.ipynb is not what solutions/01_tiny.py gives. To fix it: python"
        " notebooks/course build 01\nsolutions/01_tiny.ipynb is not what solutions/01_tiny.py gives. To"
        " fix it: python notebooks/course build 01\nnotebooks/02_lost.ipynb has no source"
        " solutions/02_lost.py. To fix it: git rm notebooks/02_lost.ipynb\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return total", "return 1 / 0", ["a cell fails", "assert add(2, 3) == 5", "ZeroDivisionError"]),
        (
            'print("✓ exercise 1.1")',
            'import warnings; warnings.warn("oh")',
            ["writes to stderr", "warnings.warn", "UserWarning: oh"],
        ),
    ],
)
def test_a_lesson_with_an_error_or_a_warning_is_not_written(root, old, new, says):
    source(root, old, new)
    with pytest.raises(build.BuildError) as caught:
        build.write(root)
    assert all(word in str(caught.value) for word in ["01_tiny.py", *says])
    assert not list(root.glob("[ns]*/*.ipynb"))


@pytest.mark.parametrize("line", ["    # END SOLUTION\n", "    # BEGIN SOLUTION 1.1\n"])
def test_half_a_mark_is_refused(root, line):
    source(root, line, "")
    with pytest.raises(build.BuildError, match="needs both of its lines"):
        build.find_stale(root)


def test_an_unknown_number_is_refused(root, monkeypatch, capsys):
    monkeypatch.setattr(build, "ROOT", root)
    assert build.main(["07"]) == 1
    assert capsys.readouterr().err == "There is no lesson 07 in solutions/.\n"
