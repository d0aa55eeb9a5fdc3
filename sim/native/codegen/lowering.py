"""Numba's lowering of a function to LLVM, with fewer instructions."""

import functools
from collections import Counter

from numba.core import ir, lowering
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.registry import cpu_target

from sim.native.codegen.builder import Builder, Context


@functools.cache
def bytes_of(llvm_type):
    """Return the size in bytes of a value of an LLVM type."""
    return cpu_target.target_context.get_abi_sizeof(llvm_type)


class Lower(lowering.Lower):
    """Numba's lowering to LLVM, except that integers wrap around and fewer instructions are emitted.

    Reference counting is disabled in functions that do not need it. (A reference implementation that creates
    a list needs it.) In functions without reference counting, a variable whose only assignment precedes all
    reads needs no stack slot. The sizes of types are cached, because Numba queries LLVM for the size of every
    variable.
    """

    def init(self):
        super().init()
        self.context.__class__ = Context  # the context is a copy for this function alone
        models = self.context.data_model_manager
        self.context.enable_nrt = any(
            models[numba_type].contains_nrt_meminfo() for numba_type in set(self.fndesc.typemap.values())
        )
        self.context.get_abi_sizeof = bytes_of
        if not self.context.enable_nrt and not self.func_ir.func_id.is_generator:
            self._singly_assigned_vars |= dominating_variables(self.blocks)

    def storevar(self, value, name, argidx=None):
        """Store the value of a variable. Without reference counting, do not load its old value first."""
        if self.context.enable_nrt or name in self._singly_assigned_vars:
            super().storevar(value, name, argidx)
        else:
            self.builder.store(value, self.getvar(name))

    def setup_function(self, fndesc):
        super().setup_function(fndesc)
        self.builder = Builder(self.entry_block)
        self.call_helper = self.call_conv.init_call_helper(self.builder)

    def delvar(self, name):
        if self.context.enable_nrt:
            super().delvar(name)


def dominating_variables(blocks):
    """Return the variables of Numba's IR that are assigned once, before every read on every path."""
    dominators, used = compute_cfg_from_blocks(blocks).dominators(), compute_use_defs(blocks).usemap
    assigned = [
        (assignment.target.name, label)
        for label, block in blocks.items()
        for assignment in block.find_insts(ir.Assign)
    ]
    counts, readers = Counter(name for name, _ in assigned), {}
    for label, names in used.items():
        for name in names:
            readers.setdefault(name, []).append(label)
    # A read must also be lowered after the assignment. Blocks are lowered in the order of their labels.
    return {
        name
        for name, home in assigned
        if counts[name] == 1
        and all(home < label and home in dominators[label] for label in readers.get(name, ()))
    }
