"""Corpus: launches that end well and cannot have been meant."""
import numpy as np
from numba import cuda


class GuardTheWrongWayRound:
    """The guard lets only those threads through that have no element, and there are none."""

    launch = 2, 4
    findings = {
        ("misuse", "warning", None),
    }

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        if i >= x.shape[0]:
            out[i] = x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i]

    def wanted(x, out):
        return {"out": x}


class NameInsteadOfElement:
    """The result goes to a variable, not to the array."""

    launch = 2, 4
    findings = {
        ("misuse", "warning", None),
    }

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        result = out[i]
        result += x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        out[i] += x[i]

    def wanted(x, out):
        return {"out": x}
