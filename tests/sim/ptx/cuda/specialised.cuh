// Functions for the kernels of specialised_corpus.py, conversion_corpus.py and cluster_corpus.py.
template <int n> __device__ void wait_read_n() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(n) : "memory"); }
__device__ void named(int id, int n) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory"); }
__device__ bool elected() { u32 p; asm volatile("{ .reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(p)); return p; }
__device__ void products(float (&d)[8], const u16 *a, const u16 *b, int first) {
    for (int k = 0; k < 64; k += 16) wg::product(d, wg::swizzled(a + k), wg::swizzled(b + k), first ? k > 0 : 1);
}
__device__ void put(float* to, const float (&d)[8], int t) {
    int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < 8; i++) to[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + column + i % 2] = d[i];
}
__device__ void multicast_box(void* to, const Map* m, int x, int y, u64* b, unsigned short mask) { asm volatile(
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
    :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)), "h"(mask) : "memory"); }
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ void fence_all() { asm volatile("fence.proxy.async;" ::: "memory"); }
