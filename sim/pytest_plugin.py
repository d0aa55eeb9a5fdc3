"""pytest --cuda-sim: tests that launch `@cuda.jit` kernels run without a GPU, each launch simulated and
watched; a finding fails its test.

Nothing of the project changes: numba.cuda's host side stays Numba's, over a driver of ours (sim.host). A test
that needs a real GPU is marked `@pytest.mark.cuda_sim(off=True)`; `engine`, `seeds`, `tools`, `max_steps` and
`allow` (kinds of findings) may be given there too, and win over the options.
"""

import argparse
import itertools
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

ENGINES = ("native", "fibers", "threads")
TOOLS = ("bounds", "races", "uninitialized", "misuse", "counters", "trace")
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
        type=numbers,
        default=(0,),
        metavar="0,1,...",
        help="run each launch once under each of these orders of threads",
    )
    group.addoption(
        "--cuda-sim-tools",
        type=words(TOOLS),
        default=TOOLS[:4],
        metavar="TOOL,...",
        help=f"which tools watch: {', '.join(TOOLS)}; the first four by default",
    )
    group.addoption(
        "--cuda-sim-max-steps",
        type=rounds,
        metavar="N",
        help="how often loops may go round before a thread ends; by default a million times, or for 1 s",
    )
    group.addoption(
        "--cuda-sim-allow",
        type=words(),
        default=(),
        metavar="KIND,...",
        help="kinds of findings that do not fail a test, for instance race-global",
    )
    group.addoption(
        "--cuda-sim-report",
        type=Path,
        metavar="DIR",
        help="write the reports as HTML, a page for each test that launched a kernel",
    )


def numbers(text):
    return tuple(map(int, text.split(",")))


def rounds(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: not a whole number above 0, such as 10000000")
    return int(text)


def words(known=None):
    """A list of words separated by commas, each of which must be `known`."""

    def parse(text):
        given = tuple(filter(None, text.split(",")))
        if unknown := set(given) - set(known or given):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(known)}")
        return given

    return parse


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before any module of the project is imported, since many ask at import whether there is a GPU."""
    if early_config.known_args_namespace.cuda_sim:
        early_config.pluginmanager.register(Simulated(early_config.known_args_namespace), "cuda-sim-session")


def pytest_configure(config):
    config.addinivalue_line("markers", MARK)


def observers_of(tools):
    """The observer classes that the names of tools stand for."""
    from sim import observers

    named = {"counters": observers.COUNTERS}
    return sum((named.get(tool) or (getattr(observers, tool.title()),) for tool in tools), ())


@dataclass
class Told:
    """What one test's launches came to: how many of each engine, and the findings that are not alike."""

    engines: Counter = field(default_factory=Counter)
    findings: dict = field(default_factory=dict)  # key: (finding, where the host launched it, how often)
    reports: list = field(default_factory=list)
    failed: bool = False  # whether the test has failed for its findings


