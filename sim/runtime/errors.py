"""The error codes of the CUDA runtime. Source: enum cudaError in driver_types.h."""

SUCCESS, INVALID_VALUE, MEMORY_ALLOCATION = 0, 1, 2
INVALID_IMAGE = 200
INVALID_CONFIGURATION, INVALID_SYMBOL, INVALID_DIRECTION = 9, 13, 21
INVALID_DEVICE_FUNCTION, INVALID_DEVICE, INVALID_HANDLE, NOT_READY = 98, 101, 400, 600
ILLEGAL_STATE, NOT_FOUND = 401, 500
ILLEGAL_ADDRESS, ALREADY_REGISTERED, NOT_REGISTERED = 700, 712, 713
ASSERT, LAUNCH_FAILURE, COOPERATIVE_TOO_LARGE, NOT_SUPPORTED = 710, 719, 720, 801
CAPTURE_INVALIDATED, CAPTURE_UNJOINED, CAPTURE_ISOLATION = 901, 904, 905

# code -> (name, text)
ERRORS = {
    SUCCESS: ("cudaSuccess", "no error"),
    INVALID_VALUE: ("cudaErrorInvalidValue", "invalid argument"),
    MEMORY_ALLOCATION: ("cudaErrorMemoryAllocation", "out of memory"),
    INVALID_CONFIGURATION: ("cudaErrorInvalidConfiguration", "invalid configuration argument"),
    INVALID_SYMBOL: ("cudaErrorInvalidSymbol", "invalid device symbol"),
    INVALID_DIRECTION: ("cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
    INVALID_DEVICE_FUNCTION: ("cudaErrorInvalidDeviceFunction", "invalid device function"),
    INVALID_DEVICE: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    INVALID_HANDLE: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    INVALID_IMAGE: ("cudaErrorInvalidKernelImage", "device kernel image is invalid"),
    ILLEGAL_STATE: ("cudaErrorIllegalState", "the operation cannot be performed in the present state"),
    NOT_FOUND: ("cudaErrorSymbolNotFound", "named symbol not found"),
    NOT_READY: ("cudaErrorNotReady", "device not ready"),
    ILLEGAL_ADDRESS: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    705: ("cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"),
    ASSERT: ("cudaErrorAssert", "device-side assert triggered"),
    ALREADY_REGISTERED: (
        "cudaErrorHostMemoryAlreadyRegistered",
        "part or all of the requested memory range is already mapped",
    ),
    NOT_REGISTERED: (
        "cudaErrorHostMemoryNotRegistered",
        "pointer does not correspond to a registered memory region",
    ),
    LAUNCH_FAILURE: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    COOPERATIVE_TOO_LARGE: ("cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"),
    NOT_SUPPORTED: ("cudaErrorNotSupported", "operation not supported"),
    CAPTURE_INVALIDATED: (
        "cudaErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    CAPTURE_UNJOINED: ("cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"),
    CAPTURE_ISOLATION: (
        "cudaErrorStreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    999: ("cudaErrorUnknown", "unknown error"),
}


def error_name(code: int) -> str:
    """Return the name of an error code."""
    return ERRORS.get(code, ("unrecognized error code", ""))[0]


def error_text(code: int) -> str:
    """Return the description of an error code."""
    return ERRORS.get(code, ("", "unrecognized error code"))[1]
