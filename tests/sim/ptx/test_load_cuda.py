"""Tests of load_cuda: compiler options, headers, templates, module variables and pointers in memory."""

import re
import time

import numpy as np
import pytest

import sim
from sim import LaunchError, load_cuda, load_ptx, simulate
from sim.ptx import nvrtc
from sim.ptx.origin import plain_name

SOURCE = """
#include "pair.cuh"
__constant__ float factor[2];
__device__ int calls;
template <int N> __global__ void scale(float* x, int n) {
    int i = blockIdx.x * N + threadIdx.x;
    if (i < n SLACK) x[i] *= factor[0] + N;
    if (threadIdx.x == 0) atomicAdd(&calls, 1);
}
template <typename T, typename U> __global__ void add(T* x, const U* y, Pair<T> pair) {
    x[threadIdx.x] += y[threadIdx.x] + pair.a * pair.b;
}
namespace deep { __global__ void counted(int* x) { x[threadIdx.x] = calls; } }
template <int N> __device__ int seen[N];
template <int N> __global__ void mark() { seen<N>[threadIdx.x] = N; }
struct Node { float* data; Node* next; int n; };
__global__ void total(const Node* head, float* out) {
    float sum = 0;
    for (const Node* node = head; node; node = node->next)
        for (int i = 0; i < node->n; ++i)
            sum += node->data[i];
    *out = sum;
}
__global__ void column(float** rows, int i, float* out) { out[threadIdx.x] = rows[threadIdx.x][i]; }
"""
HEADER = "template <typename T> struct Pair { T a, b; };\n"
NODE = np.dtype([("data", "u8"), ("next", "u8"), ("n", "i4")], align=True)
ENGINES = pytest.mark.parametrize("engine", ["fibers", "native"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "kernels.cu").write_text(SOURCE)
    (folder / "pair.cuh").write_text(HEADER)
    return folder


@pytest.fixture(scope="module")
def kernels(folder):
    return load_cuda(folder / "kernels.cu", "-DSLACK=")


def test_instances_of_a_template_share_the_variables(kernels):
    kernels.constant["factor"] = np.array([1, 2], np.float32)
    x = np.ones(100, np.float32)
    report = simulate(kernels["scale<64>"])[2, 64](x, 100)
    assert report.kernel == "scale<64>" and x.tolist() == [65] * 100
    simulate(kernels["scale< 32 >"])[4, 32](x, 100)
    assert x[0] == 65 * 33 and kernels.variable["calls"] == 6
    counted = np.zeros(8, np.int32)
    for name in ("deep::counted", "counted"):
        simulate(kernels[name])[1, 8](counted)
    assert counted.tolist() == [6] * 8 and kernels["scale<64>"] is kernels["scale<64>"]


def test_types_and_structures_as_arguments(kernels):
    x = np.ones(8)
    pair = np.array([2.0, 3.0])
    simulate(kernels["add<double, int>"])[1, 8](x, np.arange(8, dtype=np.int32), pair)
    assert x.tolist() == [7 + i for i in range(8)]


def test_variables_of_an_instance(kernels):
    with pytest.raises(LaunchError, match=r'the variables of a template exist after kernels\["name<...>"\]'):
        kernels.variable["seen"]
    mark = kernels["mark<4>"]
    simulate(mark)[1, 4]()
    assert kernels.variable["seen"].view(np.int32).tolist() == [4] * 4


def test_options_reach_instances(folder):
    kernels = load_cuda(folder / "kernels.cu", "-DSLACK=+1")
    kernels.constant["factor"] = np.ones(2, np.float32)
    report = simulate(kernels["scale<64>"], on_finding="report")[1, 64](np.ones(33, np.float32), 33)
    assert {finding.kind for finding in report.findings} == {"out-of-bounds"}  # the load and the store
    assert (
        "x[33] is outside x" in report.findings[0].message
        and "kernels.cu line 7" in report.findings[0].message
    )


@pytest.mark.parametrize(
    "name, reason", [("scale<x>", '"x" is undefined'), ("none<3>", '"none" is undefined')]
)
def test_a_wrong_expression_is_refused(kernels, name, reason):
    with pytest.raises(LaunchError, match=f"NVRTC does not compile {name} in kernels.cu:(?s:.*){reason}"):
        kernels[name]


@ENGINES
def test_pointers_in_structures(kernels, engine):
    a, b, out = np.arange(5, dtype=np.float32), np.ones(3, np.float32), np.zeros(1, np.float32)
    nodes = np.zeros(2, NODE)
    nodes["data"], nodes["n"] = [kernels.pointer(a, "a"), kernels.pointer(b, "b")], [5, 3]
    nodes["next"][0] = kernels.pointer(nodes, "nodes") + NODE.itemsize
    run = simulate(kernels["total"], engine=engine, on_finding="report")[1, 1]
    assert not run(nodes, out).findings and out == 13
    nodes["n"][1] = 4
    (finding,) = run(nodes, out).findings
    assert finding.verdict.startswith("b") and "[3] is outside b" in finding.verdict


@ENGINES
def test_arrays_of_pointers(kernels, engine):
    whole, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(3, np.float32)
    kernels.pointer(whole, "whole")
    rows = np.array([kernels.pointer(row) for row in whole], np.uint64)
    run = simulate(kernels["column"], engine=engine, on_finding="report")[1, 3]
    assert not run(rows, 2, out).findings and out.tolist() == [2, 6, 10]
    assert not run(rows, 2, whole[2, :3]).findings and whole[2].tolist() == [2, 6, 10, 11]
    (finding,) = run(rows, 4, out).findings
    assert "is outside whole" in finding.verdict


@ENGINES
def test_none_is_a_null_pointer(kernels, engine):
    out = np.ones(1, np.float32)
    simulate(kernels["total"], engine=engine)[1, 1](None, out)
    assert out[0] == 0
    with pytest.raises(LaunchError, match="i is a .u32 of 4 bytes: wanted a number, got a NoneType"):
        simulate(kernels["column"], engine=engine)[1, 1](None, None, out)


def test_what_pointer_refuses(kernels):
    x = np.zeros(100, np.float32)
    kernels.pointer(x[10:20])
    with pytest.raises(LaunchError, match=r"call pointer\(array\) for the whole array first"):
        kernels.pointer(x)
    with pytest.raises(LaunchError, match="values is a list; wanted a numpy array or a CPU tensor"):
        kernels.pointer([1, 2], "values")


def test_long_runs_of_spaces_take_no_time(tmp_path):
    # Source without its host code, or without its comments, can have thousands of empty lines.
    blank = ("\n" + " " * 100) * 300
    (tmp_path / "reverse.cu").write_text(
        f"{blank}__global__ void reverse(const float* x, float* y) {{\n    __shared__ float tile[64];{blank}"
        f"tile[threadIdx.x] = x[threadIdx.x];{blank}y[threadIdx.x] = tile[63 - threadIdx.x];\n}}{blank}"
    )
    x, began = np.ones(64, np.float32), time.process_time()
    kernel = load_cuda(tmp_path / "reverse.cu")["reverse"]
    (finding,) = simulate(kernel, on_finding="report")[1, 64](x, np.zeros_like(x)).findings
    assert finding.verdict.startswith("tile[0] in shared memory")
    assert time.process_time() - began < 10  # 0.3; with a pattern of quadratic time, more than a minute


HOSTED = """#include <stdio.h>
#include <cfloat>
#include <cstdint>
#include <vector>
#include "cuda_runtime.h"
INCLUDES
template <typename T> __global__ void first(T* x, const float* limits, uint n) {
    static_assert(sizeof(int64_t) == 8 && sizeof(uint16_t) == 2 && UINT32_MAX == 4294967295u, "sizes");
    float most = FLT_MAX;
    for (uint32_t i = 0; i < n; i++) most = fminf(most, limits[i]);
    x[threadIdx.x] = most == INFINITY ? 0 : most;
    if (most < 0) printf("%f\\n", most);
}
"""


@pytest.mark.parametrize("more", ["", "#include <cooperative_groups.h>", "#include <cuda/barrier>"])
def test_headers_of_the_host_have_stand_ins(tmp_path, more):
    (tmp_path / "hosted.cu").write_text(HOSTED.replace("INCLUDES", more))
    run = simulate(load_cuda(tmp_path / "hosted.cu")["first<float>"], on_finding="report")
    x, limits = np.zeros(32, np.float32), np.array([5, 2, 7], np.float32)
    assert not run[1, 32](x, limits, 3).findings and (x == 2).all()
    (finding,) = run[1, 32](x, limits, 4).findings
    assert finding.kind == "out-of-bounds" and finding.accesses[0].site.line == 10


PLACEMENT = """#include <new>
struct Cell { int value; __device__ Cell(int x) : value(x) {} };
__global__ void place(int* x) {
    __shared__ alignas(Cell) char room[sizeof(Cell)];
    *x = (new (room) Cell(3))->value;
}
"""


def test_placement_new(tmp_path):
    (tmp_path / "place.cu").write_text(PLACEMENT)
    x = np.zeros(1, np.int32)
    assert not simulate(load_cuda(tmp_path / "place.cu")["place"])[1, 1](x).findings and x[0] == 3


IMPLICIT = """__global__ void fill(float* x, uint n) {
    uint32_t i = threadIdx.x;
    if (i < n) x[i] = i == 0 ? -INFINITY : sinf(M_PI / INT_MAX);
}
"""


def test_names_of_headers_that_nvcc_includes_itself(tmp_path):
    (tmp_path / "fill.cu").write_text(IMPLICIT)
    x = np.zeros(32, np.float32)
    assert not simulate(load_cuda(tmp_path / "fill.cu")["fill"])[1, 32](x, 32).findings
    assert x[0] == -np.inf and 0 < x[1] < 1e-8


def test_names_of_std_are_those_of_cuda_std(tmp_path):
    (tmp_path / "std.cu").write_text("""
        #include <limits>
        #include <type_traits>
        template <typename T> __global__ void k(T* x) {
            if (std::isinf(x[0]) && std::is_same_v<T, float>) x[0] = std::numeric_limits<T>::max();
            x[1] = std::max(x[1], x[2]);
        }""")
    x = np.array([np.inf, 1, 2], np.float32)
    simulate(load_cuda(tmp_path / "std.cu")["k<float>"])[1, 1](x)
    assert x.tolist() == [np.finfo(np.float32).max, 2, 2]


def test_sizes_of_shared_arrays_that_depend_on_a_template(tmp_path):
    (tmp_path / "sizes.cu").write_text("""template <int N> __global__ void k(double2* x) {
        __shared__ double2 pairs[1 << N];
        __shared__ float rows[N][8];
        int i = threadIdx.x;
        pairs[i + 1] = x[i];
        rows[i / 8][i % 8] = 1;
        x[i].x = rows[i / 8][(i + 3) % 8] + pairs[i].y;
    }""")
    kernel = load_cuda(tmp_path / "sizes.cu")["k<5>"]
    findings = simulate(kernel, on_finding="report")[1, 32](np.zeros(64)).findings
    verdicts = {finding.kind: finding.verdict for finding in findings}
    assert verdicts["out-of-bounds"] == "pairs[32] is outside pairs, whose shape is 32"
    assert verdicts["race-shared"].startswith("rows[0, 0] in shared memory")


def test_kernels_may_start_early(tmp_path):
    (tmp_path / "early.cu").write_text("""__global__ void early(int* x) {
        cudaGridDependencySynchronize();
        x[threadIdx.x] = 1;
        cudaTriggerProgrammaticLaunchCompletion();
    }""")
    x = np.zeros(4, np.int32)
    simulate(load_cuda(tmp_path / "early.cu", architecture="sm_90")["early"])[1, 4](x)
    assert x.tolist() == [1] * 4


def test_the_header_of_the_driver_api(tmp_path):
    (tmp_path / "tensor.cu").write_text("""#include <cuda.h>
    extern "C" __global__ void rank(const __grid_constant__ CUtensorMap map, int* x) { *x = sizeof(map); }
    """)
    kernel = load_cuda(tmp_path / "tensor.cu", architecture="sm_90")["rank"]
    x = np.zeros(1, np.int32)
    simulate(kernel)[1, 1](sim.tensor_map(np.zeros((8, 16), np.float32), (8, 16)), x)
    assert x[0] == 128


GROUPS = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void total(TYPE* x) {
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    STATEMENT;
}
"""
REDUCE = GROUPS.replace("STATEMENT", "x[threadIdx.x] = cg::reduce(tile, x[threadIdx.x], cg::plus<TYPE>())")
UPDATE = GROUPS.replace("STATEMENT", "cg::reduce_update_async(tile, x[0], 1, cg::plus<int>())")


@pytest.mark.parametrize("of", ["int", "double", "unsigned char"])
def test_cooperative_groups_without_cuda_std_give_the_same_ptx(of, monkeypatch):
    source, own = REDUCE.replace("TYPE", of), []
    monkeypatch.setattr(nvrtc, "run_nvrtc", recording_runs(own))
    lean = entry_of(nvrtc.compile_ptx(source, "total.cu"))
    assert own == [True]
    monkeypatch.setattr(nvrtc, "can_use_own_traits", lambda source, options: False)
    assert entry_of(nvrtc.compile_ptx(source, "total.cu")) == lean


def test_cooperative_groups_that_need_cuda_std(monkeypatch):
    own = []
    monkeypatch.setattr(nvrtc, "run_nvrtc", recording_runs(own))
    # The header's own traits do not count a signed char as an integer.
    assert "redux.sync.add" in nvrtc.compile_ptx(REDUCE.replace("TYPE", "signed char"), "total.cu")
    # Without cuda::std, the header does not define reduce_update_async.
    assert "atom" in nvrtc.compile_ptx(UPDATE.replace("TYPE", "cuda :: atomic<int>"), "total.cu")
    assert own == [False, True, False]


def recording_runs(own):
    """Return run_nvrtc, except that it appends to `own` whether the headers use their own traits."""
    run = nvrtc.run_nvrtc

    def recorded(compiler, source, name, flags, *others):
        own.append(nvrtc.OWN_TRAITS in flags)
        return run(compiler, source, name, flags, *others)

    return recorded


def entry_of(ptx):
    """Return the instructions of the only kernel in a PTX text, without debug information and labels."""
    (body,) = re.findall(r"\.entry.*?\n\}", ptx, re.S)
    lines = [re.sub(r"\$L__\w+", "L", line.strip()) for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith((".loc", "//", "L:"))]


def test_headers_in_the_current_folder_do_not_replace_those_of_the_file(tmp_path, monkeypatch):
    project, current, other = (tmp_path / name for name in ("project", "current", "other"))
    for value, folder in enumerate((project, current, other)):
        folder.mkdir()
        (folder / "value.h").write_text(f"#define VALUE {value}\n")
    (project / "k.cu").write_text('#include "value.h"\n__global__ void k(int* x) { *x = VALUE; }')
    monkeypatch.chdir(current)
    for options in ((), (f"-I{other}",)):
        x = np.full(1, 7, np.int32)
        simulate(load_cuda(project / "k.cu", *options)["k"])[1, 1](x)
        assert x[0] == 0


def test_a_header_without_stand_in_is_named(tmp_path):
    (tmp_path / "hosted.cu").write_text('#include <stdio.h>\n#include "mine.h"\n__global__ void k() {}\n')
    with pytest.raises(LaunchError, match="cannot open source file .mine.h.") as raised:
        load_cuda(tmp_path / "hosted.cu")
    assert "Add other folders with" in str(raised.value)


def test_a_refused_kernel_has_its_name_in_the_source():
    body = "{ tcgen05.wait::ld.sync.aligned; ret; }"
    text = f".version 8.0\n.target sm_90\n.address_size 64\n.entry _Z4spini() {body}"
    with pytest.raises(LaunchError, match="^spin uses instructions that sim does not support"):
        simulate(load_ptx(text)["spin"])[1, 1]()


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z6kernelPf", "kernel"),
        ("_ZN2M87productILi128ELin5EEEvPi14CUtensorMap_stS1_", "product"),
        ("_ZN12_GLOBAL__N_16bodiesEPKNS_4Vec3EPS0_if", "bodies"),
        ("_ZN3foo3barINS_3bazEEEvv", "bar"),
        ("_ZN3foo3barILNS_4ModeE1EL4Side1EEEvPA4_fDF16_", "bar"),
        ("_ZN3foo3barIXadL_ZNS_3bazEvEEEEvv", "bar"),
        ("_ZN3FooC1Ev", "Foo"),
        ("_ZZN2M86kernelILi128EEEvPf3MapE4tile_0", "tile"),
        ("_ZN12_GLOBAL__N_1L5valueE", "value"),
    ],
)
def test_the_name_of_a_mangled_function(mangled, name):
    assert plain_name(mangled) == name


def test_an_empty_log_does_not_change_pythons_bytes(tmp_path):
    """NVRTC writes the log into a bytes object. Python has only one object for the bytes b" "."""
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(int* x) { x[0] = 1; }\n')
    load_cuda(tmp_path / "k.cu")
    assert bytes([32])[0] == 32
