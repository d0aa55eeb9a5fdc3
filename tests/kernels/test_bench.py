"""Tests of `make bench` without a GPU: it must check values before it measures, and format its tables."""

import json

import pytest
import torch

from kernels.bench import conv as bench
from kernels.bench import goals, timing
from kernels.bench.text import text
from kernels.reference import conv_attention, conv_attention_decode

TABLE = {"gpu": "none", "date": "today", "torch": "", "numba": "", "bandwidth": 1e12}


@pytest.fixture
def no_clock(monkeypatch):
    """Run the benchmark on the CPU with fake measurements: every time is 2 and every memory peak is 1."""
    for name, value in {
        "milliseconds": lambda *_, **__: 2.0,
        "peak": lambda call: 1.0,
        "replay": lambda call: call,
        "bandwidth": lambda: 1e12,
        "sdpa_backend": lambda *_: "flash",
        "DEVICE": "cpu",
    }.items():
        for module in (bench, timing):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def no_mask(q, k, v, w):
    return conv_attention(q, k, v, w, causal=False)


def wrong_gradient(q, k, v, w):
    return conv_attention(q, k, v.detach() + 0.9 * (v - v.detach()), w)


def not_finite(q, k, v, w):
    return conv_attention(q, k, v, w) * float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_contestant_gets_no_time(no_clock, monkeypatch, dtype):
    every = bench.contestants() | {"kernels": conv_attention, "compile": conv_attention}
    wrong = {"no mask": no_mask, "dV": wrong_gradient, "NaN": not_finite}
    monkeypatch.setattr(bench, "contestants", lambda: every | wrong)
    rows = {row["name"]: row for row in bench.measured((2, 2, 20, 4), (2, 3), dtype)}
    assert {name for name, row in rows.items() if "refused" in row} == set(wrong)
    assert all(rows[name]["forward_ms"] == 2 and "refused" not in rows[name] for name in every)
    assert not any("forward_ms" in rows[name] for name in wrong)
    assert "O is off" in rows["no mask"]["refused"] and rows["dV"]["refused"].startswith("dV is off")
    assert "O is off by inf" in rows["NaN"]["refused"]
    json.dumps(list(rows.values()))  # The rows must be valid JSON.
    table = text(TABLE | {"training": list(rows.values())})
    assert "sdpa flash" in table and "refused: dV is off by" in table


def test_a_wrong_decoder_gets_no_time(no_clock, monkeypatch):
    right = {"kernels": conv_attention_decode, "sdpa": bench.decoders(torch.ones(2, 1, 1))["sdpa"]}
    wrong = {"no taps": right["sdpa"]}
    monkeypatch.setattr(bench, "decoders", lambda one_tap: right | wrong)
    rows = list(bench.measured_decoding((2, 2, 40, 4)))
    assert ["refused" in row for row in rows] == [False, False, True]
    assert rows[0]["us"] == 2000 and rows[0]["least_us"] == pytest.approx(2 * 4 * 2 * 2 * 40 * 4 / 1e6)
    table = text(TABLE | {"decoding": rows})
    assert "2000.0" in table and "no taps: O is off" in table


def test_split_keys_are_attention_without_a_convolution(no_clock):
    q, k, v = torch.randn(3, 1, 2, 70, 4)
    decoders = bench.decoders(torch.ones(2, 1, 1))
    a, b = (decoders[name](q[:, :, -3:], k, v, None) for name in ("split keys", "sdpa"))
    assert (a - b).abs().max() < 1e-5


def test_the_table_of_goals_shows_ratio_and_fraction_of_the_limit():
    work = goals.operations((1, 1, 1000, 64), taps=9)
    assert work == 1000 * 1000 / 2 * (2 * 2 * 64 + 2 * 9)  # half of the scores, two products, nine taps
    slow = goals.row("flash", "ms", 2.0, "SDPA (flash)", 1.0, work=989e9)
    alone = goals.row("decode", "us", 3.0, "")
    assert goals.text([slow, alone]).splitlines()[2:] == [
        "| flash | 2 ms | SDPA (flash) 1 ms | 2.00 | 50 % |",
        "| decode | 3 µs |  |  |  |",
    ]
