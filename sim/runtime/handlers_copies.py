"""Runtime functions that copy and set memory, and that access a program's `__device__` variables.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns an
error code.

Source: CUDA Runtime API, "Memory Management".
"""

import ctypes
import struct

import numpy as np

from sim.events import LOAD, SPACE_SHIFT, STORE
from sim.ptx.regions import ModuleKey
from sim.runtime.copy_checks import (
    report_beyond,
    report_overlap,
    report_reversed,
    report_rows_beyond,
    report_unwritten,
)
from sim.runtime.errors import INVALID_DIRECTION, INVALID_SYMBOL, INVALID_VALUE, SUCCESS
from sim.runtime.handlers_memory import write_pointer
from sim.runtime.memory import DEVICE, MANAGED, PINNED, SYMBOL, DeviceBuffer, is_mapped
from sim.runtime.stream_order import DEFAULT_STREAM

# cudaMemcpyKind -> whether (destination, source) are on the device; None means that the pointers determine it
KINDS = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True), 4: (None, None)}
KIND_NAMES = "HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default"
SIDES = {True: "device", False: "host"}


def side(device, address, nbytes, wanted, role, name):
    """Return (host address of the bytes, buffer or None) for one side of a copy.

    Report a finding and return None if the side is invalid.

    wanted: whether the copy's kind says that this side is on the device; None if the kind is Default.
    role: "destination" or "source".
    """
    memory, footprint = device.memory, device.graphs.footprint
    if footprint is not None:
        footprint.add(STORE if role == "destination" else LOAD, address, nbytes)
    buffer = memory.find(address)
    if buffer is None and (freed := memory.find_freed(address)):
        verdict = f"the {role} of {name} is {freed}, which was freed at {freed.freed}"
        device.report("use-after-free", "error", verdict, "free it after its last use")
        return None
    if buffer is None:
        if wanted or 0 <= address < 1 << SPACE_SHIFT and not is_mapped(address):
            what = "a null pointer" if address == 0 else f"{address:#x}, which is not device memory"
            fix = "exchange the arguments, or pass the correct direction" if address else "allocate it first"
            if variable := device.variables.get(address):
                what = f"the host address of the variable {variable.name}, which is not device memory"
                fix = "use cudaMemcpyToSymbol or cudaMemcpyFromSymbol, or the address of cudaGetSymbolAddress"
            device.report("invalid-pointer", "error", f"the {role} of {name} is {what}", fix)
            return None
        return address, None
    if wanted is False and buffer.kind in (DEVICE, SYMBOL):
        verdict = f"the {role} of {name} is {buffer}, but the direction says that it is on the host"
        device.report(
            "copy-direction", "error", verdict, "pass the direction of the copy, or use cudaMemcpyDefault"
        )
        return None
    if address + nbytes > buffer.end:
        accessed = f"{nbytes:,} bytes at byte {address - buffer.base:,}"
        fix = "pass the number of bytes, and not of elements, and at most the size of the allocation"
        report_beyond(device, buffer, role, name, accessed, address + nbytes - buffer.end, fix)
        return None
    return buffer.root.ctypes.data + address - buffer.base, buffer


def copy(device, destination, source, nbytes, kind, name, pending=False):
    """Copy bytes between host and device in any direction.

    pending: whether the call returns before a copy from or to pinned or managed memory has ended.
    """
    return copy_pieces(device, [(destination, source)], nbytes, kind, name, pending)


def copy_pieces(device, pieces, nbytes, kind, name, pending=False):
    """Copy several pieces in one operation.

    pieces: the pieces, each as (destination, source).
    nbytes: the size of each piece.
    pending: as in `copy`.
    """
    if nbytes == 0 or not pieces:
        return SUCCESS
    if kind not in KINDS:
        return INVALID_DIRECTION
    name = f"{name} ({KIND_NAMES[kind]})"
    if len(pieces) > 1 and report_rows_beyond(device, pieces, nbytes, name):
        return INVALID_VALUE
    for destination, source in pieces:
        if code := copy_piece(device, destination, source, nbytes, KINDS[kind], name, pending):
            return code
    for destination, source in pieces:
        to, origin = map(device.memory.find, (destination, source))
        if (to is None or to.kind == PINNED) and report_unwritten(device, origin, source, nbytes, name):
            break
    report_overlap(device, pieces, nbytes, name)
    return SUCCESS


