"""Tests that follow the advice about locks, exchanges, counters and maxima in CUDA C++ kernels."""

import ml_dtypes
import numpy as np
import pytest

from ptx.edited_texts import INDEX, Cases

pytest.importorskip("cuda.bindings.nvrtc")

CASES = Cases()
case = CASES.case

# --- locks --------------------------------------------------------------------------------------------------

LOCK = """__device__ void take(int *m) {
    while (atomicCAS(m, 0, 1) != 0) {
    }
    FENCE
}
__device__ void give(int *m) {
    FENCE
    *m = 0;
}
"""
MEMBERS = """struct Lock {
    int *m;
    __device__ void take() { while (atomicCAS(m, 0, 1) != 0) {} __threadfence(); }
    __device__ void give() {
        __threadfence();
        *m = 0;
    }
};
"""
RELEASED = [("*m = 0;", "atomicExch(m, 0);")]
LOCKED = "if (threadIdx.x == 0) { take(n); out[0] += 1; give(n); }\n"


def four(x, out, n):
    assert out[0] == 4 and n[0] == 0


case(
    "lock",
    (4, 8),
    """if (threadIdx.x == 0) {
    while (atomicCAS(n, 0, 1) != 0) {}
    out[0] += 1;
    n[0] = 0;
}
""",
    "atomicExch in place of the plain store on line 5, and __threadfence() before it and after the atomic on"
    " line 3",
    [("n[0] = 0;", "__threadfence(); atomicExch(n, 0);"), ("!= 0) {}", "!= 0) {}\n__threadfence();")],
    four,
)
case(
    "lock in functions",
    (4, 8),
    LOCKED,
    "atomicExch in place of the plain store on line 8",
    RELEASED,
    four,
    LOCK.replace("FENCE", "__threadfence();"),
)
case(
    "lock in functions without fences",
    (4, 8),
    LOCKED,
    "the plain store on line 8, and __threadfence() before it and after the atomic on line 2",
    [*RELEASED, ("//FENCE", "__threadfence();")],
    four,
    LOCK.replace("FENCE", "//FENCE"),
)
case(
    "lock in members",
    (4, 8),
    "if (threadIdx.x == 0) { Lock lock{n}; lock.take(); out[0] += 1; lock.give(); }\n",
    "atomicExch in place of the plain store on line 6",
    RELEASED,
    four,
    MEMBERS,
)

SEPARATE = """if (threadIdx.x == 0) {
    Lock lock{n};
    lock.take();
    out[0] += 1;
    lock.give();
}
"""
BARE = MEMBERS.replace(" __threadfence(); }", "\n    }").replace("        __threadfence();\n", "")
case(
    "lock in members without fences",
    (4, 8),
    SEPARATE,
    "__threadfence() after the atomic that takes the lock on line 3, and again before the atomic that"
    " releases it on line 6",
    [("!= 0) {}", "!= 0) {} __threadfence();"), ("atomicExch(m, 0);", "__threadfence(); atomicExch(m, 0);")],
    four,
    BARE.replace("*m = 0;", "atomicExch(m, 0);"),
)


def ready_for_all(x, out, n):
    assert list(out[:2]) == [7, 1] and list(out[8:12]) == [7] * 4


DOUBLE = """{
    if (out[1] == 0) {
        lock.take();
        if (out[1] == 0) {
            out[0] = 7;
            out[1] = 1;
        }
        lock.give();
    }
    out[8 + blockIdx.x] = out[0];
}
"""
RELEASING = MEMBERS.replace("*m = 0;", "atomicExch(m, 0);")
for name, functions, body in (
    ("kernel", RELEASING, f"Lock lock{{n}};\nif (threadIdx.x == 0) {DOUBLE}"),
    (
        "device function",
        f"{RELEASING}__device__ void start(int *out, Lock lock) {DOUBLE}",
        "if (threadIdx.x == 0) start(out, Lock{n});\n",
    ),
    (
        "method",
        f"{RELEASING}struct Once {{ Lock lock; __device__ void start(int *out) {DOUBLE} }};\n",
        "if (threadIdx.x == 0) Once{Lock{n}}.start(out);\n",
    ),
):
    case(
        f"double-checked lock in a {name}",
        (4, 8),
        body,
        "by an atomic (atomicAdd of 0), execute __threadfence() after the branch at line",
        [
            ("if (out[1] == 0)", "if (atomicAdd(&out[1], 0) == 0)"),
            ("            out[1] = 1;", "            __threadfence(); atomicExch(&out[1], 1);"),
            ("    }\n    out[8", "    }\n    __threadfence();\n    out[8"),
        ],
        ready_for_all,
        functions,
    )

