"""Ends a check whose learner's code does not end by itself."""

import ctypes
import sys
import threading
from contextlib import contextmanager

INTERVAL = 0.5  # seconds between two looks at the running code
PATIENCE = 60  # seconds that a check waits for the learner's code, launches not counted
WITH_LAUNCHES = 600  # seconds with launches, which the simulator ends by itself if they get nowhere


class DoesNotEnd(BaseException):
    """The learner's code has run for too long; no `except Exception` of theirs may take it."""


@contextmanager
def patience(is_theirs, is_launch):
    """Raise DoesNotEnd in the learner's code that runs within for too long, and yield the Watch, which has
    the seconds that it waited. Only the time in which one of the learner's functions runs counts, so that a
    slow oracle takes nothing of it.

    is_theirs, is_launch: tell a frame of the learner's, and one of a launch, from others.
    """
    watch = Watch(threading.get_ident(), sys._getframe(2), is_theirs, is_launch)
    threading.Thread(target=watch.run, daemon=True).start()
    try:
        yield watch
    finally:
        watch.stop()


class Watch:
    """Looks at a thread's stack at intervals, and adds up how long it has been in the learner's code."""

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
                    self.alone = self.in_all = 0  # should a bare `except` take it, there is a next time

    def look(self):
        """Return whether the thread is running the learner's code, and whether it is running a launch.

        No frame is kept: it would keep its variables alive, and checks count the memory that answers hold.
        """
        theirs = launch = False
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame is not self.outermost:
            theirs, launch = theirs or self.is_theirs(frame), launch or self.is_launch(frame)
            frame = frame.f_back
        return theirs, launch

    def throw(self, exception):
        """Raise it in the thread at its next bytecode, unless the check is over."""
        with self.acting:
            if not self.over.is_set():
                thread, what = ctypes.c_ulong(self.thread), ctypes.py_object(exception)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, what)

    def stop(self):
        """End the watch; called in the watched thread.

        An exception that was thrown last may not have been raised yet. The loop lets it be raised here.
        Taking it back instead, by PyThreadState_SetAsyncExc(thread, NULL), leaves CPython's request to look
        for exceptions set for ever: a traced function then repeats its first instruction without end.
        """
        try:
            with self.acting:
                self.over.set()
            for _ in range(3):
                pass
        except DoesNotEnd:
            pass
