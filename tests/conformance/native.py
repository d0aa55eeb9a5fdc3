"""Numba-cuda's own tests on the native engine: what it compiles passes, and why it does not compile the others.

    python tests/conformance/native.py [test_sm test_sync ...]

Without names all modules run, which takes seven minutes on two cores when nothing has been compiled before. The last line is the count. An error ends it if a test fails that
is not listed here, if a listed one passes, or if the findings are not those of fibers (FINDINGS in test_conformance.py).
"""
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from test_conformance import FINDINGS, INAPPLICABLE, MODULES, run

SLOW = "test_cache_hints test_atomics test_math test_vector_type".split()  # more than a minute each: these come first


def named(group, words):
    return [f"{group}.test_{word}" for word in words.split()]


NOT_COMPILED = {
    "a function without source text, made by exec": [
        *named("test_atomics.TestCudaAtomics", """atomic_max_double atomic_max_double_normalizedindex atomic_max_double_oneindex atomic_max_double_shared atomic_max_float32
            atomic_max_int32 atomic_max_int64 atomic_max_nan_location atomic_max_nan_val atomic_max_uint32 atomic_max_uint64 atomic_min_double
            atomic_min_double_normalizedindex atomic_min_double_oneindex atomic_min_double_shared atomic_min_float atomic_min_int32 atomic_min_int64 atomic_min_nan_location
            atomic_min_nan_val atomic_min_uint32 atomic_min_uint64 atomic_nanmax_double atomic_nanmax_double_oneindex atomic_nanmax_double_shared atomic_nanmax_float32
            atomic_nanmax_int32 atomic_nanmax_int64 atomic_nanmax_uint32 atomic_nanmax_uint64 atomic_nanmin_double atomic_nanmin_double_oneindex
            atomic_nanmin_double_shared atomic_nanmin_float atomic_nanmin_int32 atomic_nanmin_int64 atomic_nanmin_uint32 atomic_nanmin_uint64"""),
        *named("test_enums.EnumTest", "vectorize"),
    ],
    "a shared or local array of records": [
        *named("test_localmem.TestCudaLocalMem", "struct_model_type_arr"),
        *named("test_sm.TestSharedMemory", "shared_recarray"),
        *named("test_transpose.TestTranspose", "transpose_record"),
    ],
    "a device function that gives a number or None": named("test_ssa.TestSSA", "unhandled_undefined"),
}
REASONS = {test: reason for reason, tests in NOT_COMPILED.items() for test in tests}


def outcomes(modules):
    """What became of every test of some modules, each in a process of its own, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda module: run([module], "--native"), sorted(modules, key=lambda module: module not in SLOW))
        return {test: what for part in parts for test, what in part.items() if test not in INAPPLICABLE}


def mistakes(found):
    """What is not as listed, as sentences. A test that is not compiled must be refused with words, not fail."""
    for test, (word, _, kinds, why) in found.items():
        refused = word == "failed" and "cannot be compiled" in why
        if test in REASONS and not refused:
            yield f"{test} is listed as not compiled ({REASONS[test]}), but {word}: take it from the list\n{why}"
        elif test not in REASONS and word != "passed":
            yield f"{test} {word}\n{why}"
        elif test not in REASONS and kinds != FINDINGS.get(test, []):
            yield f"{test} has the findings {kinds}, and on fibers {FINDINGS.get(test, [])}"


def summary(found):
    """The last line."""
    passed = sum(what[0] == "passed" for what in found.values())
    counts = [f"{sum(test in found for test in tests)} {reason}" for reason, tests in NOT_COMPILED.items() if not found.keys().isdisjoint(tests)]
    return f"conformance, native: {passed} of {len(found)} applicable numba-cuda tests pass; not compiled: {'; '.join(counts) or 'none'}"


def main(modules):
    found = outcomes(modules)
    wrong = list(mistakes(found))
    print("\n\n".join([*wrong, summary(found)]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or MODULES))
