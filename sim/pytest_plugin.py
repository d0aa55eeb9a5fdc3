"""pytest --cuda-sim: tests that launch `@cuda.jit` kernels run without a GPU, each launch simulated and
watched; a finding fails its test, and so does an exception in a thread that a GPU would tell nobody of.

Nothing of the project changes: numba.cuda's host side stays Numba's, over a driver of ours (sim.host). A test
that needs a real GPU is marked `@pytest.mark.cuda_sim(off=True)`; `engine`, `seeds`, `tools`, `max_steps` and
`allow` (kinds of findings) may be given there too, and win over the options.
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
        type=words(lambda: TOOLS),
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
        type=words(kinds_of_findings),
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


def numbers(text):
    if not all(each.strip().isdecimal() for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: not a list of whole numbers, such as 0,1,2")
    return tuple(map(int, text.split(",")))


def rounds(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: not a whole number above 0, such as 10000000")
    return int(text)


def words(known):
    """Return a parser of words separated by commas, each of which must be among `known()`."""

    def parse(text):
        given = tuple(filter(None, (word.strip() for word in text.split(","))))
        if wrong := unknown_words(given, known()):
            raise argparse.ArgumentTypeError(wrong)
        return given

    return parse


def unknown_words(given, known):
    """Return what is wrong with these words, or "" if all of them are known."""
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
    """What became of one test's launches: how many had each outcome, how many ran by each engine, and the
    findings that are not alike."""

    outcomes: Counter = field(default_factory=Counter)
    engines: Counter = field(default_factory=Counter)
    findings: dict = field(default_factory=dict)  # key: (finding, where the host launched it, how often)
    reports: list = field(default_factory=list)
    failed: bool = False  # whether the test has failed for its findings

    def wrong(self, allowed):
        """Return the entries of the errors that fail a test."""
        errors = (entry for entry in self.findings.values() if entry[0].severity == "error")
        return [entry for entry in errors if entry[0].kind not in allowed]

    def numbers(self):
        """Return the counts as JSON has them, for pytest-xdist."""
        return {
            "outcomes": dict(self.outcomes),
            "engines": dict(self.engines),
            "keys": sorted({repr(key) for key in self.findings}),
        }


def summed(told):
    """Return the sum of what several of Told.numbers() hold."""
    counts = ("outcomes", "engines")
    added = {name: dict(sum((Counter(each[name]) for each in told), Counter())) for name in counts}
    keys = sorted({key for each in told for key in each["keys"]})
    return added | {"keys": keys, "kinds": dict(Counter(key.split("'")[1] for key in keys))}


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
        self.asked, self.told = options, Told()
        self.unlogged = []  # numbers of attempts whose report pytest was not given: those that run again
        self.page = "", []  # a test's name, and the reports of all its attempts
        self.options = Options(
            options.cuda_sim_engine,
            options.cuda_sim_seeds,
            observers_of(options.cuda_sim_tools),
            max_steps=options.cuda_sim_max_steps,
        )
        self.host = Host(self.options)
        self.host.launched = self.launched
        self.host.install()

    def launched(self, outcome, report):
        """Count a launch that has ended; `report` is None if it has none."""
        self.told.outcomes[outcome] += 1
        if report is None:
            return
        # what the native engine does not compile
        left = any(note.startswith("by fibers") for note in report.notes)
        self.told.engines["fibers" if left else report.engine] += 1
        if self.asked.cuda_sim_report:
            self.told.reports.append(report)
        for finding in report.findings:
            first, where, count = self.told.findings.get(finding.key, (finding, launched_from(), 0))
            self.told.findings[finding.key] = first, where, count + 1

    def pytest_collection_modifyitems(self, items):
        """Refuse a wrong mark before any test runs."""
        for item in items:
            settings_of(item)

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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        told = self.told
        wrong = told.wrong({*self.asked.cuda_sim_allow, *settings_of(item)["allow"]})
        # a test that is skipped after such a launch fails at its end
        if wrong and not told.failed and (report.outcome != "skipped" or hasattr(report, "wasxfail")):
            told.failed = True
            said = "\n\n".join(map(in_words, wrong))
            if report.outcome == "passed":
                report.outcome, report.longrepr = "failed", said
            else:
                report.sections.append(("cuda-sim", said))
        if call.when == "teardown":
            self.attempted(item.nodeid, report)
        return report

    def attempted(self, nodeid, report):
        """Attach to a test's last report what its launches came to. A plug-in that runs a test again may not
        hand on the report of an attempt; its launches go with the next one's."""
        told, self.told = self.told, Told()
        if told.outcomes:
            self.unlogged.append(told.numbers())
        if not self.unlogged:
            return
        report.cuda_sim = summed(self.unlogged)
        if self.asked.cuda_sim_report:
            from sim.host.pages import write_test

            earlier = self.page[1] if self.page[0] == nodeid else []
            self.page = nodeid, earlier + told.reports
            report.cuda_sim["page"] = write_test(self.asked.cuda_sim_report, *self.page)

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "cuda_sim"):
            self.unlogged.clear()

    # --- the end --------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        """Fail the run for findings of launches that belong to no test: at import, where no test ran."""
        if self.told.wrong(self.asked.cuda_sim_allow) and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        reports = itertools.chain.from_iterable(terminalreporter.stats.values())
        told = {}
        for report in reports:
            if hasattr(report, "cuda_sim"):
                told.setdefault(report.nodeid, []).append(report.cuda_sim)
        outside = [*self.unlogged, *([self.told.numbers()] if self.told.outcomes else [])]
        everything = summed([*itertools.chain.from_iterable(told.values()), *outside])
        for entry in self.told.wrong(self.asked.cuda_sim_allow):
            terminalreporter.write_line(in_words(entry))
        tests = plural(len(told), "test") + (" and outside tests" if outside else "")
        terminalreporter.write_line(f"cuda-sim: {total_line(everything, tests)}")
        if self.asked.cuda_sim_report and told:
            from sim.host.pages import write_index

            rows = {nodeid: summed(parts) | {"page": parts[-1]["page"]} for nodeid, parts in told.items()}
            index = write_index(self.asked.cuda_sim_report, rows)
            terminalreporter.write_line(f"cuda-sim: reports in {index}")

    def pytest_unconfigure(self):
        self.host.uninstall()


