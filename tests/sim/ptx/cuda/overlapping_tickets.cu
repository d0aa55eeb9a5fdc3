// Each block takes a ticket, and adds to a sum of 64 bits beside the number of tickets.
extern "C" __global__ void bug(const int* x, int* tickets, int* out) {
    if (threadIdx.x == 0) {
        int ticket = atomicAdd(&tickets[1], 1);                              // FOUND race-global
        atomicAdd((unsigned long long*)tickets, (unsigned long long)x[blockIdx.x]);  // FOUND race-global
        out[ticket] = x[blockIdx.x];
    }
}

extern "C" __global__ void mended(const int* x, int* tickets, int* out) {
    if (threadIdx.x == 0) {
        int ticket = atomicAdd(&tickets[2], 1);
        atomicAdd((unsigned long long*)tickets, (unsigned long long)x[blockIdx.x]);
        out[ticket] = x[blockIdx.x];
    }
}
