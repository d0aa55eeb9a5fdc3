"""Run modules of numba-cuda's test suite in this process, and print one JSON object.

The object is {test: [outcome, launches, kinds of findings, reason]}.

    python tests/conformance/run.py [--numba | --native] [--quick] test_sm test_sync ...

By default the tests run on our simulator, through the adapter, with the engine "fibers", or "native" with
--native. With --numba they run on Numba's simulator. --quick skips LONG.
"""

import json
import os
import sys
import unittest
import warnings

SMALL = {"test_laplace"}  # Without the flag, this test launches 65,000,000 threads.
TOO_LARGE = {"test_intrinsics.TestCudaIntrinsic.test_issue_9229": "launches 5,663,031,296 threads"}
LONG = {"test_cooperative_groups.TestCudaCooperativeGroups.test_sync_at_matrix_row"}  # 18 s


class Outcomes(unittest.TestResult):
    """Outcome of each test, with the number of kernels it launched, their findings, and the reason if it did
    not pass."""

    def __init__(self, launches):
        super().__init__()
        self.launches, self.outcome = launches, {}

    def startTest(self, test):
        super().startTest(test)
        self.trouble = None
        self.launches.clear()

    def stopTest(self, test):
        super().stopTest(test)
        word, why = self.trouble or ("passed", "")
        kinds = {finding.kind for report in self.launches if report for finding in report.errors}
        kinds -= {"exception"}  # These kernels raise exceptions on purpose.
        self.outcome[name_of(test)] = word, len(self.launches), sorted(kinds), why

    def blame(self, word, why):
        self.trouble = self.trouble or (word, why)

    def addFailure(self, test, error):
        self.blame("failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error:
            self.addFailure(test, error)

    def addSkip(self, test, reason):
        self.blame("skipped", reason)


def name_of(test):
    return ".".join(test.id().split(".")[-3:])


def tests_in(suite):
    for part in suite:
        yield from tests_in(part) if isinstance(part, unittest.TestSuite) else [part]


def main(arguments):
    modules = [argument for argument in arguments if not argument.startswith("--")]
    outcomes, too_large = Outcomes([]), {}
    if "--numba" in arguments:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    else:
        import adapter

        outcomes.launches, too_large = (
            adapter.install("native" if "--native" in arguments else "fibers"),
            TOO_LARGE,
        )
        for module in SMALL & set(modules):
            adapter.import_small(f"numba.cuda.tests.cudapy.{module}")
    warnings.simplefilter("ignore")
    for test in tests_in(
        unittest.defaultTestLoader.loadTestsFromNames(
            f"numba.cuda.tests.cudapy.{module}" for module in modules
        )
    ):
        if "--quick" in arguments and name_of(test) in LONG:
            continue
        if name_of(test) in too_large:
            outcomes.outcome[name_of(test)] = "skipped", 0, [], too_large[name_of(test)]
        else:
            test.run(outcomes)
    print(json.dumps(outcomes.outcome))


if __name__ == "__main__":
    main(sys.argv[1:])
