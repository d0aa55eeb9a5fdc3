"""Tests of the advice about races: a program applies its steps to the buggy kernels of the corpus.

Afterwards, fibers and the native engine report no findings and compute correct values.
"""

import functools
from dataclasses import fields

import numpy as np
import pytest
from numba import cuda, float64, int8, int32, types
from numba.cuda import cudadecl

import applied
from corpus_cases import CASES, launched
from sim import load_cuda, simulate
from sim.events import SITES, Site
from sim.frontend.outline import of_cpp, of_python
from sim.observers.advice_conditions import is_update
from sim.observers.advice_patterns import PATTERNS
from sim.observers.atomic_types import ATOMICS, OPERATIONS, ElementType, exists
from sim.observers.cells import Row
from sim.observers.facts import Facts
from sim.observers.statements import assignment, find_extreme, find_operation, statements
from sim.observers.words import NUMBA, WORDS

RACES = [
    name for name, case in CASES.items() if any(found[0].startswith("race") for found in case["findings"])
]
LONG = {"left.RaceInCellSixThousand"}  # these cases take half a minute
# patterns whose advice has no steps -> what the source does not say
OPEN = {
    "overwritten": "which elements the threads were to write",
    "equal writes": "whether it is meant",
    "atomics of two widths": "which of the two types is meant",
    "message": "which atomic is to tell of what",
}
OPEN_CASES = {
    "global_counts.BytesPacked": "Numba has no atomics on bytes",
    "left.ReaderThatReturned": "a thread has returned before the place for a barrier",
    "release.LockOfEvenBlocks": "the work without the lock is in another arm",
}
# cases whose fixed twin computes other values than the buggy kernel would without races
OTHER_VALUES = {
    "fields.FieldReadByTheNext": "reads another field",
    "global_counts.PlainReadBesideAtomics": "takes tickets",
    "global_races.AliasedArguments": "has two arrays",
    "global_races.PrefixSumsInALoop": "works in one thread",
    "global_races.StencilInPlace": "writes to another array",
    "warps.SyncwarpOfHalfAWarp": "reads another element",
}


def steps_of(report):
    return [step for finding in report.findings if finding.advice for step in finding.advice.steps]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in LONG)) for n in RACES])
def test_the_advice_applied_removes_the_race(name, few):
    case = CASES[name]

    @functools.cache
    def launch(kernel, engine):
        return launched(case, "buggy", kernel, engine=engine)

    kernel = case["buggy"].py_func
    report, _ = launch(kernel, "fibers")
    if not steps_of(report):
        patterns = {finding.advice.pattern for finding in report.findings if finding.advice}
        assert patterns <= OPEN.keys() or name in OPEN_CASES
        return
    assert name not in OPEN_CASES
    kernel, lines = applied.improved(kernel, lambda kernel: launch(kernel, "fibers")[0].findings)
    print("\n".join(lines))
    for engine in few(["fibers", "native"], 1 + (RACES.index(name) % 8 == 0)):
        report, left = launch(kernel, engine)
        assert not [finding.message for finding in report.findings if finding.kind.startswith("race")]
        if name not in OTHER_VALUES:
            for argument, wanted in case["wanted"](*case["arguments"]()).items():
                np.testing.assert_allclose(left[argument], wanted, rtol=1e-6)


def test_the_exceptions_are_cases():
    assert {*OPEN_CASES, *OTHER_VALUES} <= set(RACES)
    assert OPEN.keys() <= {pattern.name for pattern in PATTERNS}


