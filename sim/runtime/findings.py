"""Collects findings about the host calls and the launches of a program, and prints them and a summary."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sim.diagnostics import Diagnostic, formatted, of_finding, place, write
from sim.nouns import plural
from sim.pages import insert_line, reference
from sim.report import Report
from sim.runtime.call_sites import CallSite

# kinds of findings about host code; sim.events.KINDS lists the kinds of findings about kernels
HOST_KINDS = (
    "host-access", "host-out-of-bounds", "copy-out-of-bounds", "copy-direction", "copy-overlap",
    "invalid-pointer", "use-after-free", "double-free", "unsynchronized-access", "stream-race", "graph-race",
    "uninitialized-copy", "leak", "unchecked-error", "refused-launch", "unsupported", "kernel-abort",
    "invalid-operand",
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

    @property
    def key(self) -> tuple[str, CallSite]:
        """The kind and the host call. Findings with equal keys count as repetitions."""
        return self.kind, self.site

    @property
    def message(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = [
            f"{self.kind}{' (warning)' * (self.severity == 'warning')}: {self.verdict}",
            f"  at {self.site}",
        ]
        lines += [f"  Likely fix: {self.fix}."] * bool(self.fix)
        return "\n".join([*lines, reference(self.kind)])

    def diagnostic(self) -> Diagnostic:
        """Return the finding in the form that sim.diagnostics describes."""
        where = [place(self.site.file, self.site.line, text="called")] if self.site.line else []
        nothing = {"array": None, "index": None, "cases": 1, "kernel": "", "places": where}
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": str(self),
            "fix": self.fix,
            **nothing,
        }


@dataclass
class Log:
    """The log of a program's findings. Each finding is printed when it first occurs, and repetitions are
    counted.

    first_only: whether the program ends at its first error.
    folder: the folder in which to write an HTML report of each launch with findings, or None.
    format: the format of the diagnostics, or None for text.
    output: the file for the diagnostics, or None to print them as they occur. With a file, findings are also
        printed as text.
    """

    first_only: bool = False
    folder: Path | None = None
    format: str | None = None
    output: Path | None = None
    launches: int = 0
    clean: int = 0
    seen: Counter = field(default_factory=Counter)
    severities: Counter = field(default_factory=Counter)
    kinds: Counter = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return self.severities["error"]

    def add(self, key: object, diagnostic: Diagnostic, text: str) -> None:
        """Print a finding, unless a finding with an equal key has already been printed."""
        self.seen[key] += 1
        if self.seen[key] > 1:
            return
        severity = diagnostic["severity"]
        self.severities[severity] += 1
        self.kinds[diagnostic["kind"]] += 1
        self.diagnostics.append(diagnostic)
        printed = self.format is None or self.output is not None
        show(text if printed else formatted([diagnostic], self.format))
        if self.first_only and severity == "error":
            raise FirstFinding

    def add_host(self, finding: HostFinding) -> None:
        """Record a finding about host code."""
        self.add(finding.key, finding.diagnostic(), str(finding))

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
            diagnostic = of_finding(finding, report) | {"message": text}
            self.add((report.kernel, finding.key), diagnostic, text)

    def write_diagnostics(self) -> None:
        """Write the diagnostics to the output file, if there is one."""
        if self.format is not None and self.output is not None:
            write(self.diagnostics, self.format, self.output)

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
    """The exception that ends a program at its first error."""


def page_of(report: Report) -> str:
    """Return an HTML page with a launch's report."""
    return f"<!doctype html><meta charset='utf-8'><title>{report.kernel}</title>{report._repr_html_()}"


def show(text: str) -> None:
    """Print text to stderr, to keep it apart from the program's standard output."""
    print(text + "\n", file=sys.stderr, flush=True)
