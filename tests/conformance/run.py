"""Runs modules of numba-cuda's own test suite in this process and prints one JSON object: {test: [outcome, launches, why]}.

    python tests/conformance/run.py [--numba] test_sm test_sync ...

By default on our simulator, through the adapter; with --numba on Numba's own.
"""
import json
import os
import signal
import sys
import unittest
import warnings

LIMIT = 20  # seconds for one test


class Outcomes(unittest.TestResult):
    """One word for each test, how many kernels it launched, and for what did not pass the last line of why."""

    def __init__(self, launches):
        super().__init__()
        self.launches, self.outcome, self.trouble = launches, {}, None

    def startTest(self, test):
        super().startTest(test)
        self.before, self.trouble = len(self.launches), None
        signal.alarm(LIMIT)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)
        word, why = self.trouble or ("passed", "")
        self.outcome[".".join(test.id().split(".")[-3:])] = word, len(self.launches) - self.before, why
        import time; print(test.id(), word, round(time.process_time(),1), file=sys.stderr, flush=True)

    def blame(self, word, why):
        self.trouble = self.trouble or (word, why)

    def addFailure(self, test, error):
        self.blame("failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error:
            self.blame("failed", self._exc_info_to_string(error, test))

    def addSkip(self, test, reason):
        self.blame("skipped", reason)


def too_long(*_):
    raise TimeoutError(f"longer than {LIMIT} s")


def main(arguments):
    numbas_own = "--numba" in arguments
    launches = []
    if numbas_own:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    else:
        import adapter
        adapter.install()
        launches = adapter.launches
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, too_long)
    outcomes = Outcomes(launches)
    for module in arguments:
        if not module.startswith("--"):
            unittest.defaultTestLoader.loadTestsFromName(module if "." in module else f"numba.cuda.tests.cudapy.{module}").run(outcomes)
    print(json.dumps(outcomes.outcome))


if __name__ == "__main__":
    main(sys.argv[1:])
