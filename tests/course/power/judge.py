"""Whether a check accepts an answer: with a limit of time, and silently."""

import contextlib
import io
import signal

from course import check
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


def too_long(signal_number, frame):
    raise TooLong
