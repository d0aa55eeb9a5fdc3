// Two kernels with faults that the optimiser removes: an access past the end of a local array, and a shared
// variable that no statement sets.
__global__ void sums(const int* x, int* y) {
    int s[4];
    for (int i = 0; i <= 4; ++i) s[i] = x[threadIdx.x + i];
    y[threadIdx.x] = s[0] + s[1] + s[2] + s[3];
}
__global__ void flagged(int* y) {
    __shared__ int flag;
    __syncthreads();
    if (flag) y[threadIdx.x] = 1; else y[threadIdx.x] = 5;
}
int main() {
    int *x, *y;
    cudaMalloc(&x, 256); cudaMemset(x, 0, 256);
    cudaMalloc(&y, 128);
    sums<<<1, 32>>>(x, y);
    flagged<<<1, 32>>>(y);
    cudaDeviceSynchronize();
    cudaFree(x); cudaFree(y);
}
