"""Fixtures that the tests of the kernels share."""

import pytest

from kernels.common.launch import RUNNERS


@pytest.fixture
def without_launches(monkeypatch):
    """Skip the launches of kernels on CPU tensors.

    Interpreting a launch takes 0.5 to 5 s of CPU time. This fixture is for tests that read no result: tests
    of dtypes, of errors, and of the graph of autograd. The results are uninitialised memory.
    """
    monkeypatch.setitem(RUNNERS, "cpu", lambda *launch: None)