class Simulated:
    """The session: a simulated GPU from before collection to the end."""

    def __init__(self, options):
        try:
            from sim.host import Host, Options
        except ImportError as error:
            raise pytest.UsageError(
                f"--cuda-sim: {error}. It stands on numba-cuda: pip install numba-cuda[cu13]"
            ) from error
        except RuntimeError as error:
            raise pytest.UsageError(f"--cuda-sim: {error}") from error
        self.asked, self.told, self.index = options, Told(), []
        self.options = Options(
            options.cuda_sim_engine,
            options.cuda_sim_seeds,
            observers_of(options.cuda_sim_tools),
            max_steps=options.cuda_sim_max_steps,
        )
        self.host = Host(self.options)
        self.host.launched = self.launched
        self.host.install()

    def launched(self, report):
        """One launch has ended."""
        if report is None:  # the kernel raised, as it says
            return
        # what the native engine does not compile
        left = any(note.startswith("by fibers") for note in report.notes)
        self.told.engines["fibers" if left else report.engine] += 1
        if self.asked.cuda_sim_report:
            self.told.reports.append(report)
        for finding in report.findings:
            first, where, count = self.told.findings.get(finding.key, (finding, launched_from(), 0))
            self.told.findings[finding.key] = first, where, count + 1

    # --- one test -------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Everything between two tests belongs to one of them, launches at import to the first."""
        mark = settings_of(item)
        self.host.options, off = replace(self.options, **mark["options"]), mark["off"]
        if off:
            self.host.uninstall()
        try:
            return (yield)
        finally:
            if off:
                self.host.install()
            self.told = Told()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        told, allowed = self.told, {*self.asked.cuda_sim_allow, *settings_of(item)["allow"]}
        errors = (entry for entry in told.findings.values() if entry[0].severity == "error")
        wrong = [entry for entry in errors if entry[0].kind not in allowed]
        if wrong and not told.failed:
            told.failed = True
            said = "\n\n".join(map(in_words, wrong))
            report.sections.append(("cuda-sim", said))
            if report.outcome == "passed":
                report.outcome, report.longrepr = "failed", said
                report.sections.pop()
        if call.when == "teardown" and (told.engines or told.findings):
            kinds = Counter(finding.kind for finding, *_ in told.findings.values())
            report.cuda_sim = {
                "engines": dict(told.engines),
                "kinds": dict(kinds),
                "keys": sorted({repr(key) for key in told.findings}),
            }
            if self.asked.cuda_sim_report:
                from sim.host.pages import write_test

                report.cuda_sim["page"] = write_test(self.asked.cuda_sim_report, item.nodeid, told.reports)
        return report

    # --- the end --------------------------------------------------------------------------------------------

    def pytest_terminal_summary(self, terminalreporter):
        reports = itertools.chain.from_iterable(terminalreporter.stats.values())
        told = [(report.nodeid, report.cuda_sim) for report in reports if hasattr(report, "cuda_sim")]
        engines = sum((Counter(told["engines"]) for _, told in told), Counter())
        keys = {key for _, told in told for key in told["keys"]}
        kinds = Counter(key.split("'")[1] for key in keys)
        found = f"{len(keys)} finding{'s' * (len(keys) != 1)}{listed(kinds)}"
        tests = sum(bool(told["engines"]) for _, told in told)
        launches = f"{engines.total():,} launches{listed(engines)}"
        terminalreporter.write_line(f"cuda-sim: {launches} in {tests:,} tests, {found}")
        if self.asked.cuda_sim_report and told:
            from sim.host.pages import write_index

            index = write_index(self.asked.cuda_sim_report, told)
            terminalreporter.write_line(f"cuda-sim: reports in {index}")

    def pytest_unconfigure(self):
        self.host.uninstall()


def settings_of(item):
    """What a test's mark asks for: {"off", "allow", "options": those of sim.host.Options}."""
    marks = [mark.kwargs.items() for mark in item.iter_markers("cuda_sim")]  # the closest first
    given = {name: value for settings in reversed(marks) for name, value in settings}
    if unknown := given.keys() - {"off", "engine", "seeds", "tools", "max_steps", "allow"}:
        raise pytest.UsageError(
            f"{item.nodeid}: the mark cuda_sim knows no {', '.join(sorted(unknown))}\n  wanted: {MARK}"
        )
    options = {name: given[name] for name in ("engine", "seeds", "max_steps") if given.get(name) is not None}
    if given.get("tools") is not None:
        options["observers"] = observers_of(given["tools"])
    return {"off": bool(given.get("off")), "allow": given.get("allow", ()), "options": options}


def listed(counts):
    """ " (3 fibers, 1 native)", or nothing."""
    return f" ({', '.join(f'{n:,} {name}' for name, n in sorted(counts.items()))})" if counts else ""


def in_words(entry):
    finding, where, count = entry
    times = f"; {count - 1} further launch{'es' * (count > 2)} with the same" if count > 1 else ""
    message = finding.message.replace("simulate(kernel, max_steps=...)", "--cuda-sim-max-steps")
    return f"{message}\n  Launched from {where}{times}."


def launched_from():
    """file:line of the innermost caller that is neither ours nor Numba's."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if not any(part in frame.filename for part in INSIDE):
            return f"{frame.filename}:{frame.lineno}"
    return "?"


INSIDE = (str(Path(__file__).parent), "numba_cuda", "contextlib")
