// A tile copied asynchronously (cp.async, sm_80), then reversed.
__device__ void copy(float* to, const float* from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");  // FOUND async-copy
}

extern "C" __global__ void bug(const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    copy(&tile[t], x + t);
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    y[t] = tile[63 - t];  // FOUND async-copy: nobody waited for the copy
}

extern "C" __global__ void mended(const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    copy(&tile[t], x + t);
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    y[t] = tile[63 - t];
}
