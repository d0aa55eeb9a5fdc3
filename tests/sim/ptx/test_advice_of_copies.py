"""Tests of the advice about races with asynchronous copies (cp.async).

The advice names the wait for the copy before the barrier. The tests write the wait and the barrier into the
source, and no finding is left.
"""

import functools

import numpy as np
import pytest

from sim import load_cuda, simulate

ENGINES = ["fibers", "threads", "native", "auto"]
HEAD = """extern "C" __global__ void kernel(const float *x, float *y) {
    __shared__ alignas(16) float s[64];
    int t = threadIdx.x;
"""
READ = "    y[t] = s[63 - t];\n"
GROUP = "    auto block = cooperative_groups::this_thread_block();\n"
PTX = """    unsigned to = (unsigned)__cvta_generic_to_shared(s + t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + t) : "memory");
"""
GROUPS = "#include <cooperative_groups.h>\n#include <cooperative_groups/memcpy_async.h>\n"
PIPELINE = "#include <cooperative_groups.h>\n#include <cuda/pipeline>\n"
STATE = """    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto pipe = cuda::make_pipeline(block, &state);
"""
BARRIER = """    __shared__ cuda::barrier<cuda::thread_scope_block> arrived;
    if (t == 0) init(&arrived, 64);
    __syncthreads();
"""
COPIED = "    pipe.producer_acquire();\n    cuda::memcpy_async(s + t, x + t, sizeof(float), pipe);\n"
BLOCK_COPIED = "    cuda::memcpy_async(block, s, x, sizeof(s), {});\n"
SYNC = "    __syncthreads();\n"
WAIT = "let the thread that sent the copy commit it and wait for it ({}); after this wait, __syncthreads() "
# name -> (includes, the statements that copy, the beginning of the fix, the wait, whether a barrier follows)
FORMS = {
    "inline PTX": (
        "",
        PTX,
        WAIT.format("cp.async.wait_group"),
        '    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");\n',
        True,
    ),
    "pipeline primitives": (
        "#include <cuda_pipeline.h>\n",
        "    __pipeline_memcpy_async(&s[t], &x[t], 4);\n",
        WAIT.format("__pipeline_commit and __pipeline_wait_prior(0)"),
        "    __pipeline_commit();\n    __pipeline_wait_prior(0);\n",
        True,
    ),
    "cooperative groups": (
        GROUPS,
        f"{GROUP}    cooperative_groups::memcpy_async(block, s, x, sizeof(s));\n",
        "let the thread that sent the copy wait for it (cooperative_groups::wait of its group); after this",
        "    cooperative_groups::wait(block);\n",
        True,
    ),
    "a pipeline of one thread": (
        PIPELINE,
        f"    auto pipe = cuda::make_pipeline();\n{COPIED}",
        WAIT.format("producer_commit and consumer_wait of the cuda::pipeline"),
        "    pipe.producer_commit();\n    pipe.consumer_wait();\n",
        True,
    ),
    "a pipeline of the block": (
        PIPELINE,
        f"{GROUP}{STATE}    pipe.producer_acquire();\n{BLOCK_COPIED.format('pipe')}"
        "    pipe.producer_commit();\n",
        "wait for the phase of the mbarrier that counts the copy (consumer_wait of the cuda::pipeline) before"
        " line {}",
        "    pipe.consumer_wait();\n",
        False,
    ),
    "a barrier of the block": (
        "#include <cooperative_groups.h>\n#include <cuda/barrier>\n",
        f"{GROUP}{BARRIER}{BLOCK_COPIED.format('arrived')}",
        "wait for the phase of the mbarrier that counts the copy (wait of the cuda::barrier) before line {}",
        "    arrived.arrive_and_wait();\n",
        False,
    ),
}
TWO_COPIES = HEAD + PTX.replace("s + t", "s") + "}\n"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that compiles a text, once for all engines."""
    pytest.importorskip("cuda.bindings.nvrtc")

    @functools.cache
    def load(text):
        path = tmp_path_factory.mktemp("copies") / "k.cu"
        path.write_text(text)
        return load_cuda(path)["kernel"]

    return load


def findings_of(kernel, engine):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    findings = simulate(kernel, engine=engine, on_finding="report")[1, 64](x, y).findings
    return findings, np.array_equal(y, x[::-1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMS)
def test_the_wait_comes_before_the_barrier(name, engine, loaded):
    includes, copy, fix, wait, needs_barrier = FORMS[name]
    text = f"{includes}{HEAD}{copy}"
    findings, _ = findings_of(loaded(f"{text}{READ}}}\n"), engine)
    (race,) = (finding for finding in findings if finding.kind == "race-shared")
    assert race.fix.startswith(fix.format(text.count("\n") + 1))
    assert "is written by an asynchronous copy of one thread and read by another thread" in race.verdict
    assert [access.what for access in race.accesses] == ["sent", "read"]
    fixed = f"{text}{wait}{SYNC * needs_barrier}{READ}}}\n"
    assert findings_of(loaded(fixed), engine) == ((), True)
    # A barrier alone, which is the advice about plain stores, would leave an error.
    findings, _ = findings_of(loaded(f"{text}{SYNC}{READ}}}\n"), engine)
    assert "async-copy" in {finding.kind for finding in findings}


PRIMITIVES = FORMS["pipeline primitives"]
COPY, COPY_WAIT = PRIMITIVES[1], PRIMITIVES[3]
FILL = f"__device__ void fill(float *s, const float *x, int t) {{\n{COPY}}}\n"
# name -> (text before the kernel, body, pattern, part of the fix, fixed body)
PLACES = {
    "a wait without a barrier": (
        "",
        COPY + COPY_WAIT + READ,
        "barrier",
        "__syncthreads() between lines {3} and {4}, where",
        COPY + COPY_WAIT + SYNC + READ,
    ),
    "a wait that comes too late": (
        "",
        COPY + READ + COPY_WAIT,
        "copy without a wait",
        "after this wait, __syncthreads() between the two lines, where",
        COPY + COPY_WAIT + SYNC + READ,
    ),
    "a loop": (
        "",
        f"    for (int i = 0; i < 3; i++) {{\n{COPY}{READ}    }}\n",
        "copy without a wait",
        "after this wait, __syncthreads() between the two lines, and one more after line {3} and before",
        f"    for (int i = 0; i < 3; i++) {{\n{COPY}{COPY_WAIT}{SYNC}{READ}{SYNC}    }}\n",
    ),
    "the next iteration": (
        "",
        f"    for (int i = 0; i < 3; i++) {{\n{COPY}{COPY_WAIT}{SYNC}{READ}    }}\n",
        "barrier",
        "one more __syncthreads(), after line {6} and before the loop returns to line {2}, where",
        f"    for (int i = 0; i < 3; i++) {{\n{COPY}{COPY_WAIT}{SYNC}{READ}{SYNC}    }}\n",
    ),
    "a read before the copy": (
        "",
        f"    s[t] = x[t];\n{SYNC}{READ}{COPY}{COPY_WAIT}",
        "barrier",
        "__syncthreads() between the two lines, where",
        f"    s[t] = x[t];\n{SYNC}{READ}{SYNC}{COPY}{COPY_WAIT}",
    ),
    "a copy in a function": (
        FILL,
        f"    fill(s, x, t);\n{READ}",
        "copy without a wait",
        "after this wait, __syncthreads() between lines {1} and {2}, where",
        f"    fill(s, x, t);\n{COPY_WAIT}{SYNC}{READ}",
    ),
    "arms of a branch": (
        "",
        f"    if (t < 32) {{\n    {COPY}    }} else {{\n    {READ}    }}\n    y[t] = x[63 - t];\n",
        "copy without a wait",
        "after this wait, divide the branch at line {1} into two branches",
        f"    if (t < 32) {{\n{COPY}{COPY_WAIT}    }}\n{SYNC}    if (t >= 32) {{\n{READ}    }}\n"
        "    y[t] = x[63 - t];\n",
    ),
}


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("name", PLACES)
def test_the_place_of_the_wait(name, engine, loaded):
    before, body, pattern, fix, fixed = PLACES[name]
    head = PRIMITIVES[0] + before + HEAD
    findings, _ = findings_of(loaded(f"{head}{body}}}\n"), engine)
    lines = range(head.count("\n"), head.count("\n") + 12)
    (race,) = (finding for finding in findings if finding.kind == "race-shared")
    assert race.advice.pattern == pattern and fix.format(*lines) in race.fix
    assert findings_of(loaded(f"{head}{fixed}}}\n"), engine) == ((), True)


def test_copies_of_two_threads_to_one_place(loaded):
    findings, _ = findings_of(loaded(TWO_COPIES), "fibers")
    assert "is written by asynchronous copies of two threads, and nothing" in findings[0].verdict


WRITABLE = HEAD.replace("const float *x", "float *x")
WRITE = "    x[63 - t] = 63 - t;\n"
OF_SOURCE = (
    "x[0] in global memory is written by one thread and read by an asynchronous copy of another thread"
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FORMS)
def test_a_write_to_the_source_of_a_copy(name, engine, loaded):
    """Write the elements from which another thread copies. A barrier is not enough: the copy can read after
    it."""
    includes, copy, fix, wait, needs_barrier = FORMS[name]
    text = f"{includes}{WRITABLE}{copy}"
    findings, _ = findings_of(loaded(f"{text}{WRITE}{wait}{SYNC}{READ}}}\n"), engine)
    (race,) = (finding for finding in findings if finding.kind == "race-global")
    assert race.verdict.startswith(OF_SOURCE) and race.reason.startswith(
        "Such a copy may read its source at any time until"
    )
    assert race.fix.startswith(fix.format(text.count("\n") + 1))
    assert [access.what for access in race.accesses] == ["written", "sent"]
    fixed = f"{text}{wait}{SYNC * needs_barrier}{WRITE}{SYNC}{READ}}}\n"
    assert findings_of(loaded(fixed), engine) == ((), True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_before_the_copy_needs_a_barrier(engine, loaded):
    before, after = f"{PRIMITIVES[0]}{WRITABLE}{WRITE}", f"{COPY}{COPY_WAIT}{SYNC}{READ}}}\n"
    (race,), _ = findings_of(loaded(before + after), engine)
    assert race.verdict.startswith(OF_SOURCE) and race.fix.startswith("__syncthreads() between the two lines")
    assert findings_of(loaded(before + SYNC + after), engine) == ((), True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_of_another_block_to_the_source(engine, loaded):
    """Copy x[i[t]]. The load of i[t] is on the same line, and no copy."""
    head = PRIMITIVES[0] + WRITABLE.replace("*y", "*y, int *i")
    writes = "    if (blockIdx.x) { x[t] = t; i[t] = t; return; }\n"
    copy = "    __pipeline_memcpy_async(&s[t], &x[i[t]], 4);\n"
    kernel = loaded(f"{head}{writes}{copy}{COPY_WAIT}{SYNC}{READ}}}\n")
    x, y, i = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.arange(64, dtype=np.int32)
    report = simulate(kernel, engine=engine, on_finding="report")[2, 64](x, y, i)
    assert {finding.array: [access.what for access in finding.accesses] for finding in report.findings} == {
        "x": ["written", "sent"],
        "i": ["written", "read"],
    }
