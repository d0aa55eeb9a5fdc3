"""Runners of kernels that fail on any finding of the simulator."""

import functools

from kernels.common.launch import simulated


def checked(*launch, **options):
    """Simulate a launch. Any finding fails, warnings included, and so does a kernel that native declines."""
    report = simulated(*launch, **options)
    assert not report.findings, report.findings
    assert report.engine != "native" or report.notes == ("compiled",)


native = functools.partial(checked, engine="native")
