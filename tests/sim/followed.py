"""Applies the steps of advice to kernels, and checks the values that the edited kernels compute.

Each kernel gets x = 0, 1, 2, ..., and two arrays of zeros.
"""

import functools

import numpy as np

import applied
from sim import simulate


class Cases(dict):
    """A dictionary that maps the name of a kernel to (pattern of the advice, launch, part of a fix, check,
    kernel)."""

    def case(self, pattern, launch, fix_text, check):
        """Add a kernel.

        pattern: the pattern of one of its pieces of advice, or None for the advice about a barrier.
        fix_text: a part of a fix.
        check(x, out, n): function that asserts that the values are correct.
        """

        def add(kernel):
            self[kernel.__name__] = pattern, launch, fix_text, check, kernel
            return kernel

        return add

    def follow(self, name, few):
        """Apply the steps of the advice about a kernel. No finding may be left, and the values must be
        correct."""
        pattern, shape, fix_text, check, kernel = self[name]

        @functools.cache
        def launch(kernel, engine):
            return launched(kernel, shape, engine)

        findings = launch(kernel, "fibers")[0]
        of_pattern = [f for f in findings if f.advice and pattern in (None, f.advice.pattern)]
        assert of_pattern and any(fix_text in finding.fix for finding in of_pattern)
        kernel, lines = applied.improved(kernel, lambda kernel: launch(kernel, "fibers")[0])
        print("\n".join(lines))
        for engine in few(["fibers", "native"], 1 + (list(self).index(name) % 4 == 0)):
            findings, arrays = launch(kernel, engine)
            assert not [finding.message for finding in findings]
            check(*arrays)


def launched(kernel, launch, engine="fibers"):
    """Return (findings, arrays) of a launch."""
    arrays = np.arange(64, dtype=np.int32), np.zeros(256, np.int32), np.zeros(64, np.int32)
    report = simulate(kernel, on_finding="report", engine=engine)[launch](*arrays)
    return report.findings, arrays
