"""Facts about tensors that a program created or used: which are unwritten, and which have given an address.

The memory of tensors that torch.empty creates counts as unwritten, as that of sim.empty does.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from sim.events import INTEGER_POISON, UNTYPED_POISON
from sim.memory.argument import tensor_array
from sim.memory.spaces import Empty

CREATORS = {torch.empty, torch.empty_like, torch.empty_strided}
CREATORS |= {torch.Tensor.new_empty, torch.Tensor.new_empty_strided}
MOST = 1 << 12  # number of remembered storages at which freed storages are removed


class FreshTensors:
    """The storages of tensors that a program created without values.

    Their memory is filled with the poison of sim.memory.spaces. An element that still contains it counts as
    unwritten.
    """

    def __init__(self):
        self.known = {}  # address of the storage -> (weak reference to it, the byte that fills it)

    def fill(self, tensor):
        """Fill a new tensor with poison, and remember it. Return the tensor."""
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.dtype == torch.bool:
            return tensor
        storage = tensor.untyped_storage()
        if len(storage) == 0:
            return tensor
        floats = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        byte = UNTYPED_POISON if floats else INTEGER_POISON
        torch.empty(0, dtype=torch.uint8).set_(storage).fill_(byte)
        if len(self.known) >= MOST:
            self.known = {at: each for at, each in self.known.items() if not each[0].expired()}
        self.known[storage.data_ptr()] = StorageWeakRef(storage), byte
        return tensor

    def array(self, tensor):
        """Return a tensor as an array of the type of sim.empty, or the tensor itself if torch.empty did not
        create its storage."""
        reference, byte = self.known.get(tensor.untyped_storage().data_ptr(), (None, None))
        if reference is None or reference.expired():
            return tensor
        array = tensor_array(tensor, "tensor").view(Empty)
        array.byte = byte
        return array


class Pointers:
    """The tensors whose address the program has read with data_ptr(), as long as their storage exists."""

    def __init__(self):
        self.known = {}  # address -> (weak reference to the storage, type, offset, shape, strides)

    def add(self, tensor, address):
        """Remember a tensor's address. Return the address."""
        if len(self.known) >= MOST:
            self.known = {at: each for at, each in self.known.items() if not each[0].expired()}
        layout = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
        self.known[address] = StorageWeakRef(tensor.untyped_storage()), *layout
        return address

    def tensor(self, address):
        """Return a tensor like the one with this address, or None. The program may have kept only a tensor
        of which it was a view."""
        if address not in self.known:
            return None
        reference, dtype, *layout = self.known[address]
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        return None if storage is None else torch.empty(0, dtype=dtype).set_(storage, *layout)


FRESH, POINTERS = FreshTensors(), Pointers()
