// A counter behind a lock.
extern "C" __global__ void bug(int* lock, int* counter) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        *counter += 1;  // FOUND race-global: what is done here is not yet visible to the next
        atomicExch(lock, 0);
    }
}

extern "C" __global__ void mended(int* lock, int* counter) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        __threadfence();
        *counter += 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}
