"""Tests of the index of findings (sim/pages): every kind has a page, and every program on it behaves as the
page says.

`python tests/sim/test_pages.py KIND ...` runs the programs of pages and writes their messages into them.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import sim
from sim import __main__ as command_line
from sim import pages
from sim.errors import RefusedLaunch
from sim.events import KINDS
from sim.launch import ENGINES
from sim.pages import PageError
from sim.runtime.findings import HOST_KINDS

ROOT = Path(__file__).parents[2]
# the kinds that a page's program cannot avoid: {page: further kinds}
CAUSES = {"unchecked-error": {"refused-launch"}}
# limits of a launch on a page in seconds, in place of the 8 s that the page's message shows
LIMITS = {"undecided": "0.1"}
# further (page, engine) of a CI run
SAMPLE = {("race-shared", "native"), ("out-of-bounds", "threads")}


def forms():
    """Yield (page, form, kind of run) for all forms."""
    for name in pages.names():
        for form in pages.page(name).forms:
            run = "whole" if " run " in form.command else "pytest" if "def test_" in form.bug else "launch"
            yield pages.page(name), form, run


def cases():
    """Return a pytest.param (page, form, run, engine) for each form and engine. A CI run has the first form
    of each page on one engine, and a sample of the other engines."""
    params = []
    for page, form, run in forms():
        for engine in ENGINES if run == "launch" and form.language != "Triton" else ["fibers"]:
            quick = engine == "fibers" or (page.name, engine) in SAMPLE
            marks = [pytest.mark.nightly] * (not (quick and run == "launch" and form.message))
            marks += [pytest.mark.triton] * (form.language == "Triton")
            id = f"{page.name}-{form.language.replace(' ', '_')}-{engine}"
            params.append(pytest.param(page, form, run, engine, marks=marks, id=id))
    return params


# --- running a form -----------------------------------------------------------------------------------------


def run_form(page, form, run, code, folder, engine):
    """Run the code of a form in `folder`. Return its messages as a list."""
    if form.command:
        options = shlex.split(form.command)[3:]
        file = next(option for option in options if option.endswith(".cu"))
    else:
        file = ("test_" if run == "pytest" else "") + page.name.replace("-", "_") + ".py"
    (folder / file).write_text(code, encoding="utf-8")
    if run == "whole":
        return messages(run_module(folder, "sim", *options).stderr)
    if run == "pytest":
        done = run_module(folder, "pytest", "-p", "no:cacheprovider", "-q", "--cuda-sim", file)
        return messages(done.stdout.replace(f"{folder}{os.sep}", ""))
    limit = LIMITS.get(page.name, "8")
    with contextlib.chdir(folder), mock.patch("sim.loop_limits.PATIENCE", float(limit)):
        if form.command:
            with contextlib.redirect_stderr(io.StringIO()):
                parsed = command_line.make_parser().parse_intermixed_args([*options, "--engine", engine])
            found = [finding.message for finding in command_line.run(parsed).findings]
        elif form.language == "Triton":
            found = run_triton(folder / file)
        else:
            found = run_python(folder / file, engine, None if page.name in LIMITS else 10_000)
    return [text.replace(f" {limit} s", " 8 s") for text in found]


def run_python(path, engine, max_steps=10_000):
    """Run a program with `sim.simulate` set to an engine. Return the messages of its launches."""
    found, simulate = [], sim.simulate

    def launching(kernel):
        simulation = simulate(kernel, engine=engine, on_finding="report", max_steps=max_steps)

        class Launching:
            def __getitem__(self, configuration):
                launch = simulation[configuration]
                return lambda *arguments: found.extend(f.message for f in launch(*arguments).findings)

        return Launching()

    with mock.patch.dict(vars(sim), simulate=launching):
        try:
            runpy.run_path(str(path))
        except RefusedLaunch as error:
            found.append(f"{error.page}: {error}")
    return found


def run_triton(path):
    """Run a program of Triton in the simulator. Return the messages of its launches."""
    with sim.triton(engine="fibers", on_finding="report") as session:
        try:
            runpy.run_path(str(path))
        except RefusedLaunch as error:
            return [f"{error.page}: {error}"]
    return [finding.message for report in session.reports for finding in report.findings]


def run_module(folder, *words):
    """Run `python -m words` in a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=300
    )


def messages(text):
    """Return the messages in a program's output, each of which begins with a kind and ends with a
    reference."""
    kinds = "|".join([*KINDS, *HOST_KINDS])
    return re.findall(rf"^(?:warning: )?(?:{kinds})(?: \(warning\))?: .*?^  → \S+$", text, re.M | re.S)


