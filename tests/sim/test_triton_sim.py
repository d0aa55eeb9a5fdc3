"""Tests of sim.triton(): unmodified Triton programs on CPU tensors."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

import sim

pytestmark = pytest.mark.triton
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
kernels = pytest.importorskip("triton_kernels")
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from sim.triton_host.launcher import Launcher, pointer_and_sizes, tensor_map_and_sizes  # noqa: E402

pytest_plugins = ["pytester"]
FIBERS = {"engine": "fibers"}


@pytest.fixture
def session():
    with sim.triton(**FIBERS) as session:
        yield session


def test_a_program_for_a_gpu_runs_on_the_cpu(session):
    x = torch.arange(100.0, device="cuda")
    y, out = torch.ones(100).cuda(), torch.empty_like(x, device="cuda:0")
    compiled = kernels.add[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](
        x, y, out, 100, BLOCK=64, num_warps=2
    )
    assert x.is_cuda and torch.equal(out, torch.arange(1.0, 101))
    assert compiled.metadata.target.arch == 80
    (report,) = session.reports
    assert (report.kernel, report.grid, report.block) == (
        "add",
        (2, 1, 1),
        (64, 1, 1),
    ) and not report.findings
    kernels.add[(0,)](x, y, out, 100, BLOCK=64)
    assert len(session.reports) == 1


def test_findings_name_the_python_line(session):
    x, out = torch.zeros(100), torch.zeros(100)
    with pytest.raises(sim.KernelBug) as caught:
        kernels.double_without_mask[(2,)](x, out, 100, 64)
    (finding,) = caught.value.findings
    assert finding.verdict == "x[100] is outside x, whose shape is 100"
    site = finding.accesses[0].site
    assert (site.function, site.source) == ("triton_kernels.py", "values = tl.load(x + i)")
    session.on_finding = "report"
    kernels.row_sums[(4,)](torch.zeros(4, 32), torch.zeros(4), 33, COLUMNS=32)
    assert [f.accesses[0].site.source for f in session.reports[-1].findings] == [
        "tl.store(out + row, tl.sum(tl.load(x + row * stride + tl.arange(0, COLUMNS)), 0))"
    ]
    kernels.total_without_atomic[(2,)](torch.ones(64), torch.zeros(1), BLOCK=32)
    assert {f.kind for f in session.reports[-1].findings} == {"race-global"}


def test_replicated_sums_that_differ_in_their_last_bits_do_not_race(session):
    """Sum products over lanes. A product fused into the sum gives lanes different last bits; all lanes store."""
    random = torch.Generator().manual_seed(0)
    x, y, out = torch.randn(8, 128, generator=random), torch.randn(8, 128, generator=random), torch.zeros(8)
    kernels.row_products[(8,)](x, y, out, BLOCK=128)
    torch.testing.assert_close(out, (x * y).sum(1), rtol=1e-5, atol=1e-5)
    assert not session.reports[0].findings


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_replicated_loads_do_not_race_with_the_store(engine):
    """Several warps load each element and one stores it. A load of another element, or after the store, races."""
    x = torch.ones(32)
    with sim.triton(engine=engine) as session:
        kernels.double_in_place[(1,)](x, BLOCK=32)
        kernels.count_up[(1,)](x)
        assert x[:2].tolist() == [3, 2] and not any(report.findings for report in session.reports)
        session.on_finding = "report"
        kernels.shift_in_place[(1,)](x, BLOCK=32)
        kernels.store_and_reverse[(1,)](torch.zeros(512), torch.zeros(512), BLOCK=512)
        for report in session.reports[2:]:
            assert [finding.kind for finding in report.findings] == ["race-global"]


@pytest.mark.parametrize("architecture", [80, 90])
def test_tensor_descriptors(architecture):
    """Pass descriptors: tensor maps for sm_90, pointers with sizes and strides for sm_80."""
    described = lambda tensor: TensorDescriptor.from_tensor(tensor, [16, 16])  # noqa: E731
    x = torch.arange(20 * 24, dtype=torch.float32).reshape(20, 24)
    out, options = torch.empty(20, 24), {"ROWS": 16, "COLUMNS": 16, "num_warps": 1}
    with sim.triton(**FIBERS, architecture=architecture, on_finding="report") as session:
        kernels.add_tiles[(2, 2)](described(x), described(out), **options)
        kernels.add_tiles[(1, 1)](described(torch.empty(20, 24)), described(out), **options)
    clean, found = session.reports
    assert (
        torch.equal(out[16:], x[16:] + 1) and torch.equal(out[:, 16:], x[:, 16:] + 1) and not clean.findings
    )
    (finding,) = found.findings
    assert (finding.kind, finding.index) == ("uninitialized-read", (0, 0)) and finding.array.startswith("x")


def test_an_old_triton_is_refused(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.4.0")
    with pytest.raises(sim.LaunchError, match=r"needs Triton 3\.5 or later, and 3\.4\.0 is installed"):
        sim.triton()


def test_a_descriptor_of_triton_3_6_has_no_parameter_for_rounding():
    old = SimpleNamespace(base="tensor", shape=[20, 24], strides=[24, 1], padding="nan")
    new = SimpleNamespace(**vars(old), round_f32_to_tf32=True)
    before, after = (pointer_and_sizes("x", "tensordesc<fp32[16, 16]>", each, None) for each in (old, new))
    assert before[0] == ("*fp32", "tensor") and ("i1", True) in before
    assert after == [*before[:6], ("i1", True), *before[6:]] and len(after) == 11


def test_unsupported_layouts_are_refused_by_name():
    with pytest.raises(
        sim.LaunchError, match="x is a TMA descriptor in im2col mode, which sim does not support"
    ):
        tensor_map_and_sizes("x", "", None, {"is_im2col": True, "fp4_padded": False})
    with pytest.raises(sim.LaunchError, match="x is a TMA descriptor of 4-bit elements"):
        tensor_map_and_sizes("x", "", None, {"fp4_padded": True})
    made = SimpleNamespace(metadata=SimpleNamespace(num_ctas=2), src=SimpleNamespace(name="add"))
    with pytest.raises(sim.LaunchError, match="add was compiled with num_ctas=2; .* wanted num_ctas=1"):
        Launcher.configuration(made, (1,))


def test_memory_of_torch_empty_is_unwritten(session):
    session.on_finding = "report"
    kinds = lambda: [finding.kind for finding in session.reports[-1].findings]  # noqa: E731
    out = torch.zeros(64)
    for x in (torch.empty(64), torch.empty_like(out), out.new_empty(64), torch.empty(64, dtype=torch.int32)):
        kernels.double_without_mask[(1,)](x, out, 64, BLOCK=64, num_warps=2)
        assert kinds() == ["uninitialized-read"]
    x[:40] = 1
    kernels.double_without_mask[(1,)](x[:32], out, 32, BLOCK=32, num_warps=1)
    assert kinds() == []
    kernels.double_without_mask[(1,)](x, out, 64, BLOCK=64, num_warps=2)
    assert [(f.kind, f.index) for f in session.reports[-1].findings] == [("uninitialized-read", (40,))]
    # a store of the kernel, and a write of the host
    for write in (
        lambda y: kernels.double_without_mask[(1,)](out, y, 64, BLOCK=64, num_warps=2),
        torch.Tensor.zero_,
    ):
        write(y := torch.empty(64))
        kernels.double_without_mask[(1,)](y, out, 64, BLOCK=64, num_warps=2)
        assert kinds() == []


def test_addresses_of_tensors_in_a_tensor(session):
    sizes, named = torch.tensor([5, 7, 3, 2]), {"BLOCK": 32, "num_warps": 1}
    for longer in (40, 80):  # each launch gives the tensors new addresses
        first, second, whole = torch.zeros(5), torch.zeros(longer), torch.zeros(64)
        addresses = torch.tensor([x.data_ptr() for x in (first, second, whole, whole[32:])], device="cuda")
        kernels.increment_each[(4,)](addresses, sizes, **named)
        assert [int(x.sum()) for x in (first, second, whole, whole[32:])] == [5, 7, 5, 2]
        assert addresses[0] == first.data_ptr() and not session.reports[-1].findings
    with pytest.raises(sim.KernelBug, match=r"tensor_?\d?\[5\] is outside tensor_?\d?, whose shape is 5"):
        kernels.increment_each[(1,)](addresses, torch.tensor([6]), **named)


@pytest.mark.parametrize("n, even", [(128, True), (100, False)])
def test_autotuning_takes_the_first_valid_configuration(session, capsys, n, even):
    x, out = torch.zeros(n), torch.empty(n)
    compiled = kernels.tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    assert out.tolist() == [1] * n and compiled.metadata.num_warps == 2
    said = capsys.readouterr().err
    assert "tuned runs with BLOCK: 64" in said and "number 2 of 3 configurations, the first valid one" in said
    assert ("@%p1 ld.global" in compiled.asm["ptx"]) != even


def test_printing_and_assertions(session, capsys):
    x = torch.arange(4, dtype=torch.bfloat16)
    kernels.checked[(1,)](x, 4.0, 3, BLOCK=4, num_warps=1, debug=True)
    assert x.tolist() == [0, 3, 6, 9] and "value: 2.000000" in capsys.readouterr().out
    with pytest.raises(sim.ThreadError, match="assertion failed: too large"):
        kernels.checked[(1,)](x, 4.0, 3, BLOCK=4, num_warps=1, debug=True)


def test_queries_and_benchmarks(session, capsys):
    driver = triton.runtime.driver.active
    assert driver.get_active_torch_device().type == "cpu" and driver.get_current_target().arch == 80
    properties = driver.utils.get_device_properties(torch.cuda.current_device())
    assert (
        properties["multiprocessor_count"] == torch.cuda.get_device_properties(0).multi_processor_count == 132
    )
    assert torch.cuda.get_device_capability() == (8, 0)
    calls = []
    assert math.isnan(triton.testing.do_bench(lambda: calls.append(1)))
    assert (
        list(map(math.isnan, triton.testing.do_bench(lambda: calls.append(1), quantiles=[0.5, 0.2])))
        == [True] * 2
    )
    assert len(calls) == 2
    benchmark = triton.testing.Benchmark(["n"], [4, 8], "way", ["a", "b"], ["A", "B"], "speed", {"more": 1})
    mark = triton.testing.perf_report(benchmark)(lambda n, way, more: calls.append((n, way, more)))
    mark.run(print_data=True)
    assert len(calls) == 2 and "skipped the benchmarks speed" in capsys.readouterr().err
    session.benchmarks = True
    mark.run(print_data=True)
    assert calls[2:] == [(4, "a", 1), (4, "b", 1)]


def test_registers_come_from_the_machine_code(session):
    compiled = kernels.add.warmup(*[torch.zeros(8)] * 3, 8, BLOCK=8, grid=(1,))
    compiled._init_handles()
    assert 4 < compiled.n_regs < 64 and compiled.n_spills == 0 and not session.reports


def test_everything_is_restored():
    before = torch.cuda.is_available, triton.testing.do_bench, vars(triton.runtime.driver).copy()
    with sim.triton():
        assert torch.cuda.is_available()
    assert before == (torch.cuda.is_available, triton.testing.do_bench, vars(triton.runtime.driver))
    assert not torch.zeros(1).is_cuda


def test_replacements_are_distinct_objects(session):
    """Compare identities, because torch._dynamo keeps one rule per object of torch.cuda."""
    from sim.triton_host.torch_cuda import replacements

    values = [value for name, value in replacements(session).items()]
    assert len(set(map(id, values))) == len(values) > 20


def test_small_launches_are_interpreted_and_large_ones_compiled():
    x = torch.zeros(1 << 16)
    with sim.triton() as session:
        for n in (64, len(x)):
            kernels.add[(n // 64,)](x, x, torch.empty_like(x), n, BLOCK=64)
    assert [report.engine for report in session.reports] == ["fibers", "native"]


def test_options_are_checked():
    with pytest.raises(sim.LaunchError, match="architecture 75 is not known; wanted one of 80, 86, 89, 90"):
        sim.triton(architecture=75)
    with pytest.raises(sim.LaunchError, match="neither 'raise' nor 'report'"):
        sim.triton(on_finding="ignore")


PROJECT = """
import pytest
import torch
import triton
from triton_kernels import add, double_without_mask

