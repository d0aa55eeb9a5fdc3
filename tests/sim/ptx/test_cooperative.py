"""Tests of cooperative launches: kernels that synchronise the whole grid through cooperative_groups.h.

NVRTC compiles them. Kernels with a bug, and their fixed twins, are in cuda/: grid_sync, grid_sync_skipped and
groups.
"""

from dataclasses import replace

import numpy as np
import pytest

from grid_programs import SHAPE, has_race, random_program
from ptx.test_cuda_cpp import module
from sim import DeviceSpec, LaunchError, ThreadError, cuda, load_cuda, load_ptx, simulate

SPEC = replace(DeviceSpec(), multiprocessors=2)


def test_a_grid_that_is_not_resident_at_once_is_refused():
    kernel = module("grid_sync")[1]["mended"]
    most = SPEC.resident_blocks(16, 0)
    x = np.zeros(16 * (most + 1), np.float32)
    with pytest.raises(LaunchError, match="must all be resident at once"):
        simulate(kernel, spec=SPEC)[most + 1, 16](x, x.copy())


@pytest.mark.parametrize("engine", ["fibers", "native", "auto"])
def test_a_launch_that_is_not_cooperative_aborts_at_its_grid_barrier(engine):
    kernel = module("grid_sync")[1]["mended"]
    # More blocks than a cooperative launch may have. On a GPU, too, such a launch begins and then fails.
    blocks = SPEC.resident_blocks(16, 0) + 1
    x = np.zeros(16 * blocks, np.float32)
    launch = simulate(kernel, spec=SPEC, engine=engine, cooperative=False)[blocks, 16]
    with pytest.raises(ThreadError, match="the launch is not cooperative, so grid_group::sync"):
        launch(x, x.copy())


def test_numba_launches_kernels_with_a_grid_barrier_cooperatively():
    def kernel(x):
        cuda.cg.this_grid().sync()
        x[cuda.grid(1)] = 1

    with pytest.raises(LaunchError, match="cooperative=False is only for kernels from PTX or CUDA C"):
        simulate(kernel, cooperative=False)


RANKS = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry ranks(.param .u64 ranks_out)
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<8>;
	ld.param.u64 	%rd1, [ranks_out];
	mov.u32 	%r1, %envreg2;
	cvt.u64.u32 	%rd2, %r1;
	mov.u32 	%r2, %envreg1;
	cvt.u64.u32 	%rd3, %r2;
	bfi.b64 	%rd4, %rd3, %rd2, 32, 32;
	setp.ne.s64 	%p1, %rd4, 0;
	@%p1 bra 	$L1;
	trap;
$L1:
	mov.u32 	%r3, %ctaid.x;
	mul.wide.u32 	%rd5, %r3, 4;
	add.s64 	%rd6, %rd1, %rd5;
	st.global.u32 	[%rd6], %r3;
	ret;
}
"""


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_grid_whose_blocks_never_wait_may_have_any_size(engine):
    """Launch a large grid. `cg::this_grid().thread_rank()` reads the workspace's address but never waits."""
    most = SPEC.resident_blocks(1, 0)
    out = np.zeros(most + 1, np.int32)
    report = simulate(load_ptx(RANKS)["ranks"], spec=SPEC, engine=engine)[most + 1, 1](out)
    assert report.findings == () and np.array_equal(out, np.arange(most + 1))


APART = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void bug(int* x, int* y) {
    auto grid = cg::this_grid();
    int i = grid.thread_rank(), n = grid.size();
    auto token = grid.barrier_arrive();
    x[i] = i;  // too late
    grid.barrier_wait(std::move(token));
    y[i] = x[(i + n / 2) % n];
}

extern "C" __global__ void mended(int* x, int* y) {
    auto grid = cg::this_grid();
    int i = grid.thread_rank(), n = grid.size();
    x[i] = i;
    auto token = grid.barrier_arrive();
    y[i] = 0;
    grid.barrier_wait(std::move(token));
    y[i] = x[(i + n / 2) % n];
}
"""


def test_arrival_and_wait_apart_order_what_comes_before_the_arrival(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "apart.cu").write_text(APART)
    kernels = load_cuda(tmp_path / "apart.cu")
    arguments = [np.zeros(32, np.int32) for _ in range(2)]
    report = simulate(kernels["bug"], on_finding="report")[2, 16](*arguments)
    assert {(f.kind, f.array) for f in report.findings} == {("race-global", "x")}
    assert {a.site.line for f in report.findings for a in f.accesses} == {8, 10}
    report = simulate(kernels["mended"])[2, 16](*arguments)
    assert report.findings == () and np.array_equal(arguments[1], np.roll(np.arange(32), 16))


CALLED = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__device__ __noinline__ void wait_for_all(cg::grid_group grid) { grid.sync(); }

extern "C" __global__ void bug(int* x, int* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;
    if (blockIdx.x == 1) return;
    wait_for_all(cg::this_grid());
    y[i] = x[i + 16];
}

extern "C" __global__ void mended(int* x, int* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;
    wait_for_all(cg::this_grid());
    y[i] = x[(i + 16) % 32];
}
"""