def copy_piece(device, destination, source, nbytes, sides, name, pending):
    """Copy one piece. `sides` is a value of KINDS, and `pending` as in `copy`."""
    to_device, from_device = sides
    if to_device is not from_device and report_reversed(device, destination, source, to_device, name):
        return INVALID_VALUE
    to = side(device, destination, nbytes, to_device, "destination", name)
    origin = side(device, source, nbytes, from_device, "source", name)
    if to is None or origin is None:
        return INVALID_VALUE
    ctypes.memmove(to[0], origin[0], nbytes)
    if to[1] is not None:
        mark_copied(to[1], destination, origin[1], source, nbytes)
    if pending:
        for (at, buffer), writes in ((to, True), (origin, False)):
            watch_host(device, buffer or device.memory.find_registered(at), at, nbytes, writes, name)
    elif any(is_on_host(*each) for each in ((to_device, to[1]), (from_device, origin[1]))):
        device.streams.synchronize(DEFAULT_STREAM)
    return SUCCESS


def watch_host(device, buffer, at, nbytes, writes, name):
    """Watch the host's accesses to pinned or managed memory that an operation still uses.

    buffer: the buffer that contains the bytes, or None. Buffers of other kinds are not watched.
    at: the host address of the bytes.
    writes: whether the operation writes the bytes.
    name: the call that issued the operation.
    """
    if buffer is None or buffer.kind not in (PINNED, MANAGED):
        return
    offset = buffer.root.ctypes.data - buffer.base
    start, end = (limit + offset for limit in buffer.protectable())
    start, end = max(at, start), min(at + nbytes, end)
    if start < end:
        what = f"{name} {'writes' if writes else 'reads'} {buffer}"
        device.streams.watch(np.array([[start, end]]), writes, what, device.call)


def is_on_host(given, buffer):
    """Return whether one side of a copy is in host memory, so that the host waits for the copy.

    given: whether the copy's direction says that this side is on the device, or None if the pointers
        determine it.
    buffer: the buffer of this side, or None for pageable host memory.
    """
    return not given if given is not None else buffer is None or buffer.kind == PINNED


def mark_copied(to, destination, origin, source, nbytes):
    """Record which bytes of a buffer a copy has written. A copy of an unwritten byte counts as unwritten,
    too."""
    at = destination - to.base
    if origin is None or origin.unwritten is None:
        to.mark_written(at, nbytes)
        return
    if to.unwritten is None:
        to.unwritten = np.zeros(to.root.size, bool)
    start = source - origin.base
    to.unwritten[at : at + nbytes] = origin.unwritten[start : start + nbytes]
    to.mark_written(0, 0)


def cudaMemcpy(device, destination, source, nbytes, kind):
    given = destination, source, nbytes, kind
    return device.submit(DEFAULT_STREAM, lambda: copy(device, *given, "cudaMemcpy"))


def cudaMemcpyAsync(device, destination, source, nbytes, kind, stream):
    name = "cudaMemcpyAsync"
    return device.submit(stream, lambda: copy(device, destination, source, nbytes, kind, name, True))


def cudaMemcpyPeer(device, destination, to, source, origin, nbytes):
    return copy(device, destination, source, nbytes, 3, "cudaMemcpyPeer")


def cudaMemcpyPeerAsync(device, destination, to, source, origin, nbytes, stream):
    return cudaMemcpyAsync(device, destination, source, nbytes, 3, stream)


def cudaMemcpy2D(device, destination, to_pitch, source, from_pitch, width, height, kind):
    return copy_rows(device, destination, to_pitch, source, from_pitch, width, height, kind, "cudaMemcpy2D")


def copy_rows(device, destination, to_pitch, source, from_pitch, width, height, kind, name, pending=False):
    """Copy rows. The pitch of a side is the distance in bytes from one of its rows to the next."""
    if width > to_pitch or width > from_pitch:
        return INVALID_VALUE
    rows = [(destination + row * to_pitch, source + row * from_pitch) for row in range(height)]
    return copy_pieces(device, rows, width, kind, name, pending)


