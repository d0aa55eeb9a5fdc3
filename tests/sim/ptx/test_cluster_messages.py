"""Tests of the messages about clusters: races through distributed shared memory, ranks and dimensions out of
range. Each bug has a right twin, which is the kernel after the advised fix."""

import functools
import warnings

import numpy as np
import pytest

from ptx import hopper_corpus as corpus
from sim import load_ptx, simulate
from sim.errors import RefusedLaunch
from sim.observers import advice, advice_patterns
from sim.ptx import nvrtc

pytest.importorskip("cuda.bindings.nvrtc")
HEAD = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y) {\n'
NEIGHBOUR = "    int* other = there(tile, rank() ^ 1);\n"
# name -> (bug, text of the bug, its replacement in the right twin)
RACES = {
    "read before the write of the other block": (
        "    __shared__ int tile[32];\n    int t = threadIdx.x;\n    tile[t] = x[32 * rank() + t];\n"
        f"{NEIGHBOUR}    int value = other[t];\n    meet();\n    y[32 * rank() + t] = value;\n",
        "    int value",
        "    meet();\n    int value",
    ),
    "a block barrier in place of a cluster barrier": (
        "    __shared__ int tile[32];\n    int t = threadIdx.x;\n    meet();\n"
        f"{NEIGHBOUR}    other[t] = x[32 * rank() + t];\n    __syncthreads();\n"
        "    y[32 * rank() + t] = tile[t];\n    meet();\n",
        "__syncthreads();",
        "meet();",
    ),
    "written again before the other block has read": (
        "    __shared__ int tile[32];\n    int t = threadIdx.x, sum = 0;\n"
        f"{NEIGHBOUR}    for (int i = 0; i < 3; i++) {{\n        tile[t] = x[32 * rank() + t] + i;\n"
        "        meet();\n        sum += other[t];\n    }\n    meet();\n    y[32 * rank() + t] = sum;\n",
        "        sum += other[t];\n",
        "        sum += other[t];\n        meet();\n",
    ),
    "opposite arms": (
        "    __shared__ int tile[32];\n    int t = threadIdx.x;\n    meet();\n"
        f"{NEIGHBOUR}    if (rank()) {{\n        other[t] = x[t];\n    }} else {{\n        y[t] = tile[t];\n"
        "    }\n    meet();\n",
        "    } else {\n",
        "    }\n    meet();\n    if (!rank()) {\n",
    ),
}  # fmt: skip


@functools.cache
def compiled(body):
    source = corpus.PRELUDE + HEAD + body + "}\n"
    return load_ptx(nvrtc.compile_ptx(source, "k.cu", architecture="sm_90a"), source)["k"]


def report_of(body, threads=32, **options):
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    return simulate(compiled(body), on_finding="report", **options)[2, threads](x, y)


@pytest.mark.parametrize("name", RACES)
def test_the_fix_of_a_race_in_a_cluster_is_a_cluster_barrier(name):
    body, old, new = RACES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # `of_race` warns if it cannot word a specific fix
        (finding,) = report_of(body).findings
    assert finding.kind == "race-shared"
    assert "cluster.sync()" in finding.fix and "arrivals of all blocks" in finding.fix
    assert (
        "this_grid" not in finding.fix
        and "second" not in finding.fix
        and "every thread of the block" not in finding.fix
    )
    assert body.count(old) == 1 and not report_of(body.replace(old, new)).findings


REMOTE_USES = {"load": "y[32 * rank() + t] = other[t];", "atomic": "atomicAdd(&other[t], 1);"}


@pytest.mark.parametrize("launch", ["fibers", "threads", "native"])
@pytest.mark.parametrize("use", REMOTE_USES)
def test_a_block_uses_what_the_other_block_has_not_written(use, launch):
    body = (
        "    __shared__ int tile[32];\n    int t = threadIdx.x;\n    if (t < 16) tile[t] = x[t];\n"
        f"    meet();\n{NEIGHBOUR}    {REMOTE_USES[use]}\n    meet();\n"
        "    if (t < 16) y[32 * rank() + t] = tile[t];\n"
    )
    (finding,) = report_of(body, engine=launch).findings
    assert (finding.kind, finding.severity) == ("uninitialized-read", "error" if use == "load" else "warning")
    assert finding.verdict.startswith("tile[16] of block 1 is read") and "cluster.sync()" in finding.fix
    right = body.replace("if (t < 16) tile[t]", "tile[t]")
    assert not report_of(right, engine=launch).findings


# A block reads its tile. The other block stores there before the read, after it, or both.
TILE_OF_BOTH = """
    __shared__ int tile[32];
    int t = threadIdx.x, *other = there(tile, rank() ^ 1);
    meet();
    BEFORE
    meet();
    int value = tile[t];
    meet();
    AFTER
    meet();
    y[32 * rank() + t] = value;
"""


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_only_an_earlier_store_of_the_other_block_justifies_a_read(before, after):
    body = TILE_OF_BOTH.replace("BEFORE", "other[t] = 1;" * before).replace("AFTER", "other[t] = 2;" * after)
    kinds = [finding.kind for finding in report_of(body).findings]
    assert kinds == ["uninitialized-read"] * (not before)


def test_an_update_by_two_blocks_of_a_cluster_needs_an_atomic():
    body = (
        "    __shared__ int sum;\n    if (threadIdx.x == 0) sum = 0;\n    meet();\n"
        "    int* first = there(&sum, 0);\n"
        "    if (threadIdx.x == 0) *first += x[blockIdx.x];\n    meet();\n"
    )
    assert all("atomicAdd" in finding.fix for finding in report_of(body).findings)
    assert not report_of(body.replace("*first += x[blockIdx.x]", "atomicAdd(first, x[blockIdx.x])")).findings
    of_block = body.replace("*first += x[blockIdx.x]", "atomicAdd_block(first, x[blockIdx.x])")
    (finding,) = report_of(of_block).findings
    assert finding.kind == "race-shared" and "scope of its own block" in finding.message


@pytest.mark.filterwarnings("ignore:the fix of a race is general")
def test_a_failure_to_word_a_fix_leaves_the_race_in_the_report(monkeypatch):
    def fails(facts):
        raise ValueError("zero-size array")

    monkeypatch.setattr(advice, "PATTERNS", [advice_patterns.Pattern("fails", lambda facts: True, fails)])
    (finding,) = report_of(RACES["opposite arms"][0]).findings
    assert finding.kind == "race-shared" and "between the two accesses" in finding.fix


# (statement, its right form, words of the finding)
OPERANDS = [
    ("y[0] = *there(&sum, 2);", "y[0] = *there(&sum, 1);", ["rank 2", "0 to 1", "%cluster_nctarank"]),
    ("multicast(tile, x, 128, &bar, 7);", "multicast(tile, x, 128, &bar, 3);", ["mask 0x7", "0 to 1", "0x3"]),
    ("multicast(tile, x, 128, &bar, 0);", "multicast(tile, x, 128, &bar, 1);", ["mask 0x0", "at least one"]),
    ("expect(&bar, 1 << 20);", "expect(&bar, 0);", ["1,048,576", "several phases"]),
    (
        'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 3;" :: "r"(at(&bar)));',
        "",
        ["3 arrivals", "waits for only 2", "counts 2 arrivals", "wait for"],
    ),
    ('asm volatile("barrier.cluster.wait;");', "", ["barrier.cluster.wait", "in turn", "number of times"]),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "right", "words"), OPERANDS)
