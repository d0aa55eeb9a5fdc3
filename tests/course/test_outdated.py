"""Tests of messages about outdated functions and interrupted checks in a notebook.

A check of a function whose cell has failed must say so. A check that is interrupted or does not end must show
only the learner's line.
"""

import pytest
from jupyter_client.manager import start_new_kernel

from course.bootstrap import ROOT
from course.outdated import Cells, defined_names, used_names

START = "from course import check"
RIGHT = "def online_softmax(x):\n    return half(x)"
WRONG = "def merge(left, right):\n    return left +"
FIRST = "def merge(left, right):\n    return left"
CHECK = "check.ex01_2(merge)"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def merge(a):\n    return a +", {"merge"}),
        ("@cuda.jit\ndef kernel(x):\n    inner = 1\n    def helper(): pass\n", {"kernel"}),
        ("class Model(\n  pass", {"Model"}),
        ("source = r'''\nint x;", {"source"}),
        ("width: int = 4", {"width"}),
        ("%timeit merge(1)\nmerge == 3\nmerge(a=1)", set()),
    ],
)
def test_the_names_that_a_cell_defines_even_if_it_is_no_python(text, names):
    assert defined_names(text) == names


def test_the_names_that_a_cell_uses():
    assert used_names("# merge\ncheck.ex01_2(merge2)") == {"check", "merge2"}
    assert "merge" in used_names("%time check.ex01_2(merge)")


class Result:
    """The object that IPython passes to the hook after a cell."""

    def __init__(self, before=None, inside=None):
        self.error_before_exec, self.error_in_exec = before, inside


def test_a_name_is_outdated_from_a_failed_cell_to_the_next_good_one():
    names, cells = {}, None

    def run(text, then=lambda: None, **errors):
        cells.begin(type("Info", (), {"raw_cell": text}))
        then()
        said = cells.used()
        cells.end(Result(**errors))
        return said

    cells = Cells(names)
    run(WRONG, before=SyntaxError("invalid syntax"))
    assert run(CHECK) == ""  # No older definition exists, so the name is unknown.
    run(FIRST, lambda: names.update(merge=lambda: half, half=lambda: 1))  # noqa: F821
    assert run(CHECK) == ""
    run(WRONG, before=SyntaxError("invalid syntax", ("cell", 2, 18, "    return left +")))
    assert "merge has a syntax error, so merge is still the old one\n    line 2: return left +\n" in run(
        CHECK
    )
    run(FIRST, lambda: names.update(merge=lambda: half))  # noqa: F821
    assert run(CHECK) == ""
    run(WRONG, before=SyntaxError("invalid syntax"))
    assert "syntax error" in run(CHECK)
    assert run(f"{FIRST}\n{CHECK}", lambda: names.update(merge=lambda: half)) == ""  # noqa: F821
    run("half = 1 / 0", inside=ZeroDivisionError())
    assert "half stopped with ZeroDivisionError before it got there" in run(CHECK)  # merge calls half.
    run("def merge(): pass\n1 / 0", lambda: names.update(merge=lambda: 1), inside=ZeroDivisionError())
    assert run(CHECK) == ""  # This definition was reached before the error.


# A real kernel, started by Jupyter --------------------------------------------------------------------------


@pytest.fixture
def kernel(monkeypatch):
    """Return run(text, after=None), which runs a cell in a fresh notebook and returns its error message, or
    "".

    after: output of the cell after which the kernel is interrupted.
    """
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'notebooks'}")
    manager, client = start_new_kernel(kernel_name="python3")

    def run(text, after=None):
        shown = []

        def output(message):
            content = message["content"]
            if after and content.get("text", "").startswith(after):
                manager.interrupt_kernel()
            if message["msg_type"] == "error":
                shown.extend(content["traceback"])

        client.execute_interactive(text, output_hook=output, timeout=120, allow_stdin=False)
        return "\n".join(shown)

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_a_check_in_a_kernel(kernel):
    assert kernel(START) == kernel(FIRST) == ""
    assert "SyntaxError" in kernel(WRONG)
    assert kernel(CHECK).splitlines() == [
        "✗ exercise 1.2 · merge: the last cell that defines merge has a syntax error, so merge is",
        "  still the old one",
        "    line 2: return left +",
        "  Correct that cell and run it, then this one.",
    ]
    endless = FIRST.replace("return left", "print('begun', flush=True)\n    while True: pass")
    assert kernel(endless) == ""
    first, line, *_ = kernel(CHECK, after="begun").splitlines()
    # The interrupt arrives while or after the text is sent.
    assert (first[-10:], line) in [
        ("2 of merge", "    print('begun', flush=True)"),
        ("3 of merge", "    while True: pass"),
    ] and first.startswith("✗ exercise 1.2 · merge: interrupted in line ")
    assert kernel("from course.check import patience; patience.PATIENCE = 1") == ""
    said = kernel(CHECK).splitlines()
    assert said[0].startswith(
        "✗ exercise 1.2 · merge: stopped because your code was still running after 1 seconds,"
    )
    assert said[-1].startswith("  Does every iteration of the loop bring it closer to its end?   (seed ")