def cudaMemcpy2DAsync(device, destination, to_pitch, source, from_pitch, width, height, kind, stream):
    given = destination, to_pitch, source, from_pitch, width, height, kind
    return device.submit(stream, lambda: copy_rows(device, *given, "cudaMemcpy2DAsync", True))


def cudaMemcpy3D(device, parameters):
    return copy_region(device, read_region(parameters), "cudaMemcpy3D")


def read_region(parameters):
    """Return the fields of a cudaMemcpy3DParms.

    It contains an array, a position and a pitched pointer for the source, the same for the destination, the
    extent and the kind.
    """
    return struct.unpack("<19Qi", ctypes.string_at(parameters, 156))


def copy_region(device, words, name, pending=False):
    """Copy a three-dimensional region. Copies of CUDA arrays (textures) are rejected.

    words: the fields of a cudaMemcpy3DParms.
    """
    source, destination = words[:8], words[8:16]
    (width, height, depth), kind = words[16:19], words[19]
    if source[0] or destination[0]:
        return unsupported(device, f"{name} with a cudaArray")

    def start(part, y, z):
        return part[4] + part[1] + ((part[3] + z) * part[7] + part[2] + y) * part[5]

    positions = [(y, z) for z in range(depth) for y in range(height)]
    rows = [(start(destination, *position), start(source, *position)) for position in positions]
    return copy_pieces(device, rows, width, kind, name, pending)


def cudaMemcpy3DAsync(device, parameters, stream):
    words = read_region(parameters)
    return device.submit(stream, lambda: copy_region(device, words, "cudaMemcpy3DAsync", True))


def unsupported(device, what):
    """Report that sim does not simulate `what`."""
    device.could_not_run = True
    device.report("unsupported", "error", f"{what}: sim does not simulate this")
    return INVALID_VALUE


# --- setting ------------------------------------------------------------------------------------------------


def cudaMemset(device, address, value, nbytes):
    return fill(device, address, nbytes, value, nbytes, 1, DEFAULT_STREAM, "cudaMemset")


def cudaMemsetAsync(device, address, value, nbytes, stream):
    return fill(device, address, nbytes, value, nbytes, 1, stream, "cudaMemsetAsync")


def cudaMemset2D(device, address, pitch, value, width, height):
    return fill(device, address, pitch, value, width, height, DEFAULT_STREAM, "cudaMemset2D")


def cudaMemset2DAsync(device, address, pitch, value, width, height, stream):
    return fill(device, address, pitch, value, width, height, stream, "cudaMemset2DAsync")


def fill(device, address, pitch, value, width, height, stream, name):
    """Submit an operation that fills rows of device memory with a byte."""
    given = address, pitch, bytes([value & 0xFF]), width, height, name, name.endswith("Async")
    return device.submit(stream, lambda: set_rows(device, *given))


def set_rows(device, address, pitch, pattern, width, height, name, pending=False):
    """Fill rows of device memory with a pattern of 1, 2 or 4 bytes.

    width: the number of patterns in a row.
    pending: whether the call returns before pinned or managed memory has been filled.
    """
    nbytes = width * len(pattern)
    for row in range(height if nbytes else 0):
        start = address + row * pitch
        to = side(device, start, nbytes, True, "destination", name)
        if to is None:
            return INVALID_VALUE
        ctypes.memmove(to[0], pattern * width, nbytes)
        to[1].mark_written(start - to[1].base, nbytes)
        if pending:
            watch_host(device, to[1], to[0], nbytes, True, name)
    return SUCCESS


# --- symbols ------------------------------------------------------------------------------------------------


def symbol_root(device, symbol):
    """Return (variable, its bytes, its PTX variable) for the host address of a variable, or None.

    The compiler omits variables that no kernel uses. Such a variable has bytes, but no PTX variable.
    """
    variable = device.variables.get(symbol)
    if variable is None:
        return None
    store = variable.owner.module.store
    found = store.text.variables.get(variable.name)
    if found is None:
        return variable, device.memory.unused.setdefault(symbol, np.zeros(variable.nbytes, np.uint8)), None
    return variable, store.root(found), found


