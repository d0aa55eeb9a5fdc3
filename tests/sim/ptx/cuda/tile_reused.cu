// A product of matrices (16 x 16) tile by tile: the tiles are used again.
#define T 8
extern "C" __global__ void bug(const float* a, const float* b, float* c) {
    __shared__ float left[T][T], right[T][T];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, column = blockIdx.x * T + x;
    float sum = 0.0f;
    for (int k = 0; k < 16; k += T) {
        left[y][x] = a[row * 16 + k + x];  // FOUND race-shared: others may still read
        right[y][x] = b[(k + y) * 16 + column];  // FOUND race-shared
        __syncthreads();
        for (int i = 0; i < T; i++)
            sum += left[y][i] * right[i][x];  // FOUND race-shared
    }
    c[row * 16 + column] = sum;
}

extern "C" __global__ void mended(const float* a, const float* b, float* c) {
    __shared__ float left[T][T], right[T][T];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, column = blockIdx.x * T + x;
    float sum = 0.0f;
    for (int k = 0; k < 16; k += T) {
        left[y][x] = a[row * 16 + k + x];
        right[y][x] = b[(k + y) * 16 + column];
        __syncthreads();
        for (int i = 0; i < T; i++)
            sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    c[row * 16 + column] = sum;
}
