"""PTX kernels with one wgmma, and the layouts of their matrices in shared memory, written from the PTX manual
independently of sim.isa.matrix_descriptor."""

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

DTYPES = {"f16": np.float16, "bf16": bfloat16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}
DTYPES |= {"e4m3": float8_e4m3fn, "e5m2": float8_e5m2}
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # swizzle in bytes -> swizzle mode of a descriptor


class Layout:
    """The layout of a matrix of `rows` rows (of A, or columns of B) and 32 bytes along K.

    image: the bytes of shared memory.
    leading, stride: the offsets for the descriptor. In a matrix larger than one swizzle pattern, the
        repetitions are `pad` bytes further apart than necessary.
    """

    def __init__(self, matrix, swizzle, mn_major, pad=0):
        rows, depth = matrix.shape
        size, span = matrix.itemsize, swizzle or 16
        wide = span // size  # elements in one line of the swizzle pattern
        self.swizzle, atom = swizzle, 8 * span + pad
        if not mn_major:
            # Lines are rows. A pattern has 8 rows.
            self.leading, self.stride = (rows // 8 * atom, atom) if not swizzle else (16, atom)
            place = lambda r, k: (  # noqa: E731
                r % 8 * span + r // 8 * self.stride + (k % wide) * size + k // wide * self.leading
            )
        elif swizzle:
            # Lines are values of k. A pattern has 8 of them, and repeats first along k.
            self.stride = atom
            self.leading = depth // 8 * atom
            place = lambda r, k: (  # noqa: E731
                r % wide * size + r // wide * self.leading + k % 8 * span + k // 8 * self.stride
            )
        else:
            self.leading = atom
            self.stride = depth // 8 * atom
            place = lambda r, k: r % 8 * size + r // 8 * self.stride + k % 8 * 16 + k // 8 * self.leading  # noqa: E731
        offsets = np.array([[place(r, k) for k in range(depth)] for r in range(rows)])
        offsets ^= (offsets >> 7) % (span // 16) << 4
        self.image = np.zeros(-(-(offsets.max() + size) // 1024) * 1024, np.uint8)
        self.image[offsets[..., None] + np.arange(size)] = matrix[..., None].view(np.uint8)

    @property
    def descriptor(self):
        """The descriptor without its start address."""
        return MODES[self.swizzle] << 62 | self.stride // 16 << 32 | self.leading // 16 << 16


def registers_of_a(matrix):
    """Return the four registers of each of the 128 threads for A, as uint32 of shape (128, 4)."""
    each = 4 // matrix.itemsize
    thread = np.arange(128)
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * each
    parts = [
        matrix[(row + 8 * (r % 2))[:, None], (column + 4 * each * (r // 2))[:, None] + np.arange(each)]
        for r in range(4)
    ]
    return np.stack([np.ascontiguousarray(part).view(np.uint32)[:, 0] for part in parts], 1)


def registers_of_d(matrix):
    """Return the registers of each of the 128 threads for D, as uint32 of shape (128, count)."""
    thread, i = np.arange(128)[:, None], np.arange(matrix.shape[1] // 2)[None]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    column = 8 * (i // 4) + 2 * (thread % 4) + i % 2
    return np.ascontiguousarray(matrix[row, column]).view(np.uint32)


def names(letter, count):
    return ", ".join(f"%{letter}{i}" for i in range(count))


def load_lines(letter, count, at):
    return [f"ld.global.b32 %{letter}{i}, [{at}+{4 * i}];" for i in range(count)]


def kernel_text(opcode, count, nbytes, b_at, constants, in_registers=False, descriptors=(0, 0), scale="1"):
    """Return the text of a kernel k(x, y) that copies x to shared memory and executes one wgmma.

    opcode: the opcode after "wgmma.mma_async.sync.aligned.".
    count: the number of accumulator registers. y has them for 128 threads, before and after.
    nbytes: the number of bytes of x that it copies. The registers with A follow them.
    b_at: the offset of B in shared memory.
    constants: the operands after scale-d.
    """
    a_text = "{" + names("a", 4) + "}" if in_registers else "%x5"
    lines = f"""
.version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{{
    .shared .align 1024 .b8 tile[{nbytes}];
    .reg .pred %p<4>; .reg .b32 %a<4>, %r<8>, %d<{count}>; .reg .b64 %x<12>;
    ld.param.u64 %x1, [x]; ld.param.u64 %x2, [y];
    cvta.to.global.u64 %x1, %x1; cvta.to.global.u64 %x2, %x2;
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
    shl.b32 %r3, %r1, 2;
    mov.u32 %r4, %r3;
$copy:
    cvt.u64.u32 %x3, %r4; add.s64 %x3, %x1, %x3; ld.global.b32 %r5, [%x3];
    add.s32 %r6, %r2, %r4; st.shared.b32 [%r6], %r5;
    add.s32 %r4, %r4, 512; setp.lt.u32 %p1, %r4, {nbytes}; @%p1 bra $copy;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mul.wide.u32 %x4, %r1, {4 * count}; add.s64 %x4, %x2, %x4;
    mul.wide.u32 %x9, %r1, 16; add.s64 %x9, %x1, %x9;
    shr.u32 %r7, %r2, 4; cvt.u64.u32 %x7, %r7; or.b64 %x5, %x7, {descriptors[0]:#x};
    add.s64 %x7, %x7, {b_at // 16}; or.b64 %x6, %x7, {descriptors[1]:#x};
    """.strip().splitlines()
    lines += load_lines("d", count, "%x4") + (load_lines("a", 4, f"%x9+{nbytes}") if in_registers else [])
    lines += [
        f"setp.ne.b32 %p2, {scale}, 0;",
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.{opcode} {{{names('d', count)}}}, {a_text}, %x6, %p2{constants};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        *(f"st.global.b32 [%x4+{4 * i}], %d{i};" for i in range(count)),
        "ret;",
        "}",
    ]
    return "\n".join(lines).replace("%x9+" + str(nbytes) + "+", f"%x9+{nbytes}+")


class Case:
    """One product: its kernel's text, its operands, and the expected result.

    types: the PTX types of D, A and B.
    n: the number of columns.
    swizzles, majors: of A and B; a major of True is MN-major.
    signs: imm-scale-a and imm-scale-b.
    fractions: whether A and B are not whole numbers.
    """

    def __init__(self, types, n, swizzles=(128, 128), majors=(False, False), in_registers=False, signs=(1, 1),
                 scale=1, seed=0, pad=0, fractions=False):  # fmt: skip
        random = np.random.default_rng(seed)
        d, a, b = types
        depth = 32 // np.dtype(DTYPES[a]).itemsize
        least = {"u8": 0}
        self.a = random.integers(least.get(a, -4), 5, (64, depth)).astype(DTYPES[a])
        self.b = random.integers(least.get(b, -4), 5, (n, depth)).astype(DTYPES[b])
        self.d = random.integers(-9, 10, (64, n)).astype(RESULTS[d])
        if fractions:
            self.a, self.b = (random.standard_normal(m.shape).astype(m.dtype) for m in (self.a, self.b))
        self.types = types
        sixteen = a in ("f16", "bf16")
        layouts = [] if in_registers else [Layout(self.a, swizzles[0], majors[0], pad)]
        layouts.append(Layout(self.b, swizzles[1], majors[1], pad))
        images = [layout.image for layout in layouts]
        nbytes, b_at = sum(map(len, images)), len(images[0]) if not in_registers else 0
        constants = "" if d == "s32" else f", {signs[0]}, {signs[1]}"
        if sixteen:
            constants += ("" if in_registers else f", {int(majors[0])}") + f", {int(majors[1])}"
        more = [registers_of_a(self.a).view(np.uint8).reshape(-1)] if in_registers else []
        self.x, self.y = np.concatenate([*images, *more]), registers_of_d(self.d)
        opcode = f"m64n{n}k{depth}.{d}.{a}.{b}"
        descriptors = [layout.descriptor for layout in layouts]
        self.text = kernel_text(
            opcode,
            self.y.shape[1],
            nbytes,
            b_at,
            constants,
            in_registers,
            (descriptors[0], descriptors[-1]),
            scale,
        )
        whole = np.float64 if d != "s32" else np.int64
        total = signs[0] * signs[1] * (self.a.astype(whole) @ self.b.astype(whole).T) + scale * self.d.astype(
            whole
        )
        self.expected = registers_of_d((total + 0).astype(RESULTS[d]))

    def numbers(self, registers):
        """Return accumulator registers as floats."""
        return registers.view(RESULTS[self.types[0]]).astype(float)
