"""Tests of counted nouns, whose singular has no s."""

import re

import numpy as np
import pytest

from sim import LaunchError, load_ptx, simulate
from sim.nouns import plural


def test_plural():
    assert [plural(n, "finding") for n in (0, 1, 2, 1000)] == [
        "0 findings",
        "1 finding",
        "2 findings",
        "1,000 findings",
    ]
    assert (plural(1, "launch", "launches"), plural(2, "launch", "launches")) == ("1 launch", "2 launches")


def copy(x, out):
    out[0] = x[0]


ONE_BYTE = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u8 n)\n{\n    ret;\n}\n"


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (copy, [1]),
        (load_ptx(ONE_BYTE)["k"], [np.zeros(1)]),
        (load_ptx(ONE_BYTE)["k"], [300]),
        (load_ptx(ONE_BYTE)["k"], []),
    ],
)
def test_messages_of_launches_with_one(kernel, arguments):
    with pytest.raises(LaunchError) as caught:
        simulate(kernel)[1, 1](*arguments)
    assert not re.search(r"\b1 \w+s\b", str(caught.value).replace("1 is", ""))
