"""Applies edits to the text of CUDA C++ kernels, as advice suggests, and checks the values that they compute.

Each kernel gets x = 0, 1, 2, ..., and two arrays of zeros.
"""

import numpy as np

from sim import simulate

HEADER = 'extern "C" __global__ void kernel(int *x, int *out, int *n) {\n'
INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


class Cases(dict):
    """A dictionary: name of a kernel -> (launch, functions, body, part of a fix, edits, check)."""

    def case(self, name, launch, body, says, edits, check, functions=""):
        """Add a kernel.

        says: a part of a fix.
        edits: pairs (old text, new text).
        check(x, out, n): function that asserts that the values are correct.
        """
        self[name] = launch, functions, body, says, edits, check

    def follow(self, name, few, path):
        """Edit a kernel. No finding may be left, and the values must be correct."""
        launch, functions, body, says, edits, check = self[name]
        text = f"{functions}{HEADER}{body}}}\n"
        findings, _ = launched(text, launch, path / "buggy.cu")
        assert any(says in finding.fix for finding in findings), [finding.fix for finding in findings]
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        for engine in few(["fibers", "native"], 1 + (list(self).index(name) % 4 == 0)):
            findings, arrays = launched(text, launch, path / "fixed.cu", engine)
            assert not [finding.message for finding in findings]
            check(*arrays)


def launched(text, launch, path, engine="fibers"):
    """Return (findings, arrays) of a launch."""
    from sim.ptx.nvrtc import load_cuda

    path.write_text(text)
    arrays = np.arange(64, dtype=np.int32), np.zeros(256, np.int32), np.zeros(64, np.int32)
    kernel = simulate(load_cuda(path)["kernel"], on_finding="report", engine=engine)
    return kernel[launch](*arrays).findings, arrays
