// A kernel that loads boxes of a matrix by tensor copies, and variants that the argument selects.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>

enum { RIGHT, BY_NAME, NO_WAIT, NARROW_BOX, OF_THE_HOST };
constexpr int ROWS = 40, COLUMNS = 64, BOX = 16;

__global__ void columns(const __grid_constant__ CUtensorMap map, float *sums, int variant) {
    __shared__ alignas(128) float tile[BOX][BOX];
    __shared__ alignas(8) unsigned long long full;
    unsigned bar = __cvta_generic_to_shared(&full), to = __cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(BOX * BOX * 4));
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, 0}],"
                     " [%4];" ::"r"(to), "l"(&map), "r"(blockIdx.x * BOX), "r"(blockIdx.y * BOX), "r"(bar) : "memory");
    }
    __syncthreads();
    for (unsigned done = variant == NO_WAIT; !done;) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
    }
    float sum = 0;
    for (int row = 0; row < BOX; row++) sum += tile[row][threadIdx.x];
    atomicAdd(&sums[blockIdx.x * BOX + threadIdx.x], sum);
}

int main(int argc, char **argv) {
    int variant = atoi(argv[1]);
    alignas(16) float host[ROWS][COLUMNS], *x, *sums, result[COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) host[i][j] = i + j;
    cudaMalloc(&x, sizeof host);
    cudaMalloc(&sums, sizeof result);
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemset(sums, 0, sizeof result);
    decltype(&cuTensorMapEncodeTiled) encode = cuTensorMapEncodeTiled;
    if (variant == BY_NAME) {
        encode = nullptr;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault, &found);
        if (found != cudaDriverEntryPointSuccess) return 2;
    }
    CUtensorMap map;
    // As in CUTLASS, a third dimension of one element has the stride 0.
    cuuint64_t sizes[] = {COLUMNS, ROWS, 1}, strides[] = {COLUMNS * 4, 0};
    cuuint32_t box[] = {variant == NARROW_BOX ? 12 / 4 : BOX, BOX, 1}, steps[] = {1, 1, 1};
    int code = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, variant == OF_THE_HOST ? (void *)host : x, sizes, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaLaunchAttribute cluster = {cudaLaunchAttributeClusterDimension};
    cluster.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config = {8, BOX, 0, 0, &cluster, 1};
    int clusters = 0;
    cudaOccupancyMaxActiveClusters(&clusters, columns, &config);
    printf("%d %d %d\n", code, major, clusters);
    if (code) return 1;
    columns<<<dim3(COLUMNS / BOX, (ROWS + BOX - 1) / BOX), BOX>>>(map, sums, variant);
    cudaMemcpy(result, sums, sizeof result, cudaMemcpyDeviceToHost);
    printf("%g %g\n", result[0], result[COLUMNS - 1]);
    cudaFree(x);
    cudaFree(sums);
}
