"""Tests of pytest --cuda-sim with host code that uses several streams or page-locked memory."""

import json
import re

import pytest

from stream_projects import EARLY, HEAD, RIGHT, WRONG

pytest_plugins = ["pytester"]


def expected(text):
    """Return {(kind, line)} from the comments of a test file."""
    lines = enumerate(("\n" + text.lstrip("\n")).split("\n"))
    found = ((re.search(r"# (stream-race|unsynchronized-access)$", line), at) for at, line in lines)
    return {(match[1], at) for match, at in found if match}


def assert_failures(result):
    """Check that all tests of WRONG have failed, one of them at the end of its teardown."""
    count = WRONG.count("def test_")
    result.assert_outcomes(failed=count - 1, passed=1, errors=1)


def found_in(result, file):
    """Return {(kind, line)} for the messages in pytest's output."""
    pattern = rf"^(stream-race|unsynchronized-access): .*\n  at {file}:(\d+)$"
    return {(kind, int(line)) for kind, line in re.findall(pattern, result.stdout.str(), re.M)}


@pytest.mark.parametrize("engine", ["native", pytest.param("fibers", marks=pytest.mark.nightly)])
def test_correct_programs_have_no_finding(pytester, run, engine):
    pytester.makepyfile(test_right=RIGHT)
    result = run("--cuda-sim", f"--cuda-sim-engine={engine}")
    result.assert_outcomes(passed=RIGHT.count("def test_"))
    assert "; 0 findings" in result.stdout.str()


@pytest.mark.parametrize("engine", ["native", pytest.param("fibers", marks=pytest.mark.nightly)])
def test_each_wrong_program_fails(pytester, run, engine):
    pytester.makepyfile(test_wrong=WRONG)
    result = run("--cuda-sim", f"--cuda-sim-engine={engine}", "--cuda-sim-report=pages")
    assert found_in(result, "test_wrong.py") == expected(WRONG)
    assert_failures(result)
    page = next((pytester.path / "pages").glob("*test_no_event*.html")).read_text(encoding="utf-8")
    assert "<pre>stream-race: this operation is not ordered" in page


def test_processes_of_xdist_send_their_findings(pytester, run):
    pytest.importorskip("xdist")
    pytester.makepyfile(test_wrong=WRONG)
    options = "-p", "xdist.plugin", "-n", "2", "--cuda-sim"
    result = run(*options, "--cuda-sim-format=json", "--cuda-sim-output=found.json")
    wanted = expected(WRONG)
    assert_failures(result)
    found = json.loads((pytester.path / "found.json").read_text(encoding="utf-8"))["findings"]
    assert {(each["kind"], each["places"][0]["line"]) for each in found} == wanted
    assert {each["places"][0]["file"] for each in found} == {"test_wrong.py"}
    kinds = [kind for kind, _ in wanted]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("stream-race", "unsynchronized-access"))
    assert f"{len(wanted)} findings ({counts})" in result.stdout.str()


def test_both_kinds_can_be_allowed(pytester, run):
    pytester.makepyfile(test_wrong=WRONG)
    options = "--cuda-sim", "-k", "test_no_wait or test_no_event"
    run(*options, "--cuda-sim-allow=stream-race").assert_outcomes(passed=2, failed=1, errors=1, deselected=19)
    allowed = run(*options, "--cuda-sim-allow=stream-race,unsynchronized-access")
    allowed.assert_outcomes(passed=3, deselected=19)


def test_a_failure_names_the_copy_that_the_host_has_not_waited_for(pytester, run):
    pytester.makepyfile(test_early=EARLY)
    result = run("--cuda-sim")
    result.assert_outcomes(failed=3)
    said = result.stdout.str()
    assert said.count("--- cuda-sim ---") == 2 and "; 0 findings" in said
    assert re.search(r"^The host has not waited for the asynchronous copy at test_early.py:\d+\.", said, re.M)
    assert re.search(r"^Poison is in result: .*, at test_early.py:\d+\.", said, re.M)


LARGE = (
    HEAD
    + """
def test_many_threads():
    a, x = cuda.stream(), cuda.to_device(numbers(1 << 15))
    increment[256, 128, a](x)
    b = cuda.stream()
    increment[256, 128, b](x)
    increment[256, 128, cuda.external_stream(77)](cuda.to_device(numbers(1 << 15)))
"""
)


def test_a_note_names_launches_that_were_not_compared(pytester, run):
    pytester.makepyfile(test_large=LARGE)
    result = run("--cuda-sim")
    result.assert_outcomes(passed=1)
    note = "cuda-sim: note: races between streams: *were not compared: test_large.py:39 and test_large.py:41"
    result.stdout.fnmatch_lines_random([note, "cuda-sim: note: external streams were treated like *"])


def test_the_plug_in_needs_no_posix_functions(pytester, run):
    """Check that sim.runtime.streams is not imported, because it calls mprotect, which Windows lacks."""
    pytester.makepyfile(
        test_modules="import sys\n\ndef test_modules():\n    assert 'sim.runtime.streams' not in sys.modules"
    )
    run("--cuda-sim").assert_outcomes(passed=1)
