"""Tests of the check harness: which answers pass or fail, and with which messages."""

import hashlib
import itertools
import math
import signal
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from course import check
from course.check import dialect, lesson18, letters, patience, tensors
from course.check.harness import CheckFailed, NotChecked, compare, exercise, explained, fail
from course.check.words import ROUNDED, Interrupted
from course.progress import done


@exercise("9.1", "double")
def double(answer, rng):
    number = int(rng.integers(1, 100))
    compare(answer(number), 2 * number, what="a number", call=f"double({number})", tolerance=0, hint="Twice.")
    return "one number"


def message(action, *arguments, **named):
    with pytest.raises(CheckFailed) as caught:
        action(*arguments, **named)
    return str(caught.value)


def compared(got, wanted, tolerance=1e-6):
    return message(compare, got, wanted, what="here", tolerance=tolerance)


# Verdicts


def test_a_right_answer_is_one_line_and_a_tick(capsys):
    double(lambda number: number + number)
    assert capsys.readouterr().out == "✓ exercise 9.1 · double: one number\n"
    assert "9.1" in done()


def test_a_wrong_answer_says_what_was_tried_wanted_and_got_and_ticks_nothing():
    number = np.random.default_rng(5).integers(1, 100)
    assert (
        message(double, lambda number: number, seed=5)
        == f"✗ exercise 9.1 · double: a number\n    double({number})\n    wanted {2 * number}      got"
        f" {number}\n  Twice.   (seed 5)"
    )
    assert done() == {}


def test_the_seed_repeats_the_inputs_and_calls_without_one_differ():
    drawn = []
    for seed in (5, 5, None, None, None, None):
        message(double, lambda number: drawn.append(number), seed=seed)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_notebook_shows_the_message_alone():
    assert CheckFailed("✗ one\ntwo")._render_traceback_() == ["✗ one", "two"]
    assert CheckFailed("✗ a\n    " + "long " * 20)._render_traceback_() == [
        "✗ a",
        "    " + "long " * 16 + "long",
        "      " + "long " * 2 + "long",
    ]


def test_a_failure_names_only_what_it_was_given():
    assert message(fail, "the first half", hint="Look.") == "the first half\n  Look."
    assert (
        message(fail, "the first half", wanted="a tuple", got="a list")
        == "the first half\n    wanted a tuple      got a list"
    )
    assert message(fail, "the first half", got={"m": 1}) == "the first half\n    got {'m': 1}"


# Equality of values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "got, wanted",
    [
        (1, 1.0 + 1e-7),
        (1e9 + 1, 1e9),
        (math.nan, math.nan),
        (-math.inf, -math.inf),
        ([1, 2], np.array([1.0, 2.0])),
        (torch.tensor([1.0, 2.0], requires_grad=True), (1, 2)),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        ((1, np.float32(2), torch.ones(3)), (1.0, 2.0, np.ones(3))),
        ([], np.empty(0)),
    ],
)
def test_these_agree(got, wanted):
    compare(got, wanted, what="here", tolerance=1e-6)


@pytest.mark.parametrize(
    "got, wanted, said",
    [
        (1.00001, 1, "here\n    wanted 1      got 1.00001"),
        (1.0000019, 1, "here\n    wanted 1      got 1.0000019"),
        (math.nan, 1, "here\n    wanted 1      got nan"),
        (math.inf, 1, "here\n    wanted 1      got inf"),
        (1, math.inf, "here\n    wanted inf      got 1"),
        (1, math.nan, "here\n    wanted nan      got 1"),
        (-math.inf, math.inf, "here\n    wanted inf      got -inf"),
        ((2, math.nan, 0), (2, 1, 7), "here\n    wanted (2, 1, 7)      got (2, nan, 0)"),
        ((1, 2), (1, 2, 3), "here: wrong shape\n    wanted (3,)      got (2,)"),
        ((1, 2, 3), (1, 2, np.ones(2)), "here: wrong shape\n    wanted ((), (), (2,))      got (3,)"),
        (np.zeros((3, 4)).T, np.zeros((3, 4)), "here: wrong shape\n    wanted (3, 4)      got (4, 3)"),
        ("1", 1, "here: '1' is neither a number nor an array of numbers"),
        (..., 1, "here: Ellipsis is neither a number nor an array of numbers"),
        ([1, None], [1, 2], "here: None is neither a number nor an array of numbers"),
        (None, math.nan, "here\n  Your function returned None. Does every path through it end in a return?"),
    ],
)
def test_these_differ(got, wanted, said):
    assert compared(got, wanted) == said


