"""The verdict of a check on an answer: accepted or not, with a limit of time, and silently."""

import contextlib
import io
import signal

from course import check, ptx
from course.check.harness import CheckFailed

PATIENCE = 60  # seconds for one check; an answer that takes longer does not end


class TooLong(BaseException):
    """An answer that does not end; no `except Exception` of a lesson's may swallow it."""


def verdict(name, answer, seed):
    """ "" if the check of this name accepts the answer, else what it says."""
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
    """From now on a kernel is compiled once for the same types: its PTX depends on no seed."""
    kept = {}

    def compiled(kernel, *arguments, architecture):
        function = getattr(kernel, "py_func", kernel)
        closed = tuple(cell.cell_contents for cell in function.__closure__ or ())
        types = tuple(map(ptx.type_of_argument, arguments))
        key = function.__code__, closed, id(function.__globals__), types, architecture
        if key not in kept:  # the kernel is kept too, so that no other gets its globals' id
            kept[key] = compile_here(kernel, *arguments, architecture=architecture), kernel
        return kept[key][0]

    compile_here, ptx.compiled_here = ptx.compiled_here, compiled


def too_long(signal_number, frame):
    raise TooLong
