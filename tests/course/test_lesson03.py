"""Test that the check of lesson 03 leaves no thread running.

An error in such a thread would be printed later, below another cell.
"""

import threading

from course.check import lesson03


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