def test_a_function_that_is_given_the_grid_waits_for_all_of_it(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "called.cu").write_text(CALLED)
    kernels = load_cuda(tmp_path / "called.cu")
    arguments = [np.zeros(32, np.int32) for _ in range(2)]
    report = simulate(kernels["bug"], on_finding="report")[2, 16](*arguments)
    assert [(f.kind, f.accesses[0].site.line) for f in report.findings] == [("deadlock", 4)]
    report = simulate(kernels["mended"])[2, 16](*arguments)
    assert report.findings == report.notes == () and np.array_equal(arguments[1], np.roll(np.arange(32), 16))


def test_a_header_of_the_toolkit_is_found_and_one_that_is_missing_is_explained(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    path = tmp_path / "missing.cu"
    path.write_text("#include <no_such_header.h>\n")
    with pytest.raises(LaunchError, match="no_such_header.h(.|\n)*nvidia-cuda-runtime"):
        load_cuda(path)


PROGRAM = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void run(const int2* accesses, const int* barriers, int steps, int* data) {
    cg::grid_group grid = cg::this_grid();
    __shared__ int own[4];
    int b = blockIdx.x, t = threadIdx.x, total = 0;
    own[2 * t] = own[2 * t + 1] = 0;
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        int2 access = accesses[(step * gridDim.x + b) * blockDim.x + t];
        int i = access.y;
        if (access.x == 1) total += data[i];
        if (access.x == 2) data[i] = step + total;
        if (access.x == 3) atomicAdd(&data[i], 1);
        if (access.x == 5) total += own[i];
        if (access.x == 6) own[i] = step + total;
        if (access.x == 7) atomicAdd(&own[i], 1);
        if (barriers[step] == 1) __syncthreads();
        if (barriers[step] == 2) grid.sync();
    }
}
"""


def test_compiled_code_marks_exactly_the_programs_with_races(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "program.cu").write_text(PROGRAM)
    kernel = load_cuda(tmp_path / "program.cu")["run"]
    for seed in range(30):
        accesses, barriers = random_program(seed)
        values = []
        for engine in ("native", "fibers"):
            data = np.zeros(4, np.int32)
            how = simulate(kernel, engine=engine, on_finding="report")
            report = how[SHAPE](accesses, barriers, np.int32(len(barriers)), data)
            assert bool(report.findings) == has_race(accesses, barriers), seed
            values.append((data.tolist(), report.counters))
            if report.findings:
                assert report.notes[0] == "compiled, then explained by the interpreter"
                break
        else:
            assert values[0] == values[1]


COPIES = """#include <cooperative_groups.h>
extern "C" __global__ void copies(const int* x, int* y) {
    __shared__ int own[32];
    int t = threadIdx.x, i = blockIdx.x * 32 + t;
    unsigned to = __cvta_generic_to_shared(own + t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + i));
    cooperative_groups::this_grid().sync();
    if (blockIdx.x > 0) asm volatile("cp.async.wait_all;");
    y[i] = blockIdx.x > 0 ? own[t] : 0;
}
"""


def test_copies_across_a_grid_barrier_are_interpreted(tmp_path):
    """Let one block end before its copies have arrived, so that nothing waits for them."""
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "copies.cu").write_text(COPIES)
    y = np.zeros(64, np.int32)
    kernel = load_cuda(tmp_path / "copies.cu")["copies"]
    report = simulate(kernel, engine="native", on_finding="report")[2, 32](np.arange(64, dtype=np.int32), y)
    assert report.notes == ("interpreted: it has asynchronous copies and grid barriers",)
    assert y.tolist() == [0] * 32 + [*range(32, 64)]


ENDLESS = """#include <cooperative_groups.h>
extern "C" __global__ void endless(const int* flag, int* x) {
    auto grid = cooperative_groups::this_grid();
    x[grid.thread_rank()] = 1;
    while (*flag == 0) grid.sync();
}
"""


def test_an_endless_loop_around_a_grid_barrier_is_found(tmp_path, monkeypatch):
    """Let compiled code end at its first limit, so that the interpreter examines the loop."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr("sim.native.run.launch.FIRST_LIMIT", 20_000)
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.05)
    (tmp_path / "endless.cu").write_text(ENDLESS)
    kernel = load_cuda(tmp_path / "endless.cu")["endless"]
    how = simulate(kernel, engine="native", on_finding="report")
    report = how[2, 32](np.zeros(1, np.int32), np.zeros(64, np.int32))
    assert [finding.kind for finding in report.findings] == ["no-progress"]
