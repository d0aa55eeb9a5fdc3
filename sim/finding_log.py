"""The findings of a run."""

from dataclasses import replace

# The number of findings with equal keys that are kept for each thread. Further ones are only counted, because
# an endless loop can repeat an error a hundred thousand times.
MOST_REPETITIONS = 1000


class FindingLog(list):
    """The list of a run's findings. It counts further repetitions of a finding in the last one that it keeps.

    has_errors: whether an error has been added, or is expected.
    """

    def __init__(self):
        super().__init__()
        self.has_errors = False
        self.times, self.last = {}, {}  # (key, threads) -> number of findings, position of the last one

    def append(self, finding):
        self.has_errors |= finding.severity == "error"
        place = finding.key, *((access.block, access.thread) for access in finding.accesses)
        times = self.times[place] = self.times.get(place, 0) + 1
        if times > MOST_REPETITIONS:
            last = self.last[place]
            self[last] = replace(self[last], count=self[last].count + 1 + finding.count)
        else:
            self.last[place] = len(self)
            super().append(finding)

    def extend(self, findings):
        for finding in findings:
            self.append(finding)

    def __iadd__(self, findings):
        self.extend(findings)
        return self

    def withdraw(self, findings):
        """Remove these findings, because others replace them."""
        self[:] = [one for one in self if all(one is not other for other in findings)]
        self.times.clear()
