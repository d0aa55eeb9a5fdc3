"""Obtains the verdict of a check on an answer, with a time limit and without output."""

import contextlib
import io
import signal

from course import check, ptx
from course.check.harness import CheckFailed

PATIENCE = 60  # Time limit of one check, in seconds. A slower answer is assumed to run forever.


class TooLong(BaseException):
    """Exception that an answer has exceeded the time limit.

    It derives from BaseException so that no `except Exception` in a lesson catches it.
    """


def verdict(name, answer, seed):
    """Return "" if the check of this name accepts the answer, else its message."""
    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(check, name)(answer, seed=seed)
    except CheckFailed as wrong:
        return str(wrong)
    except RecursionError:
        return "it calls itself for ever"
    except TooLong:
        return "it does not end"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return ""


def compiled_once():
    """Make ptx.compiled_here compile a kernel only once per signature, because its PTX does not depend on the
    seed."""
    kept = {}

    def compiled(kernel, *arguments, architecture):
        function = getattr(kernel, "py_func", kernel)
        closed = tuple(cell.cell_contents for cell in function.__closure__ or ())
        types = tuple(map(ptx.type_of_argument, arguments))
        key = function.__code__, closed, id(function.__globals__), types, architecture
        # Keep the kernel alive, so that the id of its globals is not reused for another module.
        if key not in kept:
            kept[key] = compile_here(kernel, *arguments, architecture=architecture), kernel
        return kept[key][0]

    compile_here, ptx.compiled_here = ptx.compiled_here, compiled


def too_long(signal_number, frame):
    raise TooLong
