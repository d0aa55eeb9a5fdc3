"""Tests of the set-up: the commands that it runs, failed and interrupted steps, and a second run that does
nothing."""

import ast
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course import bootstrap, command_line
from course.bootstrap import (
    ROOT,
    SetUpError,
    cuda_requirements,
    has_tools,
    is_set_up,
    set_up,
    stamp,
    venv_python,
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return a project to set up, as on a machine without an NVIDIA driver and without PIP_ARGS."""
    monkeypatch.setattr(bootstrap, "cuda_driver", lambda: None)
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Linux")
    monkeypatch.delenv("PIP_ARGS", raising=False)
    monkeypatch.delenv("COMPILERS", raising=False)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["numpy"]\n')
    (tmp_path / "constraints.txt").write_text("numpy==2.4.6\ntorch==2.13.0\n")
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    return tmp_path


class Commands:
    """A fake subprocess.call that records its commands. The steps named in `fails` fail."""

    def __init__(self, root, fails=()):
        self.root, self.fails, self.ran, self.steps = root, fails, [], []

    def __call__(self, *commands, trying=False):
        return max(map(self.run, commands))

    def run(self, command):
        self.ran.append(command)
        self.steps.append(self.step(command))
        if self.steps[-1] == "venv":
            venv_python(self.root).parent.mkdir(parents=True, exist_ok=True)
            venv_python(self.root).touch()
            (self.root / ".venv" / "pyvenv.cfg").write_text(
                "home = /usr\nversion = {}.{}.1\n".format(*sys.version_info), encoding="utf-8"
            )
        return int(self.steps[-1] in self.fails)

    def step(self, command):
        if "venv" in command:
            return "venv"
        if "-c" in command and "import" in command[2]:
            return "probe"
        if command[-1] == bootstrap.PIP:
            return "pip"
        if command[-1].endswith("+cpu"):
            return "torch"
        if command[-1] == bootstrap.UV:
            return "uv"
        if "--torch-backend" in command:
            return "torch by uv"
        if "--no-deps" in command:
            return "pins"
        return "course" if "-e" in command else "numba-cuda"


def test_a_set_up_that_ends_is_not_needed_again(root):
    commands = Commands(root)
    set_up(root, commands)
    assert commands.steps == ["venv", "pip", "torch", "pins", "course", "numba-cuda"]
    assert is_set_up(root)


@pytest.mark.parametrize(
    "name, text",
    [
        ("pyproject.toml", '[project]\ndependencies = ["scipy"]\n'),
        ("constraints.txt", "numpy==2.4.5\ntorch==2.13.0\n"),
    ],
)
def test_changed_requirements_ask_for_a_new_set_up_that_keeps_the_venv(root, name, text):
    set_up(root, Commands(root))
    (root / name).write_text(text)
    assert not is_set_up(root)
    commands = Commands(root)
    set_up(root, commands)
    assert commands.steps == ["probe", "pip", "torch", "pins", "course", "numba-cuda"]


def test_other_settings_ask_for_none(root):
    set_up(root, Commands(root))
    with (root / "pyproject.toml").open("a") as project:
        project.write("[tool.ruff]\nline-length = 100\n")
    assert is_set_up(root)


def test_another_python_keeps_the_venv_and_says_so(root, monkeypatch, capsys):
    set_up(root, Commands(root))
    here = "{}.{}".format(*sys.version_info)
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert is_set_up(root)
    commands = Commands(root)
    set_up(root, commands)
    assert commands.steps == ["probe", "pip", "torch", "pins", "course", "numba-cuda"]
    assert f"Kept: .venv has Python {here}. For another one delete .venv first." in capsys.readouterr().out


def test_a_new_driver_asks_for_a_new_set_up(root, monkeypatch):
    set_up(root, Commands(root))
    monkeypatch.setattr(bootstrap, "cuda_driver", lambda: (12, 4))
    assert not is_set_up(root)


def test_a_venv_left_half_made_is_made_anew(root):
    Commands(root)(["venv"])
    commands = Commands(root, fails=["probe"])
    set_up(root, commands)
    assert commands.steps == ["probe", "venv", "pip", "torch", "pins", "course", "numba-cuda"]


@pytest.mark.parametrize(
    ("step", "says"), [("venv", "sudo apt install python3-venv"), ("course", "it goes on where it stopped")]
)
def test_a_step_that_fails_stops_the_set_up_and_leaves_no_stamp(root, step, says):
    set_up(root, Commands(root))
    shutil.rmtree(root / ".venv")
    with pytest.raises(SetUpError, match=says):
        set_up(root, Commands(root, fails=[step]))
    assert not is_set_up(root)


def test_an_interrupted_set_up_leaves_no_stamp(root):
    set_up(root, Commands(root))

    def interrupted(command, trying=False):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        set_up(root, interrupted)
    assert not stamp(root).exists()


def test_without_numba_cuda_the_set_up_goes_on_and_says_how_to_try_again(root, capsys):
    set_up(root, Commands(root, fails=["numba-cuda"]))
    assert is_set_up(root)
    said = capsys.readouterr().err
    assert (
        "numba-cuda could not be installed, so no kernel can run on a GPU. Every lesson runs in the"
        " simulator." in said
    )
    assert '-m pip install -c constraints.txt "numba-cuda[cu13]"' in said


def test_macos_is_asked_for_no_numba_cuda(root, monkeypatch):
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Darwin")
    commands = Commands(root)
    set_up(root, commands)
    assert commands.steps == ["venv", "pip", "pins", "course"]


def test_each_block_of_pins_has_a_pip_of_its_own_and_what_fails_there_comes_with_the_course(root, capsys):
    (root / "constraints.txt").write_text("# two\nnumpy==2.4.6\n\ntorch==2.13.0\nsympy==1.14.0\n")
    commands = Commands(root)
    set_up(root, commands)
    pins = [command[command.index("--no-deps") + 1 :] for command in commands.ran if "--no-deps" in command]
    assert sorted(pins[1:]) == [["numpy==2.4.6"], ["torch==2.13.0", "sympy==1.14.0"]]
    course = commands.ran[commands.steps.index("course")]
    assert "--no-build-isolation" in course and "--no-deps" not in course
    commands = Commands(root, fails=["pip", "pins"])
    set_up(root, commands)
    course = commands.ran[commands.steps.index("course")]
    assert is_set_up(root) and "--no-build-isolation" not in course
    assert capsys.readouterr().err == ""


def test_without_a_driver_linux_gets_the_torch_that_needs_no_cuda_libraries(root, monkeypatch, capsys):
    commands = Commands(root)
    set_up(root, commands)
    torch = commands.ran[commands.steps.index("torch")]
    assert torch[-2:] == ["--no-deps", "torch==2.13.0+cpu"]
    assert "about 190 MB ... 0 s" in capsys.readouterr().out
    monkeypatch.setenv("PIP_ARGS", "--index-url ADDRESS")
    assert not bootstrap.wants_torch_for_cpu(None, "Linux")
    monkeypatch.delenv("PIP_ARGS")
    assert not bootstrap.wants_torch_for_cpu((13, 0), "Linux")
    # On this system, the standard wheel of torch needs no CUDA.
    assert not bootstrap.wants_torch_for_cpu(None, "Windows")


@pytest.mark.parametrize(
    "failing, tried", [("uv", ["torch", "uv"]), ("torch by uv", ["torch", "uv", "torch by uv"])]
)
def test_where_no_index_has_that_torch_the_ordinary_one_comes_with_the_pins(root, failing, tried, capsys):
    commands = Commands(root, fails=["torch", failing])
    set_up(root, commands)
    assert is_set_up(root) and commands.steps[2 : 2 + len(tried)] == tried
    said = capsys.readouterr().out
    assert "0 s, not to be had here, so the one with CUDA libraries follows" in said
    assert "most of it PyTorch's CUDA libraries" in said


def test_uv_finds_that_torch_where_pip_does_not(root, monkeypatch, capsys):
    commands = Commands(root, fails=["torch"])
    set_up(root, commands)
    by_uv = commands.ran[commands.steps.index("torch by uv")]
    assert by_uv[1:5] == ["-m", "uv", "pip", "install"]
    assert (
        by_uv[-3:] == ["--torch-backend", "cpu", "torch==2.13.0"]
        and "not to be had" not in capsys.readouterr().out
    )
    monkeypatch.setattr(bootstrap, "uv", lambda: "/bin/uv")
    commands = Commands(root, fails=["torch"])
    set_up(root, commands)
    assert "uv" not in commands.steps and commands.ran[commands.steps.index("torch by uv")][0] == "/bin/uv"


def test_each_step_is_one_line_with_its_number_what_it_downloads_and_its_time(root, capsys):
    set_up(root, Commands(root))
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first.endswith("once. Details: setup.log")
    assert [re.fullmatch(r"  (\d)/6  .+ \.\.\. \d+ s", line)[1] for line in lines] == list("123456")
    assert all("MB" in line or "next to nothing" in line for line in lines[1:])
    assert re.fullmatch(r"Set up in 0 min \d s; \.venv takes 0\.0 GB\.", last)


def test_a_step_that_fails_ends_its_line(root, capsys):
    with pytest.raises(SetUpError):
        set_up(root, Commands(root, fails=["course"]))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  5/6  the course") and last.endswith(" ... stopped")


def test_the_real_pins_are_four_blocks_of_single_versions():
    torch, rest, tools, cuda = bootstrap.pins(ROOT)
    assert "setuptools" in {pin.partition("==")[0] for pin in torch}  # packages needed to build the course
    assert all(pin.count("==") == 1 for pin in torch + rest + tools + cuda) and len(torch + rest) > 100


def names(requirements):
    """Return the normalised names of requirements that apply here and belong to no extra."""
    wanted = (Requirement(each) for each in requirements)
    return {
        canonicalize_name(each.name)
        for each in wanted
        if not each.marker or each.marker.evaluate({"extra": ""})
    }


def test_no_package_of_the_lessons_is_pinned_among_the_tools_or_requires_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed, new = set(), names([*project["dependencies"], *project["optional-dependencies"]["course"]])
    while new:
        needed |= new
        new = set().union(*(names(metadata.requires(name) or ()) for name in new)) - needed
    torch, rest, tools, cuda = bootstrap.pins(ROOT)
    assert not needed & names(tools)
    # numba-cuda without CUDA's compilers cannot be imported, so it comes only with them.
    assert "numba-cuda" in names(cuda) and not any("cuda" in name for name in names([*torch, *rest]))
    assert names(project["optional-dependencies"]["dev"]) - needed <= names(tools)


def test_the_tools_come_with_the_commands_that_need_them(root, monkeypatch):
    text = (root / "constraints.txt").read_text() + "\nrich==15.0.0\n\nmypy==2.4.1\n"
    (root / "constraints.txt").write_text(text)
    commands = Commands(root)
    set_up(root, commands)
    assert not has_tools(root) and not any("mypy==2.4.1" in command for command in commands.ran)
    assert commands.ran[commands.steps.index("course")][-1] == f"{root}[course]"
    monkeypatch.setattr(command_line, "ROOT", root)
    monkeypatch.setattr(command_line, "hand_over", lambda command: 0)
    monkeypatch.setattr(bootstrap, "Logged", lambda log: commands)
    commands.ran.clear()
    for command in ("progress", "lint", "lint"):
        assert command_line.main([command]) == 0
        assert has_tools(root) == bool(commands.ran) == (command == "lint")
    (installed,) = commands.ran
    assert installed[-1] == f"{root}[course,dev]"


def test_a_set_up_by_make_test_brings_the_tools_at_once(root):
    text = (root / "constraints.txt").read_text() + "\nrich==15.0.0\n\nmypy==2.4.1\n"
    (root / "constraints.txt").write_text(text)
    commands = Commands(root)
    set_up(root, commands, tools=True)
    assert has_tools(root) and any("mypy==2.4.1" in command for command in commands.ran)
    assert commands.ran[commands.steps.index("course")][-1] == f"{root}[course,dev]"


def test_declined_compilers_stay_away_until_they_are_wanted(root, monkeypatch, capsys):
    monkeypatch.setenv("COMPILERS", "no")
    commands = Commands(root)
    set_up(root, commands)
    assert "numba-cuda" not in commands.steps and is_set_up(root)
    monkeypatch.delenv("COMPILERS")
    assert is_set_up(root)
    monkeypatch.setenv("COMPILERS", "yes")
    assert not is_set_up(root)
    commands = Commands(root)
    set_up(root, commands)
    assert commands.steps[-1] == "numba-cuda"
    monkeypatch.delenv("COMPILERS")
    assert is_set_up(root)
    monkeypatch.setenv("COMPILERS", "false")
    monkeypatch.setattr(command_line, "ROOT", root)
    assert command_line.main(["bench"]) == 1
    assert "COMPILERS is yes or no; given: false" in capsys.readouterr().err


def test_pip_arguments_reach_every_install(root, monkeypatch):
    monkeypatch.setenv("PIP_ARGS", "--find-links '/a folder' --no-index")
    commands = Commands(root)
    set_up(root, commands)
    installs = [command for command in commands.ran if "install" in command]
    assert len(installs) == 4
    assert all("--find-links|/a folder|--no-index" in "|".join(command) for command in installs)


def test_a_python_too_old_is_told_so_before_anything_is_made(root, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(
        SetUpError, match=r"needs Python 3\.11 or newer; this is .* make setup PYTHON=python3\.11"
    ):
        set_up(root, Commands(root))
    assert not (root / ".venv").exists()


@pytest.mark.parametrize("old", [(2, 7, 18), (3, 6, 15)])
def test_a_python_that_cannot_parse_the_course_is_told_so_too(monkeypatch, old):
    main = ROOT / "notebooks" / "course" / "__main__.py"
    ast.parse(main.read_text(encoding="utf-8"), feature_version=(3, 4))
    text = compile(main.read_text(encoding="utf-8"), str(main), "exec")
    monkeypatch.setattr(sys, "version_info", old)
    with pytest.raises(SystemExit) as stopped:
        exec(text, {"__package__": ""})
    told = bootstrap.too_old().split("; this is ")[0]
    monkeypatch.undo()
    wanted = f"{told}; this is {old[0]}.{old[1]}. With a newer one: make setup PYTHON=python3.11"
    assert stopped.value.code == wanted


def test_a_disk_without_room_is_refused_before_anything_is_made(root, monkeypatch):
    few = SimpleNamespace(free=10**9)
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda folder: few)
    with pytest.raises(SetUpError, match=r"1\.0 GB are free, and set-up needs 3\.0 GB"):
        set_up(root, Commands(root))
    assert not (root / ".venv").exists()
    monkeypatch.setattr(bootstrap, "size", lambda folder: 2 * 10**9)  # an earlier set-up has left this
    set_up(root, Commands(root))


@pytest.mark.parametrize(
    ("line", "step", "says"),
    [
        ("ProxyError('Cannot connect to proxy.')", "pip", "downloaded: the proxy does not answer"),
        ("NameResolutionError(host)", "pip", "name of the package index cannot be resolved"),
        ("OSError: [Errno 28] No space left on device", "pip", "There is not enough room"),
        ("OSError: [Errno 28] No space left on device", "course", "There is not enough room"),
        ("error: a build failed", "course", "the last lines of setup.log are above"),
    ],
)
def test_the_reason_of_a_failure_is_read_from_the_log(root, line, step, says):
    (root / "setup.log").write_text(f"$ pip\n{line}\n")
    with pytest.raises(SetUpError, match=says):
        set_up(root, Commands(root, fails=[step]))


def test_a_pip_that_an_index_does_not_have_is_no_obstacle(root):
    (root / "setup.log").write_text("ERROR: No matching distribution found for pip==26.3\n")
    set_up(root, Commands(root, fails=["pip"]))
    assert is_set_up(root)


@pytest.mark.parametrize("driver", [None, (13, 0)])
def test_files_that_no_lesson_uses_are_deleted(root, monkeypatch, driver):
    monkeypatch.setattr(bootstrap, "cuda_driver", lambda: driver)
    packages = root / ".venv" / "lib" / "python3.13" / "site-packages"
    kept = [
        "torch/bin/torch_shm_manager",
        "torch/lib/libtorch.so",
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cu13/bin/nvcc",
        "numpy/testing/__init__.py",
    ]
    unused = [
        "rfc3987_syntax/__init__.py",
        "torch/test/a.py",
        "torch/bin/test_jit",
        "nvidia/cu13/lib/libnvrtc.alt.so.13",
        "numpy/_core/tests/data/tests/a.csv",
        "sympy/tests/a.py",
    ]
    (kept if driver else unused).append("nvidia/cu13/bin/ptxas")
    for name in (*kept, *unused):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("")
    bootstrap.remove_unused(root)
    assert all((packages / name).exists() for name in kept)
    assert not any((packages / name).exists() for name in unused)


def test_a_terminal_shows_the_seconds_of_a_step(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    said = ""
    with bootstrap.Steps(1)("a step"):
        while "\r" not in said:
            time.sleep(0.05)
            said += capsys.readouterr().out
    line, said = "  1/1  a step ... ", said + capsys.readouterr().out
    assert re.fullmatch(rf"{line}(\r{line}\d+ s)+\r{line}\d+ s\n", said)


@pytest.mark.parametrize(
    ("driver", "system", "parts"),
    [
        (None, "Linux", (*bootstrap.CUDA_13, *bootstrap.NVCC)),
        (None, "Darwin", ()),
        ((13, 0), "Windows", bootstrap.CUDA_13),
        ((13, 4), "Linux", (*bootstrap.CUDA_13, *bootstrap.NVCC)),
        ((12, 0), "Linux", (*bootstrap.CUDA_12, "cuda-toolkit==12.0.*")),
        ((12, 9), "Linux", (*bootstrap.CUDA_12, "cuda-toolkit==12.9.*")),
        ((12, 11), "Linux", (*bootstrap.CUDA_12, "cuda-toolkit==12.9.*")),
        ((11, 8), "Linux", (*bootstrap.CUDA_13, *bootstrap.NVCC)),
    ],
)
def test_the_cuda_parts_follow_the_driver(driver, system, parts):
    assert cuda_requirements(driver, system) == parts


def test_uv_installs_where_it_is_and_pip_where_uv_fails_or_arguments_are_for_pip(root, monkeypatch):
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/bin/{name}")
    commands = Commands(root)
    set_up(root, commands)
    assert [command[:3] for command in commands.ran[2:]] == [["/bin/uv", "pip", "install"]] * 2
    commands = Commands(root, fails=["course"])
    with pytest.raises(SetUpError):
        set_up(root, commands)
    assert [command[0] for command in commands.ran[-2:]] == ["/bin/uv", str(venv_python(root))]
    monkeypatch.setenv("PIP_ARGS", "--no-index")
    commands = Commands(root)
    set_up(root, commands)
    assert not [command for command in commands.ran if command[0] == "/bin/uv"]


@pytest.mark.parametrize("never_written, argument", [(True, "--compile"), (False, "--no-compile")])
def test_bytecode_is_made_where_no_process_may_write_it_later(root, monkeypatch, never_written, argument):
    monkeypatch.setattr(sys, "dont_write_bytecode", never_written)
    commands = Commands(root)
    set_up(root, commands)
    installs = [command for command in commands.ran if "install" in command]
    assert len(installs) == 5 and all(argument in command for command in installs)


def test_what_a_step_says_is_in_a_file_and_a_failure_on_the_screen(tmp_path, capfd):
    logged = bootstrap.Logged(tmp_path / "setup.log")
    assert logged([sys.executable, "-c", "print('quiet')"]) == 0
    assert logged([sys.executable, "-c", "print('tried'); raise SystemExit(3)"], trying=True) == 3
    assert capfd.readouterr() == ("", "")
    assert logged([sys.executable, "-c", "print('loud'); raise SystemExit(3)"]) == 3
    assert capfd.readouterr().err.endswith("loud\n")
    assert "quiet\n" in (tmp_path / "setup.log").read_text()


def test_the_commands_of_a_step_run_at_once_and_one_that_fails_fails_the_step(tmp_path, capfd):
    logged = bootstrap.Logged(tmp_path / "setup.log")
    there = tmp_path / "there"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(there)!r}).exists(): time.sleep(0.01)"
    begins = f"open({str(there)!r}, 'w'); print('warning: raw'); raise SystemExit(3)"
    commands = [sys.executable, "-c", waits], [sys.executable, "-c", begins]
    assert logged(*commands, trying=True) == 3
    assert capfd.readouterr() == ("", "")
    assert "warning: raw\n" in (tmp_path / "setup.log").read_text()


@pytest.mark.parametrize(
    ("command", "there", "says"),
    [
        ("bench", False, command_line.NOT_SET_UP),
        ("bench", True, command_line.STALE),
        ("doctor", True, command_line.STALE),
    ],
)
def test_only_setup_lab_and_test_install(root, monkeypatch, capsys, command, there, says):
    if there:
        Commands(root)(["venv"])
    ran = []
    monkeypatch.setattr(command_line, "ROOT", root)
    monkeypatch.setattr(command_line, "set_up", lambda *_, **__: pytest.fail("nothing was to be set up"))
    monkeypatch.setattr(command_line, "hand_over", lambda command: ran.append(command) or 0)
    assert command_line.main([command]) == int(not there)
    assert says in capsys.readouterr().err and bool(ran) == there


def test_a_moved_clone_is_set_up_again_and_keeps_its_venv(root):
    set_up(root, Commands(root))
    moved = root.rename(root.with_name("a moved clone"))
    assert not is_set_up(moved)
    commands = Commands(moved)
    set_up(moved, commands)
    assert commands.steps[0] == "probe" and "venv" not in commands.steps and is_set_up(moved)


def test_a_second_set_up_installs_nothing(tmp_path):
    """Run the real command in a project with an empty .venv and a stamp.

    pip could not even start there, so the command needs no network.
    """
    clone = tmp_path / "a clone"
    clone.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, clone / name)
    shutil.copytree(ROOT / "notebooks" / "course", clone / "notebooks" / "course")
    venv.create(clone / ".venv", with_pip=False)
    fingerprint = (
        "from course import bootstrap;"
        " bootstrap.stamp(bootstrap.ROOT).write_text(bootstrap.fingerprint(bootstrap.ROOT))"
    )
    bare = (
        "import sys, types; p = types.ModuleType('course'); p.__path__ = ['notebooks/course'];"
        f" sys.modules['course'] = p; {fingerprint}"
    )
    subprocess.run([sys.executable, "-c", bare], cwd=clone, check=True)

    outcome = subprocess.run(
        [sys.executable, "notebooks/course", "setup"], cwd=clone, capture_output=True, text=True
    )
    assert (outcome.returncode, outcome.stdout) == (0, "The course is set up. Next: make lab\n"), (
        outcome.stderr
    )
