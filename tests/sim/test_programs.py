"""Tests of `python -m sim run` on whole CUDA programs. The programs are in tests/sim/programs."""

import ctypes
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import forked_runs
from sim.errors import LaunchError
from sim.events import ATOMIC, LOAD
from sim.observers import DEFAULT
from sim.ptx.module import load_ptx
from sim.runtime import build as building
from sim.runtime import fatbin, process, stubs
from sim.runtime.build import build, find_nvcc
from sim.runtime.call_sites import CallSite
from sim.runtime.device import Device, Options
from sim.runtime.findings import HOST_KINDS, Log
from sim.runtime.footprints import Footprint, first_common, merged, unordered
from sim.runtime.handlers_copies import report_unwritten
from sim.runtime.handlers_graphs import call_host
from sim.runtime.launches import LaunchAttributes, PreparedLaunch
from sim.runtime.process import HANDLERS, can_step
from sim.runtime.properties import Properties
from sim.runtime.signatures import SIGNATURES
from sim.runtime.streams import Streams
from sim.runtime.unchecked import ignores_result

PROGRAMS = Path(__file__).parent / "programs"


def have_nvcc():
    try:
        return bool(find_nvcc())
    except LaunchError:
        return False


needs_steps = pytest.mark.skipif(not can_step(), reason="only x86-64 raises a signal after an instruction")
needs_nvcc = pytest.mark.skipif(not have_nvcc(), reason="nvcc or gcc is not installed")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return a function that builds a program once and returns its library."""
    folder, made = tmp_path_factory.mktemp("programs"), {}

    def library(name, *options):
        if name not in made:
            made[name] = build(PROGRAMS / f"{name}.cu", folder / f"{name}.so", options)
        return made[name]

    return library


def parts_of_command(program, arguments, options):
    return ["run", *map(str, options), str(program), "--", *map(str, arguments)]


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return a function that runs `python -m sim run` and returns (exit status, stdout, stderr)."""
    server = forked_runs.Server(tmp_path_factory.mktemp("runs"))
    yield lambda program, *arguments, options=(): server.run(parts_of_command(program, arguments, options))
    server.close()


def run_as_processes(program, *arguments, options=()):
    """Run `python -m sim run` as a user does. Return (exit status, stdout, stderr)."""
    return process_of(*parts_of_command(program, arguments, options))


