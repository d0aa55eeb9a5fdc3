"""Collects findings about the host calls and the launches of a program, and prints them and a summary."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sim.nouns import plural
from sim.pages import insert_line, reference
from sim.report import Report
from sim.runtime.call_sites import CallSite

# kinds of findings about host code; sim.events.KINDS lists the kinds of findings about kernels
HOST_KINDS = (
    "host-access", "copy-out-of-bounds", "copy-direction", "invalid-pointer", "use-after-free", "double-free",
    "leak", "unchecked-error", "refused-launch", "unsupported", "kernel-abort",
)  # fmt: skip


@dataclass(frozen=True)
class HostFinding:
    """A fault in host code.

    kind: one of HOST_KINDS.
    severity: "error" or "warning".
    verdict: one sentence that states the fault.
    site: the host call.
    fix: the likely fix.
    """

    kind: str
    severity: str
    verdict: str
    site: CallSite
    fix: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.kind}{' (warning)' * (self.severity == 'warning')}: {self.verdict}",
            f"  at {self.site}",
        ]
        lines += [f"  Likely fix: {self.fix}."] * bool(self.fix)
        return "\n".join([*lines, reference(self.kind)])


@dataclass
class Log:
    """Log of a program's findings. Each is printed when it first occurs, and repetitions are counted.

    first_only: whether the program ends at its first error.
    folder: the folder in which to write an HTML report of each launch with findings, or None.
    """

    first_only: bool = False
    folder: Path | None = None
    launches: int = 0
    clean: int = 0
    seen: Counter = field(default_factory=Counter)
    severities: Counter = field(default_factory=Counter)
    kinds: Counter = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        return self.severities["error"]

    def add(self, key: object, kind: str, severity: str, text: str) -> None:
        """Print a finding, unless a finding with an equal key has already been printed."""
        self.seen[key] += 1
        if self.seen[key] > 1:
            return
        self.severities[severity] += 1
        self.kinds[kind] += 1
        show(text)
        if self.first_only and severity == "error":
            raise FirstFinding

    def add_host(self, finding: HostFinding) -> None:
        """Record a finding about host code."""
        self.add((finding.kind, finding.site), finding.kind, finding.severity, str(finding))

    def add_launch(self, report: Report, site: CallSite) -> None:
        """Record the findings of a launch."""
        self.launches += 1
        self.clean += not report.findings
        self.notes |= dict.fromkeys(report.notes)
        if report.findings and self.folder is not None:
            name = f"launch_{self.launches:04}_{report.kernel}.html"
            (self.folder / name).write_text(page_of(report), encoding="utf-8")
        for finding in report.findings:
            text = insert_line(finding.message, f"  Launched from {site}: {report.kernel}")
            self.add((report.kernel, finding.key), finding.kind, finding.severity, text)

    def summary(self, program: str, status: int) -> str:
        """Return the summary that ends the output.

        program: the program's name.
        status: the program's own exit status.
        """
        total = sum(self.severities.values())
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        found = f"{plural(total, 'finding')} ({kinds})" if total else "no findings"
        lines = [
            f"sim: {program}: {plural(self.launches, 'launch', 'launches')}, {self.clean} clean; {found}"
        ]
        if repeated := sum(self.seen.values()) - total:
            lines.append(f"  not printed again: {plural(repeated, 'repetition')} of these findings")
        if status:
            lines.append(f"  the program returned {status}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


class FirstFinding(Exception):
    """Exception that ends a program at its first error."""


def page_of(report: Report) -> str:
    """Return an HTML page with a launch's report."""
    return f"<!doctype html><meta charset='utf-8'><title>{report.kernel}</title>{report._repr_html_()}"


def show(text: str) -> None:
    """Print text to stderr, to keep it apart from the program's standard output."""
    print(text + "\n", file=sys.stderr, flush=True)
