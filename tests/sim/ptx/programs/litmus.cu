// One block sends data to another block by a flag. The kernels differ in the fences and in how they access it.
#define SEND(before, store, after) if (blockIdx.x == 0) { data[0] = 42; before; store; after; } else
#define RECEIVE(load, fence) { while (load == 0) {} fence; out[0] = data[0]; }
#define KERNEL(name, flag_type) extern "C" __global__ void name(flag_type* flag, int* data, int* out)

KERNEL(volatile_without_fences, volatile int) { SEND(, flag[0] = 1, ) RECEIVE(flag[0], ) }
KERNEL(volatile_release, volatile int) { SEND(__threadfence(), flag[0] = 1, ) RECEIVE(flag[0], ) }
KERNEL(volatile_both, volatile int) { SEND(__threadfence(), flag[0] = 1, ) RECEIVE(flag[0], __threadfence()) }
KERNEL(volatile_acquire, volatile int) { SEND(, flag[0] = 1, ) RECEIVE(flag[0], __threadfence()) }
KERNEL(plain_store, int) { SEND(__threadfence(), flag[0] = 1, ) RECEIVE(atomicAdd(flag, 0), __threadfence()) }
KERNEL(atomic_without_fences, int) { SEND(, atomicExch(flag, 1), ) RECEIVE(atomicAdd(flag, 0), ) }
KERNEL(atomic_release, int) { SEND(__threadfence(), atomicExch(flag, 1), ) RECEIVE(atomicAdd(flag, 0), ) }
KERNEL(atomic_both, int) { SEND(__threadfence(), atomicExch(flag, 1), ) RECEIVE(atomicAdd(flag, 0), __threadfence()) }
KERNEL(fence_after_flag, int) { SEND(, atomicExch(flag, 1), __threadfence()) RECEIVE(atomicAdd(flag, 0), __threadfence()) }
KERNEL(fence_of_block, int) { SEND(__threadfence_block(), atomicExch(flag, 1), ) RECEIVE(atomicAdd(flag, 0), __threadfence()) }
KERNEL(read_before, int) {
    SEND(__threadfence(), atomicExch(flag, 1), ) {
        out[1] = data[0];
        RECEIVE(atomicAdd(flag, 0), __threadfence())
    }
}
KERNEL(chain, int) {
    SEND(__threadfence(), atomicExch(flag, 1), ) if (blockIdx.x == 1) {
        while (atomicAdd(flag, 0) == 0) {}
        __threadfence();
        atomicExch(flag + 1, 1);
    } else RECEIVE(atomicAdd(flag + 1, 0), __threadfence())
}
KERNEL(chain_without_fence, int) {
    SEND(__threadfence(), atomicExch(flag, 1), ) if (blockIdx.x == 1) {
        while (atomicAdd(flag, 0) == 0) {}
        atomicExch(flag + 1, 1);
    } else RECEIVE(atomicAdd(flag + 1, 0), __threadfence())
}
