// A counter behind a lock of tickets: its holder lets the next one in by a volatile number.
extern "C" __global__ void bug(int* tickets, volatile int* turn, int* counter) {
    if (threadIdx.x == 0) {
        int mine = atomicAdd(tickets, 1);
        while (*turn != mine) {}
        *counter += 1;  // FOUND race-global: what is done here is not yet visible to the next
        (*turn)++;
    }
}

extern "C" __global__ void mended(int* tickets, volatile int* turn, int* counter) {
    if (threadIdx.x == 0) {
        int mine = atomicAdd(tickets, 1);
        while (*turn != mine) {}
        __threadfence();
        *counter += 1;
        __threadfence();
        (*turn)++;
    }
}
