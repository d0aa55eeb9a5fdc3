"""Tests that the simulator is independent.

It must need neither torch nor Numba, leave kernels unchanged, and keep no state between launches.
"""

import gc
import subprocess
import sys
import textwrap
import weakref

import numpy as np
from numba import cuda, float32

from sim import simulate


def run(code):
    """Run `code` in a fresh process and return its output."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout


def test_without_torch_and_numba(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "def add(x, y, out):\n    i = cuda.grid(1)\n    if i < out.shape[0]:\n        out[i] = x[i] + y[i]\n"
    )
    printed = run(f"""
        import sys
        sys.modules["torch"] = sys.modules["numba"] = None
        sys.path.insert(0, {str(tmp_path)!r})
        import numpy as np
        from sim import simulate
        import types, kernel
        kernel.cuda = types.ModuleType("numba.cuda")
        x, out = np.arange(5.0), np.zeros(5)
        simulate(kernel.add)[2, 4](x, x, out)
        print(out.tolist())
        """)
    assert printed == "[0.0, 2.0, 4.0, 6.0, 8.0]\n"


def test_importing_sim_imports_neither():
    assert (
        run(
            "import sim, sys; print([name for name in ('torch', 'numba', 'matplotlib', 'IPython') if name in"
            " sys.modules])"
        )
        == "[]\n"
    )


@cuda.jit
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] *= factor


def test_the_kernel_is_untouched_and_still_compiles():
    function, code = scale.py_func, scale.py_func.__code__
    before = dict(vars(sys.modules[__name__]))
    simulate(scale)[1, 4](np.ones(4, np.float32), 2)
    assert (
        scale.py_func is function
        and function.__code__ is code
        and dict(vars(sys.modules[__name__])) == before
    )
    text, _ = cuda.compile_ptx(function, (float32[:], float32), cc=(8, 0))
    assert ".visible .entry" in text


def test_a_global_changed_between_launches_is_seen():
    namespace = {"cuda": cuda}
    exec("def kernel(x):\n    x[0] = FACTOR\n", namespace)
    x = np.zeros(1)
    for factor in (1, 2):
        namespace["FACTOR"] = factor
        simulate(namespace["kernel"])[1, 1](x)
        assert x[0] == factor


FACTOR = 3


def times_factor(x, out):
    out[0] = x[0] * FACTOR / 7


def test_a_global_that_changes_its_type_between_launches(monkeypatch):
    x = np.full(1, 0.1, np.float32)
    for factor, wanted in (
        (3, np.float64(x[0]) * 3 / 7),
        (np.float32(3), np.float64(x[0] * np.float32(3)) / 7),
        (3.0, np.float64(x[0]) * 3 / 7),
    ):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        out = np.zeros(1)
        simulate(times_factor)[1, 1](x, out)
        assert out[0] == wanted


def test_nothing_keeps_a_kernel_alive():
    def kernel(x):
        x[cuda.threadIdx.x] = 1

    simulate(kernel)[1, 2](np.zeros(2))
    alive = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert alive() is None


def test_a_kernel_without_source_says_so():
    namespace = {"cuda": cuda}
    exec("def kernel(x):\n    i = cuda.threadIdx.x\n    x[i] += i\n", namespace)
    x = np.zeros(4)
    report = simulate(namespace["kernel"])[1, 4](x)
    assert x.tolist() == [0, 1, 2, 3] and report.notes == (
        "kernel has no source code, so its operators have Python's types and not Numba's",
    )
