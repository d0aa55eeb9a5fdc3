"""The pytest plug-in for `pytest --cuda-sim`, which tests `@cuda.jit` kernels without a GPU.

Each launch is simulated and checked by observers. A finding fails the test. An exception in a thread also
fails it, even if a GPU would not report the exception to the host.

The project under test needs no changes: Numba's host API keeps working, on top of a simulated driver
(sim.host). Mark a test that needs a real GPU with `@pytest.mark.cuda_sim(off=True)`. The mark also accepts
`engine`, `seeds`, `tools`, `max_steps` and `allow` (kinds of findings), which override the command-line
options.
"""

import argparse
import difflib
import itertools
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sim.nouns import plural
from sim.pages import insert_line

ENGINES = ("native", "fibers", "threads")
OBSERVER_NAMES = ("bounds", "races", "uninitialized", "misuse", "counters", "trace")
MARK = (
    "cuda_sim(off=False, engine=None, seeds=None, tools=None, max_steps=None, allow=()): with --cuda-sim, how"
    " a test's kernels are simulated; off=True runs it without the simulator"
)


def pytest_addoption(parser):
    group = parser.getgroup("cuda-sim", "numba.cuda kernels on a simulated GPU")
    group.addoption(
        "--cuda-sim",
        action="store_true",
        help="simulate every launch of a numba.cuda kernel; no GPU is needed, and findings fail tests",
    )
    group.addoption(
        "--cuda-sim-engine",
        choices=ENGINES,
        default="native",
        help="native compiles kernels for the CPU, and leaves to fibers what it cannot compile",
    )
    group.addoption(
        "--cuda-sim-seeds",
        type=parse_seeds,
        default=(0,),
        metavar="0,1,...",
        help="run each launch once under each of these orders of threads",
    )
    group.addoption(
        "--cuda-sim-tools",
        type=parse_words(lambda: OBSERVER_NAMES),
        default=OBSERVER_NAMES[:4],
        metavar="TOOL,...",
        help=f"which observers watch: {', '.join(OBSERVER_NAMES)}; the first four by default",
    )
    group.addoption(
        "--cuda-sim-max-steps",
        type=parse_max_steps,
        metavar="N",
        help="how many iterations loops may take before a thread ends; by default a million, or as many as"
        " fit in 1 s",
    )
    group.addoption(
        "--cuda-sim-allow",
        type=parse_words(kinds_of_findings),
        default=(),
        metavar="KIND,...",
        help="kinds of findings that do not fail a test, for instance race-global; exception is what a thread"
        " raises in a kernel without debug=True",
    )
    group.addoption(
        "--cuda-sim-report",
        type=Path,
        metavar="DIR",
        help="write the reports as HTML, a page for each test that launched a kernel",
    )