# --- flags that are set by a plain store --------------------------------------------------------------------

FLAG = """if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
        out[0] = 7;
        n[0] = 1;
    } else {
        POLL
        out[1] = out[0];
    }
}
"""
LOAD_ACQUIRE = """__device__ INLINE int load(int *p) {
    int v;
    asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
"""
REF = "#include <cuda/atomic>\n"
FLAG_REF = "cuda::atomic_ref<int, cuda::thread_scope_device> flag(n[0]);"
SET = [("n[0] = 1;", "__threadfence(); atomicExch(n, 1);")]


def sevens(x, out, n):
    assert list(out[:2]) == [7, 7] and n[0] == 1


for name, poll, functions in (
    ("inlined load", "while (load(n) == 0) {}", LOAD_ACQUIRE.replace("INLINE", "__forceinline__")),
    ("load of a function", "while (load(n) == 0) {}", LOAD_ACQUIRE.replace("INLINE", "__noinline__")),
    ("load after the body", "do {\n} while (load(n) == 0);", LOAD_ACQUIRE.replace("INLINE", "")),
    ("volatile load", "while (*(volatile int *)n == 0) {}\n__threadfence();", ""),
):
    line = functions.count("\n") + 5
    case(
        f"flag by a plain store, {name}",
        (2, 32),
        FLAG.replace("POLL", poll),
        f"atomicExch in place of the plain store on line {line}, and __threadfence() before it",
        SET,
        sevens,
        functions,
    )
    case(
        f"flag itself, {name}",
        (2, 32),
        FLAG.replace("POLL", poll),
        f"write the element on line {line} by an atomic (atomicExch, or atomicAdd for +=) after __thread",
        SET,
        sevens,
        functions,
    )
case(
    "flag by a plain store, atomic_ref",
    (2, 32),
    FLAG.replace("POLL", f"{FLAG_REF}\nwhile (flag.load(cuda::memory_order_acquire) == 0) {{}}"),
    "atomicExch, or a store with cuda::memory_order_release, in place of the plain store on line 6",
    [("n[0] = 1;", f"{FLAG_REF} flag.store(1, cuda::memory_order_release);")],
    sevens,
    REF,
)

# --- exchanges and counters ---------------------------------------------------------------------------------


def chains(x, out, n):
    seen = []
    for c in range(4):
        i = n[c]
        while i:
            seen.append(i)
            i = out[i - 1]
    assert sorted(seen) == list(range(1, 65))


def positions(x, out, n):
    assert n[0] == 64 and sorted(out[:64]) == list(range(64))


