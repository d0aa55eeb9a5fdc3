"""Runner that simulates a launch and fails on any finding."""

import functools

from kernels.common.launch import simulated


def checked(*launch, **options):
    """Simulate a launch.

    Fail on any finding, including warnings, and if the native engine declines the kernel.
    """
    report = simulated(*launch, **options)
    assert not report.findings, report.findings
    assert report.engine != "native" or report.notes == ("compiled",)


native = functools.partial(checked, engine="native")
