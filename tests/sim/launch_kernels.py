"""Python kernels for bench_launches.py."""

import math

from numba import cuda, float32, int32

TILE = 16
THREADS = 256


# --- correct kernels ----------------------------------------------------------------------------------------


@cuda.jit
def bodies(positions, masses, accelerations):
    """Compute the accelerations of bodies by gravity. A block loads 128 bodies at a time."""
    tile = cuda.shared.array((128, 4), float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    x, y, z = positions[i, 0], positions[i, 1], positions[i, 2]
    ax, ay, az = float32(0), float32(0), float32(0)
    for start in range(0, masses.size, 128):
        for axis in range(3):
            tile[t, axis] = positions[start + t, axis]
        tile[t, 3] = masses[start + t]
        cuda.syncthreads()
        for j in range(128):
            dx, dy, dz = tile[j, 0] - x, tile[j, 1] - y, tile[j, 2] - z
            squared = dx * dx + dy * dy + dz * dz + float32(1e-3)
            scale = tile[j, 3] / (squared * math.sqrt(squared))
            ax, ay, az = ax + dx * scale, ay + dy * scale, az + dz * scale
        cuda.syncthreads()
    accelerations[i, 0], accelerations[i, 1], accelerations[i, 2] = ax, ay, az


@cuda.jit
def attention(q, k, v, out):
    """Compute attention with an online softmax, one query per thread. A block loads TILE keys at a time."""
    keys = cuda.shared.array((TILE, 32), float32)
    values = cuda.shared.array((TILE, 32), float32)
    total = cuda.local.array(32, float32)
    query = cuda.local.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    n = k.shape[0]
    for c in range(32):
        total[c] = 0
        query[c] = q[i, c] if i < n else float32(0)
    top, weight_sum = float32(-math.inf), float32(0)
    for start in range(0, n, TILE):
        for element in range(t, TILE * 32, cuda.blockDim.x):
            row, c = element // 32, element % 32
            inside = start + row < n
            keys[row, c] = k[start + row, c] if inside else float32(0)
            values[row, c] = v[start + row, c] if inside else float32(0)
        cuda.syncthreads()
        for row in range(min(TILE, n - start)):
            score = float32(0)
            for c in range(32):
                score += query[c] * keys[row, c]
            new_top = max(top, score)
            factor, weight = math.exp(top - new_top), math.exp(score - new_top)
            for c in range(32):
                total[c] = total[c] * factor + weight * values[row, c]
            weight_sum = weight_sum * factor + weight
            top = new_top
        cuda.syncthreads()
    if i < n:
        for c in range(32):
            out[i, c] = total[c] / weight_sum


@cuda.jit
def conjugate_gradients(values, b, x, r, p, q, dots, steps):
    """Solve A x = b for a tridiagonal A.

    values: the coefficient on the diagonal of A, and the coefficient next to the diagonal.
    """
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    stride, n = cuda.gridsize(1), x.size
    for row in range(i, n, stride):
        x[row], r[row], p[row] = 0, b[row], b[row]
        cuda.atomic.add(dots, 0, b[row] * b[row])
    grid.sync()
    for step in range(steps):
        for row in range(i, n, stride):
            product = values[0] * p[row]
            if row > 0:
                product += values[1] * p[row - 1]
            if row + 1 < n:
                product += values[1] * p[row + 1]
            q[row] = product
            cuda.atomic.add(dots, 2 * step + 1, p[row] * product)
        grid.sync()
        alpha = dots[2 * step] / dots[2 * step + 1]
        for row in range(i, n, stride):
            x[row] += alpha * p[row]
            r[row] -= alpha * q[row]
            cuda.atomic.add(dots, 2 * step + 2, r[row] * r[row])
        grid.sync()
        beta = dots[2 * step + 2] / dots[2 * step]
        for row in range(i, n, stride):
            p[row] = r[row] + beta * p[row]
        grid.sync()


@cuda.jit
def radix_sort(keys, bits):
    """Sort the keys of a block, one bit at a time. A prefix sum counts the keys whose bit is 0."""
    source, zeros = cuda.shared.array(THREADS, int32), cuda.shared.array(THREADS, int32)
    t = cuda.threadIdx.x
    source[t] = keys[cuda.grid(1)]
    cuda.syncthreads()
    for bit in range(bits):
        key = source[t]
        is_zero = 1 - (key >> bit & 1)
        zeros[t] = is_zero
        cuda.syncthreads()
        step = 1
        while step < THREADS:
            left = zeros[t - step] if t >= step else 0
            cuda.syncthreads()
            zeros[t] += left
            cuda.syncthreads()
            step *= 2
        before = zeros[t] - is_zero
        source[before if is_zero else zeros[THREADS - 1] + t - before] = key
        cuda.syncthreads()
    keys[cuda.grid(1)] = source[t]


# --- kernels with an error, after many iterations -----------------------------------------------------------


@cuda.jit
def early_exit(x, out, steps):
    """Add x[i] in a loop with a barrier. In the last iteration, one thread returns before the barrier."""
    total = float32(0)
    i = cuda.grid(1)
    for step in range(steps):
        if step == steps - 1 and i == 255:
            return
        total += x[i]
        cuda.syncthreads()
    out[i] = total


@cuda.jit
def early_exit_of_while(x, out, steps):
    """Do the same as early_exit in a `while` loop."""
    total = float32(0)
    i = cuda.grid(1)
    step = 0
    while step < steps:
        if step == steps - 1 and i == 255:
            return
        total += x[i]
        cuda.syncthreads()
        step += 1
    out[i] = total


@cuda.jit
def barrier_in_a_branch(x, out, steps):
    """Add x[i] in a loop with a barrier. In the last iteration, half of each block does not reach it."""
    total = float32(0)
    i = cuda.grid(1)
    for step in range(steps):
        total += x[i]
        if step < steps - 1 or cuda.threadIdx.x < 128:
            cuda.syncthreads()
    out[i] = total


@cuda.jit
def late_race(x, out, steps):
    """Add x[i] in a loop, and then read the neighbour's sum without a barrier."""
    shared = cuda.shared.array(THREADS, float32)
    total = float32(0)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for step in range(steps):
        total += x[i]
    shared[t] = total
    out[i] = shared[(t + 1) % THREADS]


@cuda.jit
def histogram(x, counts, steps):
    """Count `steps` values per thread. The last thread reads the element after the end of the array."""
    i = cuda.grid(1)
    for step in range(steps + (i == cuda.gridsize(1) - 1)):
        cuda.atomic.add(counts, x[i * steps + step], 1)


@cuda.jit
def lock_never_released(lock, out):
    """Wait for a lock that no thread releases."""
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    out[cuda.grid(1)] = 1


@cuda.jit
def flag_never_set(flag, out):
    """Wait for a flag that no thread sets."""
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    out[cuda.grid(1)] = 1


@cuda.jit
def full_table(table, keys):
    """Look for a free slot in a table that has none."""
    i = cuda.grid(1)
    slot = keys[i] % table.size
    while True:
        if cuda.atomic.cas(table, slot, 0, keys[i]) == 0:
            return
        slot = (slot + 1) % table.size


@cuda.jit
def endless_with_barriers(x, n):
    """Repeat a loop while n > 1, although the loop does not change n."""
    shared = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    while n > 1:
        other = shared[(t + 1) % cuda.blockDim.x]
        cuda.syncthreads()
        shared[t] = other + float32(1)
        cuda.syncthreads()
    x[cuda.grid(1)] = shared[t]


@cuda.jit
def endless_step(x, step):
    """Add 1 to elements of x at a distance of `step`, which must not be 0."""
    i = cuda.grid(1)
    while i < x.size:
        x[i] += 1
        i += step
