"""A CUDA thread as a greenlet. A switch to a greenlet and back takes a third of a microsecond."""

import contextvars
import functools

import greenlet

from sim.errors import Abandoned
from sim.frames import kernel_frames


class Fiber:
    """A coroutine that runs one thread body after another.

    `resume()` runs the body until it suspends itself or ends. The body calls `suspend()` to return control to
    the caller of `resume()`. Creating a greenlet takes twenty times as long as switching to it, so greenlets
    are reused by later blocks.
    """

    def __init__(self):
        self.body = None
        self.greenlet = greenlet.greenlet(self.loop)
        # A new greenlet starts with an empty context, in which numpy's errstate would be lost.
        self.greenlet.gr_context = contextvars.copy_context()
        self.resume = self.greenlet.switch
        self.suspend = self.greenlet.parent.switch

    def begin(self, thread, kernel, arguments):
        """Set the next thread body to run: `kernel`, executed as `thread`."""
        self.body = functools.partial(thread.run, kernel, arguments)

    def loop(self):
        while self.body:
            self.body()
            self.suspend()

    def frames(self):
        """Return the stack frames of the kernel in a suspended thread body, outermost first."""
        return kernel_frames(self.greenlet.gr_frame)

    def abandon(self):
        """Unwind a suspended thread body with an exception. The fiber can then run the body of another
        thread."""
        if self.greenlet:
            self.greenlet.throw(Abandoned)

    def close(self):
        """End the greenlet. Throwing an exception into it would take twice as long."""
        self.body = None
        if self.greenlet:
            self.resume()
