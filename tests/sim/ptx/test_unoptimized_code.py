"""Tests of faults that the optimiser removes from PTX: uses of undefined values, and accesses outside local
arrays. They are found in unoptimised code."""

import numpy as np
import pytest

import sim.unoptimized_code
from sim import load_cuda, simulate
from sim.ptx import nvrtc

SUM = "for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);"
# kernel -> (kind of the fault, body). The optimised code contains none of these faults.
FAULTS = {
    "scalar": ("uninitialized-read", "__shared__ int base; __syncthreads(); y[t] = base + t;"),
    "sums": (
        "uninitialized-read",
        f"__shared__ int ws[2]; int v = x[t]; {SUM} __syncthreads(); if (t == 0) y[0] = ws[0] + ws[1];",
    ),
    "some": (
        "uninitialized-read",
        f"__shared__ int ws[2]; int v = x[t]; {SUM} __syncthreads(); y[t] = v + (t >= 32 ? ws[0] : 0);",
    ),
    "flag": ("uninitialized-read", "__shared__ int f; __syncthreads(); if (f) y[t] = x[t]; else y[t] = 5;"),
    "offset": ("uninitialized-read", "__shared__ int off; __syncthreads(); y[t] = x[(t + off) & 63];"),
    "element": (
        "uninitialized-read",
        "int a[4]; a[0] = x[t]; a[1] = 1; a[2] = 2;"
        " int s = 0; for (int i = 0; i < 4; i++) s += a[i]; y[t] = s;",
    ),
    "path": ("uninitialized-read", "int r; if (x[t] > 10) r = 1; else if (x[t] < 5) r = 2; y[t] = r;"),
    "decision": ("uninitialized-read", "bool f; if (x[t] > 100) f = true; if (f) y[t] = 1; else y[t] = 2;"),
    "result": ("uninitialized-read", "y[t] = no_return(x[t]);"),
    "positive": ("uninitialized-read", "int th; if (x[0] > 100) th = 3; y[t] = x[t] + 1 > th ? 1 : 2;"),
    "read": (
        "out-of-bounds",
        "int a[4]; for (int i = 0; i < 4; i++) a[i] = x[t + i];"
        " int s = 0; for (int i = 0; i <= 4; i++) s += a[i]; y[t] = s;",
    ),
    "write": (
        "out-of-bounds",
        "int a[4]; for (int i = 0; i <= 4; i++) a[i] = x[t + i];"
        " int s = 0; for (int i = 0; i < 4; i++) s += a[i]; y[t] = s;",
    ),
    "difference": (
        "out-of-bounds",
        "int r[5]; for (int i = 0; i < 5; i++) r[i] = x[t + i];"
        " int s = 0; for (int i = 0; i < 5; i++) s += r[i + 1] * r[i]; y[t] = s;",
    ),
}
# kernels with undefined values that have no effect
CORRECT = {
    "unused_member": "V v; v.x = x[t]; v.y = 1; V w = v; y[t] = w.x + w.y;",
    "by_value": "V v; v.x = x[t]; v.y = 1; y[t] = sum(v);",
    "shared_member": "__shared__ V s[64]; V v; v.x = x[t]; v.y = 1; s[t] = v; __syncthreads();"
    " y[t] = s[t ^ 1].x;",
    "padding": "__shared__ P s[64]; P p; p.a = t; p.b = x[t]; s[t] = p; __syncthreads(); y[t] = s[t ^ 1].b;",
    "bits": "B b; b.low = t; b.high = 3; y[t] = b.low + b.high;",
    "unread_elements": "int a[8]; for (int i = 0; i < x[t] % 8; i++) a[i] = i;"
    " int s = 0; for (int i = 0; i < x[t] % 8; i++) s += a[i]; y[t] = s;",
    "selected": "int r; bool set = x[t] > 10; if (set) r = 3; y[t] = set ? r : 0;",
    "product": "int a[2]; a[0] = x[t]; y[t] = a[0] + 0 * (a[1] & 0);",
    "stored_padding": "Q q; q.a = t; q.b = x[t]; if (t < 32) ((Q*)y)[t] = q;",
    "stored_bits": "B b; b.low = t; b.high = 3; ((B*)y)[t] = b;",
    "stored_by_template": "store<Q>(y, t);",
    "captured": "Q q; q.a = t; q.b = x[t]; auto f = [=](int i) { if (i < 32) ((Q*)y)[i] = q; }; f(t);",
    "vector": "float4 v; v.x = v.y = v.z = x[t]; if (t < 16) ((float4*)y)[t] = v;",
    "printed": 'if (t == 0) printf("once\\n"); int a[2]; a[0] = x[t]; y[t] = a[0];',
}
HEAD = """
struct V { float x, y, z; };
struct P { char a; int b; };
struct Q { double b; char a; };
struct B { unsigned low : 5, high : 7; };
template <class T> __device__ void store(int* y, int t) { T q; q.a = t; q.b = 3; if (t < 32) ((T*)y)[t] = q; }
__device__ int no_return(int v) { if (v > 3) return 1; }
__device__ float sum(V v) { return v.x + v.y; }
"""


