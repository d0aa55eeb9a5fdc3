"""Tests of wide accesses to arrays declared with a narrow element type.

Each array that another array may misalign causes one warning. No warning is reported if the sizes of all
arrays guarantee alignment.
"""

import numpy as np
import pytest

from sim import load_ptx, simulate

PTX = """
.version 8.0
.target sm_80
.address_size 64
.shared .align 4 .b8 tile[512];
.shared .align 4 .b8 other[{size}];
.visible .entry kernel(.param .u64 out)
{{
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<10>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 4;
    mov.u32 %r3, tile;
    add.s32 %r4, %r3, %r2;
    mov.f32 %f1, 0f3F800000;
    st.shared.v4.f32 [%r4], {{%f1, %f1, %f1, %f1}};
    mov.u32 %r5, other;
    st.shared.f32 [%r5+{last}], %f1;
    ld.shared.v4.f32 {{%f2, %f3, %f4, %f5}}, [%r4];
    ld.shared.v2.f32 {{%f6, %f7}}, [%r4];
    st.global.f32 [%rd2], %f2;
    ret;
}}
"""


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("size", [12, 20, 64])
def test_an_array_is_warned_of_once_and_only_where_another_one_shifts_it(size, engine):
    kernel = load_ptx(PTX.format(size=size, last=size - 4))["kernel"]
    report = simulate(kernel, engine=engine, on_finding="report")[1, 1](np.zeros(1, np.float32))
    found = [finding for finding in report.findings if finding.kind == "misaligned-address"]
    assert len(found) == (size % 16 != 0)
    for finding in found:
        assert (finding.severity, finding.array) == ("warning", "tile")
        assert f"the compiler may place it after other, which has {size} bytes" in finding.reason
        assert "multiple of 16 bytes" in finding.verdict
    if engine == "native" and not found:
        assert not any("explained" in note for note in report.notes)


WITH_PRODUCT = """.version 8.0\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 k_out)
{
    .shared .align 128 .b8 a[8192];
    .shared .align 128 .b8 b[8192];
    .shared .align 8 .b8 barrier[8];
    .shared .align 128 .b8 c[64];
    .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<2>; .reg .f32 %f<4>;
    ld.param.u64 %d1, [k_out];
    mov.u32 %r4, c; mov.u32 %r3, barrier; mov.u32 %r2, b; mov.u32 %r1, a;
    st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};
    setp.gt.u64 %p, %d1, 0; @%p bra DONE;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %d1, %d1, 1, 1, 1, 0, 0;
DONE:
    ret;
}
"""


def test_shared_arrays_of_products_are_aligned_as_by_ptxas():
    # In the order of the declarations, ptxas 13.0 assigns the addresses 1024, 9216, 17408 and 17536.
    out = np.zeros(4, np.uint32)
    simulate(load_ptx(WITH_PRODUCT)["k"])[1, 1](out)
    assert (out % 1024).tolist() == [0, 0, 0, 128]
    assert (np.diff(out.astype(np.int64)) > [8192, 8192, 8]).all()  # guard bytes follow each array


@pytest.mark.parametrize("count", [3, 40, 300])
def test_descriptors_have_room_for_all_shared_addresses(count):
    # A matrix descriptor contains 18 bits of an address, so there are fewer guard bytes between many arrays.
    text = WITH_PRODUCT.replace("a[8192]", "a[192512]").replace("b[8192]", "b[1024]")
    names = [f"v{n}" for n in range(count)]
    declared = "\n".join(f".shared .align 8 .b8 {n}[8];" for n in names)
    text = text.replace(".reg .pred", f"{declared} .reg .pred")
    text = text.replace("mov.u32 %r4, c;", " ".join(f"mov.u32 %r4, {n};" for n in names))
    out = np.zeros(4, np.uint32)
    simulate(load_ptx(text)["k"])[1, 1](out)
    by_ptxas = 1024 + np.cumsum([0, 192512, 1024, 8 * count])
    assert (out % 1024 == by_ptxas % 1024).all()
    assert out[-1] < 1 << 18
