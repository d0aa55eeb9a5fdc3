"""The kernels as layers: nn.Modules that take the place of PyTorch's own."""

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.flash_forward import flash_attention


class FusedAttention(nn.Module):
    """Self-attention without the N×N matrix: what nn.MultiheadAttention computes, with parameters of the same names and shapes.

    embed_dim: E, a multiple of num_heads; E / num_heads <= 128. bias: whether the projections have one. attention: the kernel's function,
    `flash_attention` or `warp_attention`.
    """

    def __init__(self, embed_dim, num_heads, bias=True, attention=flash_attention):
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"argument embed_dim is {embed_dim}; wanted a multiple of num_heads, {num_heads}")
        self.num_heads, self.attention = num_heads, attention
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x, causal=False):
        """x: (B, N, E), float32; returns (B, N, E). With causal, token i sees the tokens j <= i."""
        if x.ndim != 3 or x.shape[2] != self.in_proj_weight.shape[1]:
            raise ValueError(f"argument x has shape {tuple(x.shape)}; wanted (B, N, {self.in_proj_weight.shape[1]})")
        projected = linear(x, self.in_proj_weight, self.in_proj_bias)
        heads = projected.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, H, N, d)
        return self.out_proj(self.attention(*heads, causal).transpose(1, 2).flatten(2))

    @classmethod
    def from_multihead_attention(cls, layer, **options):
        """A FusedAttention with the weights of an nn.MultiheadAttention, on its device. Takes x as (B, N, E), whatever batch_first says.

        Raises ValueError for what it does not do: dropout, keys or values of another size, extra keys.
        """
        unlike = {
            "dropout": (layer.dropout, 0.0),
            "kdim": (layer.kdim, layer.embed_dim),
            "vdim": (layer.vdim, layer.embed_dim),
            "add_bias_kv": (layer.bias_k is not None, False),
            "add_zero_attn": (layer.add_zero_attn, False),
        }
        for name, (got, wanted) in unlike.items():
            if got != wanted:
                raise ValueError(f"the nn.MultiheadAttention has {name} = {got}; wanted {wanted}")
        fused = cls(layer.embed_dim, layer.num_heads, layer.in_proj_bias is not None, **options).to(layer.out_proj.weight.device)
        fused.load_state_dict(layer.state_dict())
        return fused
