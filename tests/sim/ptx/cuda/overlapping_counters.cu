// Counts of digits and their total, in dynamic shared memory: the total of 64 bits must lie behind the counts.
extern __shared__ unsigned memory[];

extern "C" __global__ void bug(const int* x, unsigned* counts, unsigned long long* total) {
    unsigned* count = memory;
    auto* all = (unsigned long long*)(memory + 8);  // there are ten digits
    if (threadIdx.x < 12) memory[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&count[x[threadIdx.x]], 1u);           // FOUND race-shared
    atomicAdd(all, (unsigned long long)x[threadIdx.x]);  // FOUND race-shared
    __syncthreads();
    if (threadIdx.x < 10) counts[threadIdx.x] = count[threadIdx.x];
    if (threadIdx.x == 0) *total = *all;
}

extern "C" __global__ void mended(const int* x, unsigned* counts, unsigned long long* total) {
    unsigned* count = memory;
    auto* all = (unsigned long long*)(memory + 10);
    if (threadIdx.x < 12) memory[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&count[x[threadIdx.x]], 1u);
    atomicAdd(all, (unsigned long long)x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x < 10) counts[threadIdx.x] = count[threadIdx.x];
    if (threadIdx.x == 0) *total = *all;
}
