"""Saved contents of arrays, which restore the arrays before another run of a launch."""


class Snapshot:
    """The contents of some arrays at one moment.

    arrays: numpy arrays. They may overlap.
    """

    def __init__(self, arrays=()):
        self.saved = [(array, array.copy()) for array in arrays]

    def restore(self):
        """Copy the saved contents back to the arrays."""
        for array, contents in self.saved:
            array[...] = contents