case(
    "exchange",
    (2, 32),
    f"{INDEX}int old = n[x[i] % 4];\nn[x[i] % 4] = i + 1;\nout[i] = old;\n",
    "on line 4 with one atomic, atomicExch, on line 3, and assign the old value that it returns to old",
    [("old = n[x[i] % 4];", "old = atomicExch(&n[x[i] % 4], i + 1);"), ("\nn[x[i] % 4] = i + 1;", "")],
    chains,
)
case(
    "exchange by a pointer",
    (2, 32),
    f"{INDEX}out[i] = push(n + x[i] % 4, i + 1);\n",
    "replace the read of *head on line 2 and the write on line 3 with one atomic, atomicExch, on line 2, and",
    [("old = *head;", "old = atomicExch(head, i);"), ("    *head = i;\n", "")],
    chains,
    "__device__ int push(int *head, int i) {\n    int old = *head;\n    *head = i;\n    return old;\n}\n",
)
case(
    "counter by a pointer",
    (2, 32),
    f"{INDEX}out[*n] = i;\n*n += 1;\n",
    "before line 3, and delete line 4; on line 3, replace *n with the old value",
    [("out[*n] = i;\n*n += 1;", "int k = atomicAdd(n, 1);\nout[k] = i;")],
    positions,
)
case(
    "counter in a variable",
    (2, 32),
    f"{INDEX}int k = *n;\n*n = k + 1;\nout[k] = i;\n",
    "on line 4 with one atomic, atomicAdd, on line 3, and assign the old value that it returns to k",
    [("k = *n;\n*n = k + 1;", "k = atomicAdd(n, 1);")],
    positions,
)
for read in ("atomicCAS(n, 0, 0)", "atomicAdd(&n[0], 0)"):
    case(
        f"counter read by {read}",
        (2, 32),
        f"{INDEX}int k = {read};\nn[0] = k + 1;\nout[k] = i;\n",
        "on line 4 with one atomic, atomicAdd, on line 3, and assign the old value that it returns to k",
        [(f"k = {read};\nn[0] = k + 1;", "k = atomicAdd(n, 1);")],
        positions,
    )
case(
    "counter in an index",
    (2, 32),
    f"{INDEX}out[(*n)++] = i;\n",
    "atomicAdd of 1 in place of (*n)++ on line 3: one atomic, which returns the old value",
    [("(*n)++", "atomicAdd(n, 1)")],
    positions,
)
case(
    "counter in shared memory",
    (1, 64),
    """__shared__ int used;
if (threadIdx.x == 0) used = 0;
__syncthreads();
out[used++] = threadIdx.x;
__syncthreads();
n[0] = 64;
""".replace("n[0]", "if (threadIdx.x == 0) n[0]"),
    "atomicAdd of 1 in place of used++ on line 5: one atomic, which returns the old value",
    [("used++", "atomicAdd(&used, 1)")],
    positions,
)

# --- maxima -------------------------------------------------------------------------------------------------


def largest(x, out, n):
    assert n[0] == 31


MAXIMUM = "compare and write {} by one atomic, atomicMax, {}"
V = "int v = x[threadIdx.x];\n"
case(
    "maximum by a pointer",
    (2, 32),
    f"{V}if (v > *n) *n = v;\n",
    MAXIMUM.format("*n", "on line 3"),
    [("if (v > *n) *n = v;", "atomicMax(n, v);")],
    largest,
)
case(
    "maximum in a loop",
    (2, 32),
    f"{V}while (v > *n) *n = v;\n",
    MAXIMUM.format("*n", "in place of the loop at line 3"),
    [("while (v > *n) *n = v;", "atomicMax(n, v);")],
    largest,
)
case(
    "volatile maximum",
    (2, 32),
    f"{V}volatile int *m = n;\nif (v > *m) *m = v;\n",
    MAXIMUM.format("*m", "on line 4"),
    [("if (v > *m) *m = v;", "atomicMax((int *)m, v);")],
    largest,
)
case(
    "volatile maximum in a function",
    (2, 32),
    f"{V}raise(n, v);\n",
    MAXIMUM.format("*m", "on line 2"),
    [("    if (v > *m)\n        *m = v;", "    atomicMax((int *)m, v);")],
    largest,
    "__device__ __noinline__ void raise(volatile int *m, int v) {\n    if (v > *m)\n        *m = v;\n}\n",
)

case(
    "maximum by two functions",
    (2, 32),
    f"{V}if (v > get(n)) put(n, v);\n",
    "by one atomic (atomicMax, atomicMin or atomicCAS) in place of the two calls on line 5",
    [("if (v > get(n)) put(n, v);", "atomicMax(n, v);")],
    largest,
    "__device__ __noinline__ int get(volatile int *m) { return *m; }\n"
    "__device__ __noinline__ void put(volatile int *m, int v) { *m = v; }\n",
)
case(
    "volatile maximum in a loop",
    (2, 32),
    f"{V}volatile int *m = n;\nwhile (v > *m) *m = v;\n",
    MAXIMUM.format("*m", "in place of the loop at line 4"),
    [("while (v > *m) *m = v;", "atomicMax((int *)m, v);")],
    largest,
)

