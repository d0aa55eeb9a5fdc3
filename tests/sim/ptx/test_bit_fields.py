"""Tests of bit-fields in memory that no thread has written: an assignment reads the bits around the field."""

import numpy as np
import pytest

from ptx.test_language import HEAD
from sim import load_ptx, simulate

# Compiled by NVRTC from: s[t].a = t; s[t].b = t + 1; __syncthreads(); out[t] = s[31 - t].a + s[31 - t].b
KERNEL = """
.visible .entry k(.param .u64 out)
{{ .reg .b32 %r<16>; .reg .b64 %d<4>; .shared .align 4 .b8 s[128];
   ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.s32 %r4, %r3, %r2;
   ld.shared.u32 %r5, [%r4];
   {update}
   st.shared.u32 [%r4], %r8;
   bar.sync 0;
   xor.b32 %r9, %r2, 124; add.s32 %r10, %r3, %r9;
   ld.shared.u32 %r11, [%r10]; and.b32 %r12, %r11, 65535;
   mad.wide.u32 %d2, %r1, 4, %d1; st.global.u32 [%d2], %r12;
   ret; }}
"""
INSERT = "and.b32 %r6, %r5, -65536; and.b32 %r7, %r1, 65535; or.b32 %r8, %r6, %r7;"
BFI = "bfi.b32 %r8, %r1, %r5, 0, 16;"
ADD = "and.b32 %r6, %r5, -65536; add.s32 %r7, %r5, 1; or.b32 %r8, %r6, %r7;"  # uses the old bits
KEPT = "or.b32 %r8, %r5, 1;"  # the old bits of the field remain


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(("update", "is_right"), [(INSERT, True), (BFI, True), (ADD, False), (KEPT, False)])
def test_an_assignment_to_a_bit_field_reads_no_value(update, is_right, engine):
    kernel, out = load_ptx(HEAD + KERNEL.format(update=update))["k"], np.zeros(32, np.int32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](out)
    assert {finding.kind for finding in report.findings} == (set() if is_right else {"uninitialized-read"})
    assert not is_right or (out == np.arange(32)[::-1]).all()
