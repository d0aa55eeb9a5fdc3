"""The terms used in findings, for each kernel language.

Advice is a template over these terms. All other findings are written for Numba and then translated.
"""

import re

LOCAL_VARIABLE = "local variable"  # the name in findings if the compiler did not keep the variable's name
NUMBA, CPP, TRITON = "Numba", "C++", "Triton"
WORDS = {
    NUMBA: {
        "barrier": "cuda.syncthreads()",
        "warp_barrier": "cuda.syncwarp",
        "max": "cuda.atomic.max",
        "min": "cuda.atomic.min",
        "sub": "cuda.atomic.sub",
        "or": "cuda.atomic.or_",
        "and": "cuda.atomic.and_",
        "xor": "cuda.atomic.xor",
        "fence": "cuda.threadfence()",
        "fence_of_block": "cuda.threadfence_block()",
        "atomics": "cuda.atomic",
        "an_atomic": "cuda.atomic (cuda.atomic.add for +=)",
        "add": "cuda.atomic.add",
        "exchange": "cuda.atomic.exch",
        "swap": "cuda.atomic.cas",
        "grid_barrier": "cuda.cg.this_grid().sync()",
        "cluster_barrier": "barrier.cluster.arrive.release and barrier.cluster.wait.acquire",
    },
    CPP: {
        "barrier": "__syncthreads()",
        "warp_barrier": "__syncwarp",
        "max": "atomicMax",
        "min": "atomicMin",
        "sub": "atomicSub",
        "or": "atomicOr",
        "and": "atomicAnd",
        "xor": "atomicXor",
        "fence": "__threadfence()",
        "fence_of_block": "__threadfence_block()",
        "atomics": "atomics",
        "an_atomic": "an atomic (atomicAdd for +=)",
        "add": "atomicAdd",
        "exchange": "atomicExch",
        "swap": "atomicCAS",
        "grid_barrier": "cooperative_groups::this_grid().sync()",
        "cluster_barrier": "cluster.sync() (barrier.cluster.arrive.release and .wait.acquire)",
    },
    TRITON: {
        "barrier": "tl.debug_barrier()",
        "warp_barrier": "tl.debug_barrier",
        "max": "tl.atomic_max",
        "min": "tl.atomic_min",
        "sub": "tl.atomic_add of the negative value",
        "or": "tl.atomic_or",
        "and": "tl.atomic_and",
        "xor": "tl.atomic_xor",
        "fence": "the atomic's sem='release'",
        "fence_of_block": "the atomic's scope='cta'",
        "atomics": "atomics",
        "an_atomic": "an atomic (tl.atomic_add for +=)",
        "add": "tl.atomic_add",
        "exchange": "tl.atomic_xchg",
        "swap": "tl.atomic_cas",
        "grid_barrier": "a second launch",
        "cluster_barrier": "a barrier of the cluster",
    },
}
# Further terms to replace in findings written for Numba.
MORE = {
    CPP: {"cuda.ballot_sync": "__ballot_sync", **{f"alignment={n}": f"alignas({n})" for n in (4, 8, 16)}},
    TRITON: {},
}
# Terms of PTX, and the terms of cooperative groups or libcu++ that replace them: {name that the source
# mentions: {term of PTX: other term}}.
OF_LIBRARIES = {
    "cooperative_groups": {
        "barrier.cluster.arrive and then barrier.cluster.wait": (
            "cluster.barrier_arrive() and then cluster.barrier_wait()"
        ),
        "reach barrier.cluster.arrive": "reach cluster.sync()",
    },
    "cooperative_groups/memcpy_async.h": {
        "commit it and wait for it (cp.async.wait_group)": (
            "wait for it (cooperative_groups::wait of its group)"
        )
    },
    "cuda/pipeline": {"(cp.async.wait_group)": "(producer_commit and consumer_wait of the cuda::pipeline)"},
    "cuda_pipeline": {"(cp.async.wait_group)": "(__pipeline_commit and __pipeline_wait_prior(0))"},
    "cuda::barrier": {
        "(mbarrier.try_wait)": "(wait of the cuda::barrier)",
        "(mbarrier.try_wait.parity, with the parity of this phase)": "(wait of the cuda::barrier)",
        "(mbarrier.init)": "(init(&barrier, count))",
    },
    "pipeline_shared_state": {"(mbarrier.try_wait)": "(consumer_wait of the cuda::pipeline)"},
    "cuda::thread_scope": {
        ": .gpu, or the function without _block in its name": ", cuda::thread_scope_device",
        "its own block (.cta)": "its own block (cuda::thread_scope_block)",
    },
    "cuda::memory_order": {
        "between this write and the atomic that signals it": (
            "between this write and the atomic that signals it, or cuda::memory_order_release for this atomic"
            " and cuda::memory_order_acquire for the one that waits for it"
        ),
        "atomicExch in place of the plain store": (
            "atomicExch, or a store with cuda::memory_order_release, in place of the plain store"
        ),
    },
}


def in_library_terms(text: str, source: str) -> str:
    """Replace terms of PTX in a sentence by those of the C++ libraries that a source uses. A source with
    inline PTX keeps the terms of PTX."""
    used = {} if re.search(r"\basm\b", source) else OF_LIBRARIES
    for name, terms in used.items():
        for old, new in terms.items() if name in source else ():
            text = text.replace(old, new)
    return text


def in_language(text: str, language: str) -> str:
    """Translate a sentence written for Numba to the terms of another language."""
    numba, other = WORDS[NUMBA], WORDS[language]
    pairs = [
        (numba[term].removesuffix("()"), other[term].removesuffix("()")) for term in ("barrier", "fence")
    ]
    for word, instead in [(numba["atomics"], other["atomics"]), *pairs, *MORE[language].items()]:
        text = text.replace(word, instead)
    text = re.sub(r"if ([^;]+ [<>]=? )(\w+)\.shape\[0\]( / \d+)?", r"if (\1the length of \2\3)", text)
    return re.sub(r"(index must be < )(\w+)\.shape\[0\]", r"\1the length of \2", text)