# --- fields and bits ----------------------------------------------------------------------------------------

STATS = """struct Stats {
    int most; unsigned bits; int sum;
    __device__ void add(int v) {
        most = ::max(most, v);
        bits |= 1u << v % 32;
        sum += v;
    }
};
"""
OF_STATS = "Stats *s = (Stats *)n;\nint v = x[threadIdx.x];\n"


def stats(x, out, n):
    assert list(n[:3]) == [31, -1, 2 * 496]


case(
    "fields of a structure",
    (2, 32),
    f"{OF_STATS}s->most = max(s->most, v);\ns->bits |= 1u << v % 32;\ns->sum += v;\n",
    "one atomic, atomicMax on s->most, or let each",
    [
        ("s->most = max(s->most, v);", "atomicMax(&s->most, v);"),
        ("s->bits |= 1u << v % 32;", "atomicOr(&s->bits, 1u << v % 32);"),
        ("s->sum += v;", "atomicAdd(&s->sum, v);"),
    ],
    stats,
    STATS,
)
for says in ("one atomic, atomicMax, or", "one atomic, atomicOr, or", "an atomic (atomicAdd for +=), or"):
    case(
        f"method, {says}",
        (2, 32),
        f"{OF_STATS}s->add(v);\n",
        says,
        [
            ("most = ::max(most, v);", "atomicMax(&most, v);"),
            ("bits |= 1u << v % 32;", "atomicOr(&bits, 1u << v % 32);"),
            ("        sum += v;", "        atomicAdd(&sum, v);"),
        ],
        stats,
        STATS,
    )


def value_is(value):
    def check(x, out, n):
        assert n[0] == value

    return check


case(
    "largest field by a comparison",
    (2, 32),
    f"{OF_STATS}if (v > s->most)\n    s->most = v;\n",
    MAXIMUM.format("s->most", "on line 12"),
    [("if (v > s->most)\n    s->most = v;", "atomicMax(&s->most, v);")],
    value_is(31),
    STATS,
)
case(
    "field of a structure in shared memory",
    (1, 64),
    "__shared__ Stats s;\nif (threadIdx.x == 0) s.bits = 0;\n__syncthreads();\n"
    "s.bits |= 1u << threadIdx.x % 32;\n__syncthreads();\nif (threadIdx.x == 0) n[0] = s.bits;\n",
    "one atomic, atomicOr on s.bits",
    [("s.bits |= 1u << threadIdx.x % 32;", "atomicOr(&s.bits, 1u << threadIdx.x % 32);")],
    value_is(-1),
    STATS,
)
case(
    "counter in a field",
    (2, 32),
    f"{INDEX}Stats *s = (Stats *)n;\nint k = s->most;\ns->most = k + 1;\nout[k] = i;\n",
    "replace the read of s->most on line 12 and the write on line 13 with one atomic, atomicAdd, on line 12",
    [("k = s->most;\ns->most = k + 1;", "k = atomicAdd(&s->most, 1);")],
    positions,
    STATS,
)
for operator, term, value in (("|", "atomicOr", -1), ("&", "atomicAnd", 0), ("^", "atomicXor", 0)):
    case(
        term,
        (2, 32),
        f"n[0] {operator}= 1 << threadIdx.x;\n",
        f"one atomic, {term}, or let",
        [(f"n[0] {operator}= 1 << threadIdx.x;", f"{term}(n, 1 << threadIdx.x);")],
        value_is(value),
    )
