"""Tests that run the test suite in numba-cuda's package on our simulator and on Numba's.

Each CI run covers some modules (QUICK), and fewer on the native engine (NATIVE). With --all, "fibers" and
Numba's simulator run all modules. `python tests/conformance/native.py` runs all modules on the native engine.
"""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TESTS = 515
MODULES = """test_sm test_sync test_atomics test_intrinsics test_constmem test_localmem test_cooperative_groups test_warp_ops test_idiv test_array_args test_laplace
    test_device_func test_globals test_forall test_montecarlo test_math test_operator test_slicing test_lang test_nondet test_blackscholes test_reduction
    test_vector_type test_array test_iterators test_enums test_ssa test_powi test_casting test_boolean test_minmax test_cache_hints test_transpose""".split()

DECLARED, CABI = (
    "test_device_func.TestDeclareDevice.test_",
    "test_device_func.TestDeclareDeviceCABI.test_declare_device_cabi_",
)

NOT_APPLICABLE = {
    "links CUDA C++ code, which only a GPU runs": [
        *(
            DECLARED + name
            for name in """call_declared_function_twice call_two_different_declared_functions declared_in_called_function
            declared_in_called_function_and_parent declared_in_called_function_twice declared_in_called_function_two_calls include_cuda_header link_cu_source
            link_multiple_sources_list link_multiple_sources_set link_multiple_sources_tuple link_sources_in_memory_and_on_disk""".split()
        ),
        *(CABI + name for name in "basic pointer_return propagate two_args void_return zero_args".split()),
        "test_cooperative_groups.TestCudaCooperativeGroups.test_external_cooperative_func",
    ],
    "makes an array of a device pointer": [
        "test_array.TestCudaArray.test_carray",
        "test_array.TestCudaArray.test_farray",
    ],
    "asserts the strides of the arrays of Numba's own simulator": [
        "test_array.TestCudaArray.test_array_like_2d_view_transpose_simulator"
    ],
    "launches 5,663,031,296 threads": ["test_intrinsics.TestCudaIntrinsic.test_issue_9229"],
}

# Findings in kernels of Numba's tests. These kernels contain mistakes, but pass on a GPU.
FINDINGS = {
    # The kernel sums an uninitialised shared array.
    "test_sm.TestSharedMemoryIssue.test_issue_2393": ["uninitialized-read"],
    # outx = np.array((10,)) has one element; the author meant np.zeros((10,)).
    "test_localmem.TestCudaLocalMem.test_struct_model_type_arr": ["out-of-bounds"],
    # The read in ary[i] = ary[0] races with thread 0, which writes ary[0].
    "test_warp_ops.TestCudaWarpOperations.test_useful_syncwarp": ["race-global"],
}

RUN = Path(__file__).with_name("run.py")
WORDS = ("passed", "failed", "skipped")
# These modules are quick, and together cover shared, local and constant memory, barriers, warps, grids,
# device functions and loops.
QUICK = (
    "test_sm test_constmem test_localmem test_cooperative_groups test_warp_ops test_device_func test_globals"
    " test_lang test_iterators test_enums test_sync test_idiv test_array_args".split()
)
NATIVE = {
    "test_constmem": 8,
    "test_globals": 1,
    "test_lang": 3,
    "test_iterators": 4,
    "test_enums": 7,
}  # tests
PARTS = 4  # number of processes, each of which imports Numba
TIMEOUT = 1800  # time limit per process in seconds, long enough for a busy machine
INAPPLICABLE = {test: reason for reason, tests in NOT_APPLICABLE.items() for test in tests}


def run(modules, *options):
    """Run some modules in a separate process. Return {test: [outcome, launches, kinds of findings,
    reason]}."""
    done = subprocess.run(
        [sys.executable, RUN, *options, *modules], capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, done.args))} ended with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def packages():
    """Return whether the packages that numba-cuda's tests need are installed."""
    for package in ("numba_cuda", "filecheck", "cffi"):
        if importlib.util.find_spec(package) is None:
            line = (
                f"conformance: NOT RUN, {package} is missing (numba-cuda's tests need it: pip install"
                f" {package})"
            )
            warnings.warn(line)
            # numba-cuda has no wheels for macOS.
            (pytest.skip if sys.platform == "darwin" else pytest.fail)(line)