def test_an_operand_out_of_range_is_a_finding(statement, right, words):
    body = (
        "    __shared__ int sum; __shared__ __align__(128) int tile[32];\n    __shared__ u64 bar;\n"
        "    sum = 1;\n    init(&bar, 2);\n    init_fence();\n    meet();\n"
        f"    if (rank() == 0) {{ {statement} }}\n    meet();\n"
    )
    (finding,) = report_of(body, threads=1).findings
    assert finding.kind == "invalid-operand" and finding.accesses[0].site.line
    assert all(word in finding.message for word in words), finding.message
    kinds = {finding.kind for finding in report_of(body.replace(statement, right), threads=1).findings}
    # No thread waits for the multicast copies, and some of the twins write nothing.
    assert kinds <= {"async-copy", "misuse"}


def test_a_rank_outside_the_cluster_is_an_error_only_if_its_address_is_used():
    """NVRTC moves such a mapa before the branch that excludes the block of rank 0."""
    body = (
        "    __shared__ int sum;\n    sum = 5;\n    int *before = there(&sum, rank() - 1);\n    meet();\n"
        "    y[rank()] = rank() > 0 ? *before : 1;\n    meet();\n"
    )
    assert not report_of(body, threads=1).findings
    finding, *_ = report_of(body.replace("rank() > 0 ? *before : 1", "*before"), threads=1).findings
    assert finding.kind == "invalid-operand" and "mapa takes rank 4294967295" in finding.verdict