def test_of_many_numbers_the_first_wrong_one_is_named():
    wanted = 1.0, np.arange(12.0).reshape(3, 4)
    got = 1.0, wanted[1] + np.eye(3, 4) * [0, 0, 5, 0]
    assert (
        compared(got, wanted)
        == "here: 1 of 13 numbers differ, the first at [1, 2, 2]\n    wanted 10      got 15"
    )


@pytest.mark.parametrize("got, hint", [(2.5, "a mistake"), (1 + 1e-8, ROUNDED), (3.0, "otherwise")])
def test_rounding_is_not_taken_for_a_mistake_without_effect_on_these_inputs(got, hint):
    assert explained(got, {"no effect here": 1.0, "a mistake": 2.5}, "otherwise", wanted=1.0) == hint


def test_no_tolerance_lets_nan_pass():
    assert compared(math.nan, 1.0, tolerance=math.inf) == "here\n    wanted 1      got nan"


# Messages about exceptions in the learner's code ------------------------------------------------------------


def halve(number):
    pieces = [number, 0]
    return [number / piece for piece in pieces]


def stub(number):
    raise NotImplementedError("exercise 9.1")


def unfinished_helper(number):
    raise NotImplementedError("exercise 8.2")


def test_an_exception_shows_the_learners_line_first_then_itself_then_the_call():
    number = np.random.default_rng(5).integers(1, 100)
    assert (
        message(double, halve, seed=5)
        == "✗ exercise 9.1 · double: line 3 of halve\n    return [number / piece for piece in pieces]\n   "
        ' ZeroDivisionError: division by zero\n    called by  compare(answer(number), 2 * number, what="a'
        f' number", call=f"double({{number}})", tolerance=0, hint="Twice.")\n    number = {number}  '
        " (seed 5)"
    )


def test_an_exception_deep_in_a_library_still_shows_the_learners_line():
    said = message(double, lambda number: np.zeros(3).reshape(number, 0))
    assert "np.zeros(3).reshape(number, 0)" in said.splitlines()[1]
    assert "ValueError: cannot reshape" in said


@pytest.mark.parametrize(
    "answer, said",
    [(3, "TypeError: 'int' object is not callable"), (lambda: 3, "takes 0 positional arguments")],
)
def test_an_answer_that_cannot_be_called_is_no_crash(answer, said):
    lines = message(double, answer).splitlines()
    assert lines[0] == "✗ exercise 9.1 · double: the check cannot use your answer"
    assert said in lines[1]


def test_a_stub_is_named_as_not_written_yet():
    assert (
        message(double, stub) == "✗ exercise 9.1 · double: not written yet\n  Put your code in place of raise"
        ' NotImplementedError("exercise 9.1"), run both cells.'
    )
    assert message(double, unfinished_helper).startswith(
        "✗ exercise 9.1 · double: exercise 8.2 is not written yet\n  Put your code"
    )


def test_an_interrupt_shows_the_learners_line_and_one_sentence():
    def interrupted(number):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        double(interrupted, seed=5)
    assert caught.value._render_traceback_() == [
        "✗ exercise 9.1 · double: interrupted in line 2 of interrupted",
        "    raise KeyboardInterrupt",
        '    called by  compare(answer(number), 2 * number, what="a number",',
        '      call=f"double({number})", tolerance=0, hint="Twice.")',
        "  The check did not finish, so there is no verdict on your answer.",
    ]
    # the traceback has no frame between the harness and the interrupt
    assert caught.value.__suppress_context__


