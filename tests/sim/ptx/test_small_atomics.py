"""Tests of atomics on 8 and 16 bits, which libcu++ emulates with accesses to the word around the element."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from ptx.test_language import HEAD
from sim import load_ptx, simulate

ENGINES = pytest.mark.parametrize("engine", ["fibers", "threads", "native"])


@pytest.fixture
def launch(engine):
    _, kernels = module("small_atomics", Path(__file__).with_name("programs"))

    def run(name, *arguments, grid=1, block=1):
        report = simulate(kernels[name], engine=engine, on_finding="report")[grid, block](*arguments)
        return sorted({(finding.kind, finding.array) for finding in report.findings})

    return run


def data():
    return np.zeros(1, np.int32)


@ENGINES
@pytest.mark.parametrize("nbytes, at", [(1, 0), (4, 0), (4, 1), (4, 3), (6, 5)])
def test_a_flag_of_one_byte_orders_accesses(launch, engine, nbytes, at):
    flag, out = np.zeros(nbytes, np.uint8), data()
    assert launch("send", flag, data(), out, at, 1, grid=2) == []
    assert out[0] == 42 and flag.sum() == flag[at] == 1


@ENGINES
def test_a_relaxed_flag_orders_nothing(launch, engine):
    found = launch("send", np.zeros(2, np.uint8), data(), data(), 1, 0, grid=2)
    assert found == [("race-global", "data")]


@ENGINES
def test_flags_in_one_word_are_distinct(launch, engine):
    found = launch("send_by_other_flag", np.zeros(2, np.uint8), data(), data(), grid=2)
    assert found == [("race-global", "data")]


@ENGINES
def test_elements_beside_each_other(launch, engine):
    """Threads update elements of the same word with atomics, and bytes next to these elements with plain
    stores."""
    counters, beside, seen = np.zeros(3, np.int16), np.zeros(24, np.int8), np.zeros(12, np.int16)
    assert launch("count", counters, beside, seen, block=12) == []
    assert counters.tolist() == [4, 4, 4] and beside.tolist() == [-3, 7] * 12
    assert np.sort(seen.reshape(3, 4)).tolist() == [[0, 1, 2, 3]] * 3


@ENGINES
@pytest.mark.parametrize("at, expected", [(0, [("race-global", "bytes")]), (1, []), (2, [])])
def test_a_plain_store(launch, engine, at, expected):
    assert launch("beside_plain", np.zeros(3, np.int8), np.int32(at), block=2) == expected


@ENGINES
def test_shared_memory(launch, engine):
    out = np.zeros(8, np.uint8)
    assert launch("in_shared", out, block=8) == [] and out.tolist() == [8] * 8


@ENGINES
def test_an_element_outside_of_the_array(launch, engine):
    """Use an element whose word begins within the array."""
    found = launch("outside", np.zeros(3, np.uint8), np.int32(3))
    assert ("out-of-bounds", "bytes") in found


# --- accesses to a part of a word, without emulation --------------------------------------------------------

PART = """
.visible .entry part(.param .u64 flag, .param .u64 data, .param .u64 out)
{{ .reg .pred %p; .reg .b16 %h; .reg .b32 %r<5>; .reg .b64 %d<4>;
   ld.param.u64 %d1, [flag]; ld.param.u64 %d2, [data]; ld.param.u64 %d3, [out]; mov.u32 %r1, %ctaid.x;
   setp.ne.u32 %p, %r1, 0; @%p bra OTHER;
   st.global.u32 [%d2], 42; {release}
   ret;
OTHER: {acquire}
   setp.eq.u32 %p, %r2, 0; @%p bra OTHER;
   ld.global.u32 %r3, [%d2]; st.global.u32 [%d3], %r3;
   ret; }}
"""
LOAD = "ld.acquire.gpu.global.u8 %h, [%d1]; cvt.u32.u8 %r2, %h;"


@ENGINES
@pytest.mark.parametrize(
    "release, acquire, expected",
    [
        ("fence.acq_rel.gpu; atom.global.exch.b32 %r4, [%d1], 1;", LOAD, []),
        ("mov.u16 %h, 1; st.release.gpu.global.u8 [%d1], %h;", LOAD, []),
        (
            "mov.u16 %h, 1; st.release.gpu.global.u8 [%d1], %h;",
            "atom.acquire.gpu.global.or.b32 %r2, [%d1], 0;",
            [("race-global", "flag")],
        ),
    ],
)
def test_accesses_to_a_part(release, acquire, expected, engine):
    """Check that a load of a part of a word does not race with an atomic on the word, but a store does."""
    kernels = load_ptx(HEAD + PART.format(release=release, acquire=acquire))
    kernel = kernels["part"].named(["flag", "data", "out"])
    arguments = np.zeros(1, np.uint32), data(), data()
    report = simulate(kernel, engine=engine, on_finding="report")[2, 1](*arguments)
    assert sorted({(finding.kind, finding.array) for finding in report.findings}) == expected


# --- reads of the word in the loop of an emulated atomic ----------------------------------------------------

# Each thread adds 2 to one of the 4 bytes of a word. `read` reads the whole word.
BYTE_ADD = """
.visible .entry adds(.param .u64 bytes)
{{ .reg .pred %p; .reg .b32 %r<13>; .reg .b64 %d<6>;
   ld.param.u64 %d1, [bytes]; mov.u32 %r1, %tid.x; and.b32 %r1, %r1, {lanes}; cvt.u64.u32 %d2, %r1;
   add.s64 %d3, %d1, %d2; and.b64 %d4, %d3, -4; cvt.u32.u64 %r2, %d3; shl.b32 %r3, %r2, 3;
   and.b32 %r3, %r3, 24; mov.u32 %r4, 255; shl.b32 %r5, %r4, %r3; not.b32 %r6, %r5;
L: {read}
   and.b32 %r8, %r7, %r6; shr.u32 %r9, %r7, %r3; add.s32 %r9, %r9, 2; and.b32 %r9, %r9, 255;
   shl.b32 %r9, %r9, %r3; or.b32 %r10, %r8, %r9;
   atom.global.cas.b32 %r11, [%d4], %r7, %r10; setp.ne.u32 %p, %r11, %r7; @%p bra L;
   {more}
   ret; }}
"""
READS = {
    "atomic": "atom.global.add.u32 %r7, [%d4], 0;",
    "volatile": "ld.volatile.global.u32 %r7, [%d4];",
    "relaxed": "ld.relaxed.gpu.global.u32 %r7, [%d4];",
}


def add_bytes(engine, read, lanes=3, more=""):
    kernel = load_ptx(HEAD + BYTE_ADD.format(read=read, lanes=lanes, more=more))["adds"].named(["bytes"])
    counts = np.zeros(4, np.int8)
    report = simulate(kernel, engine=engine, on_finding="report")[2, 8](counts)
    return {(finding.kind, finding.array) for finding in report.findings}, counts


@ENGINES
@pytest.mark.parametrize("read", READS)
def test_a_strong_read_of_the_word_does_not_race_with_the_emulated_atomic(engine, read):
    found, counts = add_bytes(engine, READS[read])
    assert found == set() and counts.tolist() == [8] * 4


def test_a_plain_store_beside_the_read_still_races():
    found, _ = add_bytes(
        "fibers", READS["atomic"], lanes=0, more="mov.u32 %r12, 1; st.global.u8 [%d3], %r12;"
    )
    assert ("race-global", "bytes") in found


def test_an_addition_to_the_whole_word_still_races():
    found, _ = add_bytes("fibers", READS["atomic"], more="atom.global.add.u32 %r12, [%d4], 1;")
    assert ("race-global", "bytes") in found
