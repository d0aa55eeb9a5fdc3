// The PTX instructions of TMA, mbarriers and clusters, for the kernels of hopper_corpus.py.
typedef unsigned int u32;
typedef unsigned long long u64;
struct __align__(64) Map { u64 words[16]; };
__device__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void init(u64* b, int n) { asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;"
        :: "r"(at(b)), "r"(n) : "memory"); }
__device__ void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void expect(u64* b, int n) { asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at(b)), "r"(n) : "memory"); }
__device__ void arrive(u64* b) { asm volatile(
        "mbarrier.arrive.shared::cta.b64 _, [%0];"
        :: "r"(at(b)) : "memory"); }
__device__ void arrive_at(u64* b, int rank) { u32 there; asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there) : "r"(at(b)), "r"(rank)); asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
        :: "r"(there) : "memory"); }
__device__ void invalidate(u64* b) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(b)) : "memory"); }
__device__ void arrive_relaxed(u64* b) { asm volatile(
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%0];"
        :: "r"(at(b)) : "memory"); }
#define ARRIVE_AT(ORDER) u32 there; asm("mapa.shared::cluster.u32 %0, %1, %2;" \
        : "=r"(there) : "r"(at(b)), "r"(rank)); \
        asm volatile("mbarrier.arrive." ORDER ".shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
__device__ void arrive_at_relaxed(u64* b, int rank) { ARRIVE_AT("relaxed.cluster") }
__device__ void arrive_at_cta(u64* b, int rank) { ARRIVE_AT("release.cta") }
#define WAIT(ORDER) u32 yes; do asm volatile( \
        "{ .reg .pred p; mbarrier.try_wait.parity." ORDER ".shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
        : "=r"(yes) : "r"(at(b)), "r"(parity) : "memory"); while (!yes);
__device__ void wait_relaxed(u64* b, int parity) { WAIT("relaxed.cta") }
__device__ void wait_cta(u64* b, int parity) { WAIT("acquire.cta") }
__device__ void wait_cluster(u64* b, int parity) { WAIT("acquire.cluster") }
__device__ bool done(u64* b, int parity) { u32 yes; asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(yes) : "r"(at(b)), "r"(parity) : "memory"); return yes; }
__device__ void wait(u64* b, int parity) { while (!done(b, parity)) {} }
__device__ void load(void* to, const void* from, int n, u64* b) { asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(at(to)), "l"(from), "r"(n), "r"(at(b)) : "memory"); }
__device__ void multicast(void* to, const void* from, int n, u64* b, unsigned short mask) { asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        :: "r"(at(to)), "l"(from), "r"(n), "r"(at(b)), "h"(mask) : "memory"); }
__device__ void send(void* to, const void* from, int n, u64* b, int rank) { u32 there, bar; asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there) : "r"(at(to)), "r"(rank)); asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(bar) : "r"(at(b)), "r"(rank)); asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(there), "r"(at(from)), "r"(n), "r"(bar) : "memory"); }
__device__ void store(void* to, const void* from, int n) { asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :: "l"(to), "r"(at(from)), "r"(n) : "memory"); }
__device__ void reduce(void* to, const void* from, int n) { asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;"
        :: "l"(to), "r"(at(from)), "r"(n) : "memory"); }
__device__ void load_box(void* to, const Map* m, int x, int y, u64* b) { asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(at(to)), "l"(m), "r"(x), "r"(y), "r"(at(b)) : "memory"); }
__device__ void store_box(const Map* m, int x, int y, const void* from) { asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
        :: "l"(m), "r"(x), "r"(y), "r"(at(from)) : "memory"); }
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ void wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ void meet_relaxed() { asm volatile(
        "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ void meet() { asm volatile(
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ int* there(int* p, int rank) { u64 to; asm("mapa.u64 %0, %1, %2;"
        : "=l"(to) : "l"(p), "r"(rank)); return (int*)to; }