case(
    "four times x -> 3 x + 1",
    (2, 2),
    "n[0] = n[0] * 3 + 1;\n",
    "atomicCAS in a loop, or let each thread",
    [
        (
            "n[0] = n[0] * 3 + 1;",
            "int old = atomicAdd(n, 0), seen;\n"
            "do old = atomicCAS(n, seen = old, 3 * old + 1); while (old != seen);",
        )
    ],
    value_is(40),
)
UPDATES = {  # operator -> (operand, first value, result of 32 threads)
    "<<": ("threadIdx.x % 2", "1", 1 << 16),
    ">>": ("threadIdx.x % 2", "1 << 30", 1 << 14),
    "*": ("(1 + threadIdx.x % 2)", "1", 1 << 16),
    "/": ("(1 + threadIdx.x % 2)", "1 << 30", 1 << 14),
    "%": ("(32 << threadIdx.x % 4)", "1000", 1000 % 32),
}
for operator, (operand, first, result) in UPDATES.items():
    case(
        f"update by {operator}=",
        (1, 32),
        f"if (threadIdx.x == 0) n[0] = {first};\n__syncthreads();\nn[0] {operator}= {operand};\n",
        "atomicCAS in a loop, or let each thread write an element of its own, or let one thread do it for"
        " all, or let all threads hold the same lock",
        [
            (
                f"n[0] {operator}= {operand};",
                "int old = atomicAdd(n, 0), seen;\n"
                f"do old = atomicCAS(n, seen = old, old {operator} (int){operand}); while (old != seen);",
            )
        ],
        value_is(result),
    )

# --- types without an atomic --------------------------------------------------------------------------------


for kind, bits in (("unsigned short", 16), ("unsigned char", 8)):
    case(
        f"sum of {kind}",
        (2, 32),
        f"{kind} *s = ({kind} *)n;\ns[0] += 1;\n",
        f"one atomic, cuda::atomic_ref (CUDA C++ has no atomicAdd of {bits}-bit integers)",
        [("s[0] += 1;", f"cuda::atomic_ref<{kind}, cuda::thread_scope_device>(s[0]).fetch_add(1);")],
        value_is(64),
        REF,
    )
BYTE_REF = "cuda::atomic_ref<unsigned char, cuda::thread_scope_device> byte(*s);"
case(
    "four times x -> 3 x + 1 in a byte",
    (2, 2),
    "unsigned char *s = (unsigned char *)n;\ns[0] = s[0] * 3 + 1;\n",
    "cuda::atomic_ref in a loop (CUDA C++ has no atomicCAS of 8-bit integers), or let each thread",
    [
        (
            "s[0] = s[0] * 3 + 1;",
            f"{BYTE_REF} unsigned char old = byte.load();\n"
            "while (!byte.compare_exchange_weak(old, (unsigned char)(old * 3 + 1)));",
        )
    ],
    value_is(40),
    REF,
)
case(
    "sum of long long",
    (2, 32),
    "long long *s = (long long *)n;\ns[0] += 1;\n",
    "one atomic, atomicAdd (defined only for unsigned long long: cast the pointer to unsigned long long *)",
    [("s[0] += 1;", "atomicAdd((unsigned long long *)s, 1ull);")],
    value_is(64),
)
case(
    "difference of unsigned long long",
    (2, 32),
    "unsigned long long *s = (unsigned long long *)n;\ns[0] -= 1;\n",
    "one atomic, atomicAdd of the negative value",
    [("s[0] -= 1;", "atomicAdd(s, -1ull);")],
    value_is(-64),
)
case(
    "first value of a compare-and-swap loop of unsigned short",
    (2, 32),
    """unsigned short *s = (unsigned short *)n;
unsigned short old = *s, seen;
do {
    seen = old;
    old = atomicCAS(s, seen, (unsigned short)(seen + 1));
} while (old != seen);
""",
    "read the element on line 3 by an atomic (atomicCAS of 0 and 0, load() of cuda::atomic_ref, or ld.relaxed"
    " in inline PTX; CUDA C++ has no atomicAdd of 16-bit integers)",
    [("old = *s,", "old = atomicCAS(s, (unsigned short)0, (unsigned short)0),")],
    value_is(64),
)

# --- 16-bit floating-point values ---------------------------------------------------------------------------

HALVES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
HALF = "__half *s = (__half *)n, v = __float2half(0.5f);\n"
BFLOAT16 = "__nv_bfloat16 *s = (__nv_bfloat16 *)n, v = __float2bfloat16(0.5f);\n"
PAIR = "__half2 *s = (__half2 *)n, v = __floats2half2_rn(0.5f, 1.0f);\n"
BFLOAT16_PAIR = "__nv_bfloat162 *s = (__nv_bfloat162 *)n, v = __floats2bfloat162_rn(0.5f, 1.0f);\n"
ATOMIC_SUM, ATOMIC_DIFFERENCE = "atomicAdd(&s[0], v);", "atomicAdd(&s[0], __hneg{}(v));"


