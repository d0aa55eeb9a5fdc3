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
from dataclasses import replace

import pytest

from sim.launch_tally import LaunchTally, add_counts, diagnostic_of, format_entry, total_line
from sim.nouns import plural
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
            host.record_finding = self.record_finding
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
            entry, is_new = self.tally.add(finding, launch_site())
            if self.arguments.cuda_sim_format and is_new:
                self.tally.diagnostics[finding.key] = diagnostic_of(entry, report)

    def record_finding(self, finding):
        """Count a HostFinding."""
        _, is_new = self.tally.add(finding)
        if self.arguments.cuda_sim_format and is_new:
            self.tally.diagnostics[finding.key] = finding.diagnostic()
        if self.arguments.cuda_sim_report and is_new:
            self.tally.reports.append(finding)

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
        """Mark the test as failed if its launches or its host code have errors."""
        report = yield
        tally = self.tally
        self.end_phase(call, report)
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

    def end_phase(self, call, report):
        """Look for copies for which the host has not waited, at the end of a phase of a test.

        A test that raises an exception before it waits is not reported for that. If it fails, its report
        explains how the copies can have caused the failure.
        """
        for streams in self.streams():
            text = streams.explain_failure(call.excinfo) if call.excinfo is not None else streams.end_phase()
            if text and report.failed:
                report.sections.append((self.label, text))
        if call.when == "teardown":
            self.end_streams()

    def streams(self):
        """Return the HostStreams of the hosts that have them."""
        return [host.streams for host in self.hosts if hasattr(host, "streams")]

    def end_streams(self):
        """Report copies for which the host has not waited, and forget all operations."""
        for streams in self.streams():
            self.tally.notes |= streams.end_test()

    def attach_counts(self, nodeid, report):
        """Attach the counts of a test's launches to its last report.

        A plug-in that repeats a test may not log the report of every attempt. The counts of such an attempt
        are attached to the next report.
        """
        tally, self.tally = self.tally, LaunchTally()
        if not tally.is_empty:
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
        self.end_streams()
        tally, self.tally, allowed = self.tally, LaunchTally(), self.arguments.cuda_sim_allow
        self.outside_failures += map(format_entry, tally.failures(allowed))
        tally.forget_diagnostics(allowed)
        if not tally.is_empty:
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
        for note in everything["notes"]:
            terminalreporter.write_line(f"{self.label}: note: {note}")
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


def settings_of(item):
    """Return the settings in a test's mark: {"off": bool, "allow": kinds, "options": fields of
    sim.sessions.Options}.

    Raise UsageError for an invalid mark.
    """
    marks = [mark.kwargs.items() for mark in item.iter_markers("cuda_sim")]  # The closest mark comes first.
    given = {name: value for settings in reversed(marks) for name, value in settings}
    if unknown := given.keys() - {"off", "engine", "seeds", "tools", "max_steps", "allow"}:
        raise pytest.UsageError(
            f"{item.nodeid}: the mark cuda_sim has no argument {', '.join(sorted(unknown))}\n  wanted: {MARK}"
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