@pytest.mark.parametrize(
    "name, pattern, says",
    [
        ("patterns.ViewsOfDifferentLength", "overlapping views", "move places to byte 32 or later"),
        ("patterns.OppositeArms", "opposite arms", "divide the branch at line 4 into two branches"),
        ("patterns.ShiftInOneStatement", "one statement", "split line 3: read into a variable"),
        ("patterns.UpSweepWithoutBarrier", "barrier", "cuda.syncthreads() between the passes"),
        ("patterns.BitonicSortOfAGrid", "passes of the grid", "end the kernel after each iteration"),
        ("patterns.ReadAfterALock", "outside the lock", "hold the lock on line 10 too"),
        (
            "patterns.CasLoopFromAPlainRead",
            "compare-and-swap loop",
            "read the element on line 3 by an atomic",
        ),
        ("fences.FenceOfOneThread", "fence of one thread", "between line 5 and the fence on line 7"),
        (
            "fences.ReleasedByAStore",
            "release by a plain store",
            "cuda.atomic.exch in place of the plain store on line 5",
        ),
        ("messages.RelayOfThreeBlocks", "message handed on without a fence", "that passes the message on"),
        ("messages.MessageWithoutFence", "message without a fence", "between this write and the atomic"),
        ("fences.SpinLockWithoutFence", "lock without fences", "after the atomic that takes the lock"),
        ("shared_counts.EveryoneAddsToOneTotal", "update", "cuda.atomic (cuda.atomic.add for +=)"),
        ("global_races.BlockForgotten", "overwritten", "let each thread write an element of its own"),
        ("release.WarpsHandOver", "message", "let one thread execute an atomic after its access"),
    ],
)
def test_each_pattern_has_its_advice(name, pattern, says):
    report, _ = launched(CASES[name], "buggy")
    races = [finding for finding in report.findings if finding.kind.startswith("race")]
    assert pattern in {finding.advice.pattern for finding in races}
    assert any(says in finding.fix for finding in races if finding.advice.pattern == pattern)
    if pattern not in ("update", "lock without fences"):
        assert not any(finding.fix.startswith("cuda.atomic ") for finding in races)


@pytest.mark.parametrize("name", [name for name in RACES if name not in LONG][::6])
def test_advice_does_not_hang_on_the_order_of_threads(name):
    told = {
        frozenset((f.key, f.fix) for f in launched(CASES[name], "buggy", seed=seed)[0].findings)
        for seed in range(3)
    }
    assert len(told) == 1


@cuda.jit
def both_partners_store(x, out):
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    for step in (1, 2):
        cuda.syncthreads()
        if s[t] > s[t ^ step]:
            s[t], s[t ^ step] = s[t ^ step], s[t]
    cuda.syncthreads()
    out[t] = s[t]


def test_a_loop_that_has_its_barrier_is_given_no_other():
    given = np.arange(32, dtype=np.int32)[::-1].copy(), np.zeros(32, np.int32)
    found = simulate(both_partners_store, on_finding="report")[1, 32](*given).findings
    stores = [f for f in found if {access.what for access in f.accesses} == {"written"}]
    assert {f.advice.pattern for f in stores} <= {"overwritten", "equal writes"}


@cuda.jit
def plain_update_beside_atomics(x, bins):
    i = cuda.grid(1)
    cuda.atomic.add(bins, i % 3, x[i])
    bins[(i + 1) % 3] += x[i]


def test_a_plain_update_beside_atomics_becomes_an_atomic():
    given = np.arange(16.0), np.zeros(3)
    found = simulate(plain_update_beside_atomics, on_finding="report")[2, 8](*given).findings
    reads_beside_atomics = [f for f in found if {a.what for a in f.accesses} == {"changed", "read"}]
    assert reads_beside_atomics
    assert {f.advice.pattern for f in found} == {"update"}


def ticket_of_two_lines(count, out):
    i = cuda.grid(1)
    count[0] += 1
    k = count[0] - 1
    out[k] = i + 1


def ticket_by_a_variable(count, out):
    count[0] = count[0] + 1
    k = count[0]
    out[k - 1] += k


def ticket_on_one_line(count, out):
    count[0] += 1; k = count[0] - 1  # fmt: skip  # noqa: E702
    out[k] += k + 1


