"""Tests of accesses at an undefined index.

The finding names the origin of the value and follows the finding of its cause, which becomes an error.
"""

import numba
import numpy as np
import pytest
from numba import cuda, int32, int64

import sim
from sim import simulate
from sim.observers import poison


@cuda.jit
def by_a_shuffle(out):
    lane = cuda.threadIdx.x
    if lane < 16:
        i = cuda.shfl_down_sync(0xFFFF, int64(lane), 1)
        out[i] = 1


@cuda.jit
def by_shared_memory(out):
    places = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if t > 0:
        places[t] = t
    out[places[t] + 1] = 1


@cuda.jit
def by_a_read_outside(x, out):
    t = cuda.threadIdx.x
    out[x[t]] = 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "kernel, arguments, kind, line",
    [
        (by_a_shuffle, (np.zeros(32),), "warp-divergence", 4),
        (by_shared_memory, (np.zeros(34),), "uninitialized-read", 6),
        (by_a_read_outside, (np.arange(31), np.zeros(32)), "out-of-bounds", 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_cause_comes_first(kernel, arguments, kind, line, engine):
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](*arguments)
    cause, consequence = report.findings
    assert (cause.kind, cause.severity) == (kind, "error")
    assert (consequence.kind, consequence.severity, consequence.array) == ("out-of-bounds", "error", "out")
    assert (
        f"comes from an undefined value on line {line} of {kernel.__name__}: {cause.verdict}"
        in consequence.reason
    )
    assert consequence.fix.startswith(
        f"correct line {line} of {kernel.__name__} first: {cause.fix}; this access"
    )
    assert "Index -" in consequence.reason


def test_without_a_tool_that_knows_the_cause():
    report = simulate(by_shared_memory, observers=[sim.observers.Bounds], on_finding="report")[1, 32](
        np.zeros(34)
    )
    (finding,) = report.findings
    assert "comes from an undefined value, such as" in finding.reason and "guard" not in finding.fix


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(("last", "severity"), [(20, "warning"), (21, "error")])
def test_an_unwritten_value_that_reaches_only_shared_memory(engine, last, severity):
    """Check a scan whose padding has no initial value. Its sums reach the output only if `last` is too large."""

    def scan(x, out, last):
        tile, sums = cuda.shared.array(32, int32), cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        if t < x.size:
            tile[t] = x[t]
        cuda.syncthreads()
        sums[t] = tile[t] + tile[max(t - 1, 0)]
        cuda.syncthreads()
        if t < last:
            out[t] = sums[t]

    x, out = np.arange(20, dtype=np.int32), np.zeros(32, np.int32)
    (finding,) = simulate(scan, engine=engine, on_finding="report")[1, 32](x, out, last).findings
    assert (finding.kind, finding.severity) == ("uninitialized-read", severity)
    assert ("appears to have no effect" in finding.reason) == (severity == "warning")


def test_an_index_that_is_a_little_off_is_no_consequence():
    def kernel(x, out):
        t = cuda.threadIdx.x
        fresh = cuda.local.array(1, int32)
        out[t + 1] = fresh[0] + x[t]

    findings = simulate(kernel, on_finding="report")[1, 8](np.zeros(8), np.zeros(8)).findings
    assert {f.kind for f in findings} == {"uninitialized-read", "out-of-bounds"}
    assert not any(f.follows for f in findings)


WIDTHS = [np.dtype(f"{kind}{size}") for size in (1, 2, 4, 8) for kind in "iu"]


def of_memory(dtype):
    width = getattr(numba, dtype.name)

    @cuda.jit
    def kernel(out):
        places = cuda.shared.array(32, width)
        t = cuda.threadIdx.x
        if t > 0:
            places[t] = t
        out[places[t] + 1] = 1

    return kernel, (np.zeros(34),), "uninitialized-read"


def of_local_memory(dtype):
    width = getattr(numba, dtype.name)

    @cuda.jit
    def kernel(out):
        places = cuda.local.array(2, width)
        t = cuda.threadIdx.x
        places[0] = t
        out[places[t // 31]] = 1

    return kernel, (np.zeros(34),), "uninitialized-read"


def of_a_shuffle(dtype):
    width = getattr(numba, dtype.name)

    @cuda.jit
    def kernel(out):
        lane = cuda.threadIdx.x
        if lane < 16:
            out[width(cuda.shfl_down_sync(0xFFFF, lane, 1))] = 1

    return kernel, (np.zeros(34),), "warp-divergence"


def of_a_read_outside(dtype):
    @cuda.jit
    def kernel(x, out):
        t = cuda.threadIdx.x
        out[x[t]] = 1

    return kernel, (np.arange(31).astype(dtype), np.zeros(34)), "out-of-bounds"


def of_an_empty_array(dtype):
    @cuda.jit
    def kernel(x, out):
        t = cuda.threadIdx.x
        out[x[t]] = 1

    return kernel, (sim.empty(32, dtype), np.zeros(34)), "uninitialized-read"


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize(
    "made", [of_memory, of_local_memory, of_a_shuffle, of_a_read_outside, of_an_empty_array]
)
def test_poison_of_every_width(made, dtype, few):
    kernel, arguments, kind = made(dtype)
    for engine in few(["fibers", "native"], 1):
        report = simulate(kernel, engine=engine, on_finding="report")[1, 32](*(a.copy() for a in arguments))
        cause, consequence = report.findings
        assert (cause.kind, cause.severity) == (kind, "error")
        assert consequence.kind == "out-of-bounds" and consequence.follows
        assert "comes from an undefined value on line" in consequence.reason


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_narrow_poison_that_counts_from_the_end(dtype):
    kernel, _, _ = of_memory(np.dtype(dtype))
    cause, consequence = simulate(kernel, on_finding="report")[1, 32](np.zeros(1 << 16)).findings
    assert (cause.kind, consequence.kind) == ("uninitialized-read", "negative-index")
    assert consequence.follows


def test_an_index_like_narrow_poison_needs_a_cause_in_its_own_thread():
    def kernel(out, seen):
        t = cuda.threadIdx.x
        fresh = cuda.shared.array(1, int32)
        if t == 0:
            seen[0] = fresh[0]
        out[t] = 1

    findings = simulate(kernel, on_finding="report")[1, 170](np.zeros(165), np.zeros(1)).findings
    assert {f.kind for f in findings} == {"uninitialized-read", "out-of-bounds"}
    assert not any(f.follows for f in findings)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32])
@pytest.mark.parametrize("engine", ["fibers", "native", "threads"])
def test_arithmetic_keeps_the_cause_of_an_index(dtype, engine):
    def kernel(x, y, out):
        i = x[0]
        j = 3 * i + 40_000
        k = j // 2
        out[k] = 1
        out[y[0]] = 1

    arguments = sim.empty(1, dtype), np.full(1, 9, dtype), np.zeros(8)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 1](*arguments)
    found = {access.site.line: f for f in report.findings for access in f.accesses}
    assert found[5].follows and "an undefined value on line 2 of kernel" in found[5].reason
    assert not found[6].follows and found[6].fix == "guard the access: if y[0] < out.shape[0]"


