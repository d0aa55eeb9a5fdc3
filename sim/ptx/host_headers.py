"""Stand-ins for the headers of the C and C++ libraries, which NVRTC does not have.

The source files of kernels include these headers for host code, or for the names of types and limits. NVRTC
itself declares printf, assert, malloc, memcpy and the functions of math.h. The 64-bit types are those that
NVIDIA's headers define under NVRTC.
"""

import re

NAMES = """assert float inttypes limits math stdbool stddef stdint stdio stdlib string time""".split()
CPP_ONLY = """algorithm array atomic bitset chrono complex deque exception fstream functional iomanip
    iostream iterator limits list map memory mutex new numeric optional ostream queue random set sstream
    stack stdexcept string string_view thread tuple type_traits unordered_map unordered_set utility
    variant vector""".split()
POSIX = "fcntl.h getopt.h omp.h pthread.h sys/stat.h sys/time.h sys/types.h unistd.h".split()
HEADERS = [*(f"{name}.h" for name in NAMES), *(f"c{name}" for name in NAMES), *CPP_ONLY, *POSIX]
# Options of NVRTC. --diag-suppress: NVIDIA's headers define some of the same limits with another wording.
# --pre-include: nvcc includes <math.h> and other headers in every file, so files use names such as INFINITY
# and uint without including a header.
OPTIONS = ["--diag-suppress=47", "--pre-include=math.h"]
# matches NVRTC's message that it cannot find a header
MISSING = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')
NO_MEMBER = re.compile(r'namespace "std" has no member')
UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')

TEXT = """
#ifndef SIM_HOST_HEADERS
#define SIM_HOST_HEADERS
typedef signed char int8_t;
typedef unsigned char uint8_t, uchar;
typedef short int16_t;
typedef unsigned short uint16_t, ushort;
typedef int int32_t;
typedef unsigned int uint32_t, uint;
typedef long long int64_t, intptr_t;
typedef unsigned long long uint64_t, uintptr_t;
typedef unsigned long ulong;
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INT64_MIN (-9223372036854775807ll - 1)
#define INT64_MAX 9223372036854775807ll
#define UINT64_MAX 18446744073709551615ull
#define CHAR_BIT 8
#define SCHAR_MIN INT8_MIN
#define SCHAR_MAX INT8_MAX
#define UCHAR_MAX UINT8_MAX
#define CHAR_MIN INT8_MIN
#define CHAR_MAX INT8_MAX
#define SHRT_MIN INT16_MIN
#define SHRT_MAX INT16_MAX
#define USHRT_MAX UINT16_MAX
#define INT_MIN INT32_MIN
#define INT_MAX INT32_MAX
#define UINT_MAX UINT32_MAX
#define LONG_MIN (-9223372036854775807l - 1)
#define LONG_MAX 9223372036854775807l
#define ULONG_MAX 18446744073709551615ul
#define LLONG_MIN INT64_MIN
#define LLONG_MAX INT64_MAX
#define ULLONG_MAX UINT64_MAX
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_EPSILON 1.1920928955078125e-07f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_MAX 3.40282346638528859812e+38f
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_EPSILON 2.22044604925031308085e-16
#define DBL_MIN 2.22507385850720138309e-308
#define DBL_MAX 1.79769313486231570815e+308
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000ll)
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"""


DEFINED = {name for line in TEXT.splitlines() for name in re.findall(r"\w+", line)[1:]}


def help_after(log):
    """Return whether the stand-ins can fix the error that NVRTC reports.

    The stand-ins can fix it if NVRTC did not find a header that has a stand-in, or a name that the stand-ins
    define.

    log: NVRTC's messages.
    """
    missing = MISSING.search(log)
    return missing[1] in HEADERS if missing else not DEFINED.isdisjoint(UNDEFINED.findall(log))


# nvcc accepts names of std in kernels, such as std::max and std::numeric_limits. NVRTC lacks them. NVIDIA's
# library libcu++ defines them in cuda::std. A name that NVRTC itself declares in std takes precedence.
STD = "sim_std.h"
STD_OPTIONS = [f"--pre-include={STD}"]
STD_HEADERS = "algorithm __algorithm_ array cmath complex cstdint functional limits tuple type_traits utility"
STD_TEXT = "namespace cuda { namespace std { } }\nnamespace std { using namespace cuda::std; }\n"
STD_TEXT += "".join(
    f"#if __has_include(<cuda/std/{name}>)\n#include <cuda/std/{name}>\n#endif\n"
    for name in STD_HEADERS.split()
)
# When NVRTC compiles CUTLASS, CUTLASS declares an enumeration with these names, so they must not be macros.
STD_TEXT += "".join(f"#undef FP_{name}\n" for name in ("NAN", "INFINITE", "ZERO", "SUBNORMAL", "NORMAL"))
TEXTS = dict.fromkeys(HEADERS, TEXT) | {STD: STD_TEXT}


def help_with_std(log):
    """Return whether `STD_TEXT` can fix an error of NVRTC: a name of std is missing."""
    return NO_MEMBER.search(log) is not None


# nvcc declares these functions in every file. Kernels for Hopper call them if they can start before the
# previous kernel has ended (programmatic dependent launch).
DEVICE_RUNTIME = re.compile(
    r'"cuda(GridDependencySynchronize|TriggerProgrammaticLaunchCompletion)" is undefined'
)
DEVICE_RUNTIME_OPTIONS = ["--pre-include=cuda_device_runtime_api.h"]


def help_with_device_runtime(log):
    """Return whether the declarations of the device runtime can fix an error of NVRTC."""
    return DEVICE_RUNTIME.search(log) is not None


# Kernels with tensor maps include <cuda.h> for the type CUtensorMap. This header declares the functions of
# the driver API. They are host functions, which NVRTC refuses.
DRIVER_HEADER = re.compile(r"\bcuda\.h\(\d+\): error: A function without execution space annotations")
DRIVER_HEADER_OPTIONS = ["-default-device"]


def help_with_driver_header(log):
    """Return whether NVRTC refuses the host functions that <cuda.h> declares."""
    return DRIVER_HEADER.search(log) is not None


# (function that decides from NVRTC's messages whether some options can fix the error, these options)
REMEDIES = [
    (help_after, OPTIONS),
    (help_with_std, STD_OPTIONS),
    (help_with_device_runtime, DEVICE_RUNTIME_OPTIONS),
    (help_with_driver_header, DRIVER_HEADER_OPTIONS),
]