def two_statements(count, out):
    i = cuda.grid(1)
    out[i] = i + 1; k = out[15 - i]  # fmt: skip  # noqa: E702
    cuda.syncthreads()
    out[i] = k


def smallest(count, out):
    i = cuda.grid(1)
    count[0] = min(5 - i, count[0])


def largest(count, out):
    i = cuda.grid(1)
    count[0] = i if i > count[0] else count[0]


def field(records, out):
    records[0].count += 1


def field_by_name(records, out):
    records[0]["count"] += 1


def bits_set(count, out):
    count[0] |= 1 << cuda.grid(1)


def bits_kept(count, out):
    i = cuda.grid(1)
    out[0] = out[0] & ~(1 << i)


def bits_flipped(count, out):
    count[0] ^= 3 << cuda.grid(1)


def bits_of_a_variable(count, out):
    i = cuda.grid(1)
    seen = count[0]
    count[0] = seen | 1 << i
    if seen == 0:
        out[0] += 1


def bits_of_a_field(records, out):
    records[0].count |= 1 << cuda.grid(1)


def differences(count, out):
    i = cuda.grid(1)
    count[0] = count[0] - i


RECORD = np.dtype([("weight", np.float32), ("count", np.int32)])
# expected values of the count and of the sorted elements of `out`
LINES = [
    (ticket_of_two_lines, "ticket", "cuda.atomic.add", 16, range(1, 17)),
    (ticket_by_a_variable, "ticket", "with the old value + 1", 16, range(1, 17)),
    (ticket_on_one_line, "statements of one line", "on lines of their own", 16, range(1, 17)),
    (two_statements, "statements of one line", "with cuda.syncthreads() between", 0, range(1, 17)),
    (smallest, "update", "one atomic, cuda.atomic.min", -10, [0] * 16),
    (largest, "update", "one atomic, cuda.atomic.max", 15, [0] * 16),
    (field, "update", 'on records["count"] at 0', 16, [0] * 16),
    (field_by_name, "update", 'on records["count"] at 0', 16, [0] * 16),
    (bits_set, "update", "one atomic, cuda.atomic.or_, or let", 65535, [0] * 16),
    (bits_kept, "update", "one atomic, cuda.atomic.and_, or let", 0, [0] * 16),
    (bits_flipped, "update", "one atomic, cuda.atomic.xor, or let", 65537, [0] * 16),
    (bits_of_a_variable, "update", "atomic, cuda.atomic.or_, on line 3, and assign", 65535, [0] * 15 + [1]),
    (bits_of_a_field, "update", 'cuda.atomic.or_ on records["count"] at 0', 65535, [0] * 16),
    (differences, "update", "one atomic, cuda.atomic.sub", -120, [0] * 16),
]


@pytest.mark.parametrize(
    "function, pattern, says, count, out", LINES, ids=[function.__name__ for function, *_ in LINES]
)
def test_the_advice_on_a_line_gives_the_values_that_were_meant(function, pattern, says, count, out):
    def launch(kernel, engine="fibers"):
        is_record = pattern == "update" and "records" in says
        arguments = np.zeros(1, RECORD if is_record else np.int32), np.zeros(16, np.int32)
        report = simulate(cuda.jit(kernel), on_finding="report", engine=engine)[1, 16](*arguments)
        counted = arguments[0]["count"] if is_record else arguments[0]
        return report, counted[0], sorted(arguments[1])

    found = launch(function)[0].findings
    assert any(finding.advice.pattern == pattern and says in finding.fix for finding in found)
    kernel, lines = applied.improved(function, lambda kernel: launch(kernel)[0].findings)
    print("\n".join(lines))
    for engine in ("fibers", "native", "threads"):
        report, *left = launch(kernel, engine)
        assert not report.findings and left == [count, list(out)]


