"""FusedAttention and ConvAttention: layers with the parameters of nn.MultiheadAttention."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.common.arguments import MAX_HEAD_DIM, MOST_TAPS
from kernels.common.kv_cache import KVCache, check_cache, check_causal, check_one_token
from kernels.conv.decode import conv_attention_decode
from kernels.conv.operators import conv_attention
from kernels.flash.forward import flash_attention
from kernels.reference import identity_taps


class SelfAttention(nn.Module):
    """Base class of the layers: projections whose parameters have the names and shapes of
    nn.MultiheadAttention."""

    def __init__(self, embed_dim: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"argument embed_dim is {embed_dim}; wanted a multiple of num_heads, {num_heads}"
            )
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias)
        nn.init.xavier_uniform_(self.in_proj_weight)  # like nn.MultiheadAttention

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """Project x (B, N, E) to queries, keys and values, (3, B, H, N, d)."""
        if x.ndim != 3 or x.shape[2] != self.in_proj_weight.shape[1]:
            raise ValueError(
                f"argument x has shape {tuple(x.shape)}; wanted (B, N, {self.in_proj_weight.shape[1]})"
            )
        return (
            linear(x, self.in_proj_weight, self.in_proj_bias)
            # (B, N, 3·E) -> (B, N, 3, H, d) -> (3, B, H, N, d), views without a copy
            .unflatten(2, (3, self.num_heads, -1))
            .permute(2, 0, 3, 1, 4)
        )

    def merged(self, o: torch.Tensor) -> torch.Tensor:
        """Concatenate the heads' outputs (B, H, N, d), and project them to (B, N, E)."""
        return self.out_proj(o.transpose(1, 2).flatten(2))

    @classmethod
    def from_multihead_attention(cls, layer: nn.MultiheadAttention, **options: Any) -> Self:
        """Create a layer with the weights of an nn.MultiheadAttention, on its device.

        The new layer expects x as (B, N, E), even if the original layer had batch_first=False.

        options: further arguments of the class.

        Raise ValueError for features that this class does not support: dropout, keys or values whose size
        differs from E, and extra keys.
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
        ours = cls(layer.embed_dim, layer.num_heads, bias=layer.in_proj_bias is not None, **options).to(
            layer.out_proj.weight
        )
        # parameters that nn.MultiheadAttention lacks, such as taps, keep their initial values
        ours.load_state_dict(ours.state_dict() | layer.state_dict())
        return ours


class FusedAttention(SelfAttention):
    """Self-attention without the N×N matrix, equivalent to nn.MultiheadAttention.

    embed_dim: E, a multiple of num_heads; E / num_heads <= 128.
    bias: whether the projections have a bias.
    attention: the attention function, `flash_attention` or `warp_attention`.
    window: as for `flash_attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        attention: Callable[..., Any] = flash_attention,
        window: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, bias)
        self.attention, self.window = attention, window

    def forward(self, x: torch.Tensor, causal: bool = False) -> torch.Tensor:
        """Apply the layer to x (B, N, E), float32. If causal, token i sees the tokens j <= i."""
        options = {} if self.window is None else {"window": self.window}
        return self.merged(self.attention(*self.heads(x), causal, **options))


class ConvAttention(SelfAttention):
    """Convolutional self-attention (`kernels.reference.conv_attention`).

    The taps are initialised to the identity, so a new layer computes ordinary attention. Its parameters are
    those of nn.MultiheadAttention, and `taps` (H, c_q, c_k).

    embed_dim: E, a multiple of num_heads; E / num_heads <= 128.
    kernel_size: (c_q, c_k), each from 1 to 15.
    bias: whether the projections have a bias.
    causal: token i sees only the tokens j <= i.
    attention: function (q, k, v, w, causal) for many tokens.
    decode: function (q_window, k, v, w) for one more token.

    Pass the functions of `kernels.reference` for float64, and on CPUs, where the kernels would be simulated.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: tuple[int, int] = (6, 11),
        bias: bool = True,
        causal: bool = True,
        attention: Callable[..., Any] = conv_attention,
        decode: Callable[..., torch.Tensor] = conv_attention_decode,
    ) -> None:
        super().__init__(embed_dim, num_heads, bias)
        if len(kernel_size) != 2 or not all(1 <= size <= MOST_TAPS for size in kernel_size):
            raise ValueError(
                f"argument kernel_size is {kernel_size}; wanted (c_q, c_k), each from 1 to {MOST_TAPS}"
            )
        if embed_dim // num_heads > MAX_HEAD_DIM:
            raise ValueError(
                f"argument embed_dim is {embed_dim}, {embed_dim // num_heads} a head; wanted at most"
                f" {MAX_HEAD_DIM} a head"
            )
        self.causal, self.attention, self.decode = causal, attention, decode
        self.taps = nn.Parameter(identity_taps(num_heads, *kernel_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to x (B, N, E)."""
        return self.merged(self.attention(*self.heads(x), self.taps, self.causal))

    def new_cache(self, batch: int, capacity: int = 64) -> KVCache:
        """Create an empty cache for `batch` sequences, with the layer's sizes, device and dtype."""
        like = self.in_proj_weight
        return KVCache(
            batch,
            self.num_heads,
            like.shape[1] // self.num_heads,
            self.taps.shape[1],
            capacity,
            like.device,
            like.dtype,
        )

    @torch.no_grad()
    def prefill(self, x: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Return forward(x) without gradients, and append the tokens x (B, N, E) to the empty `cache`."""
        if cache.length:
            raise ValueError(
                f"argument cache has length {cache.length}; wanted an empty one: make it with new_cache, or"
                " take one token at a time"
            )
        q, k, v = self.heads(x)
        self.check_cache(cache, x)
        cache.append(q, k, v)  # after all checks, so that an error leaves the cache unchanged
        return self.merged(self.attention(q, k, v, self.taps, True))

    @torch.no_grad()
    def step(self, x: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Append one token x (B, 1, E) to `cache`, and return the row that `forward` would compute for it,
        (B, 1, E), without gradients."""
        q, k, v = self.heads(x)
        check_one_token(x)
        self.check_cache(cache, x)
        cache.append(q, k, v)
        return self.merged(self.decode(cache.queries, cache.keys, cache.values, self.taps))

    def check_cache(self, cache: KVCache, x: torch.Tensor) -> None:
        """Raise ValueError unless the layer is causal, and the cache matches its sizes, device and dtype and
        x's batch."""
        check_causal(self.causal)
        like = self.in_proj_weight
        head_dim, window = like.shape[1] // self.num_heads, self.taps.shape[1]
        sizes = dict(heads=self.num_heads, head_dim=head_dim, window=window)
        check_cache(cache, batch=x.shape[0], **sizes, device=like.device, dtype=like.dtype)
