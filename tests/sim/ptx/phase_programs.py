"""Random programs in which all threads of a block arrive and wait at two mbarriers together."""

import numpy as np

THREADS, STEPS = 64, 8
NONE, READ, WRITE, ADD = range(4)  # kinds of accesses to shared memory
ARRIVE, WAIT, BLOCK = 1, 3, 5  # kinds of steps; ARRIVE + b and WAIT + b are those at mbarrier b

KERNEL = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ u32 at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void init(u64 *b, u32 n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(n) : "memory");
}
__device__ u64 arrive(u64 *b) {
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(b)) : "memory");
    return state;
}
__device__ void wait(u64 *b, u64 state) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(at(b)), "l"(state) : "memory");
}
__device__ void wait_parity(u64 *b, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(b)), "r"(parity) : "memory");
}
__device__ void copy(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(to)), "l"(from) : "memory");
}
__device__ void track(u64 *b) {
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(at(b)) : "memory");
}
__device__ void track_expected(u64 *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(b)) : "memory");
}
"""
RANDOM = r"""
extern "C" __global__ void k(const int *accesses, const int *kinds, int steps, int *out) {
    __shared__ u64 first, second;
    __shared__ volatile int own[8];
    int t = threadIdx.x, total = 0;
    u64 states[2] = {0, 0};
    if (t == 0) { init(&first, 64); init(&second, 64); for (int i = 0; i < 8; i++) own[i] = i; }
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        int kind = accesses[(step * 64 + t) * 2], i = accesses[(step * 64 + t) * 2 + 1];
        if (kind == 1) total += own[i];
        if (kind == 2) own[i] = step + total;
        if (kind == 3) atomicAdd((int *)&own[i], 1);
        if (kinds[step] == 1) states[0] = arrive(&first);
        if (kinds[step] == 2) states[1] = arrive(&second);
        if (kinds[step] == 3) wait(&first, states[0]);
        if (kinds[step] == 4) wait(&second, states[1]);
        if (kinds[step] == 5) __syncthreads();
    }
    out[t] = total;
}
"""


def random_program(seed):
    """Return (accesses, kinds of the steps, whether the program has a race)."""
    rng = np.random.default_rng(seed)
    accesses, kinds = np.zeros((STEPS, THREADS, 2), np.int32), np.zeros(STEPS, np.int32)
    arrived = [False, False]
    for step in range(STEPS):
        for thread in rng.choice(THREADS, rng.integers(3), replace=False):
            accesses[step, thread] = rng.choice([READ, READ, WRITE, ADD]), rng.integers(8)
        b = rng.integers(2)
        if rng.random() < 0.15:
            kinds[step] = BLOCK
        elif rng.random() < 0.9:
            kinds[step] = (WAIT if arrived[b] else ARRIVE) + b
            arrived[b] = not arrived[b]
    return accesses, kinds, has_race(accesses, kinds)


def has_race(accesses, kinds):
    """Return whether any two accesses race."""
    # `ordered` is the number of the steps whose accesses the phases and barriers so far order.
    ordered, arrivals, found = 0, {}, []
    for step, kind in enumerate(kinds.tolist()):
        for thread in range(THREADS):
            access, i = accesses[step, thread].tolist()
            if access == NONE:
                continue
            for other, before, by, at in found:
                races = (
                    at == i and by != thread and other >= ordered and {access, before} not in ({READ}, {ADD})
                )
                if races:
                    return True
            found.append((step, access, thread, i))
        if kind == BLOCK:
            ordered = step + 1
        elif kind >= WAIT:
            ordered = max(ordered, arrivals[kind - WAIT] + 1)
        elif kind >= ARRIVE:
            arrivals[kind - ARRIVE] = step
    return False