@cuda.jit
def reads_beyond_the_end(x, out):
    for i in range(200):
        out[x[i + x.size]] = 1


def test_a_cause_is_sought_among_sites_and_not_among_all_reads(monkeypatch):
    calls, flows_into = [], poison.flows_into
    monkeypatch.setattr(poison, "flows_into", lambda *pair: calls.append(pair) or flows_into(*pair))
    launch = simulate(reads_beyond_the_end, engine="fibers", on_finding="report")[1, 1]
    load, store = launch(np.zeros(4, np.int32), np.zeros(4, np.int32)).findings
    assert (load.count, store.count, store.follows) == (199, 199, True)
    assert 0 < len(calls) < 2000


@cuda.jit
def race_at_an_unwritten_index(x, y):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < 32:
        s[t] = t
    cuda.syncthreads()
    y[s[t] & 63] = x[t]


@cuda.jit
def race_at_an_index_from_another_line(x, y):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t < 32:
        s[t] = t
    cuda.syncthreads()
    at = s[t] % 64
    cuda.atomic.add(y, at, x[t])
    y[at] = x[t]


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("kernel", [race_at_an_unwritten_index, race_at_an_index_from_another_line])
def test_a_race_at_an_undefined_index_names_the_cause(kernel, engine):
    report = simulate(kernel, engine=engine, on_finding="report")[1, 64](np.arange(64.0), np.zeros(64))
    cause, *races = report.findings
    assert cause.kind == "uninitialized-read" and {f.kind for f in races} == {"race-global"}
    line = cause.accesses[0].site.line
    for race in races:
        assert race.follows and f"on line {line} of {kernel.__name__}: {cause.verdict}" in race.reason
        assert race.reason.startswith(f"Index {race.index[0]} comes from an undefined value")
        assert race.fix.startswith(
            f"correct line {line} of {kernel.__name__} first: {cause.fix}. If the race"
        )


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "statements, follows",
    [
        ("y[s[t] & 63] = x[t];", True),
        ("int at = s[t] & 63;\n y[at] = x[t];", True),
        ("y[t / 2] = x[t] + s[t];", False),
        ("y[(s[t] * 0) + t / 2] = x[t];", False),
    ],
)
def test_a_race_at_an_undefined_index_in_cuda_cpp(statements, follows, engine, tmp_path):
    (tmp_path / "k.cu").write_text(f"""
        extern "C" __global__ void k(const float* x, float* y) {{
            __shared__ int s[64];
            int t = threadIdx.x;
            if (t < 32) s[t] = t;
            __syncthreads();
            {statements}
        }}""")
    kernel = sim.load_cuda(tmp_path / "k.cu")["k"]
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    findings = simulate(kernel, engine=engine, on_finding="report")[1, 64](x, y).findings
    (race,) = [f for f in findings if f.kind == "race-global"]
    assert race.follows == follows == ("comes from an undefined value on line 7" in race.reason)


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_race_at_other_indices_has_no_undefined_cause(engine):
    """Check races of threads that have read an undefined value for something else, and of other threads."""

    def value(x, y):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        at = t // 2
        y[at] = s[t] + x[t]

    def index_of_others(x, y):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        if t < 48:
            s[t] = t // 2
        cuda.syncthreads()
        y[s[t] & 63] = x[t]

    for kernel in (value, index_of_others):
        report = simulate(kernel, engine=engine, on_finding="report")[1, 64](np.arange(64.0), np.zeros(64))
        (race,) = [f for f in report.findings if f.kind == "race-global"]
        assert "uninitialized-read" in {f.kind for f in report.findings}
        assert not race.follows and "undefined" not in race.reason


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_race_at_an_index_that_an_undefined_value_does_not_change(engine):
    def kernel(x, y):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        at = s[t] * 0 + t // 2
        y[at] = x[t]

    report = simulate(kernel, engine=engine, on_finding="report")[1, 64](np.arange(64.0), np.zeros(64))
    race, read = report.findings
    assert (race.kind, race.follows) == ("race-global", False)
    assert (read.kind, read.severity) == ("uninitialized-read", "warning")


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_index_from_a_misaligned_read_names_it(engine):
    def kernel(x, y):
        t = cuda.threadIdx.x
        places = x[4:].view(int64)
        y[places[t]] = 1

    report = simulate(kernel, engine=engine, on_finding="report")[1, 2](np.zeros(28, np.int8), np.zeros(4))
    cause, consequence = report.findings
    assert (cause.kind, consequence.kind) == ("misaligned-address", "out-of-bounds")
    assert consequence.follows and f"on line 4 of kernel: {cause.verdict}" in consequence.reason


