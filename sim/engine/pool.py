"""The fibers of a launch, which all runs and blocks of the launch reuse. Creating and closing a fiber takes
longer than running a short kernel in it."""


class FiberPool:
    """A context manager that closes its fibers on exit."""

    def __init__(self):
        self.free = {}  # class of fibers -> the fibers that run no thread

    def of(self, fiber_type):
        """Return the list of free fibers of a class. The caller removes and adds fibers."""
        return self.free.setdefault(fiber_type, [])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for fibers in self.free.values():
            for fiber in fibers:
                fiber.close()
        self.free.clear()
