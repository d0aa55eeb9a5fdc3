"""Explanations for addresses outside the launch's memory. Such an address can belong to memory of another
launch or module, or to shared memory of another block, or it can be the null pointer."""

from sim.events import LOCAL, SHARED, SPACE_SHIFT

HOST_ADDRESSES = range(1 << 40, 1 << 47)  # where Linux maps the heap and the stacks of a process
# space -> (name, owner of the memory)
OWNED = {SHARED: ("shared", "block"), LOCAL: ("local", "thread")}


def explain_address(address, other, heap):
    """Return (reason, fix, end of the message) for an address neither in nor near an array of the launch.

    other: the AddressRange that contains the address, or None.
    heap: the Heap of the launch, or None.
    """
    of_launch = " of this launch"
    if other is not None:
        return *explain_range(other), of_launch
    if heap is not None and heap.find_elsewhere(address):
        return (
            "It is in heap memory that a launch of another module has allocated.",
            "compile the two kernels in one module, or copy the data to an array",
            of_launch,
        )
    if address >> SPACE_SHIFT in OWNED:
        name, owner = OWNED[address >> SPACE_SHIFT]
        return (
            f"It is an address in {name} memory, but in no array of this kernel: a pointer to {name} memory"
            f" is valid only in the {owner} that took it, and only until that {owner} ends.",
            f"keep the data in global memory if a later launch or another {owner} uses it",
            of_launch,
        )
    null = is_null(address)
    where = "the null pointer, or near it" if null else "far from all memory of the launch"
    if null and heap is not None and heap.failed_allocations:
        nbytes = heap.context.spec.heap_bytes
        where += f"; malloc has returned the null pointer, because the heap of {nbytes:,} bytes is full"
    fix = (
        "look at where the pointer comes from: an argument that was not given, or an index that wrapped"
        " around"
    )
    if address in HOST_ADDRESSES:
        where += ", and may be an address of host memory"
        fix = "give the kernel a pointer to device memory, and copy the data there (cudaMemcpy)"
    return f"It is {where}.", fix, ""


def is_null(address):
    """Return whether an address is null, or the address of an element near null."""
    return 0 <= address < 4096


def explain_range(other):
    """Return (reason, fix) for an address in memory of another launch.

    other: the AddressRange that contains it.
    """
    if other.is_freed:
        return f"It is in {other.name}.", "free memory after the last launch that uses it"
    rule = "a launch can use the arrays that it gets, and the variables of its module"
    if other.permanent:
        return (
            f"It is in {other.name}, a variable of another module.",
            f"give the data of {other.name} to this launch as an argument: {rule}",
        )
    return (
        f"It is in {other.name} of an earlier launch, which has stored the pointer.",
        f"give {other.name} to this launch too: {rule}",
    )