def halves_are(*values, dtype=np.float16):
    def check(x, out, n):
        assert n.view(dtype)[: len(values)].tolist() == list(values)

    return check


for declaration, update, says, instead, check in (
    (HALF, "s[0] = s[0] + v;", "an atomic (atomicAdd for +=), or", ATOMIC_SUM, (32,)),
    (HALF, "s[0] += v;", "an atomic (atomicAdd for +=), or", ATOMIC_SUM, (32,)),
    (HALF, "s[0] = v + s[0];", "an atomic (atomicAdd for +=), or", ATOMIC_SUM, (32,)),
    (HALF, "s[0] = __hadd(s[0], v);", "one atomic, atomicAdd, or", ATOMIC_SUM, (32,)),
    (HALF, "s[0] = __hadd_rn(v, s[0]);", "one atomic, atomicAdd, or", ATOMIC_SUM, (32,)),
    (HALF, "s[0] -= v;", "one atomic, atomicAdd of the negative value, or", ATOMIC_DIFFERENCE, (-32,)),
    (HALF, "s[0] = __hsub(s[0], v);", "one atomic, atomicAdd of the negative", ATOMIC_DIFFERENCE, (-32,)),
    (BFLOAT16, "s[0] = __hadd(s[0], v);", "one atomic, atomicAdd, or", ATOMIC_SUM, (32,)),
    (BFLOAT16, "s[0] += v;", "an atomic (atomicAdd for +=), or", ATOMIC_SUM, (32,)),
    (BFLOAT16, "s[0] = s[0] - v;", "one atomic, atomicAdd of the negative", ATOMIC_DIFFERENCE, (-32,)),
    (PAIR, "s[0] = __hadd2(s[0], v);", "one atomic, atomicAdd, or", ATOMIC_SUM, (32, 64)),
    (PAIR, "s[0] += v;", "an atomic (atomicAdd for +=), or", ATOMIC_SUM, (32, 64)),
    (PAIR, "s[0] -= v;", "one atomic, atomicAdd of the negative", ATOMIC_DIFFERENCE, (-32, -64)),
    (
        PAIR,
        "s[0] = __hsub2(s[0], v);",
        "one atomic, atomicAdd of the negative",
        ATOMIC_DIFFERENCE,
        (-32, -64),
    ),
    (BFLOAT16_PAIR, "s[0] = __hadd2(s[0], v);", "one atomic, atomicAdd, or", ATOMIC_SUM, (32, 64)),
    (BFLOAT16_PAIR, "s[0] += v;", "an atomic (atomicAdd for +=), or", ATOMIC_SUM, (32, 64)),
):
    dtype = ml_dtypes.bfloat16 if "bfloat16" in declaration else np.float16
    instead = instead.format("2" * (len(check) == 2))
    name = f"{declaration.split()[0]}: {update}"
    edits = [(update, instead)]
    case(name, (2, 32), f"{declaration}{update}\n", says, edits, halves_are(*check, dtype=dtype), HALVES)

