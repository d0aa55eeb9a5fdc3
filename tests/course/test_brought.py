"""Tests of functions brought over from another lesson: the learner's version if it is finished, else the
solution's."""

import json

import pytest

from course import brought

CELLS = (
    "import math",
    "%time 1\n",
    "TWO = 2\nTHREE = print('a call is not run')\n\n\n@live\ndef on_a_gpu():\n    pass\n",
    "broken (",
    "def twice(x):\n    {}\n\n\ndef later():\n    raise NotImplementedError('exercise 5.4')\n",
)


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """Return lesson(body), which writes a learner's notebook where `twice` has this body."""
    monkeypatch.chdir(tmp_path)

    def written(body, name="05_flash_kernel"):
        cells = [{"cell_type": "code", "source": cell.replace("{}", body)} for cell in CELLS]
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))

    return written


def test_the_learners_own(lesson, capsys):
    lesson("return TWO * x", "05_mine")
    assert brought("05_mine", "twice")(21) == 42
    assert capsys.readouterr().out == "twice: yours, from 05_mine.ipynb\n"


@pytest.mark.parametrize("write", [True, False])
def test_the_solution_stands_in_for_a_stub_or_no_notebook(lesson, capsys, write):
    if write:
        lesson('raise NotImplementedError("exercise 5.2")')
    kernel = brought("05_flash_kernel", "flash_kernel")
    assert "softmax" in kernel.__doc__
    assert "the solution's" in capsys.readouterr().out


def test_several_names_some_of_them_unfinished(lesson, capsys):
    lesson("return TWO * x\n\n\ndef load_tile(x):\n    return x")
    twice, kernel = brought("05_flash_kernel", "load_tile", "flash_kernel")
    assert twice(3) == 3 and "softmax" in kernel.__doc__
    said = capsys.readouterr().out
    assert "load_tile: yours" in said and "flash_kernel: the solution's" in said


def test_a_notebook_that_brings_over_functions_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = {
        "90_first": ["def add(x):\n    return x + ROOM\n\n\nROOM = 2 * 3"],
        "90b_second": [
            'from course import brought\n\nadd, ROOM = brought("90_first", "add", "ROOM")',
            "def both(x):\n    return add(x) + ROOM",
        ],
    }
    for name, sources in cells.items():
        written = [{"cell_type": "code", "source": source} for source in sources]
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"cells": written}))
    assert brought("90b_second", "both")(1) == 13


def test_a_stub_inside_a_kernel_that_a_function_makes(lesson, capsys):
    stub = "def kernel(q):\n        raise NotImplementedError('exercise 11.5')\n\n    return kernel"
    lesson(
        f"pass\n\n\nimport functools\n\n\n@functools.cache\ndef conv_kernel(size):\n    {stub}",
        "11_conv_forward",
    )
    assert brought("11_conv_forward", "conv_kernel")(8).__doc__
    assert "the solution's" in capsys.readouterr().out