def test_a_maximum_through_a_variable_wants_an_atomic_maximum():
    def kernel(x, best):
        value = best[0]
        if x[cuda.grid(1)] > value:
            best[0] = x[cuda.grid(1)]

    arguments = np.arange(1, 17, dtype=np.int32), np.zeros(1, np.int32)
    found = simulate(kernel, on_finding="report")[2, 8](*arguments).findings
    assert found and all("cuda.atomic.max, in place of value in line 3" in f.fix for f in found)


@pytest.mark.parametrize(
    "value, result",
    [
        ("min(m[0], x)", ("min", "x")),
        ("max(x[i], m[0])", ("max", "x[i]")),
        ("fmaxf(m[0], x + 1)", ("max", "x + 1")),
        ("std::min(m[0], x)", ("min", "x")),
        ("x if x < m[0] else m[0]", ("min", "x")),
        ("m[0] if x < m[0] else x", ("max", "x")),
        ("x > m[0] ? x : m[0]", ("max", "x")),
        ("max(m[0], x) * f(y)", None),
        ("x if y < m[0] else m[0]", None),
        ("max(m[0], x, y)", None),
        ("m[0] + x", None),
    ],
)
def test_a_minimum_or_maximum_is_recognised(value, result):
    assert find_extreme(value, "m[0]") == result


@pytest.mark.parametrize(
    "value, found",
    [
        ("m[0] + v", ("+", "v")),
        ("v + m[0]", ("+", "v")),
        ("a - b + m[0]", ("+", "a - b")),
        ("a << m[0]", None),
        ("a | b + m[0]", None),
        ("m[0] + m[0]", None),
        ("m[0] + m[01]", ("+", "m[01]")),
        ("__hadd(m[0], v)", ("+", "v")),
        ("__hadd2_rn(f(v, 2), m[0])", ("+", "f(v, 2)")),
        ("__hsub(m[0], v)", ("-", "v")),
        ("__hsub(v, m[0])", None),
        ("__hadd_sat(m[0], v)", None),
        ("__hadd(m[0], v) + 1", None),
        ("__hadd(m[0], m[0])", None),
        ("__fadd_rn(m[0], v)", ("+", "v")),
        ("__fadd_rz(m[0], v)", None),
        ("__hmax2(v, m[0])", ("max", "v")),
    ],
)
def test_the_operation_of_an_update(value, found):
    assert find_operation(value, "m[0]") == found


@pytest.mark.parametrize(
    "source, found",
    [
        ("a[i] = 1; b[i] = a[j]", ["a[i] = 1", "b[i] = a[j]"]),
        ("for (int i = 0; i < n; i++) x[0] += i;  // a; b", ["for (int i = 0; i < n; i++) x[0] += i"]),
        ("if (t == 0) { a[0] = 1; b[0] = 2; }", ["if (t == 0) { a[0] = 1", "b[0] = 2"]),
        ("a[i] //= 2  # halve; round down", ["a[i] //= 2"]),
    ],
)
def test_the_statements_of_a_line(source, found):
    assert [text for _, text in statements(source)] == found


def test_each_language_has_all_words():
    assert len({frozenset(words) for words in WORDS.values()}) == 1


CPP = """\
#include <cuda.h>
__device__ float half(float x) {
    return x / 2;
}
extern "C" __global__ void kernel(float *x) {
    __shared__ float s[64];  // { not a brace
    for (int i = 0; i < 4; i++) {
        if (i % 2 == 0)
            s[i] = half(x[i]);
        else {
            s[i] = '{';
        }
        x[i] = 1;
    }
    do x[0]++; while (x[0] < 3);
    if (x[0] > 5) return;
    x[1] = 2;
}
"""
PYTHON = """\
def kernel(x):
    for i in range(4):
        if i % 2 == 0:
            s[i] = x[i]
        else:
            s[i] = 1
        x[i] = 1
    if x[0] > 5:
        return
    x[1] = 2
"""


