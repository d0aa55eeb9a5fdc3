"""Time limits for the learner's code in a check."""

import _thread
import ctypes
import signal
import sys
import threading
from contextlib import contextmanager

INTERVAL = 0.5  # sampling interval in seconds
PATIENCE = 60  # limit in seconds for the learner's own code, excluding launches
# limit in seconds including launches; the simulator itself stops launches without progress
WITH_LAUNCHES = 600
# seconds after which a message reports learner's code that does not react to DoesNotEnd
GRACE = 10


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
    watch.handle_signals()
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
        self.handler = None  # the previous handler of SIGINT, if the watched thread is the main thread
        # Whether the handler has to raise DoesNotEnd, and for how many seconds it has not been called since.
        self.late, self.ignored = False, 0

    def run(self):
        while not self.over.wait(INTERVAL):
            is_theirs, is_launch = self.look()
            self.report_unstoppable()
            if is_theirs:
                self.in_all += INTERVAL
                self.alone += 0 if is_launch else INTERVAL
                if self.alone >= PATIENCE or self.in_all >= WITH_LAUNCHES:
                    self.waited = PATIENCE if self.alone >= PATIENCE else WITH_LAUNCHES
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

    def handle_signals(self):
        """Let SIGINT raise DoesNotEnd once a limit is exceeded. Only the main thread can handle signals.

        Unlike PyThreadState_SetAsyncExc, a signal also ends time.sleep, and a wait for a lock, an event or
        another thread.
        """
        # The handler is None if it was not installed from Python, and could then not be restored.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT):
            self.handler = signal.signal(signal.SIGINT, self.on_signal)

    def on_signal(self, number, frame):
        """Raise DoesNotEnd if a limit is exceeded. Otherwise, pass the signal to the previous handler."""
        if self.late:
            self.late = False
            raise DoesNotEnd
        if callable(self.handler):
            self.handler(number, frame)

    def report_unstoppable(self):
        """Print a message if DoesNotEnd has not been raised for GRACE seconds.

        No exception can stop a function that is written in C. If it also keeps the global interpreter lock,
        as sum(itertools.count()) does, no other thread of Python runs, and there is no message either.
        """
        if not self.late:
            self.ignored = 0
            return
        self.ignored += INTERVAL
        if self.ignored - INTERVAL < GRACE <= self.ignored:
            print(
                f"Your code was still running after {self.waited} seconds, inside a function that is not"
                " written in Python, which cannot be stopped. Restart the kernel.",
                file=sys.stderr,
                flush=True,
            )

    def throw(self, exception):
        """Raise the exception in the watched thread, unless the check is over. Without a handler of signals,
        this happens at the next bytecode of the thread."""
        with self.acting:
            if self.over.is_set():
                return
            if self.handler is not None:
                self.late = True
                if hasattr(signal, "pthread_kill"):
                    signal.pthread_kill(self.thread, signal.SIGINT)
                else:
                    _thread.interrupt_main()
            else:
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
            self.over.set()  # The exception may have been raised before the statement above.
        if self.handler is not None:
            signal.signal(signal.SIGINT, self.handler)
