"""Kernels in CUDA C++, and edits that plant a bug in them."""

from dataclasses import dataclass

import numpy as np

from sim import simulate


@dataclass(frozen=True)
class Corpus:
    """Correct kernels, and bugs that are planted in them.

    prelude: the text before each kernel.
    kernels: name -> the text of the kernel `k`.
    launches: name -> (configuration, function that returns new arguments, the number of the argument that the
        kernel writes, its wanted contents).
    pairs: name of a bug -> (kernel, kinds of the findings, (old text, new text) of each edit).
    """

    prelude: str
    kernels: dict
    launches: dict
    pairs: dict

    def source(self, name):
        """Return the CUDA C++ of a kernel, or of the kernel with a planted bug."""
        kernel, _, *edits = self.pairs.get(name, (name, []))
        text = self.kernels[kernel]
        for old, new in edits:
            assert text.count(old) == 1, (name, old, text.count(old))
            text = text.replace(old, new)
        return self.prelude + text

    def run(self, name, module, **options):
        """Return (report, whether the result is as wanted) for a kernel or a planted bug."""
        configuration, arguments, written, wanted = self.launches[self.pairs.get(name, (name,))[0]]
        given = arguments()
        report = simulate(module["k"], on_finding="report", **options)[configuration](*given)
        return report, np.array_equal(given[written], wanted)
