// Shuffles of several widths. Results are undefined unless the width is a power of two from 1 to 32.
#define SHUFFLE(name, shuffle, other, width)                                                        \
    extern "C" __global__ void name(const int* x, int* y, int given) {                              \
        y[threadIdx.x] = shuffle(0xffffffff, x[threadIdx.x], other, width);                         \
    }
SHUFFLE(idx, __shfl_sync, 1, given)
SHUFFLE(up, __shfl_up_sync, 1, given)
SHUFFLE(down, __shfl_down_sync, 1, given)
SHUFFLE(bfly, __shfl_xor_sync, 1, given)
SHUFFLE(zero, __shfl_sync, 1, 0)
SHUFFLE(twelve, __shfl_up_sync, 1, 12)
SHUFFLE(thirty_three, __shfl_down_sync, 1, 33)
SHUFFLE(negative, __shfl_xor_sync, 1, -1)
SHUFFLE(twenty_four, __shfl_up_sync, 1, 24)

template <int width>
__device__ int* store(int v, int* y) {
    y[0] = __shfl_sync(0xffffffff, v, 1, width);
    y[32] = __shfl_up_sync(0xffffffff, v, 1, width);
    y[64] = __shfl_down_sync(0xffffffff, v, 1, width);
    y[96] = __shfl_xor_sync(0xffffffff, v, 1, width);
    return y + 128;
}

// y has a row of 32 elements for each of the six widths and four functions.
extern "C" __global__ void constants(const int* x, int* y) {
    int v = x[threadIdx.x];
    y = store<4>(v, store<2>(v, store<1>(v, y + threadIdx.x)));
    store<32>(v, store<16>(v, store<8>(v, y)));
}

// The widths are constants after the compiler has unrolled the loop.
extern "C" __global__ void sums(const int* x, int* y) {
    int v = x[threadIdx.x];
    for (int width = 8; width > 1; width /= 2) v += __shfl_xor_sync(0xffffffff, v, width / 2, width);
    y[threadIdx.x] = v;
}
