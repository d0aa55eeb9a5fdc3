"""Tests that apply the advice about barriers that some threads miss, and about arrays that blocks exchange in
each iteration."""

import numpy as np
import pytest
from numba import cuda, int32

from followed import Cases, launched

CASES = Cases()
case = CASES.case

# --- arrays that are exchanged in each iteration ------------------------------------------------------------


def smoothed(x, out, n):
    values = np.arange(64, dtype=np.int64)
    for _ in range(3):
        values = values + np.roll(values, -1)
    np.testing.assert_array_equal(out[:64], values)


ALTERNATE = "arrays exchanged between blocks"
EACH = "end the kernel after each iteration of the loop at line {} and launch it again for the next, or"


@case(ALTERNATE, (4, 16), EACH.format(3), smoothed)
def arrays_exchanged(x, out, n):
    i = cuda.grid(1)
    for _ in range(3):
        out[i] = x[i] + x[(i + 1) % 64]
        x, out = out, x


@case(ALTERNATE, (4, 16), EACH.format(5), smoothed)
def arrays_exchanged_by_a_variable(x, out, n):
    i = cuda.grid(1)
    a = x
    b = out
    for _ in range(3):
        b[i] = a[i] + a[(i + 1) % 64]
        c = a
        a = b
        b = c
        cuda.syncthreads()


@case(ALTERNATE, (4, 16), EACH.format(3), smoothed)
def arrays_selected(x, out, n):
    i = cuda.grid(1)
    for s in range(3):
        a = x if s % 2 == 0 else out
        b = out if s % 2 == 0 else x
        v = a[i] + a[(i + 1) % 64]
        b[i] = v


# --- barriers that some threads miss ------------------------------------------------------------------------


def reversed_forty(x, out, n):
    assert list(out[:41]) == [*range(39, -1, -1), 0]


@case(None, (1, 64), "move the barrier on line 6 out of the branch at line 4: end the branch", reversed_forty)
def barrier_in_a_branch(x, out, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < 40:
        s[t] = x[t]
        cuda.syncthreads()
        out[t] = s[39 - t]


@case(None, (1, 64), "move the barrier on line 8 out of the branches at lines 4 and 6", reversed_forty)
def barrier_in_two_branches(x, out, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < 40:
        v = 0
        if x[t] >= 0:
            s[t] = x[t] + v
            cuda.syncthreads()
            out[t] = s[39 - t]


@case(
    None, (1, 64), "replace the return on line 5 with a branch around the statements after it", reversed_forty
)
def barrier_after_a_return(x, out, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t >= 40:
        return
    s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[39 - t]


def total(x, out, n):
    assert out[0] == 63 * 32


@case(None, (1, 64), "move the barrier on line 10 out of the branch at line 8", total)
def barrier_in_a_branch_of_a_loop(x, out, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    d = 32
    while d > 0:
        if t < d:
            s[t] += s[t + d]
            cuda.syncthreads()
        d //= 2
    if t == 0:
        out[0] = s[0]


def in_order(x, out, n):
    assert out[:64].tolist() == list(range(64))


# The accesses race only in different iterations, so one barrier at the end of the loop is enough.
@case(None, (1, 64), "after the branch at line 11 and before the loop returns to line 9", in_order)
def bitonic_sort(x, out, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    s[t] = x[t] * 37 % 64
    cuda.syncthreads()
    k = 2
    while k <= 64:
        j = k // 2
        while j > 0:
            partner = t ^ j
            if partner > t:
                a = s[t]
                b = s[partner]
                if (a > b) == ((t & k) == 0):
                    s[t] = b
                    s[partner] = a
            j //= 2
        k *= 2
    out[t] = s[t]


def shifted(x, out, n):
    assert out[:40].tolist() == [sum(3 * r + t + 1 for r in range(3)) for t in range(39)] + [0]


# The accesses also race within one iteration, so the loop needs a second barrier inside the branch.
@case(None, (1, 64), "if the two lines still race then, one more between them", shifted)
def branch_of_two_barriers(x, out, n):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    for r in range(3):
        if t < 40:
            s[t] = 3 * r + x[t]
            if t < 39:
                out[t] += s[t + 1]


def test_one_barrier_is_enough_for_bitonic_sort():
    findings, _ = launched(bitonic_sort, (1, 64))
    in_loop = [f for f in findings if all(access.site.line < 19 for access in f.accesses)]
    steps = {step for finding in in_loop for step in finding.advice.steps}
    assert {(step.action, step.line, step.what) for step in steps} == {("insert", 16, "barrier")}


@pytest.mark.parametrize("name", CASES)
def test_the_steps_of_the_advice(name, few):
    CASES.follow(name, few)


def test_a_loop_with_different_numbers_of_iterations():
    def kernel(x, out, n):
        t = cuda.threadIdx.x
        for i in range(t // 32 + 1):
            out[t] += i
            cuda.syncthreads()

    def leaves(x, out, n):
        t = cuda.threadIdx.x
        for i in range(3):
            if t >= 40:
                continue
            cuda.syncthreads()

    def around(x, out, n):
        if cuda.threadIdx.x < 40:
            for i in range(3):
                cuda.syncthreads()

    says = {
        kernel: "execute the same number of iterations of the loop at line 3",
        leaves: "replace the `continue` on line 5 with a branch around the statements after it, but keep the"
        " barrier on line 6 outside of this branch",
        around: "move the branch at line 2 into the loop at line 3, so that every thread of the block executes"
        " the loop, and keep the barrier on line 4 outside",
    }
    for function, text in says.items():
        (finding,) = launched(function, (1, 64))[0]
        assert text in finding.fix and finding.advice is None