def process_of(*words):
    """Run `python -m sim` with these arguments. Return (exit status, stdout, stderr)."""
    command = [sys.executable, "-m", "sim", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


# --- programs without errors --------------------------------------------------------------------------------


@needs_nvcc
@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_clean_program_prints_what_a_gpu_prints(run, built, engine):
    status, out, err = run(built("clean"), options=["--engine", engine])
    # 2i + 0 for i = 1 and 999; 4 blocks; 5 + sum of i + 2i for i < 8 = 89
    assert out.splitlines() == ["no error", "2 1998 4", "89 89", "512 14 0", "1 32 32 65535 8"], err
    assert status == 0
    assert "2 launches, 2 clean; no findings" in err
    assert "times of CUDA events are those of the simulator" in err


@needs_nvcc
def test_a_cu_file_is_built_and_run():
    status, out, err = run_as_processes(PROGRAMS / "kernel_faults.cu", 5, options=["--engine", "fibers"])
    assert (status, out) == (0, "cudaSuccess\n128\n"), err


@needs_nvcc
def test_each_seed_begins_with_the_same_memory(run, built):
    status, out, err = run(built("kernel_faults"), 5, options=["--engine", "fibers", "--seeds", "0,1,2"])
    assert (status, out) == (0, "cudaSuccess\n128\n"), err
    assert "6 launches, 6 clean" in err


@needs_nvcc
def test_the_option_g_shows_faults_that_the_optimiser_removes(run, built):
    status, _, err = run(built("removed_faults", "-G"), options=["--engine", "native"])
    assert status == 1
    found = re.findall(r"^([\w-]+): .*\n.*removed_faults.cu line (\d+)", err, re.M)
    assert found == [("out-of-bounds", "5"), ("uninitialized-read", "11")], err


# --- faults of the host -------------------------------------------------------------------------------------

OF_P = r"the device memory allocated at host_faults.cu:12 \(16 bytes\)"
HOST_FAULTS = {
    0: (rf"copy-out-of-bounds: cudaMemcpy \(DeviceToHost\) accesses 32 bytes at byte 0 of its source, {OF_P}: 16"
        r" bytes too many\n  at host_faults.cu:14"),
    1: rf"copy-direction: the source of cudaMemcpy \(HostToDevice\) is {OF_P}, and the destination is on the host\n",
    2: r"invalid-pointer: the destination of cudaMemset is 0x\w+, which is not device memory\n  at host_faults.cu:16",
    3: rf"double-free: cudaFree frees {OF_P} a second time; it was freed at host_faults.cu:17\n  at host_faults.cu:17",
    4: rf"invalid-pointer: cudaFree is given a pointer into the middle of {OF_P}",
    5: rf"use-after-free: the source of cudaMemcpy \(DeviceToHost\) is {OF_P}, which was freed at host_faults.cu:19",
    6: r"refused-launch: block.x is 2,000; the device takes 1 to 1,024\n  at host_faults.cu:20",
    7: rf"host-access: the host accesses 0x\w+, in {OF_P}, which is device memory\n  at host_faults.cu:21",
    27: (r"use-after-free: the host accesses 0x\w+, in the managed memory allocated at host_faults.cu:46 \(16 bytes\),"
         r" which was freed at host_faults.cu:46\n  at host_faults.cu:46\n  Likely fix: free it after its last use"),
    8: rf"(?s)use-after-free: .*It is in {OF_P}, freed at host_faults.cu:22.*Launched from host_faults.cu:22: fill",
    12: r"refused-launch: fill asks for 100,000 bytes of dynamic shared memory; without cudaFuncSetAttribute",
    13: rf"invalid-pointer: cudaFreeHost is given a pointer to {OF_P}",
    18: rf"double-free: cudaFree frees {OF_P} a second time; it was freed at host_faults.cu:62\n  at host_faults.cu:63",
    14: r"invalid-pointer: the source of cudaMemcpy \(DeviceToDevice\) is a null pointer\n  at host_faults.cu:28",
    22: rf"copy-direction: the destination of cudaMemcpy \(DeviceToHost\) is {OF_P}, and the source is on the host\n",
    23: rf"copy-overlap: the source and the destination of cudaMemcpyAsync .* overlap, from byte 4 of {OF_P}",
    26: rf"copy-out-of-bounds: cudaMemcpy2D \(DeviceToHost\) accesses rows up to byte 24 of its source, {OF_P}: 8 bytes",
    24: rf"copy-overlap: the source and the destination of cudaMemcpy2D .* overlap, from byte 4 of {OF_P}",
}  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize("which", HOST_FAULTS)
def test_faults_of_the_host_are_found(run, built, which):
    status, _, err = run(built("host_faults"), which, options=["--engine", "fibers"])
    assert re.search(HOST_FAULTS[which], err), err
    assert status == 1
    assert "Traceback" not in err


# operations of early_accesses.cu: (call, whether it writes the memory that the host then accesses)
EARLY_ACCESSES = [
    ("cudaMemcpyAsync (DeviceToHost)", True),
    ("cudaMemcpyAsync (Default)", True),
    ("cudaMemcpyFromSymbolAsync", True),
    ("cudaMemcpyToSymbolAsync", False),
    ("cudaMemsetAsync", True),
    ("cudaMemset2DAsync", True),
    ("cudaGraphAddMemcpyNode1D (HostToDevice)", False),
    ("cudaGraphAddMemcpyNode (DeviceToHost)", True),
    ("cudaGraphAddMemsetNode", True),
]


@needs_nvcc
@pytest.mark.parametrize("which", range(len(EARLY_ACCESSES)))
def test_the_host_must_wait_for_each_asynchronous_operation(run, built, which):
    name, writes = EARLY_ACCESSES[which]
    program = built("early_accesses")
    status, _, err = run(program, which, 0, options=["--engine", "fibers"])
    assert f"unsynchronized-access: the host {'reads' if writes else 'writes'} 0x" in err, err
    assert f": {name} {'writes' if writes else 'reads'} the " in err and status == 1, err
    status, _, err = run(program, which, 1, options=["--engine", "fibers"])
    assert status == 0 and "no findings" in err, err


MANAGED = r"the managed memory allocated at host_faults.cu:47 \(1,000 bytes\)"
PINNED = r"the pinned host memory allocated at host_faults.cu:"
# (case, index of the accessed int) -> (words of the finding, line)
HOST_ACCESSES = {
    (30, 250): (rf"the host has written outside of {MANAGED}, up to 4 bytes after its end", 48),
    (31, -2): (rf"the host has written outside of {PINNED}49 .*, up to 8 bytes before its beginning", 49),
    (31, 255): (rf"the host has written outside of {PINNED}49 .*, up to 24 bytes after its end", 49),
    (31, 262144): (rf"the host writes 0x\w+, 1,047,576 bytes after the end of {PINNED}49", 49),
    (32, 1024): (rf"the host reads 0x\w+, after the end of {PINNED}50", 50),
    (32, -1): (rf"the host reads 0x\w+, 4 bytes before the beginning of {PINNED}50", 50),
}


@needs_nvcc
@pytest.mark.parametrize(("which", "index"), HOST_ACCESSES)
def test_the_host_leaves_an_allocation(run, built, which, index):
    words, line = HOST_ACCESSES[which, index]
    status, _, err = run(built("host_faults"), which, index, options=["--engine", "fibers"])
    assert re.search(rf"host-out-of-bounds: {words}.*\n  at host_faults.cu:{line}\n", err), err
    assert status == 1 and "1 host-out-of-bounds" in err


@needs_nvcc
def test_the_host_accesses_the_first_and_last_byte(run, built):
    status, _, err = run(built("host_faults"), 33, options=["--engine", "fibers"])
    assert status == 0 and "no findings" in err, err


@needs_nvcc
def test_copies_that_share_no_bytes_do_not_overlap(run, built):
    """Copy memory to itself, to the other half of an array, and between interleaved rows."""
    status, _, err = run(built("host_faults"), 25, options=["--engine", "fibers"])
    assert status == 0 and "no findings" in err, err


@needs_nvcc
@pytest.mark.parametrize("which", [1, 22])
def test_a_copy_in_the_opposite_direction_is_one_fault(run, built, which):
    _, _, err = run(built("host_faults"), which, options=["--engine", "fibers"])
    assert "invalid-pointer" not in err and "1 copy-direction" in err, err


@needs_nvcc
def test_a_program_sees_the_error_of_its_call(run, built):
    _, out, err = run(built("host_faults"), 6, "ask", options=["--engine", "fibers"])
    assert out == "cudaErrorInvalidConfiguration\n"
    assert "unchecked-error" not in err


@needs_nvcc
def test_an_error_that_nobody_asks_for_is_reported(run, built):
    _, _, err = run(built("host_faults"), 6, options=["--engine", "fibers"])
    assert "unchecked-error (warning): this launch failed, but the program never checked for an error" in err


@needs_nvcc
def test_an_ignored_error_of_any_call_is_reported(run, built):
    _, _, err = run(built("host_faults"), 19, options=["--engine", "fibers"])
    for line, verdict in (
        (33, "cudaMalloc failed with cudaErrorMemoryAllocation: out of memory"),
        (34, "cudaSetDevice failed with cudaErrorInvalidDevice: invalid device ordinal"),
    ):
        text = f"unchecked-error (warning): {verdict}, but the program never checked the error\n"
        assert f"{text}  at host_faults.cu:{line}\n  Likely fix: check the result of each call." in err
    assert "unchecked-error" not in run(built("host_faults"), 19, "ask", options=["--engine", "fibers"])[2]


@needs_nvcc
def test_a_checked_error_is_not_reported(run, built):
    _, out, err = run(built("host_faults"), 20, options=["--engine", "fibers"])
    assert out.splitlines() == [
        "cudaErrorMemoryAllocation", "cudaErrorInvalidDevice", "cudaErrorInvalidConfiguration",
    ], err  # fmt: skip
    assert "fill is launched without arguments" in err
    assert "unchecked-error" not in err


@needs_nvcc
def test_an_ignored_error_is_reported_before_the_program_crashes(run, built):
    status, _, err = run(built("host_faults"), 21, options=["--engine", "fibers"])
    assert "unchecked-error (warning): cudaMalloc failed" in err
    assert (status, "the program was ended by SIGSEGV" in err) == (1, True)


@pytest.mark.parametrize(
    "code, ignored",
    [
        ("cudaFree(p);", True),
        ("  if (a(b)) cudaFree(p);", True),
        ("for (int i = 0; i < n; i++) cudaFree(p[i]);", True),
        ("else cudaFree(p);", True),
        ("case 3: cudaFree(p), f();", True),
        ("f(), ::cudaFree(p);", True),
        ("cudaFree<int>(p);", True),
        ("x = 3; /* = */ cudaFree(\n  p);", True),
        ("#define N 3\n{ cudaFree(p); }", True),
        ("CHECK(cudaFree(p));", False),
        ("e = cudaFree(p);", False),
        ("return cudaFree(p);", False),
        ("return f(), cudaFree(p);", False),
        ("(void)cudaFree(p);", False),
        ("if (cudaFree(p)) return;", False),
        ("cudaFree(p) == cudaSuccess || die();", False),
        ("a ? cudaFree(p) : cudaFree(q);", False),
        ("// cudaFree(p);", False),
        ("myCudaFree(p);", False),
    ],
)
def test_the_source_shows_whether_a_result_is_ignored(tmp_path, code, ignored):
    source = tmp_path / "program.cu"
    source.write_text(f"int main() {{\n{code}\n}}\n")
    line = 2 + code.partition("cudaFree")[0].count("\n")
    assert ignores_result(CallSite(str(source), line), "cudaFree") is ignored
    assert not ignores_result(CallSite(str(tmp_path / "missing.cu"), line), "cudaFree")


@needs_nvcc
def test_a_copy_of_unwritten_memory_is_a_warning(run, built):
    status, _, err = run(built("host_faults"), 16, options=["--engine", "fibers"])
    assert re.search(
        rf"uninitialized-copy \(warning\): cudaMemcpy \(DeviceToHost\) copies 8 of 16 bytes that nothing has"
        rf" written, the first at byte 8 of {OF_P}\n  at host_faults.cu:30",
        err,
    ), err
    assert status == 0


@needs_nvcc
@pytest.mark.parametrize(("which", "bytes_"), [(28, "4 of 12"), (29, "5 of 9")])
def test_a_small_gap_is_reported_once(run, built, which, bytes_):
    _, _, err = run(built("host_faults"), which, options=["--engine", "fibers"])
    assert f"copies {bytes_} bytes that nothing has written" in err and "1 finding (1 uninit" in err, err


def test_padding_may_be_unwritten():
    for first, count, size, reported in (
        (4, 4, 16, 0),
        (4, 8, 16, 1),
        (0, 16, 16, 1),
        (0, 0, 16, 0),
        (0, 4, 16, 1),  # no structure begins with padding
        (8, 4, 16, 1),  # a member whose alignment is 8 cannot follow
        (13, 3, 16, 0),
        (14, 1, 15, 0),  # it may have been written, because the value of a byte is often the fill value
        (8, 4, 12, 1),
        (1020, 4, 1024, 1),
        (1016, 4, 1020, 1),
        (508, 4, 512, 0),
    ):
        mask, seen = np.zeros(size, bool), []
        mask[first : first + count] = True
        device = SimpleNamespace(report=lambda *finding: seen.append(finding))  # noqa: B023
        report_unwritten(device, SimpleNamespace(unwritten=mask, base=0), 0, size, "cudaMemcpy")
        assert len(seen) == reported, (first, count, size)


def test_padding_of_several_structures_may_be_unwritten():
    mask, seen = np.tile(np.repeat([False, True], [12, 4]), 100), []
    device = SimpleNamespace(report=lambda *finding: seen.append(finding))
    report_unwritten(device, SimpleNamespace(unwritten=mask, base=0), 0, mask.size, "cudaMemcpy")
    assert not seen


def test_a_check_for_unwritten_bytes_takes_little_memory():
    size, seen = 8_000_000, []
    mask = np.ones(size, bool)
    mask[5 : size // 2] = False
    device = SimpleNamespace(report=lambda *finding: seen.append(finding[2]))
    tracemalloc.start()
    try:
        report_unwritten(device, SimpleNamespace(unwritten=mask, base=0), 0, size, "cudaMemcpy")
        assert tracemalloc.get_traced_memory()[1] < 2 * size
    finally:
        tracemalloc.stop()
    assert "4,000,005 of 8,000,000 bytes that nothing has written, the first at byte 0" in seen[0]


@needs_nvcc
def test_a_leak_is_a_warning(run, built):
    status, _, err = run(built("host_faults"), 99, "ask", "leave", options=["--engine", "fibers"])
    assert "leak (warning): an allocation of 16 bytes in total is never freed\n  at host_faults.cu:12" in err
    assert status == 0


@needs_nvcc
@pytest.mark.parametrize(
    "which, status, text",
    [
        (9, 1, "the program returned 3"),
        (10, 0, "no findings"),
        (17, 1, "the program returned 5"),
        (11, 2, "unsupported: cudaMallocArray: sim does not simulate this function"),
        (15, 1, "the program was ended by SIGABRT"),
    ],
)
def test_the_exit_status(run, built, which, status, text):
    found, _, err = run(built("host_faults"), which, options=["--engine", "fibers"])
    assert text in err
    assert found == status


def test_relocatable_device_code_is_refused_by_name():
    seen = []
    device = SimpleNamespace(report=lambda *finding: seen.append(finding), fail=lambda code: code)
    name = "__cudaRegisterLinkedBinary_1f_main_cu"
    assert process.Program.execute(SimpleNamespace(device=device, sites=None), name, None, []) == 801
    assert seen[0][0] == "unsupported" and "nvcc -rdc=true" in seen[0][2] and device.could_not_run


# --- streams, graphs, the driver API and cuBLAS --------------------------------------------------------------

EARLY = {
    1: (r"writes 0x\w+ .*streams.cu:28: cudaMemcpyAsync \(HostToDevice\) reads the pinned host memory", 29),
    2: (r"reads 0x\w+ .*streams.cu:31: cudaMemcpyAsync \(DeviceToHost\) writes the pinned host memory", 32),
    3: (r"reads 0x\w+ .*streams.cu:31: cudaMemcpyAsync \(DeviceToHost\) writes the pinned host memory", 33),
    4: (r"reads 0x\w+ .*streams.cu:39: increment writes the managed memory", 40),
    5: (r"reads 0x\w+ .*streams.cu:57: cudaMemcpyAsync \(DeviceToHost\) writes the pinned host memory", 61),
    15: (r"reads 0x\w+ .*streams.cu:106: increment writes the pinned host memory", 110),
}  # fmt: skip


@needs_nvcc
def test_streams_events_and_graphs(run, built):
    status, out, err = run(built("streams"))
    assert (status, out) == (0, "1\n1\n7 3\n10 3\n"), err
    assert "9 launches, 9 clean; no findings" in err


@needs_nvcc
@pytest.mark.parametrize("which", EARLY)
def test_accesses_that_do_not_wait_are_found(run, built, which):
    status, _, err = run(built("streams"), which, options=["--first-finding"])
    text, line = EARLY[which]
    assert re.search(rf"unsynchronized-access: the host {text}.*\n  at streams.cu:{line}\n", err), err
    assert status == 1


HOST_WRITES = {
    1: (r"writes 0x\w+ .*:39: twice reads the managed memory allocated at host_writes.cu:27", 40),
    2: (r"reads 0x\w+ .*:39: twice writes the managed memory allocated at host_writes.cu:28", 41),
    3: (r"writes(, here or later before a call,)? 0x\w+ .*:39: twice reads the managed memory", 45 if can_step() else 43),
    4: (r"writes 0x\w+ .*:49: twice reads the pinned host memory allocated at host_writes.cu:31", 50),
    5: (r"writes 0x\w+ .*:52: twice reads the pinned host memory allocated at host_writes.cu:35", 53),
    6: (r"reads 0x\w+ .*:56: set_total writes the variable total", 57),
    7: (r"writes(, here or later before a call,)? 0x\w+ .*:61: advance reads the managed memory", 63 if can_step() else 62),
    8: (r"writes 0x\w+ .*:65: advance reads the managed memory allocated at host_writes.cu:30", 67),
    14: (r"writes 0x\w+ .*:81: cudaMemcpyAsync \(HostToDevice\) reads the pinned host memory allocated at \S+:35", 82),
}  # fmt: skip


@needs_nvcc
@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("which", [0, *HOST_WRITES])
def test_accesses_to_memory_that_a_kernel_may_still_use(run, built, which, engine):
    status, out, err = run(built("host_writes"), which, options=["--engine", engine])
    if which == 0:
        assert (status, out) == (0, "3\n") and "no findings" in err, err
        return
    text, line = HOST_WRITES[which]
    assert re.search(rf"unsynchronized-access: the host {text}.*\n  at host_writes.cu:{line}\n", err), err
    assert status == 1 and "1 finding (1 unsynchronized-access)" in err


SYSTEM_CALLS = {
    9: (r"writes 0x\w+ .*:71: advance reads the managed memory", 72),
    10: (r"reads 0x\w+ .*:71: advance writes the managed memory", 73),
}


@needs_nvcc
@pytest.mark.parametrize("which", SYSTEM_CALLS)
def test_buffers_of_system_calls_count_as_accesses_of_the_host(run, built, which):
    _, out, err = run(built("host_writes"), which, options=["--engine", "fibers"])
    text, line = SYSTEM_CALLS[which]
    assert re.search(rf"unsynchronized-access: the host {text}.*\n  at host_writes.cu:{line}\n", err), err
    assert out == "3\n" and "1 finding (1 unsynchronized-access)" in err


@needs_nvcc
@needs_steps
@pytest.mark.parametrize("which, line", [(11, 75), (13, 74)])
def test_an_access_next_to_memory_of_a_kernel_does_not_end_the_check(run, built, which, line):
    _, _, err = run(built("host_writes"), which, options=["--engine", "fibers"])
    text = "unsynchronized-access: the host reads .*:71: advance writes the managed memory"
    assert re.search(rf"{text}.*\n  at host_writes.cu:{line}\n", err), err


@needs_nvcc
@needs_steps
def test_a_note_says_that_reads_were_not_checked(run, built):
    _, _, err = run(built("host_writes"), 12, options=["--engine", "fibers"])
    assert "next to the memory of pending work more than 20,000 times" in err, err


# line of the operation, line of an earlier one, what each of them does
STREAM_RACES = {
    11: [(91, 89, "writes byte 0 of", "writes")],
    12: [(95, 92, "writes byte 2,048 of", "reads")],
    13: [(97, 91, "writes byte 0 of", "writes")],
    14: [(105, 102, "writes", "frees")],
    16: [(102, 98, "allocates", "writes")],  # further findings at this call are not printed
}


@needs_nvcc
@pytest.mark.parametrize("which", STREAM_RACES)
def test_operations_of_two_streams_without_an_order_are_found(run, built, which):
    status, _, err = run(built("streams"), which)
    found = re.findall(
        r"stream-race: this operation is not ordered after the one at"
        r" streams.cu:(\d+), in another stream: the other operation (\w+(?: byte [\d,]+ of)?) .*,"
        r" and this one (\w+) it\n  at streams.cu:(\d+)",
        err,
    )
    assert [(int(b), int(a), what, verb) for a, what, verb, b in found] == STREAM_RACES[which], err
    assert status == 1


@needs_nvcc
@pytest.mark.parametrize("name", ["global", "constant"])
def test_a_variable_is_read_in_another_stream(run, built, name):
    program = built("symbol_race")
    status, _, err = run(program, int(name == "constant"), 0)
    assert re.search(f"stream-race: .* writes byte 0 of the variable {name}, and this one reads it", err), err
    assert status == 1
    status, _, err = run(program, int(name == "constant"), 1)
    assert status == 0 and "no findings" in err, err


@needs_nvcc
def test_ordered_operations_of_two_streams_are_right(run, built):
    status, out, err = run(built("streams"), 10)
    assert (status, out) == (0, "2\n") and "no findings" in err


@needs_nvcc
@pytest.mark.parametrize(
    "which, wanted",
    [
        (20, "1 1"),
        (21, "cudaErrorNotReady cudaSuccess"),
        (22, "cudaErrorStreamCaptureIsolation cudaErrorStreamCaptureInvalidated 1"),
    ],
)
def test_calls_wait_or_return_an_error_as_on_a_gpu(run, built, which, wanted):
    status, out, err = run(built("streams"), which)
    assert (status, out) == (0, f"{wanted}\n") and "no findings" in err, err


GRAPH_RACES = {
    # two kernels; a memset, and the copy and the kernel after it; a copy, and a memset and a kernel before it
    6: [(53, 50, "writes byte 0 of the device memory allocated at streams.cu:17", "writes")],
    8: [
        (71, 68, "writes byte 0 of the device memory allocated at streams.cu:17", "reads"),
        (72, 68, "writes byte 0 of the device memory allocated at streams.cu:17", "writes"),
    ],
    9: [
        (71, 68, "writes byte 0 of the device memory allocated at streams.cu:17", "reads"),
        (72, 71, "reads byte 0 of the device memory allocated at streams.cu:17", "writes"),
    ],
}


@needs_nvcc
@pytest.mark.parametrize("which", GRAPH_RACES)
def test_nodes_of_a_graph_without_a_dependency_are_found(run, built, which):
    status, _, err = run(built("streams"), which)
    races = re.findall(
        r"graph-race: no dependency orders this node after the node added at streams.cu:(\d+): that node (.*)"
        r" \(4,000 bytes\), and this one (\w+) it\n  at streams.cu:(\d+)\n",
        err,
    )
    assert [
        (int(b), int(a), what, verb) for a, what, verb, b in sorted(races, key=lambda race: race[3])
    ] == GRAPH_RACES[which], err
    assert f"({len(races)} graph-race)" in err
    assert status == 1


@needs_nvcc
def test_a_capture_must_be_joined(run, built):
    status, _, err = run(built("streams"), 7)
    assert (status, "the program returned 7" in err) == (1, True), err


def test_ranges_of_footprints():
    rows = lambda *pairs: np.array(pairs, np.int64).reshape(-1, 2)  # noqa: E731
    assert merged(rows((8, 12), (0, 4), (4, 6), (9, 10), (20, 24))).tolist() == [[0, 6], [8, 12], [20, 24]]
    assert merged(rows()).tolist() == []
    assert first_common(rows((0, 4), (8, 12)), rows((4, 8), (11, 20))) == 11
    assert first_common(rows((4, 8)), rows((0, 4), (8, 12))) is None
    first, second = Footprint(), Footprint()
    first.add(ATOMIC, 0, 8), second.add(ATOMIC, 4, 8)
    assert first.conflict(second) is None
    second.add(LOAD, 6, 1)
    assert first.conflict(second) == (6, ATOMIC, LOAD)
    assert unordered({1: [], 2: [1], 3: [1], 4: [2]}) == [(2, 3), (3, 4)]


def test_a_host_function_follows_the_operations_before_it():
    device, called = SimpleNamespace(streams=Streams(), log=SimpleNamespace(notes={})), []
    for _ in range(3):
        device.streams.issue(5)
    function = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(called.append)
    call_host(device, ctypes.cast(function, ctypes.c_void_p).value, 9)
    assert called == [9] and device.streams.finished == {5: 2}


def test_the_order_of_streams():
    streams = Streams()
    for stream, nonblocking in ((5, False), (6, False), (7, True)):
        streams.create(stream, nonblocking)
    done = lambda: dict(streams.finished)  # noqa: E731
    for stream in (5, 7):
        streams.issue(stream)
    streams.issue(0)  # waits for 5, but not for 7
    streams.synchronize(6)
    assert done() == {}
    streams.issue(6)  # waits for 0, and so for 5
    streams.synchronize(6)
    assert done() == {0: 1, 5: 1, 6: 1}
    streams.record(50, 7)
    streams.issue(7)
    streams.synchronize_event(50)
    assert done()[7] == 1
    streams.synchronize_all()
    assert done()[7] == 2


def test_a_destroyed_stream_overlaps_as_long_as_it_has_work():
    streams = Streams()
    streams.create(5, False)
    streams.issue(5)
    streams.live.remove(5)
    assert not streams.may_overlap()
    streams.create(6, False)
    assert streams.may_overlap()
    streams.synchronize(5)
    assert not streams.may_overlap()


@needs_nvcc
def test_the_driver_api_and_products_of_cublas(run, built):
    status, out, err = run(built("driver"))
    # twice 1 to 6; the size of a variable; CUDA_ERROR_NOT_FOUND; A B by hand
    assert (status, out) == (0, "2 12 4 500\n88 112 196 256\n"), err
    assert "note: functions of cuBLAS were computed with numpy, not simulated" in err


@needs_nvcc
def test_faults_through_the_driver_api_and_cublas_are_found(run, built):
    status, _, err = run(built("driver"), "wrong")
    assert "out-of-bounds: argument0[6] is outside argument0, whose shape is 6" in err
    assert "copy-out-of-bounds: cublasSgemm accesses 28 bytes at byte 0 of its matrix B" in err
    assert status == 1


# --- tensor maps --------------------------------------------------------------------------------------------

MAP_FAULTS = {
    2: r"async-copy: tile\[\d+\] is read before the tensor copy that writes it is complete",
    3: r"invalid-operand: cuTensorMapEncodeTiled refuses .*: a row of the box has 12 bytes; wanted a multiple of 16",
    4: r"invalid-operand: the tensor map describes memory at 0x\w+, which belongs to no array of the launch",
}


@needs_nvcc
def test_tensor_maps_of_the_driver(run, built):
    """Check that a program for Hopper runs on a device of compute capability 9.0."""
    for variant in "01":
        status, out, err = run(built("tensor_maps", "-arch=sm_90"), variant)
        # CUDA_SUCCESS; 32 blocks on each of 132 multiprocessors; the sum of i + j over 40 rows for j = 0 and 63
        assert (status, out) == (0, "0 9 2112\n780 3300\n"), err


@needs_nvcc
@pytest.mark.parametrize("variant", MAP_FAULTS)
def test_faults_of_tensor_maps_are_found(run, built, variant):
    status, _, err = run(built("tensor_maps", "-arch=sm_90"), variant)
    assert re.search(MAP_FAULTS[variant], err) and status == 1, err


def test_a_program_is_compiled_to_ptx_of_one_architecture():
    def flags(*options):
        return building.only_ptx(list(options))

    assert flags("-w") == ["-gencode=arch=compute_80,code=compute_80", "-w"]
    assert flags("-arch=sm_90a", "-O3") == ["-gencode=arch=compute_90a,code=compute_90a", "-O3"]
    assert flags("-gencode", "arch=compute_90,code=sm_90", "-arch=sm_90a")[1:] == []
    assert flags("-gencode", "arch=compute_90,code=sm_90") == ["-gencode=arch=compute_90,code=compute_90"]


# --- faults of kernels --------------------------------------------------------------------------------------

KERNEL_FAULTS = {
    0: ("race-global: x[", "kernel_faults.cu line 10  if (i + 1 < n) x[i] = x[i + 1];"),
    1: ("out-of-bounds: x[64] is outside x, whose shape is 64", "kernel_faults.cu line 14"),
    2: ("uninitialized-read: x[0] is read, but no thread has written it", "kernel_faults.cu line 18"),
    3: ("kernel-abort: ", "assertion failed"),
    4: (
        "refused-launch: taps is constant memory that has not been set",
        "cudaMemcpyToSymbol(taps, source, 16)",
    ),
    7: (
        "out-of-bounds: byte 256 is written, outside the device memory allocated at kernel_faults.cu:43",
        "It must be below 256.\n  Likely fix: guard the access: the index must be below the number of elements.",
    ),
    6: ("uninitialized-read: x[32] is read, but no thread has written it", "31 more like it"),
}


@needs_nvcc
@pytest.mark.parametrize(
    ("which", "engine"),
    [
        pytest.param(which, engine, marks=[pytest.mark.nightly] * (engine == "threads" and which != 0))
        for which in KERNEL_FAULTS
        for engine in ("fibers", "threads", "native")
    ],
)
def test_faults_of_kernels_are_found(run, built, which, engine):
    status, out, err = run(built("kernel_faults"), which, options=["--engine", engine])
    assert all(text in err for text in KERNEL_FAULTS[which]), err
    assert status == (2 if which == 4 else 1)
    # the second launch repeats the finding; after a failed assertion, every call fails
    assert "not printed again: 1 repetition" in err or which == 3
    assert out.startswith("cudaErrorAssert" if which == 3 else "cudaSuccess")


COOPERATIVE = """
#include <cstdio>
#include <cooperative_groups.h>
__global__ void wait_for_all(int *x) { cooperative_groups::this_grid().sync(); *x = 1; }
int main() {
    int *x, blocks = 128;
    cudaMalloc(&x, sizeof(int));
    void *arguments[] = {&x};
    cudaError_t error;
    for (;; blocks /= 2) {
        error = cudaLaunchCooperativeKernel((void *)wait_for_all, blocks, 1024, arguments, 0, 0);
        if (error != cudaErrorCooperativeLaunchTooLarge) break;
    }
    printf("%d %s\\n", blocks, cudaGetErrorName(error));
    cudaFree(x);
}
"""


@needs_nvcc
def test_a_program_can_search_for_the_largest_cooperative_grid(tmp_path):
    (tmp_path / "cooperative.cu").write_text(COOPERATIVE)
    status, out, err = run_as_processes(tmp_path / "cooperative.cu", options=["--multiprocessors", "16"])
    assert (status, out) == (1, "32 cudaSuccess\n"), err
    assert "refused-launch: the kernel synchronises the whole grid, whose 128 blocks" in err


@needs_nvcc
@pytest.mark.parametrize("way", ("cooperative", "attribute", "graph", "driver"))
def test_a_cooperative_launch_can_wait_for_its_grid(run, built, way):
    status, out, err = run(built("cooperative"), way, options=["--engine", "fibers"])
    assert (status, out) == (0, "cudaSuccess 65280\n"), err
    assert "no findings" in err


@needs_nvcc
@pytest.mark.parametrize(
    "way, engine",
    (
        ("brackets", "native"),
        ("brackets", "fibers"),
        ("function", "fibers"),
        ("attribute of 0", "fibers"),
        ("graph of brackets", "fibers"),
        ("driver function", "fibers"),
    ),
)
def test_another_launch_cannot_wait_for_its_grid(run, built, way, engine):
    status, out, err = run(built("cooperative"), way, options=["--engine", engine])
    assert (status, out) == (1, "cudaErrorLaunchFailure 0\n"), err
    assert "the launch is not cooperative, so grid_group::sync() executes a trap" in err
    assert "cooperative.cu line 14  grid.sync();" in err
    assert "Likely fix: launch the kernel with cudaLaunchCooperativeKernel" in err


@needs_nvcc
def test_a_kernel_can_ask_whether_its_launch_is_cooperative(run, built):
    status, out, err = run(built("cooperative"), "checked")
    assert out == "cudaSuccess 0\n", err
    assert "kernel-abort" not in err


@needs_nvcc
def test_the_first_error_can_end_the_program(run, built):
    status, out, err = run(built("kernel_faults"), 0, options=["--engine", "fibers", "--first-finding"])
    assert (status, out) == (1, "")
    assert "1 launch, 0 clean; 1 finding (1 race-global)" in err


@needs_nvcc
def test_observers_can_be_chosen(run, built):
    status, _, err = run(built("kernel_faults"), 0, options=["--engine", "fibers", "--observers", "bounds"])
    assert (status, "no findings" in err) == (0, True)


@needs_nvcc
def test_a_report_is_written(run, built, tmp_path):
    run(built("kernel_faults"), 0, options=["--engine", "fibers", "--report", str(tmp_path / "pages")])
    pages = sorted((tmp_path / "pages").glob("*.html"))
    assert [page.name for page in pages] == ["launch_0001_race.html", "launch_0002_race.html"]
    assert "race-global" in pages[0].read_text(encoding="utf-8")


# --- unusable input -----------------------------------------------------------------------------------------


def test_a_missing_program_is_refused(run):
    status, _, err = run("nowhere.cu")
    assert (status, "nowhere.cu: no such file" in err) == (2, True)


@needs_nvcc
def test_a_compiler_error_is_shown(run, tmp_path):
    program = tmp_path / "wrong.cu"
    program.write_text("int main() { return undeclared; }\n")
    status, _, err = run(program)
    assert status == 2
    assert "nvcc does not compile" in err and "undeclared" in err


@needs_nvcc
def test_a_library_without_main_is_refused(run, tmp_path):
    library = tmp_path / "nothing.so"
    library.write_bytes(b"no library")
    status, _, err = run(library)
    assert (status, "not a program made by `python -m sim build`" in err) == (2, True)


def test_without_nvcc_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(building.platform, "system", lambda: "Linux")
    with pytest.raises(LaunchError, match=r"(?s)nvcc is not installed.*kernelwatch\[cuda\].*load_cuda"):
        find_nvcc()
    monkeypatch.setattr(building.platform, "system", lambda: "Darwin")
    with pytest.raises(LaunchError, match="needs Linux; this is Darwin"):
        find_nvcc()


def test_a_kernel_of_a_library_may_have_nothing_to_do():
    """Check the launch of a kernel of CUB for a size that needs no work, and the same kernel of a program."""
    device = Device(Options(observers=DEFAULT), Log())
    for name, kinds in {"_ZN3cub4initEPi": [], "_ZN4mine4initEPi": ["misuse"]}.items():
        text = (
            f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry {name}(.param .u64 p) {{ ret; }}"
        )
        function, one = SimpleNamespace(kernel=load_ptx(text)[name]), (1, 1, 1)
        prepared = PreparedLaunch(device, function, one, one, [], 0, LaunchAttributes())
        launch = device.configure(prepared, seed=0)
        assert [finding.kind for finding in launch(np.zeros(4, np.int32)).findings] == kinds


# --- tables -------------------------------------------------------------------------------------------------


def test_every_signature_has_a_handler_with_its_parameters():
    assert HANDLERS.keys() == SIGNATURES.keys()
    for name, handler in HANDLERS.items():
        count, code = len(SIGNATURES[name].partition(":")[0]), handler.__code__
        assert code.co_flags & 4 or code.co_argcount == count + 1, name


def test_the_layout_of_device_properties():
    # offsets in driver_types.h of CUDA 13.0, printed by a C program
    offsets = {"name": 0, "uuid": 256, "totalGlobalMem": 288, "major": 360, "multiProcessorCount": 384}
    offsets |= {"sharedMemPerBlockOptin": 672, "clusterLaunch": 748}
    assert {name: getattr(Properties, name).offset for name in offsets} == offsets


def test_containers_without_ptx_text_are_refused():
    header = (0xBA55ED50).to_bytes(4, "little") + bytes([1, 0, 16, 0])
    entry = bytes([2, 0, 1, 1]) + (16).to_bytes(4, "little") + (4).to_bytes(8, "little") + b"code"
    with pytest.raises(LaunchError, match="machine code; sim needs PTX text"):
        fatbin.ptx_of_container(header + len(entry).to_bytes(8, "little") + entry)
    with pytest.raises(LaunchError, match="unknown format"):
        fatbin.ptx_of_container(bytes(16))


def test_a_stub_passes_structures_by_address():
    assert "size_t arguments[] = {(size_t)a0, (size_t)&a1};" in stubs.stub(3, "cudaMalloc3D")
    assert stubs.stub(5, "cublasLtMatmul").startswith("\nint cublasLtMatmul(void)")


def test_arguments_are_converted_by_their_type():
    assert [process.convert(0xFFFFFFFF, letter) for letter in "iup"] == [-1, 0xFFFFFFFF, 0xFFFFFFFF]


def test_the_page_describes_every_kind_of_finding_about_the_host():
    page = (Path(__file__).parents[2] / "docs" / "cuda_programs.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(process.__file__).parent.glob("*.py"))
    for kind in HOST_KINDS:
        assert f"`{kind}`" in page, kind
        assert sources.count(f'"{kind}"') > 1, kind  # in HOST_KINDS, and where it is reported


LOW_ADDRESSES = """
from sim.runtime.call_sites import UNKNOWN
from sim.runtime.memory import HEAP_ROOM, DeviceMemory, map_at

first, size = 20 << 20, 1 << 20
map_at(first, size)  # like the heap of a Python that is loaded at low addresses
memory = DeviceMemory()
buffers = [memory.allocate(8 << 20, kind, UNKNOWN) for kind in ("device", "managed", "pinned host")]
print(all(buffer.base >= first + size + HEAP_ROOM for buffer in buffers))
print(memory.describe(first))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="whole programs run on Linux")
def test_simulated_memory_is_not_where_the_host_has_its_own():
    done = subprocess.run([sys.executable, "-c", LOW_ADDRESSES], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\nhost memory at 0x1400000\n", "")


@needs_nvcc
def test_arguments_need_no_separator(built):
    status, _, err = process_of("run", built("host_writes"), 5)
    assert status == 1 and "unsynchronized-access" in err


OUTSIDE_MAPPED = """
#include <cstdlib>
__global__ void increment(int *x, int i) { x[i]++; }
int main(int argc, char **argv) {
    int *x, n = 100;
    if (atoi(argv[1])) cudaMallocManaged(&x, n * sizeof *x);
    else cudaMallocHost(&x, n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = i;
    increment<<<1, 1>>>(x, atoi(argv[2]));
    cudaDeviceSynchronize();
    if (atoi(argv[1])) cudaFree(x);
    else cudaFreeHost(x);
    if (argc > 3) increment<<<1, 1>>>(x, 1), cudaDeviceSynchronize();
}
"""


@needs_nvcc
def test_an_access_outside_mapped_memory_is_out_of_bounds(run, tmp_path):
    (tmp_path / "mapped.cu").write_text(OUTSIDE_MAPPED)
    program = build(tmp_path / "mapped.cu", tmp_path / "mapped.so")
    for managed in (0, 1):
        for index in (-1, 100):
            _, _, told = run(program, managed, index)
            assert f"out-of-bounds: x[{index}] is outside x, whose shape is 100" in told
            assert "use-after-free" not in told
        _, _, told = run(program, managed, 1, "after")
        assert "use-after-free: " in told and "out-of-bounds" not in told
