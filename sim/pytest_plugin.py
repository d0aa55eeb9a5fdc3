"""The pytest plug-in for `pytest --cuda-sim` and `pytest --triton-sim`, which test `@cuda.jit` and
`@triton.jit` kernels without a GPU.

Each launch is simulated and checked by observers. A finding fails the test. An exception in a thread also
fails it, even if a GPU would not report the exception to the host.

The project under test needs no changes: the host APIs of Numba and Triton keep working, on top of simulated
drivers (sim.host, sim.triton_host). The options --cuda-sim-... apply to both. Mark a test that needs a real
GPU with `@pytest.mark.cuda_sim(off=True)`. The mark also accepts `engine`, `seeds`, `tools`, `max_steps` and
`allow` (kinds of findings), which override the command-line options.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from sim.nouns import plural
from sim.pages import insert_line
from sim.pytest_options import ENGINES, OBSERVER_NAMES, describe_unknown, kinds_of_findings
from sim.pytest_options import pytest_addoption as pytest_addoption

MARK = (
    "cuda_sim(off=False, engine=None, seeds=None, tools=None, max_steps=None, allow=()): with --cuda-sim, how"
    " a test's kernels are simulated; off=True runs it without the simulator"
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Install the simulated GPU before the project's modules are imported, because many check for a GPU at
    import."""
    known = early_config.known_args_namespace
    if known.cuda_sim or known.triton_sim:
        session = SimulatedSession(known)
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
    diagnostics: the findings as sim.diagnostics describes them, {key: diagnostic}, if a format is requested.
    reports: the Reports, if HTML pages are requested.
    failed: whether the test has failed because of its findings.
    """

    outcomes: Counter = field(default_factory=Counter)
    engines: Counter = field(default_factory=Counter)
    findings: dict = field(default_factory=dict)
    diagnostics: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)
    failed: bool = False

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
    return added | {"keys": keys, "kinds": dict(Counter(key.split("'")[1] for key in keys))}


class SimulatedSession:
    """A pytest session with a simulated GPU, installed before collection and removed at the end."""

    def __init__(self, options):
        from sim.sessions import Options

        self.arguments, self.tally = options, LaunchTally()
        self.label = "cuda-sim" if options.cuda_sim else "triton-sim"
        self.unlogged = []  # Counts of attempts whose report was not logged because the test is run again.
        self.page = "", []  # The name of a test, and the reports of all its attempts.
        # The counts of launches outside tests, and the texts of failures, of all processes of pytest-xdist.
        self.outside, self.outside_failures = [], []
        self.outside_reports = []  # The Reports of such launches in this process, if pages are requested.
        self.options = Options(
            options.cuda_sim_engine or ("native" if options.cuda_sim else "auto"),
            options.cuda_sim_seeds,
            select_observers(options.cuda_sim_tools),
            max_steps=options.cuda_sim_max_steps,
        )
        makers = [(options.cuda_sim, make_numba_host), (options.triton_sim, make_triton_host)]
        self.hosts = [make(self.options) for wanted, make in makers if wanted]
        for host in self.hosts:
            host.record_launch = self.record_launch
            host.install()

    def record_launch(self, outcome, report):
        """Count a completed launch. `report` is None if there is no report."""
        self.tally.outcomes[outcome] += 1
        if report is None:
            return
        from sim.sessions import launch_site

        # the native engine adds a note when it falls back to the interpreter
        left = any(note.startswith("interpreted") for note in report.notes)
        self.tally.engines["fibers" if left else report.engine] += 1
        if self.arguments.cuda_sim_report:
            self.tally.reports.append(report)
        for finding in report.findings:
            first, where, count = self.tally.findings.get(finding.key, (finding, launch_site(), 0))
            self.tally.findings[finding.key] = entry = first, where, count + 1
            if self.arguments.cuda_sim_format and not count:
                self.tally.diagnostics[finding.key] = diagnostic_of(entry, report)

    def pytest_collection_modifyitems(self, items):
        """Reject an invalid mark before any test runs."""
        for item in items:
            settings_of(item)

    def pytest_collection_finish(self):
        """Count the launches during imports, which belong to no test.

        Each process of pytest-xdist repeats them. If they counted for the first test, a race in one of them
        would fail another test in each process.
        """
        self.count_outside_tests()

    # --- one test -------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Apply the options of a test's mark.

        Each launch since the previous test counts for this test.
        """
        mark = settings_of(item)
        off = self.hosts if mark["off"] else []
        for host in self.hosts:
            host.options = replace(self.options, **mark["options"])
        for host in off:
            host.uninstall()
        try:
            return (yield)
        finally:
            for host in off:
                host.install()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Mark the test as failed if its launches have errors."""
        report = yield
        tally = self.tally
        allowed = {*self.arguments.cuda_sim_allow, *settings_of(item)["allow"]}
        failures = tally.failures(allowed)
        # if the test is skipped after such a launch, its teardown fails
        if failures and not tally.failed and (report.outcome != "skipped" or hasattr(report, "wasxfail")):
            tally.failed = True
            text = "\n\n".join(map(format_entry, failures))
            if report.outcome == "passed":
                report.outcome, report.longrepr = "failed", text
            else:
                report.sections.append((self.label, text))
        if call.when == "teardown":
            tally.forget_diagnostics(allowed)
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
            from sim.session_pages import write_test

            earlier = self.page[1] if self.page[0] == nodeid else []
            self.page = nodeid, earlier + tally.reports
            report.cuda_sim["page"] = write_test(self.arguments.cuda_sim_report, *self.page)

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "cuda_sim"):
            self.unlogged.clear()

    # --- outside tests, and the end of the session ----------------------------------------------------------

    def count_outside_tests(self):
        """Count the launches since the last test, which belong to no test, and format their failures."""
        tally, self.tally, allowed = self.tally, LaunchTally(), self.arguments.cuda_sim_allow
        self.outside_failures += map(format_entry, tally.failures(allowed))
        tally.forget_diagnostics(allowed)
        if tally.outcomes:
            self.unlogged.append(tally.counts())
        self.outside += self.unlogged
        if self.unlogged and self.arguments.cuda_sim_report:
            from sim.session_pages import OUTSIDE, write_test

            self.outside_reports += tally.reports
            write_test(self.arguments.cuda_sim_report, OUTSIDE, self.outside_reports)
        self.unlogged.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        """Fail the session if findings belong to no test, such as those of launches at import.

        A process of pytest-xdist sends them to the process that prints the summary.
        """
        self.count_outside_tests()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cuda_sim"] = self.outside, self.outside_failures
        if self.outside_failures and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Receive the launches outside tests of a process of pytest-xdist, unless it has crashed."""
        outside, failures = getattr(node, "workeroutput", {}).get("cuda_sim", ([], []))
        self.outside += outside
        # Each process imports all test files, and so repeats their launches.
        self.outside_failures += (text for text in failures if text not in self.outside_failures)

    def pytest_terminal_summary(self, terminalreporter):
        reports = itertools.chain.from_iterable(terminalreporter.stats.values())
        counts_of = {}  # name of a test -> the counts of its attempts
        for report in reports:
            if hasattr(report, "cuda_sim"):
                counts_of.setdefault(report.nodeid, []).append(report.cuda_sim)
        everything = add_counts([*itertools.chain.from_iterable(counts_of.values()), *self.outside])
        for text in self.outside_failures:
            terminalreporter.write_line(text)
        tests = plural(len(counts_of), "test") + (" and outside tests" if self.outside else "")
        terminalreporter.write_line(f"{self.label}: {total_line(everything, tests)}")
        if self.arguments.cuda_sim_format:
            terminalreporter.write_line(self.write_diagnostics(everything["diagnostics"]))
        if self.arguments.cuda_sim_report and (counts_of or self.outside):
            from sim.session_pages import OUTSIDE, page_name, write_index

            rows = {
                nodeid: add_counts(attempts) | {"page": attempts[-1]["page"]}
                for nodeid, attempts in counts_of.items()
            }
            if self.outside:
                rows[OUTSIDE] = add_counts(self.outside) | {"page": page_name(OUTSIDE)}
            index = write_index(self.arguments.cuda_sim_report, rows)
            terminalreporter.write_line(f"{self.label}: reports in {index}")

    def write_diagnostics(self, found):
        """Write the diagnostics to the file of --cuda-sim-output. Return the text for the terminal."""
        from sim import diagnostics

        found = diagnostics.without_repetitions(found)
        style, output = self.arguments.cuda_sim_format, self.arguments.cuda_sim_output
        if output is None:
            return diagnostics.formatted(found, style)
        diagnostics.write(found, style, output)
        return f"{self.label}: {plural(len(found), 'finding')} in {output}"

    def pytest_unconfigure(self):
        for host in reversed(self.hosts):
            host.uninstall()