@pytest.mark.parametrize(
    "outline, lines",
    [(of_cpp(CPP), (7, 9, 11, 13, 16, 17)), (of_python(PYTHON), (2, 4, 6, 7, 8, 10))],
    ids=["C++", "Python"],
)
def test_the_outline_of_a_text(outline, lines):
    loop, one, other, behind, early, last = lines
    assert outline.branch(one, other).first == one - 1
    assert outline.branch(one, behind) is None
    assert outline.loop(one, behind).first == loop and outline.loop(loop, last) is None
    assert outline.after(one, behind).first == one - 1
    assert outline.after(one, other) is None  # Both accesses are in arms of one branch.
    assert outline.after(behind, last).first == loop
    assert outline.after(early, last) is None  # Some threads have already returned.
    assert outline.function(one) is outline.function(last)


SWITCH = """
void kernel(int n) {
    for (int i = 0; i < n; i++) {
        switch (i) {
            case A::B:
                x[0] = 1;
            case 'b':
                x[1] = 1;
                break;
            case 2: {
                while (x[2])
                    break;
                x[2] = 1;
                if (n) break;
            }
            case 3: x[3] = n ? 1 : 2; return;
            default: continue;
        }
        x[4] = 1;
    }
    switch (n) {
        case 0: break;
    }
    x[5] = 1;
    switch (n) {}
}
"""


def test_the_cases_of_a_switch_are_arms():
    outline = of_cpp(SWITCH)
    branch, behind = outline.branch(6, 16), outline.innermost(19)
    assert (branch.first, branch.last) == (4, 18)
    assert [(arm.first, arm.last) for arm in branch.parts] == [(5, 9), (10, 16), (17, 17)]
    assert outline.branch(6, 8) is None  # The first case falls through to the second one.
    assert outline.branch(13, 16) is None  # A break that not all threads reach
    assert outline.leaves(branch, "leave", 17) and not outline.leaves(branch, "leave", 16)
    assert outline.leaves(branch, "return", 16)
    assert not outline.all_reach_end(behind)
    assert [part.kind for part in outline.function(2).parts] == ["loop", "branch", "statement", "statement"]


@pytest.mark.parametrize(
    "before",
    ["if (n > 3)\n        n = 3;\n\n    ", "if (n > 3) return;\n\n    ", "if (n > 3) n = 3; ", "n = 3; "],
)
def test_statements_close_to_each_other_are_told_apart(before):
    text = f"void kernel(int n) {{\n{before}if (n == 2) {{\n    s[0] = n;\n}}\nx[n] = s[0];\n}}\n"
    last = text.count("\n") - 1
    found = of_cpp(text).after(last - 2, last)
    if "return" in before:
        assert found is None
    else:
        assert (found.kind, found.first, found.last) == ("branch", last - 3, last - 1)


@pytest.mark.parametrize(
    "source, target, operator, value",
    [
        ("out[t // 4] = words[t // 4]", "out[t // 4]", "", "words[t // 4]"),
        ("if (t < n) hist[x[t]] += 1;  // count", "hist[x[t]]", "+", "1"),
        ("unsigned int old = *best;", "old", "", "*best"),
        ("counts[i]++;", "counts[i]", "+", "1"),
        ("tile[threadIdx.y][x] = a[y * n + x];", "tile[threadIdx.y][x]", "", "a[y * n + x]"),
        ("tl.store(y + c, so_far + part, mask=c < columns)", "y + c", "", "so_far + part"),
        ("flags[i // 8] |= 1 << (i % 8)", "flags[i // 8]", "|", "1 << (i % 8)"),
    ],
)
def test_an_assignment_of_a_line(source, target, operator, value):
    found = assignment(source)
    assert (found.target, found.operator, found.value) == (target, operator, value)


def test_a_comparison_is_no_assignment():
    assert assignment("while (lock[0] == 1);") is None and assignment("if (a <= b) f(a[0]);") is None


