// Four numbers at once, from the second on.
extern "C" __global__ void bug(const float* x, float* y) {
    const float4* four = reinterpret_cast<const float4*>(x + 1);
    float4 v = four[threadIdx.x];  // FOUND misaligned-address
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}

extern "C" __global__ void mended(const float* x, float* y) {
    const float* four = x + 1 + 4 * threadIdx.x;
    y[threadIdx.x] = four[0] + four[1] + four[2] + four[3];
}
