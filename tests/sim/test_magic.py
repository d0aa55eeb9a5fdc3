"""Tests of the cell magic %%simulate, in an IPython shell."""

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from sim import KernelBug, LaunchError, magic

KERNELS = """
import numpy as np
from numba import cuda
@cuda.jit
def shift(x):
    i = cuda.grid(1)
    if i + 1 < x.size:
        x[i] = x[i + 1]
def plain(x):
    x[cuda.threadIdx.x] *= 2
"""


@pytest.fixture
def run():
    """Return a function that runs a cell in a shell with the magic and two kernels, and returns its result."""
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "sim")
    shell.run_cell(KERNELS)

    def run(cell):
        result = shell.run_cell(cell)
        result.names = shell.user_ns
        return result

    yield run
    shell.history_manager.end_session()


def test_the_reports_follow_the_output_and_the_value(run, capsys):
    result = run("%%simulate --engine native\nx = np.arange(64.0)\nprint('hi')\nshift[1, 64](x)\nx.size")
    said = capsys.readouterr().out
    assert result.success and magic.LAUNCH not in result.names
    assert said.index("hi") < said.index("64\n") < said.index("shift[1, 64] on the native engine: 1 finding")
    assert "race-global: x[32]" in said and "shift line 4" in said


def test_a_kernel_of_the_same_cell_in_a_loop_and_a_plain_function(run, capsys):
    kernel = "@cuda.jit\ndef double(x):\n    x[cuda.threadIdx.x] *= 2\n"
    run(f"%%simulate\n{kernel}x = np.ones(4)\nfor _ in range(2):\n    double[1, 4](x)\nplain[1, 4](x)")
    assert capsys.readouterr().out.count("on the fibers engine: no findings") == 3


def test_other_calls_of_elements_are_left_alone(run, capsys):
    result = run("%%simulate\nfound = {'a': len}['a']([1, 2]), [int][0]('7')")
    assert result.success and result.names["found"] == (2, 7)
    assert "this cell launched no kernel" in capsys.readouterr().out


def test_the_report_is_kept_with_counters_and_trace(run):
    names = run("%%simulate --report r --counters --trace\nx = np.zeros(4)\nplain[1, 4](x)").names
    assert names["r"].counters["coalescing"]["requests"] and names["r"].trace
    assert np.array_equal(names["x"], np.zeros(4))


def test_a_finding_fails_the_cell_where_this_is_wanted(run):
    assert run("%%simulate\nshift[1, 64](np.ones(64))").success
    assert isinstance(run("%%simulate --raise\nshift[1, 64](np.ones(64))").error_in_exec, KernelBug)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--engine fast", "invalid choice: 'fast'"),
        ("'", "No closing quotation"),
        ("--help", "usage: %%simulate"),
    ],
)
def test_a_wrong_line_runs_nothing(run, capsys, line, says):
    assert "never" not in run(f"%%simulate {line}\nnever = 1").names
    assert says in capsys.readouterr().out


def test_errors_of_the_cell_are_the_cells(run):
    assert isinstance(run("%%simulate\nshift[1, 64](1, 2)").error_in_exec, LaunchError)
    assert isinstance(run("%%simulate\nx = 1 / 0").error_in_exec, ZeroDivisionError)
    assert isinstance(run("%%simulate\nx = (").error_in_exec, SyntaxError)
