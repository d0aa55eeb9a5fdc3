"""Tests of findings as annotations, SARIF and JSON: from a launch, the command line and pytest."""

import json
import os
import re

import numpy as np
import pytest
from numba import cuda

from sim import __main__ as command_line
from sim import diagnostics, simulate
from sim.runtime.call_sites import CallSite
from sim.runtime.findings import HostFinding, Log

pytest_plugins = ["pytester"]

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b64 %rd<4>; .reg .b32 %r<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""


def found():
    def shifting():
        @cuda.jit
        def shift(x):
            i = cuda.grid(1)
            if i + 1 < x.size:
                x[i] = x[i + 1]

        return shift

    report = simulate(shifting(), on_finding="report")[1, 64](np.arange(64.0))
    return diagnostics.of_report(report)


def test_a_place_is_the_line_and_column_in_the_file(monkeypatch):
    monkeypatch.chdir(os.path.dirname(__file__))
    (diagnostic,) = found()
    places = diagnostic["places"]
    with open(__file__, encoding="utf-8") as file:
        line, text = next((n, text) for n, text in enumerate(file, 1) if "x[i] = x[i + 1]" in text)
    assert [(each["file"], each["line"]) for each in places] == [("test_diagnostics.py", line)] * 2
    assert places[0]["column"] == text.index("x[i]") + 1 and places[1]["column"] == text.index("x[i + 1]") + 1
    assert [each["text"].partition(" by")[0] for each in places] == ["written", "read"]
    assert (diagnostic["kind"], diagnostic["array"], diagnostic["kernel"]) == ("race-global", "x", "shift")
    assert diagnostic["cases"] == 62 and diagnostic["message"].startswith("race-global: x[32]")


def test_a_kernel_without_a_file_has_no_places():
    names = {"cuda": cuda}
    exec("def kernel(x):\n    x[0] = cuda.threadIdx.x\n", names)
    report = simulate(names["kernel"], on_finding="report")[1, 2](np.zeros(1))
    assert all(each["places"] == [] for each in diagnostics.of_report(report))
    assert diagnostics.as_github(diagnostics.of_report(report)).startswith("::error title=")


def test_github_escapes_what_ends_a_field():
    text = diagnostics.as_github(
        [diagnostics.of_error(ValueError("50 %\nof a")) | {"places": [diagnostics.place("a,b:c.py", 3)]}]
    )
    assert text == "::error title=exception,file=a%2Cb%3Ac.py,line=3,col=1::50 %25%0Aof a"


def test_sarif_has_a_rule_a_location_and_related_locations():
    log = json.loads(diagnostics.formatted(found(), "sarif"))
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["rules"] == [{"id": result["ruleId"]}]
    places = result["locations"] + result["relatedLocations"]
    assert all(each["physicalLocation"]["region"]["startLine"] > 1 for each in places) and len(places) == 2


def test_repetitions_are_merged_by_kind_array_and_lines():
    once = found()
    other = [{**once[0], "array": "y"}]
    assert diagnostics.without_repetitions([*once, *found(), *other]) == [*once, *other]


@pytest.mark.parametrize("style", diagnostics.FORMATS)
def test_the_command_line_prints_or_writes(style, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.ptx").write_text(PTX)
    given = ["p.ptx", "int32[4]", "--format", style]
    assert command_line.main(given) == 1
    printed = capsys.readouterr().out
    assert "p.ptx" in printed and "k[1, 32] on the fibers engine" not in printed
    assert command_line.main([*given, "--output", "found"]) == 1
    said = capsys.readouterr().out
    assert (tmp_path / "found").read_text(encoding="utf-8") == printed
    assert "k[1, 32] on the fibers engine" in said and "\n  at p.ptx:9\n" in said


def test_a_trap_is_a_diagnostic_too(tmp_path, capsys):
    (tmp_path / "p.ptx").write_text(PTX.replace("ret;", "trap;"))
    assert command_line.main([str(tmp_path / "p.ptx"), "int32[4]", "--format=json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "exception"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--output", "x"], "--output x needs a --format: github, sarif, json"),
        (["--format", "json", "--output", "none/x"], "there is no folder none"),
    ],
)
def test_wrong_options_run_nothing(given, says, tmp_path, capsys):
    (tmp_path / "p.ptx").write_text(PTX)
    assert command_line.main([str(tmp_path / "p.ptx"), "int32[4]", *given]) == 2
    assert says in capsys.readouterr().err


def test_a_whole_program_needs_a_file_for_json(tmp_path, capsys):
    assert command_line.main(["run", str(tmp_path / "p.cu"), "--format", "json"]) == 2
    assert "--format json needs --output FILE" in capsys.readouterr().err


def test_findings_of_host_code(tmp_path, capsys):
    finding = HostFinding("leak", "warning", "never freed", CallSite(str(tmp_path / "a.cu"), 8), "free it")
    log = Log(format="github")
    log.add_host(finding)
    log.add_host(finding)
    assert re.fullmatch(
        r"::warning title=leak,file=.*a\.cu,line=8,col=1::leak.*\n\n", capsys.readouterr().err
    )
    log = Log(format="json", output=tmp_path / "found")
    log.add_host(finding)
    log.write_diagnostics()
    (written,) = json.loads((tmp_path / "found").read_text())["findings"]
    assert written["kind"] == "leak" and "leak (warning): never freed" in capsys.readouterr().err


PROJECT = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def shift(x):
    i = cuda.grid(1)
    if i + 1 < x.size:
        x[i] = x[i + 1]

@cuda.jit
def beyond(x):
    x[cuda.grid(1)] = 1

@pytest.mark.parametrize("n", [64, 64])
def test_shift(n):
    shift[1, n](np.arange(64.0))

@pytest.mark.cuda_sim(allow=["out-of-bounds"])
def test_beyond():
    beyond[1, 64](np.zeros(63))
"""


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.nightly)])
def test_pytest_writes_each_finding_once_and_none_that_is_allowed(pytester, workers):
    pytester.makepyfile(test_it=PROJECT)
    result = pytester.runpytest_subprocess(
        "--cuda-sim",
        "--cuda-sim-engine=fibers",
        "--cuda-sim-format=json",
        "--cuda-sim-output=found.json",
        *workers,
    )
    result.stdout.fnmatch_lines(["cuda-sim: 1 finding in found.json"])
    (finding,) = json.loads((pytester.path / "found.json").read_text(encoding="utf-8"))["findings"]
    assert finding["kind"] == "race-global" and "Launched from" in finding["message"]
    assert [(each["file"], each["line"]) for each in finding["places"]] == [("test_it.py", 9)] * 2
