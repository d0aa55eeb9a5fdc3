"""A CUDA thread as a generator, in which each barrier is a `yield`.

A step of a generator costs a tenth of a greenlet's switch. A generator can suspend itself in its own code
only, so this form is for kernels that call no function with a barrier.
"""

from sim.engine.scheduler import BARRIER


class GeneratorFiber:
    """A coroutine with the interface of Fiber. `resume()` runs the body until its next barrier or its end."""

    def begin(self, thread, kernel, arguments):
        """Set the next body: `thread` runs `kernel`."""
        generator = kernel(*arguments)
        thread.waits, thread.frame = BARRIER, generator.gi_frame
        self.body = thread.run_generator(generator)
        self.resume = self.body.__next__

    def abandon(self):
        """Unwind a suspended body. Another body can then begin."""
        self.body.close()

    def close(self):
        """Do nothing: a generator needs no unwinding."""
