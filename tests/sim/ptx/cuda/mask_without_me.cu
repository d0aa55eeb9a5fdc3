// Which lanes have an odd number.
extern "C" __global__ void bug(const int* x, unsigned* odd) {
    int lane = threadIdx.x;
    unsigned bits = __ballot_sync(0x0000ffff, x[lane] & 1);  // FOUND warp-divergence: lanes 16 to 31 are not in the mask
    if (lane == 0) *odd = bits;
}

extern "C" __global__ void mended(const int* x, unsigned* odd) {
    int lane = threadIdx.x;
    unsigned bits = __ballot_sync(0xffffffff, x[lane] & 1);
    if (lane == 0) *odd = bits;
}
