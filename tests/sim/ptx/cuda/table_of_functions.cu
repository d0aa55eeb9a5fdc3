// A table of functions in global memory: the bug leaves one entry unset, and calls the null pointer.
typedef float (*Activation)(float);

__device__ float relu(float x) { return x > 0 ? x : 0; }
__device__ float square(float x) { return x * x; }
__device__ float leaky(float x) { return x > 0 ? x : 0.5f * x; }

__device__ Activation three[3] = {relu, square};
__device__ Activation complete[3] = {relu, square, leaky};

extern "C" __global__ void bug(const int *which, const float *x, float *y) {
    int i = threadIdx.x;
    y[i] = three[which[i]](x[i]);  // FOUND invalid-call
}

extern "C" __global__ void mended(const int *which, const float *x, float *y) {
    int i = threadIdx.x;
    y[i] = complete[which[i]](x[i]);
}