def test_the_line_of_an_interrupt_in_a_compiled_package_is_the_learners():
    def waits(number):
        exec(compile("raise KeyboardInterrupt", "zmq/backend/_zmq.pyx", "exec"))

    with pytest.raises(KeyboardInterrupt) as caught:
        double(waits)
    assert "interrupted in line 2 of waits\n    exec(" in str(caught.value)


def test_an_interrupt_of_the_checks_own_code_says_so():
    @exercise("9.2", "slow")
    def slow(answer, rng):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        slow(None)
    assert str(caught.value).startswith(
        "✗ exercise 9.2 · slow: interrupted while the check's own code was running, outside your code\n"
    )


# Answers that do not end ------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", 0.2)
    monkeypatch.setattr(patience, "INTERVAL", 0.02)


def endless(number):
    while number:
        number = number + 1


def stubborn(number):
    try:
        endless(number)
    except:  # noqa: E722
        endless(1)


def in_a_library(number):
    return sum(itertools.takewhile(lambda power: power, itertools.repeat(0.0 * number + 1)))


def waits_for_a_lock(number):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits_for_an_event(number):
    threading.Event().wait()


def waits_for_a_thread(number):
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def sleeps(number):
    time.sleep(1_000_000)


WAITS = [waits_for_a_lock, waits_for_an_event, waits_for_a_thread, sleeps]


@pytest.mark.parametrize("answer", [endless, stubborn, in_a_library, *WAITS])
def test_a_loop_that_does_not_end_is_stopped_after_a_stated_time(impatient, answer):
    said = message(double, answer, seed=5)
    assert said.startswith(
        "✗ exercise 9.1 · double: stopped because your code was still running after 0.2 seconds, in line "
    )
    assert "\n    called by  compare(answer(number)" in said
    assert said.endswith("\n  Does every iteration of the loop bring it closer to its end?   (seed 5)")
    if answer is endless:
        assert "line 2 of endless\n    while" in said or "line 3 of endless\n    number = number + 1" in said
    assert done() == {}


def test_time_in_launches_counts_towards_another_limit(impatient, monkeypatch):
    monkeypatch.setattr(patience, "WITH_LAUNCHES", 0.6)
    everything = lambda frame: True  # noqa: E731
    watch = patience.Watch(threading.get_ident(), None, is_theirs=everything, is_launch=everything)
    thrown = []
    monkeypatch.setattr(watch, "throw", lambda kind: thrown.append(kind) or watch.over.set())
    watch.run()
    assert thrown == [patience.DoesNotEnd] and watch.waited == 0.6


@pytest.fixture
def default_interrupt():
    """Set Python's handler for SIGINT, which a process in the background of a script ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_by_the_user_is_no_time_limit(impatient, default_interrupt):
    def interrupted(number):
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="interrupted in line 2 of interrupted"):
        double(interrupted, seed=5)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_c_function_that_cannot_be_stopped_is_reported(impatient, monkeypatch, capfd):
    """Run a C function without the global interpreter lock. A signal cannot interrupt it."""
    monkeypatch.setattr(patience, "GRACE", 0.1)

    def in_c(number):
        return len([hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 4_000_000) for _ in range(2)])

    said = message(double, in_c, seed=5)
    assert "stopped because your code was still running after 0.2 seconds" in said
    assert capfd.readouterr().err.count("cannot be stopped. Restart the kernel.") == 1


def test_nothing_is_thrown_once_the_check_is_over(impatient):
    watch = patience.Watch(threading.get_ident(), None, lambda frame: True, lambda frame: False)
    watch.stop()
    watch.throw(patience.DoesNotEnd)
    # run enough bytecode that a pending exception would be raised
    assert sum(range(10_000)) == 49_995_000


def test_a_watch_keeps_nothing_of_the_learners_alive(impatient):
    """Run a check that measures memory: the answer's variables must be freed when its function returns."""

    class Tile:
        pass

    def answer():
        tile = Tile()
        time.sleep(10 * patience.INTERVAL)
        return weakref.ref(tile)

    with patience.patience(lambda frame: False, lambda frame: False):
        assert answer()() is None


