"""Watchdog for threads that neither wait nor call the simulator, such as a thread in an endless loop without
`tick`."""

import threading

from sim.context import PATIENCE
from sim.engine.os_thread import throw_into
from sim.errors import Stuck

INTERVAL = 0.5  # polling interval in seconds


class Watchdog:
    """A context manager around a launch. If nothing happens for `patience` seconds, it raises Stuck in the
    current thread."""

    def __init__(self, context):
        self.context, self.patience = context, PATIENCE * max(1, (context.max_steps or 0) / 1e6)
        self.over, self.launcher = threading.Event(), threading.get_ident()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()

    def watch(self):
        last, idle = None, 0.0
        while not self.over.wait(INTERVAL):
            sign = self.context.activity
            idle = idle + INTERVAL if sign == last else 0.0
            last = sign
            if idle >= self.patience:
                self.interrupt()
                idle = 0.0

    def interrupt(self):
        # The engine "threads" has an operating-system thread per CUDA thread. All other engines run in the
        # launcher's thread.
        running = self.context.thread
        thread = getattr(running.fiber, "thread", None) if running else None
        throw_into(thread.ident if thread else self.launcher, Stuck)
