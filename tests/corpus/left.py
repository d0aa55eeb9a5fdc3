"""Corpus: a race that comes after many cells in order."""

import numpy as np
from numba import cuda


class RaceInCellSixThousand:
    """Six thousand cells are handed over in order, by fence and ticket; one more is not."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "cells", ("cells[6000] = 1", "written"), ("out[0] += cells[i]", "read"))
    }

    def arguments():
        return np.zeros(6001), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(cells, flag, out):
        if cuda.blockIdx.x == 0:
            for i in range(6000):
                cells[i] = 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            cells[6000] = 1
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            for i in range(6001):
                out[0] += cells[i]

    @cuda.jit
    def fixed(cells, flag, out):
        if cuda.blockIdx.x == 0:
            for i in range(6001):
                cells[i] = 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            for i in range(6001):
                out[0] += cells[i]

    def wanted(cells, flag, out):
        return {"out": [6001]}
