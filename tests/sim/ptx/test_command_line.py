"""Tests of `python -m sim`, and of the example of sim/README.md with a .cu file."""

import io
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sim.__main__ import main

FILES = Path(__file__).parent / "cuda"
README = (Path(__file__).parents[3] / "sim" / "README.md").read_text(encoding="utf-8")
BUG = [str(FILES / "sum_in_shared.ptx"), "--entry", "bug", "--grid", "2", "--block", "64"]


def test_a_bug_is_printed_and_is_the_exit_status(capsys):
    assert main([*BUG, "float32[128]", "float32[2]=0"]) == 1
    text = capsys.readouterr().out
    assert "race-shared: part[1]" in text
    assert "sum_in_shared.cu line 8" in text


def test_a_right_kernel_gives_0(capsys):
    file = str(FILES / "guard_forgotten.ptx")
    arguments = ["70", "0.5", "float32[70]", "float32[70]=1"]
    assert main([file, "--entry", "mended", "--grid", "3", "--block", "32", *arguments]) == 0
    assert "no findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([BUG[0]], "which kernel? --entry is one of bug, mended"),
        ([BUG[0], "--entry", "sum"], "no kernel sum"),
        ([*BUG, "floats"], "argument 'floats' is not a number, array or file"),
        ([*BUG, "float99[3]"], "argument 'float99[3]': data type 'float99' not understood"),
        ([*BUG, "float32[3]=x"], "argument 'float32[3]=x': could not convert string to float"),
        ([*BUG, "empty:float99[3]"], "argument 'empty:float99[3]': data type 'float99' not understood"),
        ([*BUG, "1"], "was launched with 1 argument;"),
        ([*BUG, "int8:999"], "argument 'int8:999' is not a number, array or file"),
        ([*BUG, "float32[,]"], "argument 'float32[,]': invalid literal"),
        ([*BUG, "empty:float32[3]=1"], "empty memory has no initial values, but 1 is given"),
        ([*BUG, "float32[99999999999]"], "takes 399,999,999,996 bytes, but the simulated GPU has"),
        ([*BUG, "empty:float32[99999999999]"], "takes 399,999,999,996 bytes, but the simulated GPU has"),
        ([*BUG, "float32[99999999999999999999]"], "takes 399,999,999,999,999,999,996 bytes"),
        ([*BUG, "missing.npy", "float32[2]"], "missing.npy: No such file or directory"),
        ([*BUG, "--seed=-1", "1", "2"], "seed is -1"),
        ([*BUG, "--max-steps=-1", "1", "2"], "max_steps is -1"),
        ([BUG[0], "--entry", ""], "no kernel "),
        (["nothing.ptx"], "nothing.ptx: No such file or directory"),
        ([*BUG, "--set", "filter", "1", "2"], "--set filter: wanted NAME=VALUE"),
        (["nothing.cu"], "nothing.cu: No such file or directory"),
        (["kernel.py"], "kernel.py: wanted a .cu or .ptx file; a Python kernel is launched by sim.simulate"),
    ],
)
def test_what_is_wrong_is_said_and_gives_2(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


RIGHT = saved(np.ones(128, np.float32))
FILES_OF_NO_ARRAY = {
    "empty": b"",
    "junk": b"junk" * 10,
    "object": saved(np.array([{}, 1], object)),
    "text": saved(np.array(["a"])),
    "zip": b"PK\x03\x04junk",
    "pickle": pickle.dumps([1]),
    "too large": RIGHT.replace(b"(128,)", b"(9999999999999,)")[: len(RIGHT)],
    "header": RIGHT.replace(b"{", b"("),
    **{f"cut at {length}": RIGHT[:length] for length in (3, 7, 9, 11, 60, 127, 128, 200)},
}


@pytest.mark.parametrize("name", FILES_OF_NO_ARRAY)
def test_a_file_that_holds_no_array_is_bad_input(name, tmp_path, capsys):
    (tmp_path / "x.npy").write_bytes(FILES_OF_NO_ARRAY[name])
    assert main([*BUG, str(tmp_path / "x.npy"), "float32[2]=0"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("python -m sim: error: ") and not said.out


def test_several_arrays_are_bad_input(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", a=1)
    file = (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    assert main([*BUG, str(file), "float32[2]=0"]) == 2
    assert (
        "contains several arrays (NpzFile); wanted one array, written by np.save" in capsys.readouterr().err
    )


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"hello world\n", None])
@pytest.mark.parametrize("name", ["x.ptx", "x.cu"])
def test_a_file_without_a_kernel_is_bad_input(content, name, tmp_path, capsys):
    if name == "x.cu" and content in (b"", b"hello world\n"):
        pytest.importorskip("cuda.bindings.nvrtc")
    file = tmp_path / name
    file.write_bytes(content) if content is not None else file.mkdir()
    assert main([str(file)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("python -m sim: error: ") and not said.out


def test_a_trap_is_an_error_of_the_kernel(tmp_path, capsys):
    (tmp_path / "x.ptx").write_text(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry stop()\n{\n    trap;\n}\n"
    )
    assert main([str(tmp_path / "x.ptx")]) == 1
    assert "raised Trapped: the kernel stops itself here (trap)" in capsys.readouterr().out


def test_a_failure_of_the_simulator_is_not_the_kernels(monkeypatch, capsys):
    monkeypatch.setattr("sim.__main__.load_ptx", lambda text, path: 1 / 0)
    assert main(BUG) == 3
    assert "ZeroDivisionError" in (said := capsys.readouterr().err)
    assert said.endswith("the simulator failed; the kernel was not checked\n")


def test_the_exit_statuses_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "1 if it has errors, 2 if the input is unusable" in said


def test_variables_of_the_module_are_set(capsys):
    """Set a variable of the module: the kernel cannot run without the filter, which is in constant memory."""
    pytest.importorskip("cuda.bindings.nvrtc")
    path = str(FILES.with_name("programs") / "variables.cu")
    command = [path, "--entry", "convolve", "--block", "8", "float32[8]", "float32[8]=0", "8"]
    assert main(command) == 2 and "has not been set" in capsys.readouterr().err
    assert main([*command, "--set", "filter=float32[5]=1", "--set", "calls=7"]) == 0
    assert main([*command, "--set", "filtre=float32[5]=1"]) == 2 and "filtre" in capsys.readouterr().err


def test_a_process_ends_with_its_status(tmp_path):
    """Print findings to a terminal that only supports ASCII."""
    command = [sys.executable, "-m", "sim", *BUG]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments, status in ((["float32[128]", "float32[2]=0"], 1), (["junk.npy", "1"], 2)):
        (tmp_path / "junk.npy").write_bytes(b"junk")
        ended = subprocess.run([*command, *arguments], cwd=tmp_path, env=environment, capture_output=True)
        assert ended.returncode == status and b"Traceback" not in ended.stderr, ended.stderr


def test_the_example_of_the_readme(tmp_path, monkeypatch):
    """Run the README's example and compare its output with the message that the README shows."""
    pytest.importorskip("cuda.bindings.nvrtc")
    found = re.search(r"```cuda\n(.*?)```\n```python\n(.*?)```\n```\n(.*?)```", README, re.DOTALL)
    source, lines, message = found.groups()
    (tmp_path / "reverse.cu").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert len(lines.strip().splitlines()) == 6
    from sim import KernelBug

    with pytest.raises(KernelBug) as caught:
        exec(lines, {})
    assert f"KernelBug: {caught.value}\n" == message


@pytest.mark.parametrize(
    "arguments", [["explain"], ["explain", "race-global"], [*BUG, "float32[128]", "float32[2]=0"]]
)
def test_a_reader_that_ends_early_is_no_error(arguments):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sim", *arguments]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")