def total_line(told, tests):
    """Return the sentence that counts all launches: the outcomes add up to the number of launches."""
    from sim.host import OUTCOMES

    outcomes = told["outcomes"]
    parts = " + ".join(f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes.get(name))
    launches = plural(sum(outcomes.values()), "launch", "launches") + (f" = {parts}" if parts else "")
    engines = "".join(f", {n:,} by {name}" for name, n in sorted(told["engines"].items()))
    found = plural(len(told["keys"]), "finding") + listed(told["kinds"])
    return f"{launches}, in {tests}{engines}; {found}"


def settings_of(item):
    """What a test's mark asks for: {"off", "allow", "options": those of sim.host.Options}."""
    marks = [mark.kwargs.items() for mark in item.iter_markers("cuda_sim")]  # the closest first
    given = {name: value for settings in reversed(marks) for name, value in settings}
    if unknown := given.keys() - {"off", "engine", "seeds", "tools", "max_steps", "allow"}:
        raise pytest.UsageError(
            f"{item.nodeid}: the mark cuda_sim knows no {', '.join(sorted(unknown))}\n  wanted: {MARK}"
        )
    for name, known in (("allow", kinds_of_findings()), ("tools", TOOLS), ("engine", ENGINES)):
        asked = given.get(name) or ()
        asked = (asked,) if isinstance(asked, str) else tuple(asked)
        if wrong := unknown_words(asked, known):
            raise pytest.UsageError(f"{item.nodeid}: {name} of the mark cuda_sim: {wrong}")
        if name in given and name != "engine":
            given[name] = asked
    options = {name: given[name] for name in ("engine", "seeds", "max_steps") if given.get(name) is not None}
    if given.get("tools") is not None:
        options["observers"] = observers_of(given["tools"])
    return {"off": bool(given.get("off")), "allow": given.get("allow", ()), "options": options}


def listed(counts):
    """ " (3 fibers, 1 native)", or nothing."""
    return f" ({', '.join(f'{n:,} {name}' for name, n in sorted(counts.items()))})" if counts else ""


def in_words(entry):
    finding, where, count = entry
    further = plural(count - 1, "further launch", "further launches")
    times = f"; {further} with the same" if count > 1 else ""
    message = finding.message.replace("simulate(kernel, max_steps=...)", "--cuda-sim-max-steps")
    return f"{message}\n  Launched from {where}{times}."


def launched_from():
    """file:line of the innermost caller that is neither ours nor Numba's."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        if not any(part in frame.filename for part in INSIDE):
            return f"{frame.filename}:{frame.lineno}"
    return "?"


INSIDE = (str(Path(__file__).parent), "numba_cuda", "contextlib")