def make_numba_host(options):
    """Return the simulated host side of numba.cuda. Raise UsageError if it cannot be used here."""
    try:
        from sim.host import Host
    except ImportError as error:
        raise pytest.UsageError(
            f"--cuda-sim: {error}. It needs numba-cuda: pip install numba-cuda[cu13]"
        ) from error
    except RuntimeError as error:
        raise pytest.UsageError(f"--cuda-sim: {error}") from error
    return Host(options)


def make_triton_host(options):
    """Return the simulated host side of Triton. Raise UsageError if Triton is not installed."""
    from sim import LaunchError, triton

    try:
        session = triton(on_finding="report")
    except LaunchError as error:
        raise pytest.UsageError(f"--triton-sim: {error}") from error
    session.options = options
    return session


def total_line(counts, tests):
    """Return a sentence with the number of launches, split by outcome."""
    from sim.sessions import OUTCOMES

    outcomes = counts["outcomes"]
    parts = " + ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes.get(name))
    launches = plural(sum(outcomes.values()), "launch", "launches") + (f" = {parts}" if parts else "")
    engines = "".join(f", {n:,} by {name}" for name, n in sorted(counts["engines"].items()))
    found = plural(len(counts["keys"]), "finding") + format_counts(counts["kinds"])
    return f"{launches}, in {tests}{engines}; {found}"


def settings_of(item):
    """Return the settings in a test's mark: {"off": bool, "allow": kinds, "options": fields of
    sim.sessions.Options}.

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


def diagnostic_of(entry, report):
    """Return the diagnostic of a finding. Without a place in a file, it belongs to the launching line."""
    from sim import diagnostics

    found = diagnostics.of_finding(entry[0], report) | {"message": format_entry(entry)}
    file, _, line = entry[1].rpartition(":")
    found["places"] = found["places"] or [diagnostics.place(file, int(line), text="launched")] * bool(file)
    return found
