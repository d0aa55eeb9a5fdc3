"""Time limits for the learner's code in a check."""

import ctypes
import sys
import threading
from contextlib import contextmanager

INTERVAL = 0.5  # sampling interval in seconds
PATIENCE = 60  # limit in seconds for the learner's own code, excluding launches
# limit in seconds including launches; the simulator itself stops launches without progress
WITH_LAUNCHES = 600


class DoesNotEnd(BaseException):
    """Exception that stops learner's code that has run for too long.

    It derives from BaseException so that `except Exception` in the learner's code cannot catch it.
    """


@contextmanager
def patience(is_theirs, is_launch):
    """Yield a Watch that raises DoesNotEnd when the learner's code exceeds a time limit.

    Only time inside the learner's functions counts towards the limit; time in the reference implementation
    does not. `watch.waited` is the limit that was exceeded, in seconds.

    is_theirs: predicate for the learner's frames.
    is_launch: predicate for the frames of a launch.
    """
    watch = Watch(threading.get_ident(), sys._getframe(2), is_theirs, is_launch)
    threading.Thread(target=watch.run, daemon=True).start()
    try:
        yield watch
    finally:
        watch.stop()


class Watch:
    """Sampling timer that adds up the time a thread spends in the learner's code."""

    def __init__(self, thread, outermost, is_theirs, is_launch):
        self.thread, self.outermost = thread, outermost
        self.is_theirs, self.is_launch = is_theirs, is_launch
        self.over, self.acting = threading.Event(), threading.Lock()
        self.alone = self.in_all = self.waited = 0

    def run(self):
        while not self.over.wait(INTERVAL):
            is_theirs, is_launch = self.look()
            if is_theirs:
                self.in_all += INTERVAL
                self.alone += 0 if is_launch else INTERVAL
                self.waited = PATIENCE if self.alone >= PATIENCE else WITH_LAUNCHES
                if self.alone >= PATIENCE or self.in_all >= WITH_LAUNCHES:
                    self.throw(DoesNotEnd)
                    # Raise the exception again in case a bare `except` caught it.
                    self.alone = self.in_all = 0

    def look(self):
        """Return (whether the thread is in the learner's code, whether it is in a launch).

        No reference to a frame is stored. A frame would keep its variables alive, and some checks measure the
        memory that an answer uses.
        """
        theirs = launch = False
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame is not self.outermost:
            theirs, launch = theirs or self.is_theirs(frame), launch or self.is_launch(frame)
            frame = frame.f_back
        return theirs, launch

    def throw(self, exception):
        """Raise the exception in the watched thread at its next bytecode, unless the check is over."""
        with self.acting:
            if not self.over.is_set():
                thread, what = ctypes.c_ulong(self.thread), ctypes.py_object(exception)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, what)

    def stop(self):
        """Stop the timer. Called from the watched thread.

        An exception that was requested may still be pending. The loop gives CPython the chance to raise it
        here.
        Cancelling it with PyThreadState_SetAsyncExc(thread, NULL) would leave CPython's request to look for
        exceptions set, and a traced function would then repeat its first instruction forever.
        """
        try:
            with self.acting:
                self.over.set()
            for _ in range(3):
                pass
        except DoesNotEnd:
            pass