def kernel_of(name, body):
    return f"__global__ void {name}(const int* x, int* y) {{\n    int t = threadIdx.x;\n    {body}\n}}\n"


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("unoptimized") / "k.cu"
    bodies = {name: body for name, (_, body) in FAULTS.items()} | CORRECT
    path.write_text(HEAD + "".join(kernel_of(name, body) for name, body in bodies.items()))
    return load_cuda(path)


def launch(module, name, **options):
    x, y = np.arange(96, dtype=np.int32), np.zeros(192, np.int32)
    return simulate(module[name], on_finding="report", **options)[1, 64](x, y), y


def kinds(report):
    return {f.kind for f in report.findings if f.severity == "error"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_the_optimiser_removes_is_found(module, name):
    report, _ = launch(module, name)
    assert kinds(report) == {FAULTS[name][0]}
    (access, *_) = next(f for f in report.findings if f.severity == "error").accesses
    assert access.site.function == "k.cu"
    assert (
        "no_return" in access.site.source
        if name == "result"
        else access.site.source in module.origin.main_text
    )


def test_a_structure_decides_although_only_results_differ(module):
    """Test that an undefined member has an effect if a computation uses it."""
    kernel = kernel_of("computes", "P p; p.a = x[t]; y[t + (p.b & 3)] = p.a;")
    path = module.sources[-1].replace("k.cu", "computes.cu")
    with open(path, "w") as file:
        file.write(HEAD + kernel)
    assert kinds(launch(load_cuda(path), "computes")[0]) == {"uninitialized-read"}


def test_the_optimised_code_alone_contains_none_of_these_faults(module, monkeypatch):
    monkeypatch.setattr(nvrtc.CudaModule, "unoptimized", lambda module, name: None)
    assert {name: kinds(launch(module, name)[0]) for name in FAULTS} == {name: set() for name in FAULTS}


@pytest.mark.parametrize("name", CORRECT)
def test_an_undefined_value_without_effect_is_no_fault(module, name, capsys):
    report, _ = launch(module, name)
    assert report.findings == ()
    assert module[name].seconds_unoptimized > 0
    assert capsys.readouterr().out == ("once\n" if name == "printed" else "")


@pytest.mark.parametrize("engine", ["fibers", "threads", "native", "auto"])
def test_each_engine_reports_the_same(module, engine):
    module.seconds_unoptimized.clear()
    messages = [finding.message for finding in launch(module, "write", engine=engine)[0].findings]
    module.seconds_unoptimized.clear()
    assert (
        messages
        == [finding.message for finding in launch(module, "write", engine="fibers")[0].findings]
        != []
    )


def test_an_error_takes_the_place_of_a_warning_about_its_line(module):
    module.seconds_unoptimized.clear()
    assert [f.site.line for f in module["result"].compiler_warnings()] == [7]
    assert [f.severity for f in launch(module, "result")[0].findings] == ["error"]


def test_results_are_those_of_the_optimised_code(module, monkeypatch):
    module.seconds_unoptimized.clear()
    _, results = launch(module, "some")
    monkeypatch.setattr(nvrtc.CudaModule, "unoptimized", lambda module, name: None)
    assert np.array_equal(results, launch(module, "some")[1])


def test_a_kernel_without_undefined_values_does_not_run_again(tmp_path):
    (tmp_path / "k.cu").write_text(kernel_of("k", "y[t] = x[t];"))
    kernel = load_cuda(tmp_path / "k.cu")["k"]
    assert kernel.unoptimized() is None


def test_an_instance_of_a_template_is_checked(tmp_path):
    (tmp_path / "k.cu").write_text("template <int N> " + kernel_of("k", FAULTS["write"][1].replace("4", "N")))
    assert kinds(launch(load_cuda(tmp_path / "k.cu"), "k<5>")[0]) == {"out-of-bounds"}


def test_variables_of_the_module_keep_their_values(tmp_path):
    (tmp_path / "k.cu").write_text(
        "__device__ int calls; __constant__ int step;\n"
        + kernel_of(
            "k", "int a[2]; a[0] = step; a[x[t] & 1] = 7; if (t == 0) calls += step; y[t] = a[x[t] & 1];"
        )
    )
    module = load_cuda(tmp_path / "k.cu")
    module.constant["step"] = 5
    for times in (1, 2):
        assert not launch(module, "k")[0].findings
        assert int(module.variable["calls"]) == 5 * times


def test_the_last_block_is_checked(tmp_path):
    body = (
        "int a[4]; int n = blockIdx.x == 9 ? 5 : 4; a[x[t] & 3] = 1;" + " y[t] = n < 5 ? 1 : a[3 + (n == 5)];"
    )
    (tmp_path / "k.cu").write_text(kernel_of("k", body))
    x, y = np.zeros(64, np.int32), np.zeros(64, np.int32)
    kernel = load_cuda(tmp_path / "k.cu")["k"]
    report = simulate(kernel, on_finding="report")[10, 32](x, y)
    found = [f for f in report.findings if f.kind == "out-of-bounds"]
    assert [f.accesses[0].block for f in found] == [(9, 0, 0)]


def test_further_launches_of_a_slow_kernel_are_not_checked(module, monkeypatch):
    module.seconds_unoptimized.clear()
    monkeypatch.setattr(sim.unoptimized_code, "SECONDS_OF_KERNEL", 0.0)
    assert kinds(launch(module, "write")[0]) == {"out-of-bounds"}
    assert kinds(launch(module, "write")[0]) == set()


def test_without_the_observers_nothing_runs_again(module):
    module.seconds_unoptimized.clear()
    launch(module, "write", observers=(sim.observers.Races,))
    assert not module.seconds_unoptimized


@pytest.fixture(scope="module")
def unoptimized(module):
    return load_cuda(module.sources[-1], "-G")


@pytest.mark.parametrize("name", FAULTS)
def test_the_option_g_lets_the_launch_show_the_fault(unoptimized, name):
    assert unoptimized[name].unoptimized() is None
    assert kinds(launch(unoptimized, name)[0]) == {FAULTS[name][0]}


COPIES = {
    "variant": """struct T { int tag; union { int i; double d; }; };
extern "C" __global__ void k(T* o, int z) {
    int t = threadIdx.x; T p; p.tag = t & 1; if (t & 1) p.i = t; else p.d = z;
    o[t] = p;
}""",
    "returned": """struct T { char a; int b; char c; };
__device__ __noinline__ T id(T x) { x.b++; return x; }
extern "C" __global__ void k(T* o, int z) {
    int t = threadIdx.x; T p; p.a = 1; p.b = t; p.c = 2;
    o[t] = id(p);
}""",
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_structure_without_all_values_is_no_error(name, tmp_path):
    """Test optimised code that copies undefined bytes of a structure to the results."""
    (tmp_path / "k.cu").write_text(COPIES[name])
    report = simulate(load_cuda(tmp_path / "k.cu")["k"])[1, 32](np.zeros(32 * 16, np.uint8), np.int32(3))
    assert {(f.kind, f.severity) for f in report.findings} == {("uninitialized-read", "warning")}
    assert all("only copied to the results" in finding.reason for finding in report.findings)


def test_a_header_with_code_before_the_kernel_is_not_the_main_file(tmp_path):
    """Test that findings show lines of the main file if its PTX begins with a function of a header."""
    (tmp_path / "h.cuh").write_text(
        "__device__ __noinline__ int helper(int x, volatile int* p) { p[1] = x; return p[1] + 1; }\n"
    )
    (tmp_path / "m.cu").write_text(
        """#include "h.cuh"
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ int s[64];
    s[threadIdx.x] = helper(threadIdx.x, y + 2 * threadIdx.x);
    y[128 + threadIdx.x] = s[63 - threadIdx.x];
}
"""
    )
    report, _ = launch(load_cuda(tmp_path / "m.cu"), "k")
    assert {f.kind for f in report.findings} == {"race-shared"}
    sites = [access.site for finding in report.findings for access in finding.accesses]
    assert {site.line for site in sites} == {4, 5} and all(site.source for site in sites)
    assert {site.file for site in sites} == {str(tmp_path / "m.cu")}
