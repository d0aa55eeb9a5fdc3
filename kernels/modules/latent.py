"""LatentAttention: self-attention that caches latents instead of keys and values."""

from collections.abc import Callable

import torch
from torch import nn

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.kv_cache import LatentCache, check_cache, check_causal, check_one_token, check_sizes
from kernels.latent.decode import latent_attention_decode
from kernels.latent.operators import latent_attention


class LatentAttention(nn.Module):
    """Self-attention whose heads share latent keys and values: `latent_attention` between projections.

    embed_dim: E, a multiple of num_heads; E / num_heads <= 128.
    latent_dim: L, at most 128. A cache stores 2·L elements per token: L for the key and L for the value.
    window: the number of latest keys that the reciprocal term covers.
    alpha: the initial weight of the reciprocal term; it is a parameter if window > 0.
    bias: whether the projections have a bias.
    causal: token i sees only the tokens j <= i.
    attention: function (q, k_latent, v_latent, w_q, w_v, alpha, window, causal, q_before=) for many tokens.
    decode: function (q_window, k_latent, v_latent, w_q, w_v, alpha, window) for one more token.

    Pass the functions of `kernels.reference` for dtypes other than float32, and on CPUs, where the kernels
    would be simulated.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        latent_dim: int,
        window: int = 0,
        alpha: float = 0.0,
        bias: bool = True,
        causal: bool = True,
        attention: Callable[..., torch.Tensor] = latent_attention,
        decode: Callable[..., torch.Tensor] = latent_attention_decode,
    ) -> None:
        super().__init__()
        check_sizes(embed_dim=embed_dim, num_heads=num_heads, latent_dim=latent_dim)
        check_sizes(least=0, window=window)
        if embed_dim % num_heads:
            raise ValueError(
                f"argument embed_dim is {embed_dim}; wanted a multiple of num_heads, {num_heads}"
            )
        head_dim = embed_dim // num_heads
        for name, size in {"embed_dim / num_heads": head_dim, "latent_dim": latent_dim}.items():
            if not 1 <= size <= MAX_HEAD_DIM:
                raise ValueError(f"{name} is {size}; wanted 1 to {MAX_HEAD_DIM}")
        self.num_heads, self.window, self.causal = num_heads, window, causal
        self.attention, self.decode = attention, decode
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias)
        self.latent_proj = nn.Linear(embed_dim, 2 * latent_dim, bias)
        self.w_q = nn.Parameter(torch.empty(num_heads, head_dim, latent_dim))
        self.w_v = nn.Parameter(torch.empty(num_heads, latent_dim, head_dim))
        self.alpha = nn.Parameter(torch.tensor(float(alpha))) if window else 0.0
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias)
        # keep the variance of the projected tensors equal to the variance of their inputs
        nn.init.normal_(self.w_q, std=head_dim**-0.5)
        nn.init.normal_(self.w_v, std=latent_dim**-0.5)

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project x (B, N, E) to queries (B, H, N, d) and two latents, both (B, N, L)."""
        if x.ndim != 3 or x.shape[2] != self.q_proj.in_features:
            raise ValueError(
                f"argument x has shape {tuple(x.shape)}; wanted (B, N, {self.q_proj.in_features})"
            )
        q = self.q_proj(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        return q, *self.latent_proj(x).chunk(2, dim=2)

    def merged(self, o: torch.Tensor) -> torch.Tensor:
        """Concatenate the heads' outputs (B, H, N, d), and project them to (B, N, E)."""
        return self.out_proj(o.transpose(1, 2).flatten(2))

    @property
    def shared(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | float, int]:
        """(W_q, W_v, alpha, window): the arguments that forward and decode share."""
        return self.w_q, self.w_v, self.alpha, self.window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to x (B, N, E)."""
        return self.merged(self.attention(*self.projected(x), *self.shared, self.causal))

    def new_cache(self, batch: int, capacity: int = 64) -> LatentCache:
        """Create an empty cache for `batch` sequences, with the layer's sizes, device and dtype."""
        heads, head_dim, latent_dim = self.w_q.shape
        sizes = batch, heads, head_dim, latent_dim, self.window, capacity
        return LatentCache(*sizes, self.w_q.device, self.w_q.dtype)

    @torch.no_grad()
    def prefill(self, x: torch.Tensor, cache: LatentCache) -> torch.Tensor:
        """Append the tokens x (B, N, E) to `cache`, and return the rows that `forward` would compute for
        them, without gradients.

        A prompt may be split over several calls.
        """
        q, k_latent, v_latent = self.projected(x)
        self.check_cache(cache, x)
        # queries of earlier tokens, for the reciprocal terms of their keys
        before = cache.queries if cache.length else None
        cache.append(q, k_latent, v_latent)
        o = self.attention(q, cache.keys, cache.values, *self.shared, True, q_before=before)
        return self.merged(o)

    @torch.no_grad()
    def step(self, x: torch.Tensor, cache: LatentCache) -> torch.Tensor:
        """Append one token x (B, 1, E) to `cache`, and return the row that `forward` would compute for it,
        (B, 1, E), without gradients."""
        q, k_latent, v_latent = self.projected(x)
        check_one_token(x)
        self.check_cache(cache, x)
        cache.append(q, k_latent, v_latent)
        return self.merged(self.decode(cache.queries, cache.keys, cache.values, *self.shared))

    def check_cache(self, cache: LatentCache, x: torch.Tensor) -> None:
        """Raise ValueError unless the layer is causal, and the cache matches the layer's sizes, device and
        dtype, and the batch size of x."""
        check_causal(self.causal)
        heads, head_dim, latent_dim = self.w_q.shape
        sizes = dict(heads=heads, head_dim=head_dim, latent_dim=latent_dim, window=self.window)
        like = dict(device=self.w_q.device, dtype=self.w_q.dtype)
        check_cache(cache, batch=x.shape[0], **sizes, **like)
