"""Tests of cooperative launches: kernels that synchronise the whole grid through cooperative_groups.h.

NVRTC compiles them. Kernels with a bug, and their fixed twins, are in cuda/: grid_sync, grid_sync_skipped and
groups.
"""

from dataclasses import replace

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import DeviceSpec, LaunchError, load_cuda, load_ptx, simulate

SPEC = replace(DeviceSpec(), multiprocessors=2)


def test_a_grid_that_is_not_resident_at_once_is_refused():
    kernel = module("grid_sync")[1]["mended"]
    most = SPEC.resident_blocks(16, 0)
    x = np.zeros(16 * (most + 1), np.float32)
    with pytest.raises(LaunchError, match="must all be resident at once"):
        simulate(kernel, spec=SPEC)[most + 1, 16](x, x.copy())


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