@pytest.fixture(scope="module")
def everything(request):
    return request.config.getoption("all")


@pytest.fixture(scope="module")
def outcomes(packages, everything):
    """Return the outcome of every test on our simulator, or of the quick tests only.

    If all tests run, include the outcomes on Numba's simulator.
    """
    if not everything:
        return run(QUICK, "--quick"), {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = [pool.submit(run, MODULES[part::PARTS]) for part in range(PARTS)]
        numbas = pool.submit(run, MODULES, "--numba")
        ours, numbas = {test: what for part in parts for test, what in part.result().items()}, numbas.result()
    return ours, numbas


def of(tests, outcomes):
    """Return the tests in `tests` that were selected to run."""
    modules = {test.split(".")[0] for test in outcomes}
    return [test for test in tests if test.split(".")[0] in modules]


def test_what_applies_passes(outcomes):
    ours, _ = outcomes
    wrong = {
        test: why for test, (word, _, _, why) in ours.items() if word != "passed" and test not in INAPPLICABLE
    }
    assert not wrong, "\n\n".join(f"{test}\n{why}" for test, why in wrong.items())


def test_what_does_not_apply_is_there_and_does_not_pass(outcomes):
    ours, _ = outcomes
    applied = {test: ours[test][0] for test in of(INAPPLICABLE, ours) if ours[test][0] == "passed"}
    assert applied == {}


@pytest.mark.nightly
def test_all_that_numbas_own_simulator_passes_passes(outcomes):
    ours, numbas = outcomes
    assert {test for test, what in numbas.items() if what[0] == "passed"} - INAPPLICABLE.keys() <= {
        test for test, what in ours.items() if what[0] == "passed"
    }


def test_findings_are_the_known_mistakes(outcomes):
    ours, _ = outcomes
    wanted = {test: FINDINGS[test] for test in of(FINDINGS, ours)}
    assert {test: kinds for test, (_, _, kinds, _) in ours.items() if kinds} == wanted


def test_table(outcomes, everything, capsys, record_property):
    """Print how many tests of each module passed, failed and were skipped, on our simulator and on Numba's.

    The last line is the total.
    """
    ours, numbas = outcomes
    passed = sum(what[0] == "passed" for what in ours.values())
    launched = sum(what[0] == "passed" and what[1] > 0 for what in ours.values())
    own = Counter(what[0] for what in numbas.values())["passed"]
    record_property(
        "summary",
        f"conformance: {passed} of {len(ours) - len(of(INAPPLICABLE, ours))} applicable numba-cuda tests pass,"
        f" {launched} of them after simulated launches"
        + f" (Numba's own simulator: {own} of all {len(ours)})"
        * everything,
    )
    record_property("left out", TESTS - len(ours))
    counts = [Counter((test.split(".")[0], what[0]) for test, what in side.items()) for side in outcomes]
    with capsys.disabled():
        print(
            f"\n{'':28}{'ours':^30}{'Numba simulator':^30}\n{'':28}"
            + "".join(f"{word:>10}" for word in WORDS * 2)
        )
        for module in MODULES if everything else QUICK:
            print(
                f"{module:28}" + "".join(f"{count[module, word]:>10}" for count in counts for word in WORDS)
            )
    if everything:
        assert [sum(count.values()) for count in counts] == [TESTS, TESTS]


def test_native(packages, few, record_property):
    """Run modules that must pass on the native engine, which falls back to "fibers" for kernels that it
    cannot compile."""
    modules = few(NATIVE, 3)
    done = subprocess.run(
        [sys.executable, RUN.with_name("native.py"), *modules],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = done.stdout.splitlines()[-1]
    record_property("summary", line.replace("native", f"native, {len(modules)} of {len(MODULES)} modules", 1))
    tests = sum(NATIVE[module] for module in modules)
    assert line.startswith(f"conformance, native: {tests} of {tests} ")
