"""Tests of compiler warnings about undefined behaviour, which are findings of the launches concerned."""

import numpy as np
import pytest

from sim import load_cuda, simulate
from sim.diagnostics import of_report
from sim.ptx.compiler_warnings import NUMBERS, Functions, read_log
from sim.ptx.nvrtc import CudaModule
from sim.runtime.build import build, find_nvcc, warnings_of

HEADER = "__device__ int in_header(int v) { if (v > 3) return 1; }\n"
SOURCE = """
#include "part.cuh"
struct Set { int v; __device__ Set() : v(3) {} };
#define CALL(v) no_return(v)
__device__ int no_return(int v) { if (v > 3) return 1; }
__device__ int* pointer() { int a = 1; return &a; }
__device__ int& reference() { int a = 1; return a; }
template <int N> __device__ int shifted(int v) { return v << N; }
__global__ void by_macro(int* x) { x[0] = CALL(x[1]); }
__global__ void by_header(int* x) { x[0] = in_header(x[1]); }
__global__ void early(int* x) {
    int r;
    if (x[1] == 0) r += 1;
    x[0] = r;
}
__global__ void shared(int* x) { __shared__ Set set; x[0] = set.v; }
__global__ void dangling(int* x) { x[0] = *pointer() + reference(); }
__global__ void divided(int* x) { x[0] = 5 / 0; }
__global__ void assigned(int* x) { if (x[1] = 3) x[0] = 1; }
__global__ void left(int* x) { x[0] = x[1] << 33; }
__global__ void negative(int* x) { x[0] = x[1] << -1; }
template <int N> __global__ void instance(int* x) { int r; x[0] = r + shifted<N>(1); }
__launch_bounds__(64) __global__ void correct(int* x) { int unused, set = 3; x[0] = set; }
"""
# kernel -> (kind, line, number) of its warnings
WANTED = {
    "by_macro": {("uninitialized-read", 5, 940)},
    "by_header": {("uninitialized-read", 1, 940)},
    "early": {("uninitialized-read", 13, 549)},
    "shared": set(),  # the usual way to declare a cuda::barrier has this warning
    "dangling": {("misuse", 6, 1056), ("misuse", 7, 836)},
    "divided": {("misuse", 18, 39)},
    "assigned": {("misuse", 19, 187)},
    "left": {("misuse", 20, 63)},
    "negative": {("misuse", 21, 62)},
    "instance<3>": {("uninitialized-read", 22, 549)},
    "instance<40>": {("uninitialized-read", 22, 549), ("misuse", 8, 63)},
    "correct": set(),
}


@pytest.fixture(autouse=True)
def without_unoptimized_code(monkeypatch):
    """Let launches not find the faults in unoptimised code, because then the warnings are omitted."""
    monkeypatch.setattr(CudaModule, "unoptimized", lambda module, name: None)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warnings")
    (folder / "part.cuh").write_text(HEADER)
    (folder / "k.cu").write_text(SOURCE)
    return load_cuda(folder / "k.cu")


@pytest.fixture
def optimized_only(monkeypatch):
    """Skip the run in unoptimised code. An error that it finds replaces the warning about the same line."""
    monkeypatch.setattr("sim.unoptimized_code.SECONDS_OF_KERNEL", -1)


def launch(module, kernel, **options):
    x = np.arange(8, dtype=np.int32)
    return simulate(module[kernel], on_finding="report", **options)[1, 1](x)


def of_compiler(report):
    """Return {(kind, line, number)} for the warnings of the compiler in a report."""
    found = [f for f in report.findings if "the compiler warns" in f.verdict]
    return {(f.kind, f.site.line, int(f.verdict.rpartition("#")[2].removesuffix("-D)"))) for f in found}


@pytest.mark.parametrize("kernel", WANTED)
def test_a_warning_is_a_finding_of_the_kernels_concerned(module, kernel, optimized_only):
    assert of_compiler(launch(module, kernel)) == WANTED[kernel]


def test_each_number_is_tested():
    assert {number for wanted in WANTED.values() for _, _, number in wanted} == NUMBERS.keys()


@pytest.mark.parametrize("engine", ["fibers", "threads", "native", "auto"])
def test_each_engine_shows_the_warning_with_its_line(module, engine):
    report = launch(module, "by_macro", engine=engine)
    (message,) = (finding.message for finding in report.findings)
    assert message.startswith(
        "warning: uninitialized-read: the compiler warns: missing return statement at end of non-void"
        ' function "no_return" (#940-D)\n  k.cu line 5  __device__ int no_return(int v)'
    )
    assert "k.cu:5\n" in message
    (diagnostic,) = of_report(report)
    (place,) = diagnostic["places"]
    assert place["file"].endswith("k.cu") and (place["line"], place["column"]) == (5, 1)


def test_a_second_launch_shows_the_warning_too(module):
    assert of_compiler(launch(module, "divided")) == of_compiler(launch(module, "divided")) != set()


def test_without_checks_there_is_no_warning(module):
    assert not launch(module, "by_macro", observers=()).findings


def test_a_line_with_an_error_of_the_same_kind_has_no_further_warning(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(
        "__global__ void sum(const int* x, int* y) {\n    int total;\n    atomicAdd(y, total);\n}\n"
    )
    x, y, kernel = np.ones(4, np.int32), np.zeros(1, np.int32), load_cuda(path)["sum"]
    assert [f.site.line for f in kernel.compiler_warnings()] == [3]
    report = simulate(kernel, on_finding="report")[1, 1](x, y)
    assert [(f.severity, f.accesses[0].site.line) for f in report.findings] == [("error", 3)]


def test_a_suppressed_warning_is_no_finding(tmp_path, optimized_only):
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(int* x) { int r; x[0] = r; }\n")
    assert of_compiler(launch(load_cuda(path), "k")) == {("uninitialized-read", 1, 549)}
    assert not of_compiler(launch(load_cuda(path, "-diag-suppress=549"), "k"))


def test_a_log_has_each_warning_once():
    line = 'k.cu(3): warning #549-D: variable "r" is used before its value is set\n    x = r;\n'
    other = 'k.cu(4): warning #177-D: variable "s" was declared but never referenced\n'
    (found,) = read_log(line + other + line, "/folder")
    assert (found.file, found.line, found.number) == ("/folder/k.cu", 3, 549)
    assert read_log(other) == ()


def test_a_warning_outside_the_known_functions_concerns_every_kernel():
    functions = Functions({"/k.cu": "__global__ void k(int* x) { x[0] = f(1); }\n"})
    (warning,) = read_log("/other.cuh(3): warning #940-D: missing return statement\n")
    assert functions.concern(warning, "k")


def test_a_whole_program_shows_the_warnings_of_nvcc(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    try:
        find_nvcc()
    except Exception:
        pytest.skip("nvcc or gcc is not installed")
    (tmp_path / "p.cu").write_text(
        "__device__ int no_return(int v) { if (v) return 1; }\n"
        "__global__ void bad(int* x) { x[0] = no_return(x[0]); }\n"
        "int main() { int* x; cudaMalloc(&x, 4); bad<<<1, 1>>>(x); return cudaFree(x); }\n"
    )
    monkeypatch.chdir(tmp_path)
    (warning,) = warnings_of(build(tmp_path / "p.cu", tmp_path / "p.so"))
    assert (warning.file, warning.line, warning.number) == (str(tmp_path / "p.cu"), 1, 940)
