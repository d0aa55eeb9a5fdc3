// Loads a module through the driver API, and multiplies matrices with stand-ins for functions of cuBLAS.
#include <cstdio>
#include <cuda.h>

const char *ptx = R"(
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 calls;
.visible .entry twice(.param .u64 x) {
    .reg .u64 %a; .reg .f32 %f; .reg .u32 %t; .reg .u64 %o;
    ld.param.u64 %a, [x];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %o, %t, 4;
    add.u64 %a, %a, %o;
    ld.global.f32 %f, [%a];
    add.f32 %f, %f, %f;
    st.global.f32 [%a], %f;
    ret;
})";

typedef struct cublasContext *cublasHandle_t;
extern "C" int cublasCreate_v2(cublasHandle_t *);
extern "C" int cublasDestroy_v2(cublasHandle_t);
extern "C" int cublasSgemm_v2(cublasHandle_t, int, int, int, int, int, const float *, const float *, int, const float *,
                              int, const float *, float *, int);

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function, missing;
    CUdeviceptr x, calls;
    size_t bytes;
    float values[6] = {1, 2, 3, 4, 5, 6}, result[4];
    cuInit(0);
    cuDeviceGet(&device, 0);
    cuCtxCreate(&context, nullptr, 0, device);
    cuModuleLoadData(&module, ptx);
    cuModuleGetFunction(&function, module, "twice");
    int found = cuModuleGetFunction(&missing, module, "thrice");
    cuModuleGetGlobal(&calls, &bytes, module, "calls");
    cuMemAlloc(&x, sizeof values);
    cuMemcpyHtoD(x, values, sizeof values);
    void *arguments[] = {&x};
    cuLaunchKernel(function, 1, 1, 1, argc > 1 ? 7 : 6, 1, 1, 0, nullptr, arguments, nullptr);
    cuMemcpyDtoH(values, x, sizeof values);
    printf("%g %g %zu %d\n", values[0], values[5], bytes, found);

    cublasHandle_t handle;
    float *product, one = 1, zero = 0;
    cudaMalloc(&product, sizeof result);
    cublasCreate_v2(&handle);
    // C = A B with A (2 x 3) and B (3 x 2), both read from x in column-major order
    cublasSgemm_v2(handle, 0, 0, 2, 2, 3, &one, (float *)x, 2, (float *)x, argc > 1 ? 4 : 3, &zero, product, 2);
    cudaMemcpy(result, product, sizeof result, cudaMemcpyDeviceToHost);
    printf("%g %g %g %g\n", result[0], result[1], result[2], result[3]);
    cublasDestroy_v2(handle);
    cudaFree(product);
    cuMemFree(x);
    return 0;
}