def names_of(found):
    """Return [(kind in the first line, name in the last line)] for messages."""
    return [
        (re.match(r"(?:warning: )?([\w-]+)", text)[1], text.splitlines()[-1].removeprefix("  → "))
        for text in found
    ]


def without_addresses(message):
    """Return a message without the addresses in it, which depend on the earlier launches of the process."""
    return re.sub(r"0x[0-9a-f]{5,}", "0x…", message)


def needs(form, run):
    """Skip the test if the form's compiler is missing."""
    if run == "whole" and not have_nvcc():
        pytest.skip("nvcc or gcc is not installed")
    if run == "launch" and form.command:
        pytest.importorskip("cuda.bindings.nvrtc")
    if run == "pytest":
        pytest.importorskip("numba_cuda")


def have_nvcc():
    from sim.runtime.build import find_nvcc

    try:
        return bool(find_nvcc())
    except sim.LaunchError:
        return False


# --- tests --------------------------------------------------------------------------------------------------


def test_every_kind_has_a_page_and_every_page_a_kind():
    assert {*pages.names()} == {*KINDS, *HOST_KINDS}


@pytest.mark.parametrize(("page", "form", "run", "engine"), cases())
def test_the_bug_is_found_and_the_fixed_program_is_clean(page, form, run, engine, tmp_path):
    needs(form, run)
    found = run_form(page, form, run, form.bug, tmp_path, engine)
    expected = {page.name} | CAUSES.get(page.name, set())
    assert names_of(found) and {*names_of(found)} == {(kind, kind) for kind in expected}, found
    if form.message:
        assert without_addresses(form.message) == without_addresses(found[-1])
    assert run_form(page, form, run, form.fixed, tmp_path, engine) == []


def test_the_pages_mention_that_equal_writes_are_a_warning():
    @sim.cuda.jit
    def set_flag(flag):
        flag[0] = 1

    (finding,) = sim.simulate(set_flag)[1, 2](np.zeros(1)).findings
    assert (finding.kind, finding.severity) == ("race-global", "warning")
    readme = (ROOT / "sim" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith("| `race-shared`, `race-global` |"))
    texts = [row, *(pages.page(name).text for name in ("race-shared", "race-global"))]
    assert all("is a warning" in text or "only a warning" in text for text in texts)


def test_only_the_first_form_has_a_message():
    for name in pages.names():
        first, *others = pages.page(name).forms
        assert first.message and not any(form.message for form in others), name


def test_the_programs_of_a_page_agree_with_its_command():
    """Check that each command names a file after the page, so that a reader can save and run it."""
    for page, form, _ in forms():
        if form.command:
            assert f"{page.name.replace('-', '_')}.cu" in shlex.split(form.command), page.name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# leak: ", "# leek: "),
        ("## Fix\n", "## Cure\n"),
        ("## Manual\n", "## Fix\n"),
        ("```sh\n", "```\n"),
        ("\nFixed:\n", "\n```\nanother block\n```\n\nFixed:\n"),
        ("## Triton\n", "## OpenCL\n"),
        (pages.page("leak").reasons["Triton"], ""),
        ("```", "~~~"),
    ],
)
def test_a_page_without_a_part_is_refused(old, new):
    text = pages.page("leak").text
    assert old in text and pages.parse("leak", text)
    with pytest.raises(PageError, match=r"leak\.md"):
        pages.parse("leak", text.replace(old, new))


def test_the_command_prints_a_page_and_the_list(capsys):
    assert command_line.main(["explain", "race-shared"]) == 0
    assert capsys.readouterr().out.strip() == pages.page("race-shared").text.strip()
    assert command_line.main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{listed}" for name in pages.names())


def test_the_command_suggests_the_nearest_name(capsys):
    assert command_line.main(["explain", "race-sharde"]) == 2
    assert "no page is called 'race-sharde'; the nearest is race-shared" in capsys.readouterr().err


# --- writing the messages -----------------------------------------------------------------------------------


def write_message(name, folder):
    """Run the first form of a page, and write its message into the page."""
    path = pages.HOME / f"{name}.md"
    page, form, run = next(each for each in forms() if each[0].name == name)
    found = run_form(page, form, run, form.bug, folder, "fibers")
    if not found:
        sys.exit(f"{name}: the program has no finding")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"```\n{form.message}\n```\n", f"```\n{found[-1]}\n```\n"), encoding="utf-8")
    print(found[-1])


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    for given in sys.argv[1:] or pages.names():
        with TemporaryDirectory() as place:
            write_message(given, Path(place))
