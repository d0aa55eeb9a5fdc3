"""A CUDA thread as an operating-system thread, with the interface of Fiber.

Only one of these threads runs at a time.
"""

import contextvars
import ctypes
import functools
import sys
import threading

from sim.errors import Abandoned, LaunchError
from sim.frames import kernel_frames


class Withdrawn(BaseException):
    """The exception that `withdraw` raises and catches."""


def throw_into(ident, exception):
    """Raise `exception` in the operating-system thread `ident`, at its next bytecode instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


def withdraw(idents):
    """Withdraw the exceptions that `throw_into` has set in these operating-system threads but that have not
    been raised yet.

    After that, CPython still searches for an exception at each call, until an exception is raised. In a
    function that is traced or profiled, Python 3.11 would repeat the first instruction forever. Therefore,
    raise an exception here.
    """
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    try:
        for ident in idents:
            set_exception(ctypes.c_ulong(ident), ctypes.py_object())
        set_exception(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Withdrawn))
        while True:
            pass
    except Withdrawn:
        pass


class OSThread:
    """A coroutine with its own operating-system thread, which runs one thread body after another. Control
    passes from thread to thread by two locks."""

    def __init__(self):
        self.body = self.error = self.thrown = None
        self.running = self.ended = False
        # `go` is released to resume the body, `back` to return from resume()
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.thread = threading.Thread(target=contextvars.copy_context().run, args=(self.loop,), daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            raise LaunchError(
                'engine="threads" runs each resident CUDA thread in an operating-system thread, and the'
                " system has too few of them for the blocks that must be resident at once because they wait"
                ' for each other; launch fewer threads, or use engine="fibers"'
            ) from error

    def begin(self, thread, kernel, arguments):
        """Set the next thread body to run: `kernel`, executed as `thread`."""
        self.body = functools.partial(thread.run, kernel, arguments)

    def loop(self):
        try:
            self.go.acquire()
            while self.thrown is not SystemExit:
                self.body()
                self.suspend()
        except SystemExit:
            pass
        except BaseException as error:  # resume() raises this exception again, as it does for a greenlet.
            self.error = error
        # close() reads `ended`, so set it before releasing `back`. close() cannot use is_alive() instead,
        # which may remain true for a moment after the release.
        self.running, self.ended = False, True
        self.back.release()

    def resume(self):
        self.running = True
        self.go.release()
        try:
            self.back.acquire()
        # Python delivers Ctrl-C to the thread that waits here. The kernel must end as well.
        except BaseException:
            if self.running:
                throw_into(self.thread.ident, Abandoned)
                self.back.acquire()
            raise
        if self.error:
            error, self.error = self.error, None
            raise error

    def suspend(self):
        self.running = False
        self.back.release()
        self.go.acquire()
        if self.thrown:
            thrown, self.thrown = self.thrown, None
            raise thrown

    def frames(self):
        """Return the stack frames of the kernel in a suspended thread body, outermost first."""
        return kernel_frames(sys._current_frames()[self.thread.ident])

    def abandon(self):
        """Unwind a suspended thread body with an exception. The operating-system thread can then run the body
        of another CUDA thread."""
        self.thrown = Abandoned
        self.resume()

    def close(self):
        """End the operating-system thread."""
        self.thrown = SystemExit
        if not self.ended:
            self.resume()
