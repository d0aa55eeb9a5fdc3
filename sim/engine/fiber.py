"""A CUDA thread as a greenlet: it switches away and back in a third of a microsecond."""

import contextvars
import functools

import greenlet

from sim.errors import Abandoned


class Fiber:
    """A coroutine that runs one body after another. `resume()` runs the body until it suspends itself or
    ends; `suspend()`, called by the body, returns control to the caller of `resume()`.

    To make a greenlet takes twenty times as long as to switch to one. So each greenlet is used for a thread
    of one block after another.
    """

    def __init__(self):
        self.body = None
        self.greenlet = greenlet.greenlet(self.loop)
        # A greenlet starts with an empty context: numpy's errstate would be lost.
        self.greenlet.gr_context = contextvars.copy_context()
        self.resume = self.greenlet.switch
        self.suspend = self.greenlet.parent.switch

    def begin(self, thread, kernel, arguments):
        """Set the next body: `thread` runs `kernel`."""
        self.body = functools.partial(thread.run, kernel, arguments)

    def loop(self):
        while True:
            self.body()
            self.suspend()

    def abandon(self):
        """Unwind a suspended body by an exception. The fiber can then take another body."""
        if self.greenlet:
            self.greenlet.throw(Abandoned)

    def close(self):
        """End the greenlet."""
        if self.greenlet:
            self.greenlet.throw(greenlet.GreenletExit)