@pytest.mark.parametrize(
    "store, read, operand",
    [
        ("tl.store(w + i, tl.load(w + i, mask=m) + part, mask=m)", None, "w + i + part"),
        ("tl.store(y + c, so_far + part, mask=m)", "so_far = tl.load(y + c, mask=m)", "so_far + part"),
        ("atomic[0] = old > x ? old : x;", "int old = atomic[0];", "old > x ? old : x"),
        ("x[i] = min(a, b)", "a = x[i]", "min(a, b)"),
    ],
)
def test_an_update_of_one_element(store, read, operand):
    facts = of_sources(store, read or store)
    assert facts.update[1].value == operand


def test_an_addition_to_what_triton_loads_is_an_atomic_addition():
    store = "tl.store(w + i, tl.load(w + i, mask=m) + part, mask=m)"
    assert of_sources(store, store).operation == "+"
    other = "tl.store(w + i, tl.load(w + j, mask=m) + part, mask=m)"
    assert of_sources(other, other).operation is None


def test_an_update_is_one_although_the_launch_ends_before_the_second_write():
    facts = of_sources("x[0] += a", "x[0] += a")
    assert not facts.colliding and is_update(facts)
    assert not is_update(of_sources("x[0] = k + a", "k = x[0]"))


@pytest.mark.parametrize(
    "store, read",
    [
        ("x[i] = x[i] + x[i - 1]", "x[i] = x[i] + x[i - 1]"),
        ("x[i] = there", "there = x[j]"),
        ("tile[x] = a[y, x]", "out[x] = tile[x]"),
    ],
)
def test_no_update_of_one_element(store, read):
    assert of_sources(store, read).update is None


@pytest.mark.parametrize(
    "store, read, known",
    [
        ("x[0] = x[0] + a * b", None, True),
        ("x[0] = max(x[0], a)", None, True),
        ("x[0] = taken + a", "taken = x[0]", True),
        ("x[0] -= a", None, True),
        ("x[0] = x[0] - a", None, True),
        ("x[0] = x[0] - a + b", None, False),
        ("x[0] = x[0] | 1 << a", None, True),
        ("x[0] = x[0] & ~a", None, True),
        ("x[0] = x[0] ^ a", None, True),
        ("x[0] = x[0] & a == b", None, False),
        ("x[0] = x[0] << a", None, False),
        ("x[0] <<= a", None, False),
        ("x[0] *= a", None, False),
        ("x[0] = x[0] * 2 + 1", None, False),
        ("x[0] = x[0] + a if b else c", None, False),
        ("x[0] = x[0] + a & b", None, False),
        ("x[0] = max(x[0], a) * f(b)", None, False),
        ("x[0] = taken * 2 + a", "taken = x[0]", False),
    ],
)
def test_an_update_that_one_atomic_does(store, read, known):
    assert (of_sources(store, read or store).operation is not None) is known


def of_sources(store, read):
    """Return the Facts for a store and a read on the same line, or with the read one line above."""
    sites = [
        SITES.add(Site("store", "kernel", 3, 0, store)),
        SITES.add(Site("load", "kernel", 3 if read == store else 2, 0, read)),
    ]
    a, b = (Row(0, 0, thread, 0, site, 0, None) for thread, site in enumerate(sites))
    told = dict.fromkeys(field.name for field in fields(Facts))
    return Facts(**told | {"a": a, "b": b, "sites": tuple(sites)})


