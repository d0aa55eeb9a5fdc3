"""The launches and findings of one test under `pytest --cuda-sim`, and their texts."""

from collections import Counter
from dataclasses import dataclass, field

from sim.nouns import plural
from sim.pages import insert_line


@dataclass
class LaunchTally:
    """The launches of one test.

    outcomes: number of launches per outcome.
    engines: number of launches per engine.
    findings: distinct findings, {key: (finding, host line of the launch, number of launches)}. For findings
        about host code, which are HostFindings, the line is "".
    notes: sentences about accesses of host code that were not checked, as the keys of a dictionary.
    diagnostics: the findings as sim.diagnostics describes them, {key: diagnostic}, if a format is requested.
    reports: the Reports and HostFindings, if HTML pages are requested.
    failed: whether the test has failed because of its findings.
    """

    outcomes: Counter = field(default_factory=Counter)
    engines: Counter = field(default_factory=Counter)
    findings: dict = field(default_factory=dict)
    notes: dict = field(default_factory=dict)
    diagnostics: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)
    failed: bool = False

    @property
    def is_empty(self):
        return not (self.outcomes or self.findings or self.notes)

    def add(self, finding, where=""):
        """Count a finding. Return (its entry in `findings`, whether it is the first one with its key)."""
        first, where, count = self.findings.get(finding.key, (finding, where, 0))
        self.findings[finding.key] = entry = first, where, count + 1
        return entry, not count

    def failures(self, allowed):
        """Return the entries for errors that fail a test. Errors of the kinds in `allowed` do not."""
        errors = (entry for entry in self.findings.values() if entry[0].severity == "error")
        return [entry for entry in errors if entry[0].kind not in allowed]

    def forget_diagnostics(self, allowed):
        """Remove the diagnostics of the kinds in `allowed`."""
        self.diagnostics = {
            key: each for key, each in self.diagnostics.items() if each["kind"] not in allowed
        }

    def counts(self):
        """Return the counts as a JSON-compatible dictionary, which pytest-xdist can send between
        processes."""
        return {
            "outcomes": dict(self.outcomes),
            "engines": dict(self.engines),
            "keys": sorted({repr(key) for key in self.findings}),
            "diagnostics": list(self.diagnostics.values()),
            "notes": list(self.notes),
        }


def add_counts(counts):
    """Return the sum of several LaunchTally.counts(), with findings counted by kind."""
    added = {
        name: dict(sum((Counter(each[name]) for each in counts), Counter()))
        for name in ("outcomes", "engines")
    }
    keys = sorted({key for each in counts for key in each["keys"]})
    # a key is the repr of a tuple, whose first item is the kind in quotes
    added["diagnostics"] = [diagnostic for each in counts for diagnostic in each["diagnostics"]]
    added["notes"] = list(dict.fromkeys(note for each in counts for note in each["notes"]))
    return added | {"keys": keys, "kinds": dict(Counter(key.split("'")[1] for key in keys))}


def total_line(counts, tests):
    """Return a sentence with the number of launches, split by outcome."""
    from sim.sessions import OUTCOMES

    outcomes = counts["outcomes"]
    parts = " + ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes.get(name))
    launches = plural(sum(outcomes.values()), "launch", "launches") + (f" = {parts}" if parts else "")
    engines = "".join(f", {n:,} by {name}" for name, n in sorted(counts["engines"].items()))
    found = plural(len(counts["keys"]), "finding") + format_counts(counts["kinds"])
    return f"{launches}, in {tests}{engines}; {found}"


def format_counts(counts):
    """Return " (3 fibers, 1 native)", or "" without counts."""
    return f" ({', '.join(f'{n:,} {name}' for name, n in sorted(counts.items()))})" if counts else ""


def format_entry(entry):
    """Return a finding's text, with the line that launched the kernel and the number of further launches.

    The text of a finding about host code already has the line.
    """
    finding, where, count = entry
    if not where:
        return finding.message
    further = plural(count - 1, "further launch", "further launches")
    times = f"; {further} with the same" if count > 1 else ""
    message = finding.message.replace("simulate(kernel, max_steps=...)", "--cuda-sim-max-steps")
    return insert_line(message, f"  Launched from {where}{times}.")


def diagnostic_of(entry, report):
    """Return the diagnostic of a finding. Without a place in a file, it belongs to the launching line."""
    from sim import diagnostics

    found = diagnostics.of_finding(entry[0], report) | {"message": format_entry(entry)}
    file, _, line = entry[1].rpartition(":")
    found["places"] = found["places"] or [diagnostics.place(file, int(line), text="launched")] * bool(file)
    return found
