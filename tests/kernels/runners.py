"""Runner that simulates a launch and fails on any finding."""

import functools

from kernels.common.launch import simulated

# The checks of torch.library.opcheck. A CI run leaves out the last one, which takes half of the time: it
# compiles the operator with dynamic shapes. test_attention_kernels.py runs all of them.
OPERATOR_CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def checked(*launch, **options):
    """Simulate a launch.

    Fail on any finding, including warnings, and if the native engine declines the kernel.
    """
    report = simulated(*launch, **options)
    assert not report.findings, report.findings
    assert report.engine != "native" or report.notes == ("compiled",)


native = functools.partial(checked, engine="native")
