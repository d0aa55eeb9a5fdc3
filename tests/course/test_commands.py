"""Tests of the commands: help, make and CONTRIBUTING.md list the accepted arguments, and a signal ends every
process that a command started."""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from course import command_line, commands, processes
from course.bootstrap import ROOT
from course.manual import COMMANDS

USES = [(name, arguments) for name, command in COMMANDS.items() for arguments in ("", *command.examples)]
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")
needs_groups = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals that a process can handle")


@pytest.fixture
def untouched(monkeypatch):
    """Fail the test if a command runs the set-up or checks whether it is needed."""
    monkeypatch.setattr(command_line, "set_up", lambda *_, **__: pytest.fail("nothing was to be set up"))
    monkeypatch.setattr(command_line, "is_set_up", lambda root: pytest.fail("nobody asked for a command"))


def make(*arguments):
    """Run make without the variables of an outer make, which would make it print its directory."""
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"MAKEFLAGS": ""}
    )


# Help -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_help_lists_what_python_takes(untouched, capsys, arguments):
    assert command_line.main(arguments) == 0
    said = capsys.readouterr().out
    assert all(COMMANDS[name].in_python(given) in said for name, given in USES if given)
    assert re.findall(r"^  (\S+)", said, re.MULTILINE) == list(COMMANDS) and "_ARGS" not in said.replace(
        "PIP_ARGS", ""
    )


@needs_make
def test_help_of_make_lists_what_make_takes():
    # make splits PYTHON at spaces, as in the path of a clone, so name the interpreter by a relative path.
    said = make("help", f"PYTHON={os.path.relpath(sys.executable, ROOT)}").stdout
    assert all(COMMANDS[name].in_make(given) in said for name, given in USES if given)
    targets = [command.target or name for name, command in COMMANDS.items()]
    assert re.findall(r"^  (\S+)", said, re.MULTILINE) == targets


@needs_make
@pytest.mark.parametrize(("name", "arguments"), USES)
def test_make_runs_what_python_runs(name, arguments):
    """Compare the command that make would run, taken from a dry run, with the line that help shows for
    Python."""
    _, target, *variable = COMMANDS[name].in_make(arguments).split(" ", 2)
    given = [each.replace('"', "") for each in variable]
    assert make("-n", "PYTHON=python", target, *given).stdout.strip() == COMMANDS[name].in_python(arguments)


@needs_make
@pytest.mark.parametrize("words", [["power", "ex05_3"], ["build"], ["lab", "PORT"]])
def test_make_refuses_what_it_would_misread_before_anything_runs(words):
    said = make(*words, "PYTHON=false")
    assert said.returncode == 2 and said.stdout == ""
    assert f"make does not take {words[-1]}. make help lists its commands" in said.stderr


@needs_make
@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.variable])
def test_make_says_how_an_argument_is_given(name):
    said = make(*COMMANDS[name].in_make().split()[1:], "01", "PYTHON=false").stderr
    assert f"An argument is given in a variable: {COMMANDS[name].in_make('01')}." in said


@needs_make
def test_make_takes_the_same_commands_in_the_folder_notebooks():
    said = make("-C", "notebooks", "-n", "lab", "LAB_ARGS=01 --no-browser", "PYTHON=python")
    assert "python notebooks/course lab 01 --no-browser" in said.stdout.splitlines()
    said = make("-C", "notebooks", "lab", "01", "PYTHON=false")
    assert said.returncode == 2 and 'make lab LAB_ARGS="01"' in said.stderr


@pytest.mark.parametrize("importing", [False, True])
def test_a_python_without_the_packages_says_how_to_set_up(importing):
    """Run without site-packages, as with a Python in which nothing is installed."""
    way = ["-c", "import course"] if importing else ["-m", "course", "lab"]
    command = [sys.executable, "-S", *way]
    said = subprocess.run(command, cwd=ROOT / "notebooks", capture_output=True, text=True)
    assert said.returncode == 1 and "The course runs in its own .venv: make lab, or python" in said.stderr
    assert ("Traceback" in said.stderr) == importing


@needs_make
def test_make_refuses_a_variable_that_it_would_ignore_and_takes_all_that_help_shows():
    said = make("lab", "PORT=8899", "PYTHON=false")
    assert said.returncode == 2 and said.stdout == "" and "make does not take PORT=." in said.stderr
    taken = re.search(r"^TAKEN = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {*taken} == {
        "PYTHON",
        "PIP_ARGS",
        "COMPILERS",
        *(each.variable for each in COMMANDS.values() if each.variable),
    }


def test_every_command_is_in_the_table_of_contributing():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `make ([\w-]+)` \| `(python [^`]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(
        (command.target or name, command.in_python()) for name, command in COMMANDS.items()
    )


def test_every_command_of_the_table_has_a_function():
    assert list(commands.RUN) == list(COMMANDS)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.own_help])
