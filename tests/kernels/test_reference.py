"""Tests that compare the attention reference with PyTorch and with results computed by hand, and that it is
imported lazily."""

import math
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import kernels
from kernels.reference import attention, scores


def worst(got, wanted):
    return (got - wanted).abs().max().item()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (2, 3, 9, 4)])
def test_agrees_with_pytorch(shape, causal, scale):
    q, k, v = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    assert worst(attention(q, k, v, causal, scale), wanted) <= 1e-14


def test_two_keys_by_hand():
    """Compute two keys by hand: for scores 0 and 2 and values 0 and -1, the result is -e²/(1 + e²)."""
    q, k, v = (torch.tensor(column, dtype=torch.float64)[:, None] for column in ([1, 1], [0, 2], [0, -1]))
    wanted = -math.exp(2) / (1 + math.exp(2))
    assert worst(attention(q, k, v), torch.full((2, 1), wanted, dtype=torch.float64)) <= 1e-15


def test_more_keys_than_queries():
    q, k, v = torch.randn(2, 3), torch.randn(6, 3), torch.randn(6, 5)
    assert worst(attention(q, k, v), scaled_dot_product_attention(q, k, v)) <= 1e-5


def test_causal_masks_later_keys_only():
    future = torch.isinf(scores(torch.ones(3, 2), torch.ones(3, 2), causal=True))
    assert future.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def test_scores_in_the_thousands_do_not_overflow():
    q = torch.tensor([[60.0], [-60.0]])
    assert attention(q, q, torch.tensor([[1.0], [2.0]])).tolist() == [[1.0], [2.0]]


def test_kernels_loads_torch_only_when_asked():
    code = (
        "import sys, kernels; assert 'torch' not in sys.modules; kernels.attention; assert 'torch' in"
        " sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert kernels.attention is attention
    assert "attention" in dir(kernels)


def test_no_public_name_is_a_file_too():
    """Compare public names with file names, because `import kernels.NAME` would replace a function with a
    module."""
    assert not {module.name for module in pkgutil.iter_modules(kernels.__path__)} & set(kernels.__all__)


def test_kernels_names_what_it_lacks():
    with pytest.raises(AttributeError, match="^module 'kernels' has no attribute 'atention'$"):
        kernels.atention
