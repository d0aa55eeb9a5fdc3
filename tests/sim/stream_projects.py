"""Test files with streams of a project that does not use the simulator: correct ones, and wrong ones.

In WRONG, a comment names the kind of the finding for its line.
"""

HEAD = """
import threading
import numpy as np
import pytest
from numba import cuda, vectorize
from numba.cuda.cudadrv import driver
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

N = 128

@cuda.jit
def increment(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1

@cuda.jit
def twice(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]

def streams(n=2):
    return [cuda.stream() for _ in range(n)]

def numbers(n=N):
    return np.arange(n, dtype=np.float32)

def pinned(n=N, value=0):
    array = cuda.pinned_array(n, np.float32)
    array[:] = value
    return array

def poll(event):
    while not event.query():
        pass
"""

RIGHT = (
    HEAD
    + """
def test_ping_pong_with_events():
    (a, b), x, events = streams(), cuda.to_device(numbers()), [cuda.event(), cuda.event()]
    for round in range(3):
        increment[1, N, a](x)
        events[0].record(a)
        events[0].wait(b)
        increment[1, N, b](x)
        events[1].record(b)
        events[1].wait(a)
    b.synchronize()
    assert (x.copy_to_host(stream=b) == numbers() + 6).all()

def test_double_buffering():
    uploads, compute = streams()
    hosts, devices = [pinned(), pinned()], [cuda.device_array(N, np.float32) for _ in range(2)]
    loaded, used = [cuda.event(), cuda.event()], [cuda.event(), cuda.event()]
    out = cuda.device_array(N, np.float32)
    total = np.zeros(N, np.float32)
    for step in range(4):
        at = step % 2
        used[at].synchronize()
        hosts[at][:] = step
        used[at].wait(uploads)
        devices[at].copy_to_device(hosts[at], stream=uploads)
        loaded[at].record(uploads)
        loaded[at].wait(compute)
        twice[1, N, compute](devices[at], out)
        used[at].record(compute)
        total += out.copy_to_host(stream=compute)
    assert (total == 12).all()

def work(stream, results, at):
    x = cuda.to_device(numbers() + at, stream=stream)
    increment[1, N, stream](x)
    host = cuda.pinned_array(N, np.float32)
    x.copy_to_host(host, stream=stream)
    stream.synchronize()
    results[at] = host.copy()

def test_a_stream_for_each_worker():
    results = [None] * 3
    workers = [threading.Thread(target=work, args=(cuda.stream(), results, i)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all((result == numbers() + i + 1).all() for i, result in enumerate(results))

def test_separate_parts_of_one_array():
    x, host = cuda.to_device(numbers(2 * N)), pinned(2 * N)
    for at, stream in enumerate(streams()):
        part = x[at * N:(at + 1) * N]
        increment[1, N, stream](part)
        part.copy_to_host(host[at * N:(at + 1) * N], stream=stream)
    cuda.synchronize()
    assert (host == numbers(2 * N) + 1).all()

def test_interleaved_parts_of_one_array():
    x = cuda.to_device(numbers(2 * N))
    for at, stream in enumerate(streams()):
        increment[1, N, stream](x[at::2])
    cuda.synchronize()
    assert (x.copy_to_host() == numbers(2 * N) + 1).all()

def test_auto_synchronize():
    stream, host = cuda.stream(), pinned()
    with stream.auto_synchronize():
        x = cuda.to_device(numbers(), stream=stream)
        increment[1, N, stream](x)
        x.copy_to_host(host, stream=stream)
    assert (host == numbers() + 1).all()

def test_polling():
    stream, event, host = cuda.stream(), cuda.event(), pinned()
    x = cuda.to_device(numbers(), stream=stream)
    x.copy_to_host(host, stream=stream)
    event.record(stream)
    poll(event)
    assert (host == numbers()).all()

def test_the_host_waits_between_two_streams():
    (a, b), x = streams(), cuda.to_device(numbers())
    increment[1, N, a](x)
    a.synchronize()
    increment[1, N, b](x)
    b.synchronize()
    assert x[3] == 5

def test_the_default_stream_waits():
    (a, b), x = streams(), cuda.to_device(numbers())
    increment[1, N, a](x)
    increment[1, N](x)
    increment[1, N, b](x)
    assert (x.copy_to_host() == numbers() + 3).all()

def test_two_streams_read_one_array():
    x, outs = cuda.to_device(numbers()), [cuda.device_array(N, np.float32) for _ in range(2)]
    for stream, out in zip(streams(), outs):
        twice[1, N, stream](x, out)
    assert (outs[0].copy_to_host() == outs[1].copy_to_host()).all()

def test_pageable_arrays():
    (a, b), source, host = streams(), numbers(), np.empty(N, np.float32)
    x = cuda.to_device(source, stream=a)
    source[:] = 0  # the source was staged
    x.copy_to_host(host, stream=a)
    assert (host == numbers()).all()
    increment[1, N, b](x)
    increment[1, N, a](source)  # Numba copies it back, and waits
    assert (source == 1).all()

def test_a_temporarily_pinned_array():
    stream, host = cuda.stream(), numbers()
    with cuda.pinned(host):
        x = cuda.to_device(host, stream=stream)
        increment[1, N, stream](x)
        x.copy_to_host(host, stream=stream)
        stream.synchronize()
    host += 1
    assert (host == numbers() + 2).all()

def test_a_pinned_array_passes_through_the_device():
    (a, b), event, host = streams(), cuda.event(), pinned(value=1)
    x, y = cuda.to_device(host, stream=a), cuda.device_array(N, np.float32)
    increment[1, N, a](x)
    x.copy_to_host(host, stream=a)
    event.record(a)
    event.wait(b)
    y.copy_to_device(host, stream=b)  # reads what the first stream has written
    b.synchronize()
    assert (host == 2).all() and (y.copy_to_host() == 2).all()

def test_a_pinned_argument():
    stream, host = cuda.stream(), pinned(value=1)
    increment[1, N, stream](host)
    stream.synchronize()
    assert (host == 2).all()
    increment[1, N](host)
    assert (host == 3).all()

def test_a_mapped_array():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), cuda.mapped_array(N, np.float32)
    with stream.auto_synchronize():
        x.copy_to_host(np.asarray(host), stream=stream)
        increment[1, N, stream](host)
    assert (host == numbers() + 1).all()

def test_the_same_destination_twice():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    first = cuda.event()
    x.copy_to_host(host, stream=stream)
    first.record(stream)
    increment[1, N, stream](x)
    x.copy_to_host(host, stream=stream)
    first.synchronize()
    stream.synchronize()
    assert (host == numbers() + 1).all()

def test_temporary_arrays_in_many_streams():
    for stream in streams(8):
        for _ in range(3):
            x = cuda.to_device(numbers(), stream=stream)
            increment[1, N, stream](x)
            del x  # Numba frees it after the kernel; its address can be used again
    cuda.synchronize()

def test_a_callback():
    stream, host, done = cuda.stream(), pinned(), threading.Event()
    x = cuda.to_device(numbers(), stream=stream)
    x.copy_to_host(host, stream=stream)
    notify = lambda stream, status, data: done.set()
    data = (stream, notify, None)
    # Stream.add_callback of numba-cuda 0.30 raises an AttributeError
    call = driver.binding.CUstreamCallback(int.from_bytes(stream._stream_callback, "little"))
    driver._py_incref(data)
    driver.driver.cuStreamAddCallback(int(stream.handle), call, id(data), 0)
    assert done.wait(10) and (host == numbers()).all()

def test_numbas_own_kernels():
    (a, b), x = streams(), cuda.device_array(N, np.float32, stream=0)
    x.bind(a)[:] = 3
    x.bind(a)[2:4] = np.ones(2, np.float32)
    a.synchronize()
    @cuda.reduce
    def total(p, q):
        return p + q
    assert total(x, stream=b) == 3 * N - 4
    states = create_xoroshiro128p_states(N, seed=1, stream=a)
    a.synchronize()

    @vectorize(["float32(float32)"], target="cuda")
    def triple(v):
        return 3 * v
    del states
    y = triple(cuda.to_device(numbers(), stream=b), stream=b)
    assert (y.copy_to_host(stream=b) == 3 * numbers()).all()

def test_the_stream_of_the_host_thread():
    stream, x = cuda.per_thread_default_stream(), cuda.to_device(numbers())
    increment[1, N, stream](x)
    increment[1, N](x)
    increment[1, N, cuda.legacy_default_stream()](x)
    increment[1, N, cuda.default_stream()](x)
    assert x.copy_to_host()[0] == 4

def test_the_times_of_events():
    start, end, stream = cuda.event(), cuda.event(), cuda.stream()
    start.record(stream)
    increment[1, N, stream](cuda.to_device(numbers(), stream=stream))
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0 and end.query()
"""
)

