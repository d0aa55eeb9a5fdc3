"""The Report of a launch: merged findings with formatted messages, and counters."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

from sim.events import Access, Column, Finding, Index3, Site, index_text
from sim.nouns import plural
from sim.pages import reference
from sim.recording import AsyncEvent, Recording
from sim.viz import View
from sim.viz.by_line import Listing, by_line, listing
from sim.viz.memory_map import memory_map
from sim.viz.page import page
from sim.viz.pipeline import pipeline
from sim.viz.timeline import timeline
from sim.viz.warp_grid import warp_grid


@dataclass(frozen=True)
class Report:
    """The result of one simulated launch.

    findings: the faults that observers found, errors first.
    counters: {name: number or nested dictionary}, listed below.
    notes: how the launch was run, and what observers could not see.
    code: the functions that ran, the kernel first: code objects, or Listings after unpickling.
    trace: the Recording made by the observer Trace, or None.
    watched: {observer's name: the fraction of the launch that it saw}. If a fraction is below 1, or if no
        observer saw an access, there is a note about it.
    columns: how `by_line` displays the counters of source lines.
    async_events: the bulk copies, wgmma and waits for mbarriers of the first block, up to 400.

    Counters, by the observer that adds them:

        always         "threads", "blocks", "barriers" (barriers that opened, summed over the blocks)
        Traffic        "loads", "stores", "atomics"; "memory" {space: counters} and "arrays" {(space, name):
                       counters}, which also have "load_bytes", "store_bytes" and "atomic_bytes"; "together"
                       {name of a warp-wide or block-wide operation: times}
        Coalescing     "coalescing" {"requests", "sectors", "fewest_sectors"}
        Banks          "banks" {"shared_requests", "wavefronts", "fewest_wavefronts", "ways"}
        Branches       "branching" {"branches", "divergent"}
        all of these   "lines" {(function, line): the same counters for this line}
    """

    kernel: str
    engine: str
    grid: Index3
    block: Index3
    seed: int
    findings: tuple[Finding, ...] = ()
    counters: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    code: tuple[CodeType | Listing, ...] = field(default=(), repr=False, compare=False)
    trace: Recording | None = field(default=None, repr=False, compare=False)
    watched: dict[str, float] = field(default_factory=dict, compare=False)
    columns: tuple[Column, ...] = field(default=(), repr=False, compare=False)
    async_events: tuple[AsyncEvent, ...] = field(default=(), repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy, with source lines in place of code objects, which cannot be
        pickled."""
        return {**vars(self), "code": tuple(map(listing, self.code))}

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def headline(self) -> str:
        found = plural(len(self.findings), "finding") if self.findings else "no findings"
        shape = f"{index_text(self.grid, 1)}, {index_text(self.block, 1)}"
        return f"{self.kernel}[{shape}] on the {self.engine} engine: {found}"

    def summary(self) -> Iterator[str]:
        """Yield lines with the counters of the whole launch, followed by the notes."""
        plain = [(name, number) for name, number in self.counters.items() if isinstance(number, int)]
        together = self.counters.get("together", {}).items()
        warp_wide = [(name, n) for name, n in together if name not in ("syncthreads", "grid.sync")]
        for counted in (plain, warp_wide) if warp_wide else (plain,):
            yield ", ".join(f"{name} {number:,}" for name, number in counted)
        if "coalescing" in self.counters:
            total = self.counters["coalescing"]
            yield (
                f"global memory: {total['requests']:,} requests of warps touch {total['sectors']:,} sectors"
                f" of 32 bytes; fewest possible {total['fewest_sectors']:,}"
            )
        if self.counters.get("banks", {}).get("shared_requests"):
            total = self.counters["banks"]
            worst = "no bank conflict" if total["ways"] == 1 else f"worst bank conflict {total['ways']}-way"
            yield (
                f"shared memory: {total['shared_requests']:,} requests of warps take {total['wavefronts']:,}"
                f" wavefronts; fewest possible {total['fewest_wavefronts']:,}; {worst}"
            )
        if self.counters.get("branching", {}).get("branches"):
            total = self.counters["branching"]
            yield f"branches: {total['branches']:,} of warps, {total['divergent']:,} of them divergent"
        for title, counted in self.counters.items():
            if title not in SUMMARIZED and isinstance(counted, dict):
                yield f"{title}: " + ", ".join(f"{name} {number}" for name, number in counted.items())
        yield from self.notes

    def __str__(self) -> str:
        messages = "".join(f"\n\n{finding.message}" for finding in self.findings)
        return "\n  ".join([self.headline, *self.summary()]) + messages

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return page(self).html

    # --- tables and figures ---------------------------------------------------------------------------------

    def by_line(self) -> View:
        """Return the source of the kernel and its device functions with the counters of each line."""
        return by_line(self.code, self.counters.get("lines", {}), self.columns)

    def memory_map(self, array: str, block: int | Index3 | None = None) -> View:
        """Return a map of `array` that shows step by step which thread accessed which element.

        An array in shared memory needs a `block`.
        """
        return memory_map(self.recording, array, block)

    def timeline(self, block: int | Index3 | None = None) -> View:
        """Return a figure of the threads of `block` over time, with barriers and waits. The default is the
        lowest traced block."""
        return timeline(self.recording, block)

    def pipeline(self) -> View:
        """Return a figure of the bulk copies, wgmma and phases of mbarriers of the first block over time."""
        return pipeline(self.async_events, "Bulk copies, wgmma and phases of the first block")

    def warp_grid(
        self,
        line: int | None = None,
        function: str | None = None,
        block: int | Index3 | None = None,
        warp: int | None = None,
    ) -> View:
        """Return a figure of the lanes active in the accesses on `line`, and of the banks or sectors that
        each request uses.

        Line 1 is the `def` line. Without `line`, the figure shows every line.
        """
        return warp_grid(self.recording, line, function, block, warp)

    @property
    def recording(self) -> Recording:
        """The trace. Raises ValueError if there is none."""
        if self.trace is None:
            wanted = "simulate(kernel, observers=[*DEFAULT, Trace()])"
            raise ValueError(f"nothing was traced: add the observer Trace, {wanted}")
        return self.trace


# counters that the summary or a table displays in a special way
SUMMARIZED = {"memory", "arrays", "together", "lines", "coalescing", "banks", "branching"}
# kinds of findings, causes before their possible consequences; other kinds precede these
ORDER = (
    "race-shared race-global",
    "barrier-divergence warp-divergence",
    "deadlock no-progress undecided",
    "misuse",
)
STAGES = {kind: stage for stage, kinds in enumerate(ORDER, 1) for kind in kinds.split()}


def merge_findings(findings: Iterable[Finding], code: Iterable[CodeType] = ()) -> tuple[Finding, ...]:
    """Merge findings with equal keys, sort them for the report, and format their messages.

    code: the code objects that ran, which locate lines in files.
    """
    groups: dict[Any, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.key, []).append(finding)
    merged = [replace(min(group, key=choice_order), count=cases(group) - 1) for group in groups.values()]
    merged.sort(key=report_order)
    return tuple(replace(f, message=format_message(f, lines_of_files(f, code))) for f in merged)


def cases(findings: Iterable[Finding]) -> int:
    """Return the number of cases that equal findings represent.

    Reruns of a launch find the same cases again, so this is the maximum over the runs, and not the sum.
    """
    of_run: Counter[int] = Counter()
    for finding in findings:
        of_run[finding.run] += 1 + finding.count
    return max(of_run.values())


def report_order(finding: Finding) -> tuple[Any, ...]:
    """Return the sort key for the report: errors first, then causes before consequences, then by line."""
    stage = len(ORDER) + 1 if finding.follows else STAGES.get(finding.kind, 0)
    return finding.severity != "error", stage, finding.key[2], finding.kind, str(finding.array)


def choice_order(finding: Finding) -> tuple[Any, ...]:
    """Return the sort key that selects the representative of equal findings: errors, then distant threads,
    then the lowest index."""
    return (
        finding.severity != "error",
        finding.near,
        finding.index or (),
        [(access.block[::-1], access.thread[::-1]) for access in finding.accesses],
    )


def format_message(finding: Finding, files: Sequence[str] = ()) -> str:
    """Return a finding's text: verdict, threads, lines with their source, reason, further cases, likely
    fix, name of the page in the index of findings."""
    severity = "" if finding.severity == "error" else "warning: "
    lines = [f"{severity}{finding.kind}: {finding.verdict}{format_threads(finding.accesses)}"]
    lines += align_columns([format_access(access) for access in finding.accesses])
    if (site := finding.site) is not None:
        lines.append(f"  {site.function} line {site.line}  {site.source}")
    lines += [f"  at {', '.join(files)}"] if files else []
    more = f" {finding.count:,} more like it." if finding.count else ""
    lines.append(f"  {finding.reason}{more}")
    lines += [f"  Likely fix: {finding.fix}.", reference(finding.kind)]
    return "\n".join(lines)


def format_threads(accesses: Sequence[Access]) -> str:
    """Return " · block 0 · threads 0 and 1", or "" without accesses."""
    if not accesses:
        return ""
    blocks = list(dict.fromkeys(index_text(access.block) for access in accesses))
    threads = list(dict.fromkeys(index_text(access.thread) for access in accesses))
    named = ("block", blocks), ("thread", threads)
    return "".join(f" · {noun}{'s' * (len(those) > 1)} {' and '.join(those)}" for noun, those in named)


def format_access(access: Access) -> tuple[str, str, str]:
    """Return (action and thread, location, source text with the value) for one access."""
    thread = f"thread {index_text(access.thread)} of block {index_text(access.block)}"
    passive = access.what in ("read", "written", "changed")
    did = f"{access.what} by {thread}" if passive else f"{thread} {access.what}"
    if access.site is None:
        return did, "", ""
    value = "" if access.value is None else f"   value {value_text(access.value)}"
    called = calls_text(access.site.calls)
    return did, f"{access.site.function} line {access.site.line}", access.site.source + value + called


def calls_text(calls: Sequence[tuple[int, ...]]) -> str:
    """Return the text with the lines that call a device function, or "" if there are none.

    calls: the chains of calls (Site.calls).
    """
    chains = ["from line " + ", from line ".join(map(str, lines)) for lines in calls]
    more = [f"{len(chains) - 2} more"] if len(chains) > 3 else []
    return f"   called {' and '.join(chains[: 2 if more else 3] + more)}" if chains else ""


def value_text(value: Any) -> str:
    """Return the text of a value: the elements of a vector, or the bytes of a copy as hexadecimal words."""
    if isinstance(value, tuple):
        return f"({', '.join(map(format, value))})"
    return f"bytes {value.hex(' ', 4)}" if isinstance(value, bytes) else format(value)


def lines_of_files(finding: Finding, code: Iterable[CodeType]) -> list[str]:
    """Return the locations of a finding in a form that editors recognise, "example.py:20". In a notebook,
    return no location."""
    if in_notebook():
        return []
    sites = [*(access.site for access in finding.accesses), finding.site]
    places = filter(None, (file_and_line(site, code) for site in sites))
    return list(dict.fromkeys(f"{short_path(file)}:{line}" for file, line in places))


def file_and_line(site: Site | None, code: Iterable[CodeType | Listing]) -> tuple[str, int] | None:
    """Return the path and the line of a site in its file, or None if they are unknown.

    code: the code objects that ran. Two functions with the name of the site's function make it ambiguous.
    """
    if site is None:
        return None
    if site.file:
        return site.file, site.line
    named = {each for each in code if isinstance(each, CodeType) and each.co_name == site.function}
    if len(named) != 1:
        return None
    (function,) = named
    known = Path(function.co_filename).is_file()
    return (function.co_filename, function.co_firstlineno + site.line - 1) if known else None


def short_path(path: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def align_columns(rows: list[tuple[str, str, str]]) -> list[str]:
    """Return rows of three texts as lines, with the first two columns padded."""
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"  {did:{widths[0]}}  {place:{widths[1]}}  {source}".rstrip() for did, place, source in rows]
