"""The C signatures of the CUDA runtime functions that programs call.

A signature is a string of letters, one for each parameter, and a letter for the result after a colon if the
function does not return a cudaError_t:

    p  pointer, handle or size (64 bits)      i  int or enumeration      u  unsigned int
    f  float                                  D  dim3, by value          E  cudaExtent, by value
    L  cudaMemLocation, by value
    s  const char * (a result)                v  void (a result)         p  pointer (a result)

Source: cuda_runtime_api.h and crt/host_runtime.h of CUDA 13.
"""

REGISTRATION = {
    "__cudaRegisterFatBinary": "p:p",
    "__cudaRegisterFatBinaryEnd": "p:v",
    "__cudaUnregisterFatBinary": "p:v",
    "__cudaRegisterFunction": "ppppippppp:v",
    "__cudaRegisterVar": "ppppipii:v",
    "__cudaRegisterManagedVar": "ppppipii:v",
    "__cudaInitModule": "p:i",
}
LAUNCHES = {
    "__cudaPushCallConfiguration": "DDpp",
    "__cudaPopCallConfiguration": "pppp",
    "__cudaGetKernel": "pp",
    "__cudaLaunchKernel": "pDDppp",
    "cudaLaunchKernel": "pDDppp",
    "cudaLaunchCooperativeKernel": "pDDppp",
    "cudaLaunchKernelExC": "ppp",
    "cudaLaunchHostFunc": "ppp",
    "cudaStreamAddCallback": "pppu",
    "cudaGetFuncBySymbol": "pp",
    "cudaFuncSetAttribute": "pii",
    "cudaFuncSetCacheConfig": "pi",
    "cudaFuncSetSharedMemConfig": "pi",
    "cudaFuncGetAttributes": "pp",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": "ppip",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "ppipu",
    "cudaOccupancyAvailableDynamicSMemPerBlock": "ppii",
}
MEMORY = {
    "cudaMalloc": "pp",
    "cudaMallocManaged": "ppu",
    "cudaMallocHost": "pp",
    "cudaHostAlloc": "ppu",
    "cudaMallocPitch": "pppp",
    "cudaMalloc3D": "pE",
    "cudaMallocAsync": "ppp",
    "cudaMallocFromPoolAsync": "pppp",
    "cudaFree": "p",
    "cudaFreeHost": "p",
    "cudaFreeAsync": "pp",
    "cudaHostRegister": "ppu",
    "cudaHostUnregister": "p",
    "cudaHostGetDevicePointer": "ppu",
    "cudaHostGetFlags": "pp",
    "cudaMemGetInfo": "pp",
    "cudaPointerGetAttributes": "pp",
    "cudaMemPrefetchAsync": "ppLup",
    "cudaMemAdvise": "ppiL",
    "cudaDeviceGetDefaultMemPool": "pi",
    "cudaDeviceGetMemPool": "pi",
    "cudaMemPoolSetAttribute": "pip",
    "cudaMemPoolGetAttribute": "pip",
    "cudaMemPoolTrimTo": "pp",
}
COPIES = {
    "cudaMemcpy": "pppi",
    "cudaMemcpyAsync": "pppip",
    "cudaMemcpyPeer": "pipip",
    "cudaMemcpyPeerAsync": "pipipp",
    "cudaMemcpy2D": "ppppppi",
    "cudaMemcpy2DAsync": "ppppppip",
    "cudaMemcpy3D": "p",
    "cudaMemcpy3DAsync": "pp",
    "cudaMemcpyToSymbol": "ppppi",
    "cudaMemcpyFromSymbol": "ppppi",
    "cudaMemcpyToSymbolAsync": "ppppip",
    "cudaMemcpyFromSymbolAsync": "ppppip",
    "cudaMemset": "pip",
    "cudaMemsetAsync": "pipp",
    "cudaMemset2D": "ppipp",
    "cudaMemset2DAsync": "ppippp",
    "cudaGetSymbolAddress": "pp",
    "cudaGetSymbolSize": "pp",
}
DEVICE = {
    "cudaGetDeviceCount": "p",
    "cudaSetDevice": "i",
    "cudaGetDevice": "p",
    "cudaSetDeviceFlags": "u",
    "cudaGetDeviceFlags": "p",
    "cudaInitDevice": "iuu",
    "cudaGetDeviceProperties": "pi",
    "cudaDeviceGetAttribute": "pii",
    "cudaDeviceSynchronize": "",
    "cudaDeviceReset": "",
    "cudaDeviceSetCacheConfig": "i",
    "cudaDeviceGetCacheConfig": "p",
    "cudaDeviceSetSharedMemConfig": "i",
    "cudaDeviceSetLimit": "ip",
    "cudaDeviceGetLimit": "pi",
    "cudaDeviceGetStreamPriorityRange": "pp",
    "cudaDeviceCanAccessPeer": "pii",
    "cudaDeviceEnablePeerAccess": "iu",
    "cudaDeviceDisablePeerAccess": "i",
    "cudaDeviceGetPCIBusId": "pii",
    "cudaDriverGetVersion": "p",
    "cudaRuntimeGetVersion": "p",
    "cudaGetLastError": "",
    "cudaPeekAtLastError": "",
    "cudaGetErrorString": "i:s",
    "cudaGetErrorName": "i:s",
    "cudaProfilerStart": "",
    "cudaProfilerStop": "",
    "cudaStreamCreate": "p",
    "cudaStreamCreateWithFlags": "pu",
    "cudaStreamCreateWithPriority": "pui",
    "cudaStreamDestroy": "p",
    "cudaStreamSynchronize": "p",
    "cudaStreamQuery": "p",
    "cudaStreamWaitEvent": "ppu",
    "cudaStreamIsCapturing": "pp",
    "cudaStreamGetFlags": "pp",
    "cudaStreamGetPriority": "pp",
    "cudaEventCreate": "p",
    "cudaEventCreateWithFlags": "pu",
    "cudaEventRecord": "pp",
    "cudaEventRecordWithFlags": "ppu",
    "cudaEventSynchronize": "p",
    "cudaEventQuery": "p",
    "cudaEventDestroy": "p",
    "cudaEventElapsedTime": "ppp",
}
SIGNATURES = REGISTRATION | LAUNCHES | MEMORY | COPIES | DEVICE
SIGNATURES |= {f"{name}_ptsz": SIGNATURES[name] for name in ("cudaLaunchKernel", "__cudaLaunchKernel")}

# Prefixes of functions in CUDA's libraries. A program that needs a function missing from SIGNATURES runs
# until it first calls that function.
LIBRARY_PREFIXES = (
    "cuda", "__cuda", "cublas", "cudnn", "cufft", "curand", "cusparse", "cusolver", "nccl", "nvrtc", "npp",
    "nvml", "nvtx", "cuInit", "cuDevice", "cuCtx", "cuModule", "cuMem", "cuLaunch", "cuStream", "cuEvent",
    "cuFunc", "cuGet", "cuTex", "cuArray", "cuOccupancy", "cuPointer", "cuLibrary", "cuKernel", "cuGraph",
)  # fmt: skip