def in_cuda_cpp(statements, folder):
    """Return a kernel that computes v by these statements, and then stores y[v]."""
    (folder / "k.cu").write_text(f"""
        extern "C" __global__ void k(const int* x, int* y) {{
            __shared__ int s[64];
            int t = threadIdx.x;
            {statements}
            y[v] = t;
        }}""")
    return sim.load_cuda(folder / "k.cu")["k"]


HALF = "if (t < 16) s[t] = t;\n __syncthreads();\n"
COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"'
COPY += ' :: "r"((unsigned)__cvta_generic_to_shared(s + t)), "l"(x + t));\n'


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize(
    "statements, kind, line",
    [
        (HALF + "int v = __shfl_xor_sync(-1, s[t], 16);", "uninitialized-read", 7),
        (HALF + "int v = s[t];\n v = __shfl_down_sync(-1, v, 3);", "uninitialized-read", 7),
        (COPY + "int v = s[t];", "async-copy", 6),
        (COPY + "if (t < 3) return;\n int v = s[t];", "async-copy", 7),
    ],
)
def test_an_index_that_lanes_or_copies_pass_names_the_cause(statements, kind, line, engine, tmp_path):
    kernel = in_cuda_cpp(statements, tmp_path)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](
        np.ones(64, np.int32), np.zeros(64, np.int32)
    )
    cause, consequence = report.findings
    assert (cause.kind, consequence.kind) == (kind, "out-of-bounds")
    assert consequence.follows
    assert f"comes from an undefined value on line {line} of k.cu: {cause.verdict}" in consequence.reason


@pytest.mark.parametrize(
    "statements",
    [
        HALF + "y[99] = s[t] == 7;\n int v = __shfl_xor_sync(-1, t < 16 ? t : -1, 16);",
        HALF + "int v = 2 * t - 6;\n if (t > 15) v += s[t] & 15;",
        HALF + "int v = __shfl_xor_sync(-1, s[t], 16) * (t > 15) + 2 * t - 6;",
    ],
)
def test_an_index_of_other_values_has_no_undefined_cause(statements, tmp_path):
    """Check shuffles of defined values, reads by other threads, and indices unlike poison."""
    kernel = in_cuda_cpp(statements, tmp_path)
    report = simulate(kernel, on_finding="report")[1, 32](np.ones(64, np.int32), np.zeros(128, np.int32))
    (outside,) = [f for f in report.findings if f.kind == "out-of-bounds"]
    assert "uninitialized-read" in {f.kind for f in report.findings}
    assert not outside.follows and "undefined" not in outside.reason
