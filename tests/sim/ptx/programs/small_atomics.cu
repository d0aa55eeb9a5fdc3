// Atomics on elements of one and two bytes. libcu++ emulates them by accesses to the word around them.
#include <cuda/atomic>
using namespace cuda::std;

template <class T> using Ref = cuda::atomic_ref<T, cuda::thread_scope_device>;

extern "C" __global__ void send(unsigned char* flag, int* data, int* out, int at, int released) {
    Ref<unsigned char> f(flag[at]);
    if (blockIdx.x == 0) {
        data[0] = 42;
        f.store(1, released ? memory_order_release : memory_order_relaxed);
    } else {
        while (f.load(memory_order_acquire) == 0) {}
        out[0] = data[0];
    }
}

extern "C" __global__ void send_by_other_flag(unsigned char* flag, int* data, int* out) {
    Ref<unsigned char> f(flag[0]), g(flag[1]);
    if (blockIdx.x == 0) {
        g.store(1, memory_order_relaxed);
        data[0] = 42;
        f.store(1, memory_order_release);
    } else {
        while (g.load(memory_order_acquire) == 0) {}
        out[0] = data[0];
    }
}

extern "C" __global__ void count(short* counters, signed char* beside, short* seen) {
    Ref<short> c(counters[threadIdx.x / 4]);
    Ref<signed char> b(beside[2 * threadIdx.x]);
    seen[threadIdx.x] = c.fetch_add(1, memory_order_relaxed);
    beside[2 * threadIdx.x + 1] = 7;  // a byte of its own, in the word of another thread's atomic
    b.fetch_sub(3, memory_order_relaxed);
}

extern "C" __global__ void beside_plain(signed char* bytes, int at) {
    Ref<signed char> b(bytes[0]);
    b.fetch_add(1, memory_order_relaxed);
    if (threadIdx.x == 1) bytes[at] = 9;
}

extern "C" __global__ void in_shared(unsigned char* out) {
    __shared__ unsigned char bytes[3];  // the word around bytes[2] ends outside of the array
    if (threadIdx.x == 0) bytes[2] = 0;
    __syncthreads();
    cuda::atomic_ref<unsigned char, cuda::thread_scope_block> b(bytes[2]);
    b.fetch_add(1, memory_order_relaxed);
    __syncthreads();
    out[threadIdx.x] = b.load(memory_order_relaxed);
}

extern "C" __global__ void outside(unsigned char* bytes, int at) {
    Ref<unsigned char> b(bytes[at]);
    b.fetch_or(1, memory_order_relaxed);
}
