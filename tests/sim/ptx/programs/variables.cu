// A convolution whose filter is in constant memory, and counters that stay from launch to launch.
struct Pair { int low; float high; };

__constant__ float filter[5];
__constant__ Pair limits;
__constant__ int nothing[4] = {0};
__device__ int calls, parts[2][3];
__device__ unsigned long long total = 7;
__device__ float4 corner;
namespace inner { __device__ double share; }

extern "C" __global__ void convolve(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) calls += 1 + nothing[0];
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k < 5; ++k)
        if (0 <= i + k - 2 && i + k - 2 < n) sum += filter[k] * x[i + k - 2];
    y[i] = sum;
}

extern "C" __global__ void count(const float* x) {
    int i = threadIdx.x;
    if (x[i] >= limits.low && x[i] < limits.high) atomicAdd(&parts[i % 2][i % 3], 1);
    if (i == 0) {
        total += 1;
        corner.y = 2;
        inner::share = 0.5;
    }
}
