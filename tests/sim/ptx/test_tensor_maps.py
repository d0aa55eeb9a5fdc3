"""Tests of tensor maps (TMA) against an H100 with driver 580.

tensor_maps.json contains the 128 bytes that the driver made for 42 tensors, and hashes of the shared memory
that an H100 left after 15 tensor copies of a byte sequence into memory filled with 0xAB. Five further copies
ended with an illegal instruction."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim import tensor_map
from sim.isa.tensor_map import TensorMap

RECORD = json.loads(Path(__file__).with_suffix("").with_name("tensor_maps.json").read_text(encoding="utf-8"))
BYTES = (np.arange(1 << 20) * 2654435761 >> 7).astype(np.uint8)
WINDOW = 4096


def raw(text):
    return bytes.fromhex(text.ljust(256, "0"))


@pytest.mark.parametrize("text", RECORD["maps"])
def test_the_driver_s_bytes_are_read_and_written_bit_for_bit(text):
    described = TensorMap.decode(raw(text))
    assert described.encode() == raw(text)
    assert replace(described, address=described.address + 16).encode() != raw(text)


@pytest.mark.parametrize(("text", "coordinates", "wanted"), RECORD["boxes"])
def test_a_box_has_the_layout_of_an_h100(text, coordinates, wanted):
    described = TensorMap.decode(raw(text))
    box = described.fill().copy()
    in_box, in_tensor, length = described.rows(coordinates)
    for begin, source in zip(in_box.tolist(), in_tensor.tolist()):
        box[begin : begin + length] = BYTES[source : source + length]
    shared = np.full(WINDOW, 0xAB, np.uint8)
    shared[described.places(1 << 16)] = described.converted(box)
    assert hashlib.sha256(shared.tobytes()).hexdigest()[:16] == wanted


@pytest.mark.parametrize(("text", "coordinates"), RECORD["refused"])
def test_an_h100_refuses_boxes_at_other_columns(text, coordinates):
    assert coordinates[0] * TensorMap.decode(raw(text)).itemsize % 16


def test_tensor_map_describes_an_array():
    array = np.zeros((5, 12, 64), np.float16)
    described = TensorMap.decode(tensor_map(array, (2, 3, 32), swizzle=64, fill="nan").tobytes())
    assert described.sizes == (64, 12, 5) and described.box == (32, 3, 2) and described.strides == (128, 1536)
    assert (described.type, described.swizzle, described.fill_nan) == ("f16", 64, True)
    assert described.address == array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("shape", "box", "options", "message"),
    [
        ((8, 8), (8, 8), {"swizzle": 16}, "swizzle must be 0, 32, 64 or 128 bytes, got 16"),
        ((8, 6), (8, 4), {}, "multiples of 16 bytes"),
        ((8, 64), (8, 64), {"swizzle": 128}, "swizzle allows 128"),
        ((8, 8), (8, 300), {}, "1 to 256"),
        ((8, 8), (8, 6), {}, "multiple of 16"),
        ((8, 8), (8,), {}, "the box has 1 dimensions"),
        ((8, 8), (8, 8), {"fill": "ones"}, "'zeros' or 'nan'"),
        ((8, 8), (8, 8), {"element_strides": (9, 1)}, "1 to 8"),
    ],
)
def test_tensor_map_refuses_what_the_driver_refuses(shape, box, options, message):
    with pytest.raises(ValueError, match=message):
        tensor_map(np.zeros(shape, np.float32), box, **options)


def test_the_stride_of_the_last_axis_is_ignored():
    """Compare two maps. On an H100, a copy with that stride has all bytes of the row."""
    array = np.zeros((64, 64), np.float32)
    maps = [tensor_map(array, (8, 32), element_strides=(3, step)) for step in (1, 2)]
    described = [TensorMap.decode(made.tobytes()) for made in maps]
    assert described[0].nbytes == described[1].nbytes == 3 * 32 * 4
    for one, other in zip(*(made.rows((4, 2)) for made in described)):
        assert np.array_equal(one, other)
