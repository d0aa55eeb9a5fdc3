"""Tests that apply the advice about locks, exchanges, tickets and maxima."""

import numpy as np
import pytest
from numba import cuda, int32

from followed import Cases, launched
from sim import simulate

CASES = Cases()
case = CASES.case

# --- locks that are released by a plain store ---------------------------------------------------------------


def counted_four(x, out, n):
    assert out[0] == 4 and n[0] == 0


RELEASE = "release by a plain store"


@case(RELEASE, (4, 8), "cuda.threadfence() before it and after the atomic on line 3", counted_four)
def lock_without_fences(x, out, n):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(n, 0, 0, 1) != 0:
            pass
        out[0] += 1
        n[0] = 0


@case(RELEASE, (4, 8), "cuda.atomic.exch in place of the plain store on line 8", counted_four)
def lock_with_fences(x, out, n):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(n, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        out[0] += 1
        cuda.threadfence()
        n[0] = 0


@case(RELEASE, (4, 8), "cuda.atomic.exch in place of the plain store on line 8", counted_four)
def lock_by_exchange(x, out, n):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.exch(n, 0, 1) != 0:
            pass
        cuda.threadfence()
        out[0] += 1
        cuda.threadfence()
        n[0] = 0


def largest_of_four(x, out, n):
    assert out[0] == 24 and n[0] == 0


@case(RELEASE, (4, 8), "cuda.atomic.exch in place of the plain store on line 9", largest_of_four)
def lock_around_a_test(x, out, n):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(n, 0, 0, 1) == 1:
            pass
        cuda.threadfence()
        if x[cuda.grid(1)] > out[0]:
            out[0] = x[cuda.grid(1)]
        cuda.threadfence()
        n[0] = 0


@cuda.jit(device=True)
def acquire(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()


@cuda.jit(device=True)
def release(lock):
    cuda.threadfence()
    lock[0] = 0


@case(RELEASE, (4, 8), "cuda.atomic.exch in place of the plain store on line 3 of release", counted_four)
def lock_in_functions(x, out, n):
    if cuda.threadIdx.x == 0:
        acquire(n)
        out[0] += 1
        release(n)


def counted_two(x, out, n):
    assert out[0] == 2


@case(RELEASE, (1, 64), "cuda.atomic.exch in place of the plain store on line 13", counted_two)
def lock_in_shared_memory(x, out, n):
    lock = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        lock[0] = 0
    cuda.syncthreads()
    if t % 32 == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        out[0] += 1
        cuda.threadfence()
        lock[0] = 0


# --- double-checked locks -----------------------------------------------------------------------------------


def ready_for_all(x, out, n):
    assert list(out[:2]) == [7, 1] and list(out[8:12]) == [7] * 4


DOUBLE = "double-checked lock"
DOUBLE_FIX = (
    "read out[1] on lines {} by an atomic (cuda.atomic.add of 0), execute cuda.threadfence() after the branch"
)


@case(DOUBLE, (4, 8), DOUBLE_FIX.format("3 and 7"), ready_for_all)
def double_check(x, out, n):
    if cuda.threadIdx.x == 0:
        if out[1] == 0:
            while cuda.atomic.cas(n, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            if out[1] == 0:
                out[0] = 7
                out[1] = 1
            cuda.threadfence()
            cuda.atomic.exch(n, 0, 0)
        out[8 + cuda.blockIdx.x] = out[0]


@cuda.jit(device=True)
def initialise(out, lock):
    if out[1] == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        if out[1] == 0:
            out[0] = 7
            out[1] = 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@case(DOUBLE, (4, 8), DOUBLE_FIX.format("2 and 6"), ready_for_all)
def double_check_in_a_function(x, out, n):
    if cuda.threadIdx.x == 0:
        initialise(out, n)
        out[8 + cuda.blockIdx.x] = out[0]


@cuda.jit(device=True)
def take_the_lock(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()


@cuda.jit(device=True)
def give_the_lock(lock):
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@case(DOUBLE, (4, 8), DOUBLE_FIX.format("3 and 5"), ready_for_all)
def double_check_with_a_lock_in_functions(x, out, n):
    if cuda.threadIdx.x == 0:
        if out[1] == 0:
            take_the_lock(n)
            if out[1] == 0:
                out[0] = 7
                out[1] = 1
            give_the_lock(n)
        out[8 + cuda.blockIdx.x] = out[0]


@cuda.jit(device=True)
def take_without_fence(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass


@cuda.jit(device=True)
def give_without_fence(lock):
    cuda.atomic.exch(lock, 0, 0)


@case(
    "lock without fences",
    (4, 8),
    "takes the lock on line 2 of take_without_fence, and again before the atomic that releases it on line 2 of",
    counted_four,
)
def lock_in_functions_without_fences(x, out, n):
    if cuda.threadIdx.x == 0:
        take_without_fence(n)
        out[0] += 1
        give_without_fence(n)


# --- flags that a branch tests once -------------------------------------------------------------------------

ONCE = "flag tested once"
ONCE_FIX = "read {0} on line {1} by an atomic (cuda.atomic.add of 0), and execute cuda.threadfence() between"


def seven_or_nothing(x, out, n):
    assert out[0] == 7 and n[0] == 1 and out[1] in (0, 7)


@case(
    ONCE,
    (2, 1),
    "write n[0] on line 4 by an atomic (cuda.atomic.exch) after cuda.threadfence(), read",
    seven_or_nothing,
)
def flag_in_a_branch(x, out, n):
    if cuda.blockIdx.x == 0:
        out[0] = 7
        n[0] = 1
    elif n[0] == 1:
        out[1] = out[0]


@case(ONCE, (2, 1), "by an atomic (cuda.atomic.exch), " + ONCE_FIX.format("n[0]", 7), seven_or_nothing)
def flag_after_a_fence(x, out, n):
    if cuda.blockIdx.x == 0:
        out[0] = 7
        cuda.threadfence()
        n[0] = 1
    if cuda.blockIdx.x == 1:
        if n[0]:
            out[1] = out[0]


@case(
    ONCE,
    (2, 1),
    ONCE_FIX.format("n[0]", 6) + " this read and the read of the data on line 9",
    seven_or_nothing,
)
def flag_in_a_variable(x, out, n):
    if cuda.blockIdx.x == 0:
        out[0] = 7
        n[0] = 1
        return
    ready = n[0]
    if ready == 0:
        return
    out[1] = out[0]


# --- exchanges ----------------------------------------------------------------------------------------------


def four_chains(x, out, n):
    seen = []  # each chain leads from the last i + 1 that was stored to an element to 0
    for c in range(4):
        i = n[c]
        while i:
            assert (i - 1) % 4 == c
            seen.append(i)
            i = out[i - 1]
    assert sorted(seen) == list(range(1, 65))


@case(
    "exchange",
    (2, 32),
    "cuda.atomic.exch, on line 4, and assign the old value that it returns to old",
    four_chains,
)
def exchange_by_a_variable(x, out, n):
    i = cuda.grid(1)
    c = x[i] % 4
    old = n[c]
    n[c] = i + 1
    out[i] = old


@case(
    "exchange",
    (2, 32),
    "before line 4, and assign the old value that it returns to a variable, which",
    four_chains,
)
def exchange_without_a_variable(x, out, n):
    i = cuda.grid(1)
    c = x[i] % 4
    out[i] = n[c]
    n[c] = i + 1


@case(
    "exchange",
    (2, 32),
    "cuda.atomic.exch, on line 5, and assign the old value that it returns to mine",
    four_chains,
)
def exchange_in_one_statement(x, out, n):
    i = cuda.grid(1)
    c = x[i] % 4
    mine = i + 1
    mine, n[c] = n[c], mine
    out[i] = mine


def first_of_four(x, out, n):
    assert list(out[:4]) == list(n[:4]) == [1, 1, 1, 1]


@case(
    "exchange",
    (2, 32),
    "on line 4 and the write on line 5 with one atomic, cuda.atomic.exch, on line 4",
    first_of_four,
)
def first_visit(x, out, n):
    i = cuda.grid(1)
    c = x[i] % 4
    seen = n[c]
    n[c] = 1
    if seen == 0:
        out[c] += 1


@cuda.jit(device=True)
def push(heads, c, i):
    old = heads[c]
    heads[c] = i
    return old


@case(
    "exchange",
    (2, 32),
    "replace the read of heads[c] on line 2 and the write on line 3 with one atomic",
    four_chains,
)
def exchange_in_a_function(x, out, n):
    i = cuda.grid(1)
    out[i] = push(n, x[i] % 4, i + 1)


# --- tickets and sums ---------------------------------------------------------------------------------------


def all_positions(x, out, n):
    assert n[0] == 64 and sorted(out[:64]) == list(range(64))


@case("update", (2, 32), "on line 3, and assign the old value that it returns to k", all_positions)
def position_by_a_variable(x, out, n):
    i = cuda.grid(1)
    k = n[0]
    n[0] = k + 1
    out[k] = i


def positions_of_several(x, out, n):
    assert n[0] == 64 - 1 and np.bincount(out[:63], minlength=64).tolist() == [i % 3 for i in range(64)]


@case("update", (2, 32), "on line 4, and assign the old value that it returns to k", positions_of_several)
def positions_of_runs(x, out, n):
    i = cuda.grid(1)
    m = x[i] % 3
    k = n[0]
    n[0] = k + m
    for j in range(m):
        out[k + j] = i


@cuda.jit(device=True)
def take(count):
    k = count[0]
    count[0] = k + 1
    return k


@case("update", (2, 32), "on line 2, and assign the old value that it returns to k", all_positions)
def position_in_a_function(x, out, n):
    out[take(n)] = cuda.grid(1)


@case("update", (2, 32), "on line 3, and assign the old value that it returns to k", all_positions)
def position_read_by_a_swap(x, out, n):
    i = cuda.grid(1)
    k = cuda.atomic.cas(n, 0, 0, 0)
    n[0] = k + 1
    out[k] = i


@case("update", (2, 32), "on line 3, and assign the old value that it returns to k", all_positions)
def position_read_by_an_addition(x, out, n):
    i = cuda.grid(1)
    k = cuda.atomic.add(n, 0, 0)
    n[0] = k + 1
    out[k] = i


def counted_64(x, out, n):
    assert n[0] == 64


@case("update", (2, 32), "cuda.atomic (cuda.atomic.add for +=), or let each thread", counted_64)
def sum_read_by_a_swap(x, out, n):
    n[0] = cuda.atomic.cas(n, 0, 7, 7) + 1


# --- updates without an atomic ------------------------------------------------------------------------------


def result(value):
    def check(x, out, n):
        assert n[0] == value

    return check


SWAPS = (
    "cuda.atomic.cas in a loop, or let each thread write an element of its own, or let one thread do it for"
)
LOCKED = "or let one thread do it for all, or let all threads hold the same lock"


@case("update", (1, 32), SWAPS, result(1 << 16))
def shifted_left(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1
    cuda.syncthreads()
    n[0] <<= x[t] % 2


@case("update", (1, 32), LOCKED, result(1 << 14))
def shifted_right(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1 << 30
    cuda.syncthreads()
    n[0] >>= x[t] % 2


@case("update", (1, 32), SWAPS, result(1 << 16))
def shifted_in_full(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1
    cuda.syncthreads()
    n[0] = n[0] << x[t] % 2


@case("update", (1, 32), LOCKED, result(1 << 16))
def multiplied(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1
    cuda.syncthreads()
    n[0] *= x[t] % 2 + 1


@case("update", (1, 32), SWAPS, result(1 << 14))
def divided(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1 << 30
    cuda.syncthreads()
    n[0] /= x[t] % 2 + 1


@case("update", (1, 32), SWAPS, result(1 << 14))
def divided_without_fraction(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1 << 30
    cuda.syncthreads()
    n[0] //= x[t] % 2 + 1


@case("update", (1, 32), SWAPS, result(1000 % 32))
def remainder(x, out, n):
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 1000
    cuda.syncthreads()
    n[0] %= 32 << x[t] % 4


# --- maxima -------------------------------------------------------------------------------------------------


def largest(x, out, n):
    assert n[0] == 31


@case("claim", (2, 32), "cuda.atomic.max, in place of the loop at line 3", largest)
def maximum_in_a_loop(x, out, n):
    v = x[cuda.threadIdx.x]
    while v > n[0]:
        n[0] = v


@cuda.jit(device=True)
def raise_to(m, v):
    if v > m[0]:
        m[0] = v


@case("claim", (2, 32), "compare and write m[0] by one atomic, cuda.atomic.max", largest)
def maximum_in_a_function(x, out, n):
    raise_to(n, x[cuda.threadIdx.x])


@pytest.mark.parametrize("name", CASES)
def test_the_steps_of_the_advice(name, few):
    CASES.follow(name, few)


def test_no_advice_changes_what_a_lock_protects():
    # The accesses inside the lock are correct. Only its release is not.
    for kernel in (lock_without_fences, lock_in_functions, lock_around_a_test):
        findings, _ = launched(kernel, (4, 8))
        assert {finding.advice.pattern for finding in findings} == {RELEASE}


@cuda.jit
def flags_of_all_threads(x, out, n):
    i = cuda.grid(1)
    out[i] = 7
    n[i] = 1
    if n[63 - i] == 1:
        x[i] = out[63 - i]


@cuda.jit
def flag_of_the_block(x, out, n):
    if cuda.threadIdx.x == 0:
        out[0] = 7
        n[0] = 1
    if cuda.threadIdx.x == 33:
        if n[0] == 1:
            out[1] = out[0]


@pytest.mark.parametrize("kernel, launch", [(flags_of_all_threads, (2, 32)), (flag_of_the_block, (1, 64))])
def test_flags_that_a_barrier_orders(kernel, launch):
    """Test flags that all threads set, or that a thread of the block sets. A barrier is the usual fix."""
    findings, _ = launched(kernel, launch)
    assert findings and not {f.advice.pattern for f in findings} & {ONCE}


# --- locks in functions without fences ----------------------------------------------------------------------


@cuda.jit(device=True)
def take_lock(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass


@cuda.jit(device=True)
def give_lock(lock):
    cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def maximum_under_a_lock(x, out, n):
    if cuda.threadIdx.x == 0:
        take_lock(n)
        if x[cuda.grid(1)] > out[0]:
            out[0] = x[cuda.grid(1)]
        give_lock(n)


@cuda.jit
def maximum_under_a_lock_with_fences(x, out, n):
    if cuda.threadIdx.x == 0:
        take_lock(n)
        cuda.threadfence()
        if x[cuda.grid(1)] > out[0]:
            out[0] = x[cuda.grid(1)]
        cuda.threadfence()
        give_lock(n)


@cuda.jit
def maximum_under_a_lock_in_an_endless_loop(x, out, n):
    if cuda.threadIdx.x == 0:
        while True:
            if cuda.atomic.cas(n, 0, 0, 1) == 0:
                break
        if x[cuda.grid(1)] > out[0]:
            out[0] = x[cuda.grid(1)]
        give_lock(n)


@cuda.jit
def maximum_in_the_loop_of_a_lock(x, out, n):
    waits = cuda.threadIdx.x == 0
    while waits:
        if cuda.atomic.cas(n, 0, 0, 1) == 0:
            if x[cuda.grid(1)] > out[0]:
                out[0] = x[cuda.grid(1)]
            give_lock(n)
            waits = False


@cuda.jit
def maximum_after_a_lock(x, out, n):
    if cuda.threadIdx.x == 0:
        take_lock(n)
        give_lock(n)
        if x[cuda.grid(1)] > out[0]:
            out[0] = x[cuda.grid(1)]
        cuda.atomic.add(n, 1, 1)


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_test_and_store_under_a_lock_needs_fences_and_no_atomic(engine):
    findings, _ = launched(maximum_under_a_lock, (4, 8), engine=engine)
    assert {finding.advice.pattern for finding in findings} == {"lock without fences"}
    findings, (x, out, n) = launched(maximum_under_a_lock_with_fences, (4, 8), engine=engine)
    assert not findings
    largest_of_four(x, out, n)


@pytest.mark.parametrize("kernel", [maximum_under_a_lock_in_an_endless_loop, maximum_in_the_loop_of_a_lock])
def test_a_lock_is_known_wherever_its_atomic_is(kernel):
    findings, _ = launched(kernel, (4, 8))
    assert {finding.advice.pattern for finding in findings} == {"lock without fences"}


def test_a_test_and_store_outside_a_lock_needs_an_atomic():
    findings, _ = launched(maximum_after_a_lock, (4, 8))
    assert {finding.advice.pattern for finding in findings} == {"claim"}


# --- a flag that a plain load polls -------------------------------------------------------------------------


@cuda.jit
def message_by_a_plain_flag(data, flag, out):
    if cuda.blockIdx.x == 0:
        data[0] = 7
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 2)
    else:
        cuda.threadfence()
        cuda.atomic.exch(flag, 1, 1)
        while flag[0] != 2:
            pass
        out[0] = data[0]


def test_a_fence_in_the_opposite_arm_is_no_fence_of_the_writer():
    empty = [np.zeros(2, np.int32) for _ in range(3)]
    report = simulate(message_by_a_plain_flag, on_finding="report")[2, 1](*empty)
    patterns = {finding.array: finding.advice.pattern for finding in report.findings if finding.advice}
    assert patterns == {"data": "message", "flag": "spin by plain reads"}


@cuda.jit(device=True)
def ready(flag):
    return flag[0]


@cuda.jit(device=True)
def ready_by_a_variable(flag):
    seen = flag[0]
    return seen == 1


@cuda.jit(device=True)
def ready_by_an_atomic(flag):
    return cuda.atomic.add(flag, 0, 0) == 1


@cuda.jit(device=True)
def is_set(flag):
    return ready_by_an_atomic(flag)


@cuda.jit(device=True)
def count_down(x):
    x[1] -= 1
    return x[1]


@cuda.jit
def poll_in_a_function(data, flag, out):
    if cuda.blockIdx.x == 0:
        data[0] = 7
        cuda.threadfence()
        flag[0] = 1
    else:
        cuda.threadfence()
        cuda.atomic.exch(flag, 1, 1)  # lets the other block run
        while ready(flag) == 0:
            pass
        out[0] = data[0]


@cuda.jit
def poll_by_a_variable_in_a_function(data, flag, out):
    if cuda.blockIdx.x == 0:
        data[0] = 7
        cuda.threadfence()
        flag[0] = 1
    else:
        cuda.threadfence()
        cuda.atomic.exch(flag, 1, 1)  # lets the other block run
        while not ready_by_a_variable(flag):
            pass
        out[0] = data[0]


@cuda.jit
def atomic_poll_in_a_function(data, flag, out):
    if cuda.blockIdx.x == 0:
        data[0] = 7
        cuda.threadfence()
        flag[0] = 1
    else:
        while not ready_by_an_atomic(flag):
            pass
        cuda.threadfence()
        out[0] = data[0]


@cuda.jit
def atomic_poll_in_a_function_of_a_function(data, flag, out):
    if cuda.blockIdx.x == 0:
        data[0] = 7
        cuda.threadfence()
        flag[0] = 1
    else:
        while not is_set(flag):
            pass
        cuda.threadfence()
        out[0] = data[0]


@cuda.jit
def work_in_a_function_of_a_loop(data, flag, out):
    if cuda.blockIdx.x == 0:
        flag[0] = 1
    else:
        data[1] = 3
        while count_down(data):
            out[0] += flag[0]


POLLS = {
    poll_in_a_function: "spin by plain reads",
    poll_by_a_variable_in_a_function: "spin by plain reads",
    atomic_poll_in_a_function: RELEASE,
    atomic_poll_in_a_function_of_a_function: RELEASE,
}


@pytest.mark.parametrize("engine", ["fibers", "threads", "native", "auto"])
@pytest.mark.parametrize("kernel", POLLS, ids=lambda kernel: kernel.__name__)
def test_a_function_in_the_condition_of_a_loop_polls(kernel, engine):
    empty = [np.zeros(2, np.int32) for _ in range(3)]
    findings = simulate(kernel, engine=engine, on_finding="report")[2, 1](*empty).findings
    assert {f.advice.pattern for f in findings if f.array == "flag" and f.advice} == {POLLS[kernel]}


def test_a_load_beside_a_function_in_the_condition_does_not_poll():
    empty = [np.zeros(2, np.int32) for _ in range(3)]
    findings = simulate(work_in_a_function_of_a_loop, on_finding="report")[2, 1](*empty).findings
    assert {f.advice.pattern for f in findings if f.advice}.isdisjoint({"spin by plain reads", RELEASE})
