"""Corpus: launches that end normally but cannot be intended."""

import numpy as np
from numba import cuda


class GuardTheWrongWayRound:
    """The guard only admits threads without an element, but every thread has one."""

    launch = 2, 4
    findings = {("misuse", "warning", None)}

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
    """The result is assigned to a variable instead of the array."""

    launch = 2, 4
    findings = {("misuse", "warning", None)}

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


class FloatsIntoIntegers:
    """Halves are added atomically to integers, which converts each half to zero."""

    launch = 1, 4
    findings = {("misuse", "warning", "total", ("cuda.atomic.add(total, 0, x[cuda.threadIdx.x])", "changed"))}

    def arguments():
        return np.full(4, 0.5), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(x, total):
        cuda.atomic.add(total, 0, x[cuda.threadIdx.x])

    @cuda.jit
    def fixed(x, total):
        cuda.atomic.add(total, 0, int(2 * x[cuda.threadIdx.x]))

    def wanted(x, total):
        return {"total": [4]}
