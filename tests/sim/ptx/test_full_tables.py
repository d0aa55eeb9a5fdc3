"""Tests of searches in full hash tables in CUDA C++, which never end, and of correct kernels with similar
loops."""

import numpy as np
import pytest

from sim import load_cuda, loop_limits, simulate

pytest.importorskip("cuda.bindings.nvrtc")

HEAD = 'extern "C" __global__ void kernel(int *table, int size, int *flags, int n, const int *keys) {\n'
HEAD += "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
SLOT = "    int slot = size / 8 * i;\n"
NEXT = "        slot = (slot + 1) % size;\n"
FREE = "        for (int other = 0; other < size; other++) atomicExch(&table[other], 0);\n"
WORK = "        for (int k = 0; k < n; k++) atomicAdd(flags, 0);\n"
SEARCH = f"    while (atomicCAS(&table[slot], 0, i + 100) != 0) {{\n{NEXT}    }}\n"
FULL = {
    "a free slot": f"    int slot = keys[i] % size;\n{SEARCH}    flags[i] = slot;\n",
    "its key": f"""    int key = keys[i], slot = key % size;
    while (true) {{
        int old = atomicCAS(&table[slot], 0, key);
        if (old == 0 || old == key) {{ flags[i] = slot; return; }}
{NEXT}    }}
""",
    "quadratic probing": """    int slot = keys[i] % size, step = 0;
    while (atomicCAS(&table[slot], 0, keys[i]) != 0) {
        step = (step + 1) % size;
        slot = (slot + step) % size;
    }
    flags[i] = slot;
""",
    "a bit mask": """    int slot = keys[i] & (size - 1);
    while (atomicCAS(&table[slot], 0, keys[i]) != 0) slot = (slot + 1) & (size - 1);
    flags[i] = slot;
""",
}
# kernels of 2 blocks of 4 threads, in which another thread ends the searches
ENDED_BY_OTHERS = {
    "a thread works first": f"    if (i == 7) {{\n{WORK}{FREE}    }}\n{SLOT}{SEARCH}",
    "a thread works without atomics": """    if (i == 7) {
        float x = 1;
        for (int k = 0; k < 50 * n; k++) x = x * 0.999f + table[k % size];
        flags[9] = x > 0;
"""
    + f"{FREE}    }}\n{SLOT}{SEARCH}",
    "a thread works after a failed atomic": f"""    if (i == 7) {{
        atomicCAS(flags, 9, 1);
        float x = 1;
        for (int k = 0; k < 50 * n; k++) x = x * 0.999f + table[k % size];
        flags[9] = x > 0;
{FREE}    }}
{SLOT}{SEARCH}""",
    "a thread works after its search": f"""{SLOT}    int key = i == 3 ? 7 : i + 100;
    while (true) {{
        int old = atomicCAS(&table[slot], 0, key);
        if (old == key || old == 0) break;
{NEXT}    }}
    if (i == 3) {{
{WORK}{FREE}    }}
""",
    "a thread searches often": f"""    for (int turn = 0; turn < (i == 3 ? n : 1); turn++) {{
        int slot = size / 8 * i, key = i == 3 ? 7 : i + 100;
        while (true) {{
            int old = atomicCAS(&table[slot], 0, key);
            if (old == key || old == 0) break;
            slot = (slot + 1) % size;
        }}
        if (turn == n - 1) {{
{FREE}        }}
    }}
""",
    "threads count their attempts": f"""{SLOT}    while (atomicCAS(&table[slot], 0, i + 1) != 0) {{
{NEXT}        if (atomicAdd(&flags[2], 1) == 20 * n) {{
{FREE}        }}
    }}
""",
    "a thread counts its attempts": f"""{SLOT}    int attempts = 0;
    while (atomicCAS(&table[slot], 0, i + 1) != 0) {{
{NEXT}        if (++attempts == 20 * n && i == 3) {{
{FREE}        }}
    }}
""",
    "a thread counts downwards in memory": f"""{SLOT}    flags[3 + i] = 9 * n;
    while (atomicCAS(&table[slot], 0, 9) != 0) {{
{NEXT}        if (--flags[3 + i] == 0) atomicExch(&table[slot], 0);
    }}
""",
    "a thread counts in local memory": f"""{SLOT}    int counts[8] = {{}};
    while (atomicCAS(&table[slot], 0, 9) != 0) {{
{NEXT}        if (++counts[slot % 8] == 2 * n) atomicExch(&table[slot], 0);
    }}
""",
    "a thread enlarges the table": f"""    if (i == 7) {{
{WORK}        atomicExch(&table[size - 1], 0);
        atomicExch(&flags[1], size);
    }}
    int slot = i % 8;
    while (atomicCAS(&table[slot], 0, i) != 0)
        slot = (slot + 1) % *(volatile int *)&flags[1];
    atomicExch(&table[slot], 0);
""",
    "threads wait for their turn": """    int slot = 0;
    while (atomicCAS(&flags[2], i, -1) != i || n < 0) slot = (slot + 1) % 8;
    atomicExch(&flags[2], i + 1);
    table[i] = slot;
""",
    "threads give up at a time": f"""{SLOT}    long long start = clock64();
    while (atomicCAS(&table[slot], 0, i + 1) != 0 && clock64() - start < 1000 * n) {{
{NEXT}    }}
""",
    "threads of a barrier end the searches": f"""    if (threadIdx.x < 2) {{
        if (i == 4) {{
{WORK}{FREE}        }}
{SLOT}{SEARCH}        atomicExch(&table[slot], 0);
    }}
    __syncthreads();
    table[i] = 1;
""",
}


@pytest.fixture
def early(monkeypatch):
    """Examine the threads after a few iterations."""
    monkeypatch.setattr(loop_limits, "DEFAULT_STEPS", 50)
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.001)


def launch(body, shape, table, tmp_path, flags=64, **options):
    path = tmp_path / "kernel.cu"
    path.write_text(f"{HEAD}{body}}}\n")
    flags, keys = (
        np.zeros(flags, np.int32),
        np.random.default_rng(0).permutation(10**6)[:256].astype(np.int32),
    )
    flags[1] = 8
    options = {"on_finding": "report", "observers": ()} | options
    kernel = simulate(load_cuda(path)["kernel"], **options)
    report = kernel[shape](table, len(table), flags, 300, keys + 1_000)
    return report, flags


@pytest.mark.parametrize("engine", ["fibers", "auto"])
@pytest.mark.parametrize("name", FULL)
def test_a_search_in_a_full_table_is_endless(name, engine, tmp_path):
    """Search a table of 256 slots with 64 threads, which have 16,384 states."""
    report, _ = launch(FULL[name], (2, 32), np.full(256, 7, np.int32), tmp_path, engine=engine)
    assert [finding.kind for finding in report.findings] == ["no-progress"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["a free slot", "its key", "a bit mask"])
def test_a_table_with_a_free_slot_for_each_thread_has_no_finding(name, seed, early, tmp_path):
    table = np.repeat(np.array([7, 0], np.int32), (192, 64))
    report, flags = launch(FULL[name], (2, 32), table, tmp_path, seed=seed)
    assert not report.findings and table.all() and sorted(flags) == list(range(192, 256))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ENDED_BY_OTHERS)
def test_a_search_that_another_thread_ends_has_no_finding(name, seed, early, tmp_path):
    table = np.full(48, 8, np.int32)
    table[40] = 7
    report, _ = launch(ENDED_BY_OTHERS[name], (2, 4), table, tmp_path, seed=seed)
    assert not report.findings
