"""Properties and attributes of the simulated device, in the layout of the CUDA 13 runtime.

Source: struct cudaDeviceProp and enum cudaDeviceAttr in driver_types.h.
"""

import ctypes
import re

from sim.device import DeviceSpec
from sim.runtime.memory import LIMIT

# Each line has a C type (z: size_t, i: int, u: unsigned, c: char), then fields, with the lengths of arrays.
LAYOUT = """
c name[256] uuid[16] luid[8]
u luidDeviceNodeMask
z totalGlobalMem sharedMemPerBlock
i regsPerBlock warpSize
z memPitch
i maxThreadsPerBlock maxThreadsDim[3] maxGridSize[3]
z totalConstMem
i major minor
z textureAlignment texturePitchAlignment
i multiProcessorCount integrated canMapHostMemory maxTexture1D maxTexture1DMipmap maxTexture2D[2]
i maxTexture2DMipmap[2] maxTexture2DLinear[3] maxTexture2DGather[2] maxTexture3D[3] maxTexture3DAlt[3]
i maxTextureCubemap maxTexture1DLayered[2] maxTexture2DLayered[3] maxTextureCubemapLayered[2] maxSurface1D
i maxSurface2D[2] maxSurface3D[3] maxSurface1DLayered[2] maxSurface2DLayered[3] maxSurfaceCubemap
i maxSurfaceCubemapLayered[2]
z surfaceAlignment
i concurrentKernels ECCEnabled pciBusID pciDeviceID pciDomainID tccDriver asyncEngineCount unifiedAddressing
i memoryBusWidth l2CacheSize persistingL2CacheMaxSize maxThreadsPerMultiProcessor streamPrioritiesSupported
i globalL1CacheSupported localL1CacheSupported
z sharedMemPerMultiprocessor
i regsPerMultiprocessor managedMemory isMultiGpuBoard multiGpuBoardGroupID hostNativeAtomicSupported
i pageableMemoryAccess concurrentManagedAccess computePreemptionSupported canUseHostPointerForRegisteredMem
i cooperativeLaunch
z sharedMemPerBlockOptin
i pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost maxBlocksPerMultiProcessor
i accessPolicyMaxWindowSize
z reservedSharedMemPerBlock
i hostRegisterSupported sparseCudaArraySupported hostRegisterReadOnlySupported
i timelineSemaphoreInteropSupported memoryPoolsSupported gpuDirectRDMASupported
u gpuDirectRDMAFlushWritesOptions
i gpuDirectRDMAWritesOrdering
u memoryPoolSupportedHandleTypes
i deferredMappingCudaArraySupported ipcEventSupported clusterLaunch unifiedFunctionPointers deviceNumaConfig
i deviceNumaId mpsEnabled hostNumaId
u gpuPciDeviceID gpuPciSubsystemID
i hostNumaMultinodeIpcSupported reserved[56]
"""
TYPES = {"c": ctypes.c_char, "i": ctypes.c_int, "u": ctypes.c_uint, "z": ctypes.c_size_t}


def fields():
    """Yield (name, ctypes type) for each field of cudaDeviceProp."""
    for line in LAYOUT.split("\n"):
        letter, _, names = line.partition(" ")
        for name, length in re.findall(r"(\w+)(?:\[(\d+)\])?", names):
            yield name, TYPES[letter] * int(length) if length else TYPES[letter]


class Properties(ctypes.Structure):
    """A cudaDeviceProp."""

    _fields_ = list(fields())


def write_properties(spec: DeviceSpec, capability: int, address: int) -> None:
    """Fill in the cudaDeviceProp at an address. The argument `capability` is 90 for compute capability 9.0.

    Fields that `DeviceSpec` does not determine have an H200's value or 0.
    """
    properties = Properties.from_address(address)
    ctypes.memset(address, 0, ctypes.sizeof(Properties))
    values = attribute_values(spec, capability)
    properties.name = spec.name.encode()
    properties.totalGlobalMem = LIMIT
    properties.maxThreadsDim[:] = spec.max_block
    properties.maxGridSize[:] = spec.max_grid
    for name, attribute in PROPERTY_ATTRIBUTES.items():
        setattr(properties, name, values[attribute])


# field of cudaDeviceProp -> cudaDeviceAttr with the same value
PROPERTY_ATTRIBUTES = {
    "maxThreadsPerBlock": 1, "sharedMemPerBlock": 8, "totalConstMem": 9, "warpSize": 10, "memPitch": 11,
    "regsPerBlock": 12, "textureAlignment": 14, "multiProcessorCount": 16, "canMapHostMemory": 19,
    "concurrentKernels": 31, "memoryBusWidth": 37, "l2CacheSize": 38, "maxThreadsPerMultiProcessor": 39,
    "asyncEngineCount": 40, "unifiedAddressing": 41, "texturePitchAlignment": 51, "major": 75, "minor": 76,
    "streamPrioritiesSupported": 78, "globalL1CacheSupported": 79, "localL1CacheSupported": 80,
    "sharedMemPerMultiprocessor": 81, "regsPerMultiprocessor": 82, "managedMemory": 83,
    "concurrentManagedAccess": 89, "cooperativeLaunch": 95, "sharedMemPerBlockOptin": 97,
    "hostRegisterSupported": 99, "maxBlocksPerMultiProcessor": 106, "memoryPoolsSupported": 115,
    "clusterLaunch": 120,
}  # fmt: skip


def attribute_values(spec: DeviceSpec, capability: int) -> dict[int, int]:
    """Return {cudaDeviceAttr: value}. The argument `capability` is 90 for compute capability 9.0."""
    return {
        1: spec.max_threads_per_block,
        **dict(zip((2, 3, 4), spec.max_block)),
        **dict(zip((5, 6, 7), spec.max_grid)),
        8: spec.dynamic_shared_bytes,
        9: 65536,
        10: spec.warp_size,
        11: 2**31 - 1,
        12: 65536,
        13: 1_980_000,  # kHz
        14: 512,
        16: spec.multiprocessors,
        19: 1,
        31: 1,
        36: 3_201_000,  # kHz
        37: 6144,  # bits
        38: 60 << 20,
        39: spec.threads_per_multiprocessor,
        40: 3,
        41: 1,
        51: 32,
        75: capability // 10,
        76: capability % 10,
        78: 1,
        79: 1,
        80: 1,
        81: spec.shared_bytes_per_multiprocessor,
        82: 65536,
        83: 1,
        87: 2,
        89: 1,
        90: 1,
        95: 1,
        97: spec.shared_bytes_per_block,
        99: 1,
        106: spec.blocks_per_multiprocessor,
        111: 1024,
        115: 1,
        120: int(capability >= 90),
    }
