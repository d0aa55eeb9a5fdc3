"""How one CUDA thread waits whose kernel is a generator, each barrier a `yield`: the same interface as Fiber.

A step costs a tenth of a greenlet's switch. Only a kernel whose own text has all its barriers can run so.
"""

from sim.engine.scheduler import BARRIER


class GeneratorFiber:
    """Runs one body after another, each piece by piece: `resume()` runs it until its next barrier or end."""

    def begin(self, thread, kernel, arguments):
        """The next body: `thread` runs `kernel`."""
        generator = kernel(*arguments)
        thread.waits, thread.frame = BARRIER, generator.gi_frame
        self.body = thread.run_generator(generator)
        self.resume = self.body.__next__

    def abandon(self):
        """Unwind a body that is suspended; another can begin."""
        self.body.close()

    def close(self):
        """Nothing is left to unwind."""
