"""Tests of the messages about wrong answers: each names the mistake, in terms of the exercise."""

import math

import numpy as np
import pytest
import torch
from numba import cuda

from course import check
from course.check.harness import CheckFailed
from course.check.words import ROUNDED
from kernels.tensor_cores.instructions import ldmatrix_x4, mma_bf16


def message(check_it, answer):
    with pytest.raises(CheckFailed) as failed:
        check_it(answer, seed=1)
    return str(failed.value)


@pytest.mark.parametrize(
    "factor, said",
    [
        (None, "Return a number"),
        ("0.37", "Return a number"),
        (0.4, "Give two digits"),
        (0.5, "You halved it"),
        (0.25, "What is the ratio"),
        ([0.37, 0.37], "What is the ratio"),
    ],
)
def test_a_wrong_factor_gets_a_reply_to_the_mistake(factor, said):
    assert said in message(check.ex01_0, lambda: factor)


def softmax_in_float32(pairs):
    m, l, o = -math.inf, np.float32(0), 0.0
    for score, value in pairs:
        new = max(m, score)
        shrink, weight = np.float32(math.exp(m - new)), np.float32(math.exp(score - new))
        m, l, o = new, l * shrink + weight, o * shrink + weight * value
    return m, l, o


def push_in_float32(kept, q, c_q, after_c_q):
    rows = torch.cat([kept, q], dim=1).float()
    most = c_q + after_c_q - 1
    return rows[:, -most:], rows[:, max(0, rows.shape[1] - most + 1) :].clone()


@pytest.mark.parametrize("name, answer", [("ex01_1", softmax_in_float32), ("ex19_3", push_in_float32)])
def test_rounding_to_float32_is_named(name, answer):
    assert ROUNDED in message(getattr(check, name), answer)


def softmax_of_a_large_exponent(pairs):
    m, l, o = -math.inf, 0.0, 0.0
    for score, value in pairs:
        m, old = max(m, score), m
        factor = 1 / math.exp(m - old) if l else 1.0
        l, o = l * factor + math.exp(score - m), o * factor + math.exp(score - m) * value
    return m, l, o


def test_an_overflow_of_exp_gets_a_hint():
    said = message(check.ex01_1, softmax_of_a_large_exponent)
    assert "OverflowError: math range error" in said
    assert "exp received a large positive number. Subtract the maximum first" in said


@pytest.mark.parametrize(
    "name, answer, said",
    [
        ("ex22_5", {"a": {}, "c": {}, "d": {}}, "the dictionary has no value for 'b': it needs the fixes of"),
        ("ex22_5", {letter: {} for letter in "abcde"}, "the dictionary has a value for 'e'"),
        ("ex22_5", [("a", {})], "the result must be a dictionary with the fixes of a, b, c and d"),
        ("ex22_1", dict.fromkeys("abdefg", 0), "the dictionary has no value for 'c', 'h'"),
    ],
)
def test_a_missing_or_unknown_key_is_named(name, answer, said):
    found = message(getattr(check, name), lambda: answer)
    assert said in found and ("got" in found) is not isinstance(answer, dict)


def forgets_the_last(x, y, out):
    i = cuda.grid(1)
    if i < x.size - 1:
        out[i] = x[i] + y[i]


def changes_y(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]
        out[i] = y[i]


def adds_to_out(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] += x[i] + y[i]


def returns_the_sum(x, y, out):
    return x[cuda.grid(1)] + y[cuda.grid(1)]


def truncates(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = int(x[i]) + int(y[i])


@pytest.mark.parametrize(
    "kernel, said",
    [
        (forgets_the_last, "1 of 8 numbers differ, the first at [7]"),
        (changes_y, "the kernel changed its input y: "),
        (adds_to_out, "a thread read it (out[i] += ...)"),
        (returns_the_sum, "sim refuses the launch\n    add[2, 4](x, y, out) with 8 elements\n"),
        (truncates, "the two elements that have the same index"),
    ],
)
def test_a_wrong_kernel_gets_a_message_about_its_arrays(kernel, said):
    assert said in message(check.ex03_1, kernel)


@cuda.jit(device=True)
def adds_to_the_old_t(t, scores, bands):
    lane = cuda.threadIdx.x & 31
    for a in range(bands.shape[0] // 2):
        a0, a1, a2, a3 = ldmatrix_x4(scores, (a, 8 * (lane & 15) + 8 * (lane >> 4)))
        b0, b1 = bands[2 * a], bands[2 * a + 1]
        t[0], t[1], t[2], t[3] = mma_bf16(a0, a1, a2, a3, b0, b1, t[0], t[1], t[2], t[3])


def test_old_values_that_are_not_ignored_are_named():
    said = message(check.ex18_5, adds_to_the_old_t)
    assert "t, indexed [thread, e]: 256 of 256 numbers differ, the first at [0, 0]" in said
    assert "Equal to T + 77" in said