def test_coordinates_must_fit_the_tensor_map():
    """Give a map of one dimension, and of three, to a copy with two coordinates."""
    (grid, threads), _, _ = corpus.LAUNCHES["box"]
    kernel = load_ptx(nvrtc.compile_ptx(corpus.source("box"), "k.cu", architecture="sm_90a"))["k"]
    for shape, box, noun in (((64,), (32,), "1 dimension"), ((2, 16, 64), (1, 8, 32), "3 dimensions")):
        maps = (corpus.tensor_map(np.zeros(shape, np.int32), box) for _ in range(2))
        (finding,) = simulate(kernel, on_finding="report")[grid, threads](*maps).findings
        assert finding.kind == "invalid-operand" and f"its tensor map has {noun}" in finding.verdict
        assert f".{noun[0]}d with {noun[0]} coordinate" in finding.fix


@pytest.mark.parametrize(
    ("grid", "cluster", "words"),
    [
        (16, 16, r"cluster.x is 16; the device takes 1 to 8"),
        ((4, 4, 1), (4, 4, 1), r"16 blocks; every device takes up to 8\n.*at most 8"),
        (5, 2, r"cannot be divided .*\n.*launch \(6, 1, 1\)"),
    ],
)
def test_a_cluster_out_of_range_is_refused(grid, cluster, words):
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n"
    with pytest.raises(RefusedLaunch, match=words):
        simulate(load_ptx(ptx)["k"], cluster=cluster)[grid, 32]()


# The blocks of a cluster arrive at barriers of each other, or send a tile to both blocks.
INIT = "    if (t == 0) { init(&bar, 1); init_fence(); }\n    meet_relaxed();\n"
REMOTE = (
    f"    __shared__ u64 bar;\n    int t = threadIdx.x;\n{INIT}    if (t == 0) arrive_at(&bar, rank() ^ 1);\n"
    "    wait_cluster(&bar, 0);\n    y[32 * rank() + t] = t;\n    meet();\n"
)
MULTICAST = (
    f"    __shared__ __align__(128) int tile[32];\n    __shared__ u64 bar;\n    int t = threadIdx.x;\n{INIT}"
    "    if (t == 0) expect(&bar, 128);\n    if (t == 0 && !rank()) multicast(tile, x, 128, &bar, 3);\n"
    "    wait(&bar, 0);\n    y[32 * rank() + t] = tile[t];\n    meet();\n"
)
LOCAL = (
    "    __shared__ __align__(128) int tile[32];\n    __shared__ u64 bar;\n    int t = threadIdx.x;\n"
    "    if (t == 0) init(&bar, 1);\n    __syncthreads();\n"
    "    if (t == 0) { expect(&bar, 128); load(tile, x, 128, &bar); }\n"
    "    wait(&bar, 0);\n    y[32 * rank() + t] = tile[t];\n"
)


@pytest.mark.parametrize("body", [REMOTE, MULTICAST], ids=["remote arrival", "multicast"])
def test_a_barrier_that_other_blocks_use_needs_an_initialisation_fence(body):
    without = body.replace(" init_fence();", "")
    races = report_of(without).findings
    assert {finding.kind for finding in races} == {"race-shared"}
    assert all("fence.mbarrier_init.release.cluster" in finding.fix for finding in races)
    # A fence, or an arrival that releases, is a fix.
    assert not report_of(body).findings
    assert not report_of(without.replace("meet_relaxed();", "meet();")).findings


def test_a_barrier_that_only_its_own_block_uses_needs_no_initialisation_fence():
    assert not report_of(LOCAL).findings
