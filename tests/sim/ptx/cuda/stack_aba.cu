// Nodes taken from a list without a lock and put back: the head may be the same node again and its successor another (ABA).
extern "C" __global__ void bug(int* head, int* next, int* taken) {
    if (threadIdx.x == 0) {
        for (int round = 0; round < 2; round++) {
            int node, after, seen;
            do {
                node = atomicAdd(head, 0);
                after = next[node];  // FOUND race-global: the node may be out of the list, and in it again
            } while (atomicCAS(head, node, after) != node);
            atomicAdd(&taken[node], 1);
            do {
                seen = atomicAdd(head, 0);
                next[node] = seen;  // FOUND race-global
                __threadfence();
            } while (atomicCAS(head, seen, node) != seen);
        }
    }
}

extern "C" __global__ void mended(unsigned long long* head, int* next, int* taken) {  // the head with a count of its changes
    if (threadIdx.x == 0) {
        for (int round = 0; round < 2; round++) {
            unsigned long long old, now;
            int node;
            do {
                old = atomicAdd(head, 0ull);
                node = (int)(old & 0xffffffffu);
                int after = atomicAdd(&next[node], 0);
                now = ((old >> 32) + 1) << 32 | (unsigned)after;
            } while (atomicCAS(head, old, now) != old);
            atomicAdd(&taken[node], 1);
            do {
                old = atomicAdd(head, 0ull);
                atomicExch(&next[node], (int)(old & 0xffffffffu));
                __threadfence();
                now = ((old >> 32) + 1) << 32 | (unsigned)node;
            } while (atomicCAS(head, old, now) != old);
        }
    }
}