SWAP = "unsigned {type} *bits = (unsigned {type} *)s, old = atomicCAS(bits, 0, 0), seen;\n"
SWAP += "do old = atomicCAS(bits, seen = old, {bits}({new})); while (old != seen);"
for declaration, type_, update, lacking, new, check in (
    (HALF, "short", "s[0] = __hmax(s[0], v);", "Max", "__hmax({old}, v)", (0.5,)),
    (HALF, "short", "s[0] = s[0] * v + v;", "CAS", "{old} * v + v", (1,)),
    (HALF, "short", "s[0] = __hfma(s[0], v, v);", "CAS", "__hfma({old}, v, v)", (1,)),
    (BFLOAT16, "short", "s[0] = __hmin(s[0], -v);", "Min", "__hmin({old}, -v)", (-0.5,)),
    (PAIR, "int", "s[0] = __hmax2(s[0], v);", "Max", "__hmax2({old}, v)", (0.5, 1)),
    (PAIR, "int", "s[0] = __hmin2(s[0], -v);", "Min", "__hmin2({old}, -v)", (-0.5, -1)),
):
    dtype = ml_dtypes.bfloat16 if "bfloat16" in declaration else np.float16
    kind = "pairs of 16-bit" if len(check) == 2 else "16-bit"
    old, bits = "(*(__half2 *)&seen)", "pair_bits"
    if len(check) == 1:
        name = "bfloat16" if "bfloat16" in declaration else "half"
        old, bits = f"__ushort_as_{name}(seen)", f"__{name}_as_ushort"
    instead = SWAP.format(type=type_, bits=bits, new=new.format(old=old))
    case(
        f"{declaration.split()[0]}: {update}",
        (2, 32),
        f"{declaration}{update}\n",
        f"atomicCAS of the bits of the value, in a loop (CUDA C++ has no atomic{lacking} of {kind}",
        [(update, instead)],
        halves_are(*check, dtype=dtype),
        HALVES + "__device__ unsigned pair_bits(__half2 v) { return *(unsigned *)&v; }\n",
    )
case(
    "__half: a sum on two lines",
    (2, 32),
    f"{HALF}__half old = s[0];\ns[0] = __hadd(old, v);\n",
    "with one atomic, atomicAdd, on line 5, and assign the old value that it returns to old",
    [("old = s[0];", "old = atomicAdd(&s[0], v);"), ("s[0] = __hadd(old, v);\n", "")],
    halves_are(32),
    HALVES,
)
case(
    "__half2: a sum of fields",
    (2, 32),
    f"{PAIR}s[0].x = __hadd(s[0].x, v.x);\n",
    "one atomic, atomicAdd on s[0].x, or let",
    [("s[0].x = __hadd(s[0].x, v.x);", "atomicAdd(&s[0].x, v.x);")],
    halves_are(32, 0),
    HALVES,
)
case(
    "a field with the name of the array",
    (2, 32),
    "sum((float2 *)n, make_float2(0.5f, 1));\n",
    "an atomic (atomicAdd for +=) on x[0].x, or let",
    [("x[0].x += v.x;", "atomicAdd(&x[0].x, v.x);")],
    halves_are(32, dtype=np.float32),
    "__device__ void sum(float2 *x, float2 v) {\n    x[0].x += v.x;\n}\n",
)
case(
    "a sum by __fadd_rn",
    (2, 32),
    "float *s = (float *)n;\ns[0] = __fadd_rn(0.5f, s[0]);\n",
    "one atomic, atomicAdd, or let",
    [("s[0] = __fadd_rn(0.5f, s[0]);", "atomicAdd(s, 0.5f);")],
    halves_are(32, dtype=np.float32),
)
case(
    "a sum by a function of a template",
    (2, 32),
    "sum((__nv_bfloat16 *)n, __float2bfloat16(0.5f));\n",
    "an atomic (atomicAdd for +=), or let",
    [("s[0] = s[0] + v;", "atomicAdd(&s[0], v);")],
    halves_are(32, dtype=ml_dtypes.bfloat16),
    HALVES + "template <class T> __device__ void sum(T *s, T v) {\n    s[0] = s[0] + v;\n}\n",
)

# --- flags that a branch tests once -------------------------------------------------------------------------


def seven_or_nothing(x, out, n):
    assert out[0] == 7 and n[0] == 1 and out[1] in (0, 7)


