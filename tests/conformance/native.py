"""Run numba-cuda's own tests on the native engine, which falls back to "fibers" for kernels that it cannot
compile.

    python tests/conformance/native.py [test_sm test_sync ...]

By default all modules run, which takes seven minutes on two cores with an empty cache. The last line of the
output is a summary. The program ends with an error if a test fails, or if the findings differ from those of
"fibers" (FINDINGS in test_conformance.py).
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from test_conformance import FINDINGS, INAPPLICABLE, MODULES, run

# Modules that take more than a minute each, which are distributed evenly over the processes.
SLOW = "test_cache_hints test_atomics test_math test_vector_type".split()


def outcomes(modules):
    """Return the result of every test of some modules, with one process per core."""
    modules = sorted(modules, key=lambda module: module not in SLOW)
    processes = min(os.cpu_count(), len(modules))
    with ThreadPoolExecutor(processes) as pool:
        parts = pool.map(lambda part: run(modules[part::processes], "--native"), range(processes))
        return {test: what for part in parts for test, what in part.items() if test not in INAPPLICABLE}


def mistakes(found):
    """Return sentences that describe how the results differ from the expected ones."""
    for test, (word, _, kinds, why) in found.items():
        if word != "passed":
            yield f"{test} {word}\n{why}"
        elif kinds != FINDINGS.get(test, []):
            yield f"{test} has the findings {kinds}, and on fibers {FINDINGS.get(test, [])}"


def summary(found):
    """Return the summary, which is the last line of the output."""
    return (
        f"conformance, native: {sum(what[0] == 'passed' for what in found.values())} of {len(found)}"
        " applicable numba-cuda tests pass"
    )


def main(modules):
    found = outcomes(modules)
    wrong = list(mistakes(found))
    print("\n\n".join([*wrong, summary(found)]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or MODULES))