def parse_seeds(text):
    if not all(each.strip().isdecimal() for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: not a list of whole numbers, such as 0,1,2")
    return tuple(map(int, text.split(",")))


def parse_max_steps(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: not a whole number above 0, such as 10000000")
    return int(text)


def parse_words(known):
    """Return a parser for comma-separated words, all of which must be in `known()`."""

    def parse(text):
        given = tuple(filter(None, (word.strip() for word in text.split(","))))
        if problem := describe_unknown(given, known()):
            raise argparse.ArgumentTypeError(problem)
        return given

    return parse


def describe_unknown(given, known):
    """Return a message that names the words that are not in `known`, or "" if all are."""
    unknown = [word for word in given if word not in known]
    if not unknown:
        return ""
    near = [difflib.get_close_matches(str(word), known, 1, 0)[0] for word in unknown]
    return f"{', '.join(map(str, unknown))}: not among {', '.join(known)}; the nearest is {', '.join(near)}"


def kinds_of_findings():
    from sim.events import KINDS

    return KINDS


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Install the simulated GPU before the project's modules are imported, because many check for a GPU at
    import."""
    if early_config.known_args_namespace.cuda_sim:
        session = SimulatedSession(early_config.known_args_namespace)
        early_config.pluginmanager.register(session, "cuda-sim-session")


def pytest_configure(config):
    config.addinivalue_line("markers", MARK)


def select_observers(tools):
    """Return the observer classes named by the option --cuda-sim-tools."""
    from sim import observers

    named = {"counters": observers.COUNTERS}
    return sum((named.get(tool) or (getattr(observers, tool.title()),) for tool in tools), ())


@dataclass
class LaunchTally:
    """The launches of one test.

    outcomes: number of launches per outcome.
    engines: number of launches per engine.
    findings: distinct findings, {key: (finding, host line of the launch, number of launches)}.
    reports: the Reports, if HTML pages are requested.
    failed: whether the test has failed because of its findings.
    """

    outcomes: Counter = field(default_factory=Counter)
    engines: Counter = field(default_factory=Counter)
    findings: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)
    failed: bool = False

    def failures(self, allowed):
        """Return the entries for errors that fail a test. Errors of the kinds in `allowed` do not."""
        errors = (entry for entry in self.findings.values() if entry[0].severity == "error")
        return [entry for entry in errors if entry[0].kind not in allowed]

    def counts(self):
        """Return the counts as a JSON-compatible dictionary, which pytest-xdist can send between
        processes."""
        return {
            "outcomes": dict(self.outcomes),
            "engines": dict(self.engines),
            "keys": sorted({repr(key) for key in self.findings}),
        }


def add_counts(counts):
    """Return the sum of several LaunchTally.counts(), with findings counted by kind."""
    added = {
        name: dict(sum((Counter(each[name]) for each in counts), Counter()))
        for name in ("outcomes", "engines")
    }
    keys = sorted({key for each in counts for key in each["keys"]})
    # a key is the repr of a tuple, whose first item is the kind in quotes
    return added | {"keys": keys, "kinds": dict(Counter(key.split("'")[1] for key in keys))}


class SimulatedSession:
    """A pytest session with a simulated GPU, installed before collection and removed at the end."""

    def __init__(self, options):
        try:
            from sim.host import Host, Options
        except ImportError as error:
            raise pytest.UsageError(
                f"--cuda-sim: {error}. It needs numba-cuda: pip install numba-cuda[cu13]"
            ) from error
        except RuntimeError as error:
            raise pytest.UsageError(f"--cuda-sim: {error}") from error
        self.arguments, self.tally = options, LaunchTally()
        self.unlogged = []  # Counts of attempts whose report was not logged because the test is run again.
        self.page = "", []  # The name of a test, and the reports of all its attempts.
        self.options = Options(
            options.cuda_sim_engine,
            options.cuda_sim_seeds,
            select_observers(options.cuda_sim_tools),
            max_steps=options.cuda_sim_max_steps,
        )
        self.host = Host(self.options)
        self.host.record_launch = self.record_launch
        self.host.install()

    def record_launch(self, outcome, report):
        """Count a completed launch. `report` is None if there is no report."""
        self.tally.outcomes[outcome] += 1
        if report is None:
            return
        # the native engine adds a note when it falls back to the interpreter
        left = any(note.startswith("interpreted") for note in report.notes)
        self.tally.engines["fibers" if left else report.engine] += 1
        if self.arguments.cuda_sim_report:
            self.tally.reports.append(report)
        for finding in report.findings:
            first, where, count = self.tally.findings.get(finding.key, (finding, launching_line(), 0))
            self.tally.findings[finding.key] = first, where, count + 1

    def pytest_collection_modifyitems(self, items):
        """Reject an invalid mark before any test runs."""
        for item in items:
            settings_of(item)

    # --- one test -------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Apply the options of a test's mark.

        Each launch since the previous test counts for this test. Launches at import count for the first one.
        """
        mark = settings_of(item)
        self.host.options, off = replace(self.options, **mark["options"]), mark["off"]
        if off:
            self.host.uninstall()
        try:
            return (yield)
        finally:
            if off:
                self.host.install()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Mark the test as failed if its launches have errors."""
        report = yield
        tally = self.tally
        failures = tally.failures({*self.arguments.cuda_sim_allow, *settings_of(item)["allow"]})
        # if the test is skipped after such a launch, its teardown fails
        if failures and not tally.failed and (report.outcome != "skipped" or hasattr(report, "wasxfail")):
            tally.failed = True
            text = "\n\n".join(map(format_entry, failures))
            if report.outcome == "passed":
                report.outcome, report.longrepr = "failed", text
            else:
                report.sections.append(("cuda-sim", text))
        if call.when == "teardown":
            self.attach_counts(item.nodeid, report)
        return report

    def attach_counts(self, nodeid, report):
        """Attach the counts of a test's launches to its last report.

        A plug-in that repeats a test may not log the report of every attempt. The counts of such an attempt
        are attached to the next report.
        """
        tally, self.tally = self.tally, LaunchTally()
        if tally.outcomes:
            self.unlogged.append(tally.counts())
        if not self.unlogged:
            return
        report.cuda_sim = add_counts(self.unlogged)
        if self.arguments.cuda_sim_report:
            from sim.host.pages import write_test

            earlier = self.page[1] if self.page[0] == nodeid else []
            self.page = nodeid, earlier + tally.reports
            report.cuda_sim["page"] = write_test(self.arguments.cuda_sim_report, *self.page)

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "cuda_sim"):
            self.unlogged.clear()

    # --- end of the session ---------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        """Fail the session if findings belong to no test, such as those of launches at import."""
        if self.tally.failures(self.arguments.cuda_sim_allow) and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        reports = itertools.chain.from_iterable(terminalreporter.stats.values())
        counts_of = {}  # name of a test -> the counts of its attempts
        for report in reports:
            if hasattr(report, "cuda_sim"):
                counts_of.setdefault(report.nodeid, []).append(report.cuda_sim)
        outside = [*self.unlogged, *([self.tally.counts()] if self.tally.outcomes else [])]
        everything = add_counts([*itertools.chain.from_iterable(counts_of.values()), *outside])
        for entry in self.tally.failures(self.arguments.cuda_sim_allow):
            terminalreporter.write_line(format_entry(entry))
        tests = plural(len(counts_of), "test") + (" and outside tests" if outside else "")
        terminalreporter.write_line(f"cuda-sim: {total_line(everything, tests)}")
        if self.arguments.cuda_sim_report and counts_of:
            from sim.host.pages import write_index

            rows = {
                nodeid: add_counts(attempts) | {"page": attempts[-1]["page"]}
                for nodeid, attempts in counts_of.items()
            }
            index = write_index(self.arguments.cuda_sim_report, rows)
            terminalreporter.write_line(f"cuda-sim: reports in {index}")

    def pytest_unconfigure(self):
        self.host.uninstall()


def total_line(counts, tests):
    """Return a sentence with the number of launches, split by outcome."""
    from sim.host import OUTCOMES

    outcomes = counts["outcomes"]
    parts = " + ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes.get(name))
    launches = plural(sum(outcomes.values()), "launch", "launches") + (f" = {parts}" if parts else "")
    engines = "".join(f", {n:,} by {name}" for name, n in sorted(counts["engines"].items()))
    found = plural(len(counts["keys"]), "finding") + format_counts(counts["kinds"])
    return f"{launches}, in {tests}{engines}; {found}"


def settings_of(item):
    """Return the settings in a test's mark: {"off": bool, "allow": kinds, "options": fields of
    sim.host.Options}.

    Raise UsageError for an invalid mark.
    """
    marks = [mark.kwargs.items() for mark in item.iter_markers("cuda_sim")]  # The closest mark comes first.
    given = {name: value for settings in reversed(marks) for name, value in settings}
    if unknown := given.keys() - {"off", "engine", "seeds", "tools", "max_steps", "allow"}:
        raise pytest.UsageError(
            f"{item.nodeid}: the mark cuda_sim knows no {', '.join(sorted(unknown))}\n  wanted: {MARK}"
        )
    for name, known in (("allow", kinds_of_findings()), ("tools", OBSERVER_NAMES), ("engine", ENGINES)):
        asked = given.get(name) or ()
        asked = (asked,) if isinstance(asked, str) else tuple(asked)
        if problem := describe_unknown(asked, known):
            raise pytest.UsageError(f"{item.nodeid}: {name} of the mark cuda_sim: {problem}")
        if name in given and name != "engine":
            given[name] = asked
    options = {name: given[name] for name in ("engine", "seeds", "max_steps") if given.get(name) is not None}
    if given.get("tools") is not None:
        options["observers"] = select_observers(given["tools"])
    return {"off": bool(given.get("off")), "allow": given.get("allow", ()), "options": options}


def format_counts(counts):
    """Return " (3 fibers, 1 native)", or "" without counts."""
    return f" ({', '.join(f'{n:,} {name}' for name, n in sorted(counts.items()))})" if counts else ""


def format_entry(entry):
    """Return a finding's text, with the line that launched the kernel and the number of further launches."""
    finding, where, count = entry
    further = plural(count - 1, "further launch", "further launches")
    times = f"; {further} with the same" if count > 1 else ""
    message = finding.message.replace("simulate(kernel, max_steps=...)", "--cuda-sim-max-steps")
    return insert_line(message, f"  Launched from {where}{times}.")


def launching_line():
    """Return file:line for the innermost caller outside the simulator and Numba."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if not any(part in frame.filename for part in NOT_LAUNCHING):
            return f"{frame.filename}:{frame.lineno}"
    return "?"


# Paths of files whose frames are not the launch itself.
NOT_LAUNCHING = (str(Path(__file__).parent), "numba_cuda", "contextlib")
