"""Tests of the `__constant__` and `__device__` variables of a module.

The host sets and reads them, and they persist between launches.
"""

import time
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import LaunchError, load_cuda, load_ptx, simulate
from sim.ptx.parse import parse

ENGINES = ["fibers", "native"]
X = np.arange(1, 9, dtype=np.float32)


@pytest.fixture
def kernels():
    return module("variables", Path(__file__).with_name("programs"))[1]


def convolved(kernels, engine="fibers", **options):
    y = np.zeros(8, np.float32)
    return simulate(kernels["convolve"], engine=engine, **options)[2, 8](X, y, 8), y


@pytest.mark.parametrize("engine", ENGINES)
def test_constant_memory_that_nobody_has_set_is_refused(kernels, engine):
    with pytest.raises(
        LaunchError, match=r'filter is .* has not been set, and convolve(.|\n)*constant\["filter"\]'
    ):
        convolved(kernels, engine)
    with pytest.raises(LaunchError, match="filter, which is .*, has not been set"):
        kernels.constant["filter"]
    assert "filter" in kernels.constant and "calls" not in kernels.constant


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_host_sets_is_what_kernels_read_and_what_they_store_stays(kernels, engine):
    weights = np.array([1, -2, 3, -4, 5], np.float32)
    kernels.constant["filter"] = weights
    for launches in (1, 2):
        report, y = convolved(kernels, engine)
        assert report.findings == ()
        np.testing.assert_allclose(y, np.convolve(X, weights[::-1], "same"))
        assert kernels.variable["calls"] == launches
    kernels.variable["calls"] = 40
    convolved(kernels, engine)
    assert int(kernels.variable["calls"]) == 41


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_of_constant_memory_that_are_not_set_are_not_written(kernels, engine):
    kernels.constant["filter"] = [1, 2, 3, 4]
    report, _ = convolved(kernels, engine, on_finding="report")
    assert [(f.kind, f.array, f.index) for f in report.findings] == [("uninitialized-read", "filter", (4,))]
    kernels.constant["filter"] = [1, 2, 3, 4, 5]
    assert convolved(kernels, engine)[0].findings == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_variables_have_the_types_and_shapes_of_the_source(kernels, engine):
    kernels.constant["limits"] = np.array((2, 6.5), [("low", np.int32), ("high", np.float32)])
    assert simulate(kernels["count"], engine=engine)[1, 8](X).findings == ()
    assert kernels.variable["parts"].tolist() == [[0, 1, 1], [1, 1, 1]]
    variables = kernels.variable
    assert {name: (value.dtype, value.shape) for name, value in variables.items()} == {
        "calls": (np.int32, ()),
        "parts": (np.int32, (2, 3)),
        "total": (np.uint64, ()),
        "corner": (np.float32, (4,)),
        "share": (np.float64, ()),
    }
    assert (variables["total"], variables["share"], variables["corner"][1]) == (8, 0.5, 2)
    assert set(kernels.constant) == {"filter", "limits", "nothing"}
    assert kernels.constant["nothing"].tolist() == [0] * 4
    del variables["total"]
    assert variables["total"] == 7


def test_a_launch_with_a_finding_runs_once_as_far_as_variables_are_concerned(kernels):
    """Find an error in compiled code, for which the interpreter runs the launch again. Variables must change
    once."""
    kernels.constant["filter"] = np.ones(5, np.float32)
    report = simulate(kernels["convolve"], engine="native", on_finding="report")[1, 8](
        X, np.zeros(4, np.float32), 8
    )
    assert {f.kind for f in report.findings} == {"out-of-bounds"} and kernels.variable["calls"] == 1


@pytest.mark.parametrize(
    "place, name, value, says",
    [
        ("constant", "filtre", [1], "no __constant__ variable 'filtre'; it has filter, limits, nothing"),
        ("constant", "calls", 1, r'__device__ variable: kernels.variable\["calls"\]'),
        ("variable", "filter", [1], r'__constant__ variable: kernels.constant\["filter"\]'),
        ("constant", "filter", np.ones(5), r"array of float32 .* got an array of float64 .*astype"),
        ("constant", "filter", np.ones(6, np.float32), r"with shape \(5,\), got .* with shape \(6,\)"),
        ("constant", "filter", ["a"], "float32"),
        ("variable", "calls", 1.5, "one int32, got 1.5"),
        ("variable", "calls", 1 << 40, "one int32, got 1099511627776"),
        ("variable", "parts", np.zeros((3, 2), np.int32), r"shape \(2, 3\), got .* shape \(3, 2\)"),
        ("constant", "limits", bytes(9), r"shape \(8,\), got .* shape \(9,\)"),
    ],
)
def test_wrong_names_sizes_and_types_are_refused(kernels, place, name, value, says):
    with pytest.raises(LaunchError, match=says):
        getattr(kernels, place)[name] = value


def test_a_constant_is_not_changed_in_place(kernels):
    kernels.constant["filter"] = np.ones(5, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        kernels.constant["filter"][0] = 2


POINTER = """.version 8.0\n.target sm_80\n.address_size 64
.global .align 4 .u32 target = 5;
.global .align 8 .u64 pointer = generic(target);
.visible .entry add(.param .u64 add_x)
{
	.reg .b32 	%r<3>;
	.reg .b64 	%rd<4>;
	ld.param.u64 	%rd1, [add_x];
	ld.global.u64 	%rd2, [pointer];
	ld.u32 	%r1, [%rd2];
	st.u32 	[%rd2], 9;
	st.global.u32 	[%rd1], %r1;
	ret;
}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_addresses_that_initialise_a_variable_hold_in_every_launch(engine):
    kernel = load_ptx(POINTER)["add"]
    for size, wanted in ((1, 5), (1 << 20, 9)):
        out = np.zeros(size, np.uint32)
        assert simulate(kernel, engine=engine)[1, 1](out).findings == ()
        assert out[0] == wanted


def test_constant_memory_that_a_header_declares_is_refused_too(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "weights.h").write_text("__constant__ float weights[3], zeros[3] = {0, 0, 0};\n")
    (tmp_path / "scale.cu").write_text(
        '#include "weights.h"\n'
        'extern "C" __global__ void scale(float* y) {\n'
        "    y[threadIdx.x] *= weights[threadIdx.x] + zeros[threadIdx.x];\n}\n"
    )
    kernels, y = load_cuda(tmp_path / "scale.cu"), np.ones(3, np.float32)
    with pytest.raises(LaunchError, match="weights is constant memory that has not been set"):
        simulate(kernels["scale"])[1, 3](y)
    kernels.constant["weights"] = [1, 2, 3]
    assert simulate(kernels["scale"])[1, 3](y).findings == () and y.tolist() == [1, 2, 3]


def test_a_long_initialiser_is_parsed_in_linear_time():
    """Parse a table like cuRAND's. It took a minute when each value added up all earlier ones."""
    count = 60_000
    values = ", ".join(str(i % 256) for i in range(count))
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    lines = f"{head}.global .b8 long[{count}] = {{{values}}};\n"
    lines += ".global .u16 short[4] = {65535, 0x10, -1, {7}};\n"
    before = time.process_time()
    variables = parse(lines).variables
    assert time.process_time() - before < 5
    assert variables["long"].initial == bytes(range(256)) * 234 + bytes(range(96))
    assert variables["short"].initial == bytes([255, 255, 16, 0, 255, 255, 7, 0])
