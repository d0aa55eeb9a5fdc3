"""Corpus: fields of records, byte by byte."""

import numpy as np
from numba import cuda

POINT = np.dtype([("x", np.float64), ("hits", np.int32)])


class OneFieldOfAll:
    """All threads write the same field of the same record."""

    launch = 1, 4
    findings = {("race-global", "error", "points", ("points[0].x = cuda.threadIdx.x", "written"))}

    def arguments():
        return (np.zeros(4, POINT),)

    @cuda.jit
    def buggy(points):
        points[0].x = cuda.threadIdx.x

    @cuda.jit
    def fixed(points):
        points[cuda.threadIdx.x].x = cuda.threadIdx.x

    def wanted(points):
        return {}


class FieldReadByTheNext:
    """One thread writes a field that its neighbour reads."""

    launch = 2, 2
    findings = {
        (
            "race-global",
            "error",
            "points",
            ("out[i] = points[(i + 1) % 4].hits", "read"),
            ("points[i].hits = i", "written"),
        )
    }

    def arguments():
        return np.zeros(4, POINT), np.zeros(4)

    @cuda.jit
    def buggy(points, out):
        i = cuda.grid(1)
        points[i].hits = i
        out[i] = points[(i + 1) % 4].hits

    @cuda.jit
    def fixed(points, out):
        i = cuda.grid(1)
        points[i].hits = i
        out[i] = points[(i + 1) % 4].x

    def wanted(points, out):
        return {"out": [0, 0, 0, 0]}


class WholeRecordAndField:
    """One thread copies a record while another writes one of its fields."""

    launch = 1, 2
    findings = {
        (
            "race-global",
            "error",
            "points",
            ("points[0].hits = 3", "written"),
            ("points[1] = points[0]", "read"),
        )
    }

    def arguments():
        return np.zeros(3, POINT), np.zeros(1)

    @cuda.jit
    def buggy(points, out):
        if cuda.threadIdx.x == 0:
            points[1] = points[0]
        else:
            points[0].hits = 3

    @cuda.jit
    def fixed(points, out):
        if cuda.threadIdx.x == 0:
            points[1] = points[0]
        else:
            points[2].hits = 3

    def wanted(points, out):
        return {}


class TwoFieldsOfOneRecord:
    """Writes to two fields of a record do not conflict; writes to the same field do."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "points", ("points[0].x = 1", "written"), ("points[0].x = 2", "written"))
    }

    def arguments():
        return (np.zeros(1, POINT),)

    @cuda.jit
    def buggy(points):
        if cuda.blockIdx.x == 0:
            points[0].x = 1
        else:
            points[0].hits = 2
            points[0].x = 2

    @cuda.jit
    def fixed(points):
        if cuda.blockIdx.x == 0:
            points[0].x = 1
        else:
            points[0].hits = 2

    def wanted(points):
        return {}


class RecordBehindTheLast:
    """A countdown starts at the length instead of one below it, and changes a record that does not exist."""

    launch = 1, 4
    findings = {
        ("out-of-bounds", "error", "points", ("out[i] = points[4 - i].x", "read")),
        ("out-of-bounds", "error", "points", ("points[4 - i].hits = i", "written")),
    }

    def arguments():
        return np.zeros(4, POINT), np.ones(4)

    @cuda.jit
    def buggy(points, out):
        i = cuda.grid(1)
        points[4 - i].hits = i
        out[i] = points[4 - i].x

    @cuda.jit
    def fixed(points, out):
        i = cuda.grid(1)
        points[3 - i].hits = i
        out[i] = points[3 - i].x

    def wanted(points, out):
        return {"out": [0, 0, 0, 0]}