@cuda.jit
def last_block_without_barrier(count, out):
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        last[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
    if last[0]:
        out[t] = 1


def test_a_flag_in_shared_memory_needs_a_barrier_not_a_message():
    arguments = np.ones(32, np.int32), np.ones(32, np.int32)
    report = simulate(last_block_without_barrier, on_finding="report")[1, 32](*arguments)
    (race,) = (finding for finding in report.findings if finding.kind == "race-shared")
    assert race.fix.startswith("cuda.syncthreads() between")


@cuda.jit
def views_that_overlap(x, y):
    values = cuda.shared.array(0, float64)
    signs = cuda.shared.array(0, int8)
    signs = signs[48 * 4 :]
    t = cuda.threadIdx.x
    values[t] = x[t]
    signs[t] = t % 5 - 2
    cuda.syncthreads()
    y[t] = values[47 - t] * signs[(t * 7) % 48]


def test_a_view_sliced_under_its_own_name_has_to_begin_behind_the_other_view():
    report = simulate(views_that_overlap, on_finding="report")[1, 48, 0, 48 * 9](np.ones(48), np.ones(48))
    (race,) = report.findings
    assert race.advice.pattern == "overlapping views"
    assert "move signs to byte 384 or later, after values" in race.fix
    assert "signs and values are two views of the same memory" in race.message


@cuda.jit
def compacted(x, y):
    base = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        base[0] = 3
    y[base[0] + t] = x[t]


def test_an_index_of_a_target_is_no_view_of_the_array_that_is_read():
    report = simulate(compacted, on_finding="report")[1, 64](np.ones(64), np.ones(80))
    race = next(finding for finding in report.findings if finding.kind == "race-shared")
    assert race.fix.startswith("cuda.syncthreads() between the two lines")


@pytest.mark.parametrize("update", ["used++", "++used"])
def test_a_counter_in_an_index_is_no_view_of_the_array_that_is_read(update, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    source = tmp_path / "compact.cu"
    source.write_text(f"""
extern "C" __global__ void compact(const int *x, int *list) {{
    __shared__ int used;
    if (threadIdx.x == 0) used = 0;
    __syncthreads();
    if (x[threadIdx.x] > 0) list[{update}] = x[threadIdx.x];
}}
""")
    kernel = simulate(load_cuda(source)["compact"], on_finding="report")
    report = kernel[1, 64](np.arange(64, dtype=np.int32), np.zeros(128, np.int32))
    assert {finding.kind for finding in report.findings} == {"race-shared"}
    assert "views of the same memory" not in str(report)


def half_word_sum(x, out):
    out[0] += x[cuda.grid(1)]


@pytest.mark.parametrize(
    "dtype, says",
    [
        (np.int16, "an atomic on elements of 32 bits (Numba has no cuda.atomic.add of 16-bit integers)"),
        (np.complex64, "a lock (Numba has no cuda.atomic.add of 64-bit complex values)"),
        (np.float32, "cuda.atomic (cuda.atomic.add for +=)"),
    ],
)
@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_atomic_that_numba_lacks_is_not_advised(dtype, says, engine):
    launch = simulate(half_word_sum, on_finding="report", engine=engine)[1, 8]
    findings = launch(np.ones(8, dtype), np.zeros(1, dtype)).findings
    assert findings and all(says in finding.fix for finding in findings)
    assert all(bool(finding.advice.steps) == (dtype == np.float32) for finding in findings)


def test_the_table_of_atomics_has_the_operations_of_each_language():
    for language, operations in ATOMICS.items():
        assert {*OPERATIONS.values(), "exchange", "swap"} == operations.keys()
        assert operations.keys() <= WORDS[language].keys()


NUMBA_ATOMICS = {
    "add": "add",
    "sub": "sub",
    "min": "min",
    "max": "max",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
NUMBA_ATOMICS |= {"exchange": "exch", "swap": "cas"}


@pytest.mark.parametrize("operation", NUMBA_ATOMICS)
def test_the_table_agrees_with_the_types_of_numba(operation):
    template = getattr(cudadecl, f"Cuda_atomic_{NUMBA_ATOMICS[operation]}")(None)
    numbers = [
        *types.signed_domain,
        *types.unsigned_domain,
        *types.real_domain,
        types.float16,
        *types.complex_domain,
    ]
    for number in numbers:
        operands = [number] * (2 if operation == "swap" else 1)
        supported = template.generic((types.Array(number, 1, "C"), types.intp, *operands), {}) is not None
        type_ = ElementType.of(np.dtype(number.name), number.bitwidth // 8)
        assert exists(NUMBA, operation, type_) == supported, number