WRONG = (
    HEAD
    + """
KEPT = []

def test_no_event():
    (a, b), x = streams(), cuda.to_device(numbers())
    increment[1, N, a](x)
    increment[1, N, b](x)  # stream-race

def test_the_event_is_recorded_too_early():
    (a, b), x, event = streams(), cuda.to_device(numbers()), cuda.event()
    event.record(a)
    increment[1, N, a](x)
    event.wait(b)
    increment[1, N, b](x)  # stream-race

def test_the_wrong_stream_waits():
    (a, b, c), x, event = streams(3), cuda.to_device(numbers()), cuda.event()
    increment[1, N, a](x)
    event.record(a)
    event.wait(c)
    increment[1, N, b](x)  # stream-race

def test_a_copy_to_the_device_in_another_stream():
    (a, b), x, out = streams(), cuda.device_array(N, np.float32), cuda.device_array(N, np.float32)
    x.copy_to_device(numbers(), stream=a)
    twice[1, N, b](x, out)  # stream-race

def test_a_copy_to_the_host_in_another_stream():
    (a, b), x, host = streams(), cuda.to_device(numbers()), np.empty(N, np.float32)
    increment[1, N, a](x)
    x.copy_to_host(host, stream=b)  # stream-race

def test_one_buffer_in_a_loop():
    both, x, out = streams(), cuda.device_array(N, np.float32), cuda.device_array(2 * N, np.float32)
    for at, stream in enumerate(both):
        x.copy_to_device(numbers(), stream=stream)  # stream-race
        twice[1, N, stream](x, out[at * N:(at + 1) * N])  # stream-race

def test_overlapping_parts():
    (a, b), x = streams(), cuda.to_device(numbers())
    increment[1, N, a](x[:65])
    increment[1, N, b](x[64:])  # stream-race

def test_fill_and_increment():
    (a, b), x = streams(), cuda.device_array(N, np.float32)
    x.bind(a)[:] = 3
    increment[1, N, b](x)  # stream-race

def test_two_threads():
    x, ready = cuda.to_device(numbers()), threading.Barrier(2)
    def work(stream):
        increment[1, N, stream](x)  # stream-race
        ready.wait()
    workers = [threading.Thread(target=work, args=(stream,)) for stream in streams()]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]

def test_two_copies_to_one_pinned_array():
    (a, b), x, y, host = streams(), cuda.to_device(numbers()), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=a)
    y.copy_to_host(host, stream=b)  # stream-race
    cuda.synchronize()

def test_the_thread_stream_and_another():
    a, x = cuda.stream(), cuda.to_device(numbers())
    increment[1, N, a](x)
    increment[1, N, cuda.per_thread_default_stream()](x)  # stream-race

def test_a_destroyed_stream():
    a, b, x = cuda.stream(), cuda.stream(), cuda.to_device(numbers())
    increment[1, N, a](x)
    del a
    increment[1, N, b](x)  # stream-race

def test_the_destination_is_written_too_early():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=stream)  # unsynchronized-access
    host[5] = 0
    stream.synchronize()

def test_the_source_is_written_too_early():
    stream, host = cuda.stream(), pinned(value=1)
    x = cuda.to_device(host, stream=stream)  # unsynchronized-access
    host[:] = 2
    stream.synchronize()

def test_the_host_waits_for_another_stream():
    (a, b), x, host = streams(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=a)  # unsynchronized-access
    b.synchronize()
    host += 1
    a.synchronize()

def test_one_staging_buffer_in_a_loop():
    stream, host, devices = cuda.stream(), pinned(), [cuda.device_array(N, np.float32) for _ in range(2)]
    for step, x in enumerate(devices):
        host[:] = step
        x.copy_to_device(host, stream=stream)  # unsynchronized-access
    stream.synchronize()

def test_no_wait():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=stream)  # unsynchronized-access

def test_no_wait_for_an_array_that_stays():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=stream)  # unsynchronized-access
    KEPT.append(host)

def test_a_lock_that_ends_too_early():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), numbers()
    with cuda.pinned(host):
        x.copy_to_host(host, stream=stream)  # unsynchronized-access
    stream.synchronize()

def test_the_array_of_a_stream():
    x, host = cuda.to_device(numbers(), stream=cuda.stream()), pinned()
    x.copy_to_host(host)  # unsynchronized-access
    host *= 2

def test_a_pinned_argument():
    stream, host = cuda.stream(), pinned(value=1)
    increment[1, N, stream](host)  # unsynchronized-access
    host[0] = 0
    stream.synchronize()

def test_a_mapped_destination():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), cuda.mapped_array(N, np.float32)
    x.copy_to_host(np.asarray(host), stream=stream)  # unsynchronized-access
    host[0] = 1
    stream.synchronize()
"""
)

EARLY = (
    HEAD
    + """
def test_read_too_early():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=stream)
    assert host[2] == 2
    stream.synchronize()

def test_copied_too_early():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=stream)
    result = host.copy()
    stream.synchronize()
    assert (result == numbers()).all()

def test_fails_for_another_reason():
    stream, x, host = cuda.stream(), cuda.to_device(numbers()), pinned()
    x.copy_to_host(host, stream=stream)
    stream.synchronize()
    assert host[2] == 3
"""
)