def copy_symbol(device, symbol, host, nbytes, offset, kind, name, to_symbol):
    """Copy between a variable and other memory."""
    found = symbol_root(device, symbol)
    if found is None:
        return INVALID_SYMBOL
    variable, root, in_ptx = found
    if offset + nbytes > root.size:
        verdict = (
            f"{name} copies {nbytes:,} bytes at byte {offset:,} of the variable {variable.name}, which has"
            f" {root.size:,}: {offset + nbytes - root.size:,} bytes too many"
        )
        device.report("copy-out-of-bounds", "error", verdict, "pass the number of bytes, and not of elements")
        return INVALID_VALUE
    wanted = KINDS[kind][1 if to_symbol else 0]
    other = side(device, host, nbytes, wanted, "source" if to_symbol else "destination", name)
    if other is None:
        return INVALID_VALUE
    address = root.ctypes.data + offset
    if device.graphs.footprint is not None and in_ptx is not None:
        base = address_of_variable(variable.owner.module, in_ptx)
        device.graphs.footprint.add(STORE if to_symbol else LOAD, base + offset, nbytes)
    if to_symbol:
        ctypes.memmove(address, other[0], nbytes)
        set_symbol(variable, in_ptx, offset, nbytes)
    else:
        ctypes.memmove(other[0], address, nbytes)
        if other[1] is not None:
            other[1].mark_written(host - other[1].base, nbytes)
    if name.endswith("Async"):
        buffer = other[1] or device.memory.find_registered(other[0])
        watch_host(device, buffer, other[0], nbytes, not to_symbol, name)
    else:
        device.streams.synchronize(DEFAULT_STREAM)
    return SUCCESS


def set_symbol(variable, in_ptx, offset, nbytes):
    """Record that the host has set bytes of a variable."""
    store = variable.owner.module.store
    if in_ptx is not None and in_ptx.name in store.unset:
        store.unset[in_ptx.name][offset : offset + nbytes] = False


def cudaMemcpyToSymbol(device, symbol, source, nbytes, offset, kind):
    return copy_symbol(device, symbol, source, nbytes, offset, kind, "cudaMemcpyToSymbol", True)


def cudaMemcpyFromSymbol(device, destination, symbol, nbytes, offset, kind):
    return copy_symbol(device, symbol, destination, nbytes, offset, kind, "cudaMemcpyFromSymbol", False)


def cudaMemcpyToSymbolAsync(device, symbol, source, nbytes, offset, kind, stream):
    given = symbol, source, nbytes, offset, kind
    return device.submit(stream, lambda: copy_symbol(device, *given, "cudaMemcpyToSymbolAsync", True))


def cudaMemcpyFromSymbolAsync(device, destination, symbol, nbytes, offset, kind, stream):
    given = symbol, destination, nbytes, offset, kind
    return device.submit(stream, lambda: copy_symbol(device, *given, "cudaMemcpyFromSymbolAsync", False))


def cudaGetSymbolAddress(device, pointer, symbol):
    found = symbol_root(device, symbol)
    if found is None:
        return INVALID_SYMBOL
    variable, root, in_ptx = found
    if in_ptx is None:
        return INVALID_SYMBOL
    store = variable.owner.module.store
    base = address_of_variable(variable.owner.module, in_ptx)
    store.laid_out[in_ptx.name] = None
    if base not in device.memory.buffers:
        device.memory.add(DeviceBuffer(base, root, SYMBOL, device.call, f"the variable {variable.name}"))
    # from now on, the host may write to the variable through its address
    set_symbol(variable, in_ptx, 0, in_ptx.bytes)
    write_pointer(pointer, base)
    return SUCCESS


def address_of_variable(module, variable):
    """Return the address that a variable has in every launch of its module."""
    key = ModuleKey(module.text.number, variable.name)
    return module.address_space().choose_address(
        variable.space, variable.bytes, variable.align, variable.name, key
    )


def cudaGetSymbolSize(device, size, symbol):
    variable = device.variables.get(symbol)
    if variable is None:
        return INVALID_SYMBOL
    write_pointer(size, variable.nbytes)
    return SUCCESS