def test_every_command_says_what_it_does_and_sets_nothing_up(untouched, capsys, name):
    assert command_line.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert COMMANDS[name].what in said
    for arguments in ("", *COMMANDS[name].examples):
        assert COMMANDS[name].in_python(arguments) in said and COMMANDS[name].in_make(arguments) in said
    assert command_line.main(["help", name]) == 0 and capsys.readouterr().out == said


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.own_help])
def test_options_in_examples_are_in_the_commands_own_help(name, monkeypatch, capsys):
    """Run the program of the command in this process, because a new one takes 3 CPU seconds to import
    PyTorch."""

    def run_here(first, *rest):
        monkeypatch.setattr(sys, "argv", [first, *rest] if first != "-m" else [*rest])
        if first == "-m":
            runpy.run_module(rest[0], run_name="__main__")
        else:
            runpy.run_path(str(ROOT / first), run_name="__main__")

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(commands, "run", run_here)
    with pytest.raises(SystemExit) as ended:
        commands.main([name, "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert said.startswith("usage: ")
    options = re.findall(r"--[a-z-]+", " ".join(COMMANDS[name].examples))
    assert all(option in said for option in options)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lap"], "There is no command 'lap'. There are setup, lab, "),
        (["setup", "fast"], "setup takes no arguments; given: fast"),
        (["lab", "99"], "There is no lesson 99. notebooks/ has all lessons, such as lab 01 or lab 10b."),
        (["lint", "--fix"], "lint takes no arguments; given: --fix"),
        (["help", "lap"], "help takes the name of one command, or nothing; given: lap"),
        (["docs", str(ROOT / "README.md")], "README.md is no folder: give the name of one"),
        (["docs", "a", "b"], "docs takes the name of one folder; given: a b"),
    ],
)
def test_what_no_command_takes_is_said_in_one_line_before_anything_is_done(
    monkeypatch, capsys, arguments, says
):
    monkeypatch.setattr(command_line, "set_up", lambda *_, **__: pytest.fail("nothing was to be set up"))
    monkeypatch.setattr(command_line, "is_set_up", lambda root: True)
    monkeypatch.setattr(command_line, "runs_in_venv", lambda root: True)
    assert command_line.main(arguments) == 2
    said = capsys.readouterr()
    assert says in said.err and len((said.out + said.err).splitlines()) == 1


# Signals ----------------------------------------------------------------------------------------------------

SLEEPER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
STARTER = f"""import subprocess, sys
def test_it():
    subprocess.call([sys.executable, "-c", {SLEEPER!r}, FILE])
if __name__ == "__main__":
    test_it()
"""
# Most commands start processes as `run` does; pytest, the set-up and the doctor each do it in their own way.
WAYS = {
    "run": "commands.run(file)",
    "pytest": "commands.run('-m', 'pytest', '-q', '-p', 'no:cacheprovider', file)",
    "pytest-xdist": "commands.run('-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-n', '1', file)",
    "setup": "bootstrap.Logged(pathlib.Path(file + '.log'))([sys.executable, file])",
    "doctor": "doctor.try_imports()",
}


@needs_groups
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("way", WAYS)
def test_a_signal_ends_a_command_and_all_that_it_has_started(tmp_path, way, number):
    file, begun = tmp_path / "test_starter.py", tmp_path / "begun"
    file.write_text(STARTER.replace("FILE", repr(str(begun))))
    program = (
        # A background process may ignore SIGINT from the start.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import pathlib, sys; from course import bootstrap, commands, doctor, processes\n"
        f"file = {str(file)!r}; doctor.IMPORTS = {{'it': open(file).read()}}; processes.GRACE = 2\n"
        f"with processes.end_on_sigterm(): sys.exit({WAYS[way]})"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (begun.exists() and begun.read_text()):
        assert parent.poll() is None, parent.stderr.read()
        time.sleep(0.05)
    family = psutil.Process(parent.pid).children(recursive=True)
    assert int(begun.read_text()) in [process.pid for process in family]
    parent.send_signal(number)
    said = parent.communicate(timeout=60)[1]
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    if number == signal.SIGTERM:
        assert parent.returncode == 128 + signal.SIGTERM and "Traceback" not in said
    elif way == "run":
        assert parent.returncode == 130 and said == "\nInterrupted.\n"
    else:
        assert parent.returncode != 0


@needs_groups
@pytest.mark.parametrize("arguments", [["lab", "--help"], ["doctor"]], ids=["answered", "run"])
def test_a_command_in_this_process_restores_the_handler_of_sigterm(monkeypatch, arguments):
    seen = []
    run = lambda rest: seen.append(signal.getsignal(signal.SIGTERM)) or 0  # noqa: E731
    monkeypatch.setitem(commands.RUN, "doctor", run)
    monkeypatch.setattr(command_line, "runs_in_venv", lambda root: True)
    before = signal.getsignal(signal.SIGTERM)
    assert command_line.main(arguments) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert seen == [processes.raise_exit] * (arguments == ["doctor"])
