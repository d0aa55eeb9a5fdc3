"""A watchdog for threads that neither wait nor call the simulator, such as a thread in an endless loop
without calls of `tick`."""

import threading
import time

from sim.engine.os_thread import throw_into, withdraw
from sim.errors import OutOfTime, Stuck, Undecided
from sim.loop_limits import PATIENCE, PATIENCE_FACTOR

INTERVAL = 0.5  # polling interval in seconds
PAUSE = 16  # polls to skip after an OutOfTime, while the engine unwinds the threads


class Watchdog:
    """A context manager around a launch, which can end the current thread by an exception.

    The exception is Stuck if nothing happens for `patience()` seconds of CPU time, and OutOfTime if one
    thread keeps running although the launch has to end. If every `while` loop calls `tick`, only a `for` loop
    or an expression can run for that long without an event. Both of these end at some time, so the exception
    is Undecided.
    """

    def __init__(self, context):
        self.context = context
        self.over, self.launcher = threading.Event(), threading.get_ident()
        self.lock, self.interrupted = threading.Lock(), set()  # idents of threads that got an exception
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        try:
            self.stop()
        except Stuck:  # the exception came just before the launch ended by itself
            self.stop()
        self.thread.join()  # until it ends, its frame keeps the launch and its module alive

    def stop(self):
        """Throw no further exceptions, and withdraw the exceptions that have not been raised yet."""
        with self.lock:
            self.over.set()
            if self.interrupted:
                withdraw(self.interrupted)

    def watch(self):
        context, last, changed, entered, pause = self.context, None, 0.0, 0, 0
        while not self.over.wait(INTERVAL):
            now, sign = time.process_time(), context.activity
            if sign != last:
                last, changed = sign, now
            if now - changed >= self.patience():
                context.loops.ends = context.ticking
                self.interrupt(Undecided if context.ticking else Stuck)
                changed = now
            same, entered, pause = context.entered == entered, context.entered, max(pause - 1, 0)
            runs = same and not pause and context.runs_kernel
            if runs and context.error_limit.is_running and context.error_limit.is_overdue():
                self.interrupt(OutOfTime)
                pause = PAUSE

    def patience(self):
        """Return the seconds of CPU time that may pass without an event. The limit is higher for a loop that
        certainly ends, unless an error precedes it."""
        ends = self.context.ticking and not self.context.has_errors
        return PATIENCE * (PATIENCE_FACTOR if ends else 1) * max(1, (self.context.max_steps or 0) / 1e6)

    def interrupt(self, exception):
        # The engine "threads" has an operating-system thread per CUDA thread. All other engines run in the
        # thread that called the launch.
        running = self.context.thread
        thread = getattr(running.fiber, "thread", None) if running else None
        ident = thread.ident if thread else self.launcher
        with self.lock:
            if not self.over.is_set():
                self.interrupted.add(ident)
                throw_into(ident, exception)
