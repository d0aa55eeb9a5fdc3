"""Instructions of thread block clusters: barrier.cluster, mapa and getctarank.

Source: PTX ISA 9.7.13.3, "barrier.cluster"; 9.7.9.22, "mapa"; 9.7.9.23, "getctarank".
"""

from sim.isa.invalid import InvalidOperand
from sim.isa.registers import Missing
from sim.nouns import plural
from sim.ptx.regions import WINDOWS
from sim.ptx.syntax import Symbol
from sim.sites import RANK_SHIFT, cluster_rank, local_address

NO_RANK = 15  # the rank bits of an address in a block that the cluster does not have


def cluster_barrier(writer, item):
    """Emit barrier.cluster.arrive or barrier.cluster.wait."""
    does, module = set(item.names[2:]) - {"aligned"}, writer.module
    if item.operands or len(does & {"arrive", "wait"}) != 1 or does - FORMS:
        raise Missing(f"{item.opcode} with these operands")
    place = module.wait_point()
    make = arrival if "arrive" in does else wait
    name = module.cluster(lambda run: make(run, place, "relaxed" not in does))
    writer.emit(f"{name}()")


FORMS = {"arrive", "wait", "release", "acquire", "relaxed"}


def arrival(run, place, releases):
    """Return the function that arrives at the cluster barrier.

    releases: whether the arrival has release semantics. A relaxed arrival releases only the accesses before
        the thread's last fence.
    """
    context = run.context

    def arrive():
        if context.thread.block.barrier.arrive(context, releases):
            run.scheduler.woken = True

    return run.with_site(arrive, place[1])


def wait(run, place, acquires):
    """Return the function that waits at the cluster barrier."""
    at = run.wait_point(place)
    return run.with_site(lambda: run.context.thread.block.barrier.wait(run.scheduler, at), place[1])


def mapa(writer, item):
    """Emit mapa or getctarank, which convert between addresses in shared memory and ranks in the cluster."""
    to, address, *rank = item.operands
    names, module = item.names, writer.module
    window = 0 if any(name.startswith("shared") for name in names) else WINDOWS["shared"]
    width = names[-1].replace("u", "b")
    text = module.address(address) if isinstance(address, Symbol) else writer.value(address, width)
    if not rank:
        name = module.cluster(lambda run: lambda address: rank_of(run, address, window))
        writer.assign(to, f"{name}({text})", "u32", True)
        return
    site = module.site("call")
    name = module.cluster(lambda run: run.with_site(lambda *given: map_rank(run, window, *given), site))
    writer.assign(to, f"{name}({text}, {writer.value(rank[0], 'u32')})", names[-1], True)


def map_rank(run, window, address, rank):
    """Return the address of the same byte in the shared memory of another block of the cluster.

    NVRTC moves mapa out of branches, so a rank outside the cluster is an error only if its address is used
    (`rank_error`).

    window: the base of the window of shared memory for a generic address, otherwise 0.
    """
    block = run.context.thread.block
    local = local_address(address - window + WINDOWS["shared"])
    if not 0 <= rank < len(block.cluster):
        block.wrong_rank, shift = rank, NO_RANK << RANK_SHIFT
    else:
        shift = 0 if block.cluster[rank] is block else rank + 1 << RANK_SHIFT
    return local + shift - WINDOWS["shared"] + window


def rank_error(block, address):
    """Return the InvalidOperand for an access to the memory of a block that the cluster does not have.

    Return None for other addresses.
    """
    rank = cluster_rank(address)
    if (
        rank is None
        or block.home(address)[0] is not None
        and (len(block.cluster) > 1 or not block.wrong_rank)
    ):
        return None
    return InvalidOperand(
        f"mapa takes rank {block.wrong_rank or rank}, but the cluster has"
        f" {plural(len(block.cluster), 'block')}",
        f"The ranks of this cluster are 0 to {len(block.cluster) - 1}.",
        "take the rank modulo %cluster_nctarank (cluster.num_blocks()), or launch larger clusters",
    )


def rank_of(run, address, window):
    """Return the rank of the block to whose shared memory an address belongs."""
    rank = cluster_rank(address - window + WINDOWS["shared"])
    return run.context.thread.block.rank if rank is None else rank
