"""Tests of the check of exercise 3.2: it leaves no thread running, and names the error that a launch raises.

An error in a thread that still runs would be printed later, below another cell.
"""

import threading
from types import FunctionType

import numpy as np
import pytest

from course.check import lesson03
from course.check.harness import CheckFailed


def failures_printed(monkeypatch, target):
    said = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    lesson03.print_no_failure_of_our_kernels()
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    return [failure.exc_type for failure in said]


def test_a_failure_in_a_kernel_of_the_check_is_not_printed(monkeypatch):
    assert failures_printed(monkeypatch, lambda: lesson03.roll_call(None)) == []


def test_any_other_failure_of_a_thread_is(monkeypatch):
    assert failures_printed(monkeypatch, lambda: 1 / 0) == [ZeroDivisionError]


def test_another_error_than_the_first_one_of_a_thread_is_named():
    # A launch may wrap the error, or raise all errors as a group.

    def launch(*_):
        raise ExceptionGroup("errors", [lesson03.Mishap(*lesson03.CAUSE)])

    with pytest.raises(CheckFailed) as failed:
        lesson03.first_error_comes_out(launch, np.random.default_rng(1))
    wanted = "wanted Mishap: a kernel may raise anything      got ExceptionGroup: errors (1 sub-exception)"
    assert wanted in str(failed.value)
    assert failed.value.__context__ is None  # IPython would show the traceback of the group


def test_arguments_that_are_not_unpacked_get_a_hint():
    def launch(kernel, grid, block, *args):
        FunctionType(kernel.__code__, kernel.__globals__)(args)

    with pytest.raises(CheckFailed, match=r"Unpack it with a star: kernel\(\*args\), not kernel\(args\)"):
        lesson03.ex03_2(launch, seed=1)