ONCE = "if (blockIdx.x == 0) {{\n    out[0] = 7;\n{}    {}\n}} else {{\n    {}\n}}\n"
FENCED, USE = "    __threadfence();\n", "if (n[0]) out[1] = out[0];"
ATOMIC_USE = ("if (n[0]) out", "if (atomicAdd(n, 0)) { __threadfence(); out"), ("out[0];\n}", "out[0]; }\n}")
for name, body, says, edits in (
    (
        "in a branch on one line",
        ONCE.format("", "n[0] = 1;", USE),
        "write n[0] on line 4 by an atomic (atomicExch) after __threadfence(), read n[0] on line 6 by an"
        " atomic (atomicAdd of 0), and execute __threadfence() between this read and the read of the data on"
        " line 6. The kernel must then be correct even if the flag is not set yet, because the test",
        [("n[0] = 1;", "__threadfence(); atomicExch(n, 1);"), *ATOMIC_USE],
    ),
    (
        "after a fence",
        ONCE.format(FENCED, "n[0] = 1;", USE),
        "write n[0] on line 5 by an atomic (atomicExch), read n[0] on line 7 by an atomic (atomicAdd of 0)",
        [("n[0] = 1;", "atomicExch(n, 1);"), *ATOMIC_USE],
    ),
    (
        "that an atomic sets",
        ONCE.format("", "atomicExch(n, 1);", USE),
        "execute __threadfence() before the atomic on line 4, read n[0] on line 6 by an atomic (atomicAdd",
        [("atomicExch", "__threadfence(); atomicExch"), *ATOMIC_USE],
    ),
    (
        "that only a plain read makes wrong",
        ONCE.format(FENCED, "atomicExch(n, 1);", "if (n[0]) { __threadfence(); out[1] = out[0]; }"),
        "read n[0] on line 7 by an atomic (atomicAdd of 0). The kernel must then",
        [("if (n[0])", "if (atomicAdd(n, 0))")],
    ),
    (
        "in a conditional expression",
        ONCE.format("", "*n = 1;", "out[1] = *n == 1 ? out[0] : 0;"),
        "write *n on line 4 by an atomic (atomicExch) after __threadfence(), read *n on line 6",
        [
            ("*n = 1;", "__threadfence(); atomicExch(n, 1);"),
            ("out[1] = *n == 1 ?", "bool set = atomicAdd(n, 0) == 1; __threadfence(); out[1] = set ?"),
        ],
    ),
    (
        "before a return",
        f"if (blockIdx.x == 0) {{\n    out[0] = 7;\n{FENCED}    n[0] = 1;\n    return;\n}}\n"
        "int ready = n[0];\nif (!ready) return;\nout[1] = out[0];\n",
        "read n[0] on line 8 by an atomic (atomicAdd of 0), and execute __threadfence() between this read and"
        " the read of the data on line 10.",
        [
            ("n[0] = 1;", "atomicExch(n, 1);"),
            ("ready = n[0];", "ready = atomicAdd(n, 0);"),
            ("return;\nout", "return;\n__threadfence();\nout"),
        ],
    ),
):
    case(f"flag {name}", (2, 1), body, says, edits, seven_or_nothing)

# --- compare-and-swap loops ---------------------------------------------------------------------------------

# The example of the section "Atomic Functions" of the CUDA C++ Programming Guide
ADD_DOUBLE = """__device__ double add(double *address, double val) {
    unsigned long long int *address_as_ull = (unsigned long long int *)address;
    unsigned long long int old = *address_as_ull, assumed;
    do {
        assumed = old;
        old = atomicCAS(address_as_ull, assumed,
                        __double_as_longlong(val + __longlong_as_double(assumed)));
    } while (assumed != old);
    return __longlong_as_double(old);
}
"""


def sum_of_doubles(x, out, n):
    assert n[:2].view(np.float64)[0] == 64


for first in ("atomicAdd(address_as_ull, 0ULL)", "*(volatile unsigned long long int *)address_as_ull"):
    case(
        f"first value by {first}",
        (2, 32),
        "add((double *)n, 1.0);\n",
        "read the element on line 3 by an atomic (atomicAdd of 0), because the atomicCAS in the loop",
        [("old = *address_as_ull", f"old = {first}")],
        sum_of_doubles,
        ADD_DOUBLE,
    )
case(
    "swap in a function that the condition calls",
    (2, 32),
    "int old = n[0];\nwhile (!swap(n, old, old + 1)) old = n[0];\n",
    "by an atomic (atomicAdd of 0), because the atomicCAS in the loop can change it",
    [("old = n[0];", "old = atomicAdd(n, 0);")],
    value_is(64),
    "__device__ bool swap(int *p, int a, int b) { return atomicCAS(p, a, b) == a; }\n",
)


@pytest.mark.parametrize("name", CASES)
def test_the_advice_followed(name, few, tmp_path):
    CASES.follow(name, few, tmp_path)
