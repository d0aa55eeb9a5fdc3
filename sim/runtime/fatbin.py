"""Extracts the PTX from a program that nvcc has compiled.

A program passes the address of a wrapper to `__cudaRegisterFatBinary`. The wrapper points to a container,
which has a header and then one entry for each embedded file. NVIDIA does not document the format. The fields
below were determined from programs compiled by nvcc 13.0 to 13.5.

    wrapper    uint32 magic, uint32 version, pointer to the container
    container  uint32 magic, uint16 version, uint16 header bytes, uint64 bytes of all entries
    entry      uint16 kind, uint16 version, uint32 header bytes, uint64 payload bytes, ...
"""

import ctypes
import struct
from collections.abc import Iterator

from sim.errors import LaunchError

WRAPPER_MAGIC, CONTAINER_MAGIC = 0x466243B1, 0xBA55ED50
ELF_MAGIC = int.from_bytes(b"\x7fELF", "little")
PTX_KIND = 1
HOW_TO_BUILD = "build it with: python -m sim build program.cu"


def ptx_of_wrapper(wrapper: int) -> str:
    """Return the PTX text of the fat binary whose wrapper is at an address in this process.

    Raise LaunchError if the fat binary has no usable PTX.
    """
    magic, _, container = struct.unpack("<IIQ", ctypes.string_at(wrapper, 16))
    if magic != WRAPPER_MAGIC:
        raise LaunchError(f"the program contains a fat binary of an unknown format ({magic:#x})")
    _, _, header_bytes, size = struct.unpack("<IHHQ", ctypes.string_at(container, 16))
    return ptx_of_container(ctypes.string_at(container, header_bytes + size))


def ptx_of_image(address: int) -> str:
    """Return the PTX text of a module image at an address, which is PTX, a wrapper or a container.

    Raise LaunchError if it is machine code.
    """
    (magic,) = struct.unpack("<I", ctypes.string_at(address, 4))
    if magic == WRAPPER_MAGIC:
        return ptx_of_wrapper(address)
    if magic == CONTAINER_MAGIC:
        _, _, header_bytes, size = struct.unpack("<IHHQ", ctypes.string_at(address, 16))
        return ptx_of_container(ctypes.string_at(address, header_bytes + size))
    if magic == ELF_MAGIC:
        raise LaunchError(f"the module contains machine code; sim needs PTX text\n  {HOW_TO_BUILD}")
    return ctypes.string_at(address).decode(errors="replace")


def ptx_of_container(data: bytes) -> str:
    """Return the PTX text in a container. Raise LaunchError if it contains no PTX, or only compressed PTX."""
    magic, _, header_bytes, size = struct.unpack_from("<IHHQ", data)
    if magic != CONTAINER_MAGIC:
        raise LaunchError(f"the program contains a fat binary of an unknown format ({magic:#x})")
    kinds = []
    for kind, payload in entries(data[header_bytes : header_bytes + size]):
        start = payload.find(b".version")
        if kind == PTX_KIND and start >= 0:
            return payload[start:].rstrip(b"\0").decode(errors="replace")
        kinds.append("compressed PTX" if kind == PTX_KIND else "machine code")
    found = " and ".join(dict.fromkeys(kinds)) or "no kernels"
    raise LaunchError(f"the program contains {found}; sim needs PTX text\n  {HOW_TO_BUILD}")


def entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) for each entry of a container."""
    at = 0
    while at + 16 <= len(data):
        kind, _, header_bytes, size = struct.unpack_from("<HHIQ", data, at)
        yield kind, data[at + header_bytes : at + header_bytes + size]
        at += header_bytes + size