@pytest.fixture
def x():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.arange(100.0, device="cuda")

def test_add(x):
    out = torch.empty_like(x)
    add[(2,)](x, x, out, 100, BLOCK=64)
    assert torch.equal(out, 2 * x)

@pytest.mark.parametrize("time", [1, 2])
def test_no_mask(x, time):
    double_without_mask[(2,)](x, torch.empty_like(x), 100, BLOCK=64)

@pytest.mark.cuda_sim(allow="out-of-bounds", engine="threads")
def test_allowed(x):
    double_without_mask[(2,)](x, torch.empty_like(x), 100, BLOCK=64)

@pytest.mark.cuda_sim(off=True)
def test_off():
    assert isinstance(triton.runtime.driver._active, (type(None), triton.backends.driver.GPUDriver))
"""


def test_the_plug_in_counts_and_fails_tests(pytester):
    pytester.makepyfile(test_project=PROJECT, triton_kernels=Path(kernels.__file__).read_text())
    options = (
        "--triton-sim",
        "--cuda-sim-engine=fibers",
        "-p",
        "no:nbval",
        "-p",
        "no:xdist",
        "-p",
        "no:randomly",
        "-rf",
    )
    result = pytester.runpytest_subprocess(*options, timeout=120)
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "  read by thread * of block 1  triton_kernels.py line 17  values = tl.load(x + i)",
            "*  Launched from *test_project.py:19.",
            "triton-sim: 4 launches = 1 clean + 3 with findings, in 4 tests, 3 by fibers, 1 by threads;"
            " 1 finding (1 out-of-bounds)",
            "FAILED *::test_no_mask?1? - out-of-bounds*",
        ]
    )


SCRIPT = """
import sys
import torch
from triton_kernels import double_without_mask

x = torch.zeros(int(sys.argv[1]), device="cuda")
double_without_mask[(2,)](x, torch.empty_like(x), len(x), BLOCK=64)
"""


@pytest.mark.parametrize("n, status", [(100, 1), (128, 0)])
def test_a_script_runs_from_the_command_line(tmp_path, capsys, n, status):
    from sim.__main__ import main

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["triton", str(script), "--engine", "fibers", "--", str(n)]) == status
    said = capsys.readouterr().err
    assert (
        f"sim: {script}: 1 launch, {1 - status} clean" in said and ("out-of-bounds: x[100]" in said) == status
    )
    assert main(["triton", str(tmp_path / "none.py")]) == 2 and "no such file" in capsys.readouterr().err