def test_functions_can_be_traced_after_a_watch():
    """Trace a function after a check. CPython would repeat the first instruction if a Watch left its request
    set."""
    program = """
import sys
from course.check.patience import patience

with patience(lambda frame: False, lambda frame: False):
    pass

def traced():
    return "ended"

sys.settrace(lambda *_: None)
print(traced())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "ended\n", ended.stderr


def test_the_checks_own_time_does_not_count(impatient):
    def body(answer, rng):
        time.sleep(0.5)
        return "nothing"

    # attribute the function's time to the course, not to the learner
    body.__code__ = body.__code__.replace(co_filename=patience.__file__)
    exercise("9.3", "oracle")(body)(None)
    assert "9.3" in done()


# Checks by name ---------------------------------------------------------------------------------------------


def test_checks_are_found_by_their_exercise():
    assert check.ex01_2.number == "1.2"
    lessons = check.lessons()
    assert list(lessons["01"]) == ["ex01_0", "ex01_1", "ex01_2"]
    # those of lessons 04 and 04b
    assert list(lessons["04"]) == [f"ex04_{number}" for number in range(1, 11)]
    assert check.ex04_10 is lessons["04"]["ex04_10"]


def test_checks_are_listed_in_the_order_of_their_numbers():
    module = SimpleNamespace(ex09_10=1, ex09_2=2, helper=3, ex09_1=4)
    assert list(check.checks_of(module)) == ["ex09_1", "ex09_2", "ex09_10"]


@pytest.mark.parametrize("name", ["ex1_2", "merge", "ex99_1", "ex05_9"])
def test_an_unknown_check_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"course.check has no '{name}'"):
        getattr(check, name)


def test_what_cannot_be_checked_here_says_so_in_words_and_ticks_nothing(capsys):
    @exercise("99.9", "anything")
    def check_it(answer, rng):
        raise NotChecked("The compiler is missing.")

    check_it(None)
    assert capsys.readouterr().out == "exercise 99.9 · anything: not checked. The compiler is missing.\n"
    assert "99.9" not in done()


def test_tuples_taken_apart_in_a_call_are_no_lists():
    """Accept `f(*p, *q)`, for which Python builds a list that Numba never sees."""

    def right(x, f, p, q):
        x[0] = f(*p, *q) + f(*p, x[1])

    def wrong(x, f, p):
        x[0] = f(*p, *[x[1], *p])

    dialect.refuse(right)
    assert "wrong makes a list" in message(dialect.refuse, wrong)


def test_letters_of_a_bug_hunt_are_drawn_again_in_each_session(monkeypatch):
    names = ["queries", "keys", "merge"]
    assert letters.drawn(names) == dict(zip("abc", names, strict=True))
    monkeypatch.setenv("COURSE_QUIET", "0")
    orders = {tuple(letters.drawn(names).values()) for _ in range(100)}
    assert len(orders) == 6 and all(sorted(order) == sorted(names) for order in orders)


def test_letters_are_drawn_again_after_three_wrong_answers(monkeypatch):
    monkeypatch.setattr(letters, "quiet", lambda: False)
    truth = dict(zip("abcdefgh", "ijklmnop", strict=True))
    before = dict(truth)
    assert [bool(letters.redrawn_after_guesses(truth)) for _ in range(3)] == [False, False, True]
    assert truth != before and sorted(truth.values()) == sorted(before.values())


@pytest.mark.parametrize("mode", [tensors.Results, lesson18.Products])
def test_a_check_that_observes_operations_does_not_import_dynamo(mode):
    """PyTorch wraps the method of a mode in a function that imports torch._dynamo at its first call."""
    assert not hasattr(mode.__torch_dispatch__, "__wrapped__")
