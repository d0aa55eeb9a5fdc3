"""MultiTokenAttention: the multi-token layer with projections, rotary embedding and a cache.

`from_published` converts published checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernels.common.arguments import MAX_HEAD_DIM, MOST_TAPS
from kernels.common.kv_cache import KVCache, check_cache
from kernels.multi_token.kernels import MOST_GROUP
from kernels.multi_token.operators import multi_token_attention, multi_token_attention_decode
from kernels.reference import identity_taps


class MultiTokenAttention(nn.Module):
    """Causal multi-token self-attention (`kernels.reference.multi_token_attention`) between linear
    projections.

    embed_dim: E, a multiple of num_heads unless head_dim is given.
    kernel_size, after_kernel_size: (c_q, c_k) of the convolutions before and after the softmax, each from 1
        to 15; None omits the convolution.
    head_group, after_head_group: the number of neighbouring heads that each map mixes, a divisor of num_heads
        and at most 32; None omits the map.
    kv_heads: the number of heads of keys and values, a divisor of num_heads. Each is shared by neighbouring
        query heads.
    head_dim: d <= 128.
    norm, gate: whether to apply an RMSNorm and a gate to the output of each head.
    rotary_base: the base of the rotary embedding of queries and keys; None omits it. As in the published
        code, it rotates pairs of adjacent elements.
    bias: whether the projections have a bias.
    attention: function for many tokens.
    decode: function for one more token.

    All operations are initialised to the identity, except the gate, which starts half open. Parameters may be
    float32, bfloat16 or float16. Pass the functions of `kernels.reference` for float64, and on CPUs, where
    the kernels would be simulated.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: tuple[int, int] | None = (6, 11),
        after_kernel_size: tuple[int, int] | None = (6, 11),
        head_group: int | None = None,
        after_head_group: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        norm: bool = True,
        gate: bool = True,
        rotary_base: float | None = 10000.0,
        bias: bool = False,
        attention: Callable[..., torch.Tensor] = multi_token_attention,
        decode: Callable[..., torch.Tensor] = multi_token_attention_decode,
    ) -> None:
        super().__init__()
        self.num_heads, self.kv_heads = num_heads, num_heads if kv_heads is None else kv_heads
        self.head_dim = checked_head_dim(embed_dim, num_heads, self.kv_heads, head_dim)
        self.rotary_base, self.attention, self.decode = rotary_base, attention, decode
        if rotary_base is not None and self.head_dim % 2:
            raise ValueError(f"the head size is {self.head_dim}; wanted an even one for a rotary embedding")
        if rotary_base is not None and not rotary_base > 0:
            raise ValueError(f"argument rotary_base is {rotary_base}; wanted more than 0, or None for none")
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias)
        self.taps = new_taps("kernel_size", num_heads, kernel_size)
        self.head_map = new_map("head_group", num_heads, head_group)
        self.after_taps = new_taps("after_kernel_size", num_heads, after_kernel_size)
        self.after_head_map = new_map("after_head_group", num_heads, after_head_group)
        self.norm = nn.Parameter(torch.ones(self.head_dim)) if norm else None
        # zeros, because sigmoid(0) = 1/2 leaves the gate half open
        self.gate_weight = nn.Parameter(torch.zeros(self.head_dim)) if gate else None
        self.gate_bias = nn.Parameter(torch.zeros(())) if gate else None

    @property
    def window(self) -> int:
        """The number of queries, c_q + after_c_q - 1, on which a token's row depends, including its own."""
        return 1 + sum(taps.shape[1] - 1 for taps in (self.taps, self.after_taps) if taps is not None)

    @property
    def parts(self) -> dict[str, Any]:
        """The parameters of the layer's operations, as keyword arguments of `multi_token_attention`."""
        return dict(
            taps=self.taps,
            head_map=self.head_map,
            after_taps=self.after_taps,
            after_head_map=self.after_head_map,
            norm=self.norm,
            gate=None if self.gate_weight is None else (self.gate_weight, self.gate_bias),
        )

    def heads(self, x: torch.Tensor, first: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project x (B, N, E) to queries (B, H, N, d), keys and values (B, H_kv, N, d).

        first: the position of the first token, for the rotary embedding.
        """
        if x.ndim != 3 or x.shape[2] != self.q_proj.in_features:
            raise ValueError(
                f"argument x has shape {tuple(x.shape)}; wanted (B, N, {self.q_proj.in_features})"
            )
        q, k, v = (
            projected.unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        if self.rotary_base is None:
            return q, k, v
        return rotated(q, first, self.rotary_base), rotated(k, first, self.rotary_base), v

    def merged(self, y: torch.Tensor) -> torch.Tensor:
        """Concatenate the heads' outputs (B, H, N, d), and project them to (B, N, E)."""
        return self.out_proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, documents: Sequence[int] | torch.Tensor | None = None) -> torch.Tensor:
        """Apply the layer to x (B, N, E).

        documents: the start of each document of a packed sequence, as for `multi_token_attention`.
        """
        q, k, v = self.heads(x)
        return self.attend(q, k, v, documents)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        documents: Sequence[int] | torch.Tensor | None = None,
    ) -> torch.Tensor:
        # expand keys and values for each query head; decoding reads the shared heads without a copy
        k, v = (tensor.repeat_interleave(self.num_heads // self.kv_heads, 1) for tensor in (k, v))
        return self.merged(self.attention(q, k, v, **self.parts, documents=documents))

    def new_cache(self, batch: int, capacity: int = 64) -> KVCache:
        """Create an empty cache for `batch` sequences, with the layer's sizes, device and dtype."""
        like = self.q_proj.weight
        sizes = batch, self.kv_heads, self.head_dim, self.window, capacity
        return KVCache(*sizes, like.device, like.dtype, query_heads=self.num_heads)

    @torch.no_grad()
    def prefill(self, x: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Return forward(x) without gradients, and append the tokens x (B, N, E) to the empty `cache`."""
        q, k, v = self.heads(x)
        self.check_cache(cache, x)
        if cache.length:
            raise ValueError(
                f"argument cache has length {cache.length}; wanted an empty one: make it with new_cache, or"
                " take one token at a time"
            )
        cache.append(q, k, v)
        return self.attend(q, k, v)

    @torch.no_grad()
    def step(self, x: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Append one token x (B, 1, E) to `cache`, and return the row that `forward` would compute for it,
        (B, 1, E), without gradients."""
        if x.ndim != 3 or x.shape[1] != 1:
            raise ValueError(
                f"argument x has shape {tuple(x.shape)}; wanted (B, 1, E): a step takes one token, and"
                " prefill several"
            )
        self.check_cache(cache, x)
        q, k, v = self.heads(x, cache.length)
        cache.append(q, k, v)
        return self.merged(self.decode(cache.queries, cache.keys, cache.values, **self.parts))

    def check_cache(self, cache: KVCache, x: torch.Tensor) -> None:
        """Raise ValueError unless the cache matches this layer's sizes, device and dtype, and the batch size
        of x."""
        weight = self.q_proj.weight
        sizes = dict(heads=self.kv_heads, query_heads=self.num_heads, head_dim=self.head_dim)
        like = dict(device=weight.device, dtype=weight.dtype)
        check_cache(cache, batch=x.shape[0], **sizes, window=self.window, **like)


# Parts ------------------------------------------------------------------------------------------------------


def checked_head_dim(embed_dim: int, num_heads: int, kv_heads: int, head_dim: int | None) -> int:
    """Return d; raise ValueError if the head counts do not divide evenly, or if d is not in 1 to 128."""
    if num_heads < 1 or (head_dim is None and embed_dim % num_heads):
        raise ValueError(f"argument embed_dim is {embed_dim}; wanted a multiple of num_heads, {num_heads}")
    if kv_heads < 1 or num_heads % kv_heads:
        raise ValueError(f"argument kv_heads is {kv_heads}; wanted a divisor of num_heads, {num_heads}")
    head_dim = embed_dim // num_heads if head_dim is None else head_dim
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"the head size is {head_dim}; wanted one from 1 to {MAX_HEAD_DIM}")
    return head_dim


def new_taps(name: str, heads: int, size: tuple[int, int] | None) -> nn.Parameter | None:
    """Create the identity taps, a parameter (H, c_q, c_k); return None if the size is None."""
    if size is None:
        return None
    pair = isinstance(size, (tuple, list)) and len(size) == 2
    if not pair or not all(isinstance(length, int) and 1 <= length <= MOST_TAPS for length in size):
        raise ValueError(f"argument {name} is {size}; wanted (c_q, c_k), each from 1 to {MOST_TAPS}, or None")
    return nn.Parameter(identity_taps(heads, *size))


def new_map(name: str, heads: int, group: int | None) -> nn.Parameter | None:
    """Create the identity map, a parameter (H / group, group, group); return None if the group is None."""
    if group is None:
        return None
    if group not in range(1, MOST_GROUP + 1) or heads % group:
        raise ValueError(
            f"argument {name} is {group}; wanted a divisor of num_heads, {heads}, of at most {MOST_GROUP}, or"
            " None"
        )
    return nn.Parameter(torch.eye(group).repeat(heads // group, 1, 1))


def rotated(x: torch.Tensor, first: int, base: float) -> torch.Tensor:
    """Apply a rotary embedding to x (B, H, N, d).

    Pair i of adjacent elements is rotated by the angle position · base^(-2 i / d). Source: Su et al. 2021,
    arXiv 2104.09864.
    """
    n, d = x.shape[2:]
    place = torch.arange(first, first + n, device=x.device, dtype=torch.float32)
    turns = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    # compute angles in float32 or wider: bfloat16 cannot represent positions above 256 exactly
    angle = (place[:, None] * turns).to(torch.promote_types(x.dtype, torch.float32))
    cosine, sine = angle.cos(), angle.sin()
    even, odd = x.unflatten(3, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
    return turned.flatten(3).to(x.dtype)


# The published layer ----------------------------------------------------------------------------------------


PUBLISHED = {
    "wq.weight": ("q_proj.weight", lambda x: x),
    "wk.weight": ("k_proj.weight", lambda x: x),
    "wv.weight": ("v_proj.weight", lambda x: x),
    "wo.weight": ("out_proj.weight", lambda x: x),
    "mta_kernel": ("taps", lambda x: x[:, 0]),  # (H, 1, c_q, c_k)
    "wpsm.weight": ("head_map", lambda x: x[None]),
    "mta_kernel_after_sm": ("after_taps", lambda x: x[:, 0]),
    "wposm.weight": ("after_head_map", lambda x: x[None]),
    # (H / s, s, s), transposed because it multiplies from the right
    "head_kernel": ("after_head_map", lambda x: x.mT),
    "subln.weight": ("norm", lambda x: x),
    "gate.weight": ("gate_weight", lambda x: x[0]),  # (1, d)
    "gate.bias": ("gate_bias", lambda x: x[0]),
}


def from_published(state_dict: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    """Convert the state_dict of the published `Attention` to the state_dict of a MultiTokenAttention. Tensors
    are shared, not copied.

    prefix: the prefix of the published layer's names in `state_dict`, such as "layers.2.attention."

        published name         name here                                notes
        wq wk wv wo .weight    q_proj k_proj v_proj out_proj .weight    no bias in the published layer
        mta_kernel             taps                                     (H, 1, c_q, c_k), the 1 is dropped
        wpsm.weight            head_map                                 one group of all heads
        mta_kernel_after_sm    after_taps
        head_kernel            after_head_map                           transposed; or wposm.weight, one group
        subln.weight           norm
        gate.weight, .bias     gate_weight, gate_bias                   (1, d) and (1,), the 1 is dropped

    Source: projects/mta/mta_transformer.py of github.com/facebookresearch/RAM, read 2026-11-22. Its
        layer_norm_rescale is a factor of `norm` that no checkpoint contains; multiply `norm` by it if needed.

    Raise ValueError for an unknown name, for two names of the same parameter, if no name starts with
    `prefix`, and for a d × d gate (gate_1d off), which MultiTokenAttention does not support.
    """
    if not any(name.startswith(prefix) for name in state_dict):
        raise ValueError(f"argument prefix is {prefix!r}, with which no name of the state_dict begins")
    ours = {}
    for name, tensor in state_dict.items():
        if not name.startswith(prefix):
            continue
        published = name.removeprefix(prefix)
        if published not in PUBLISHED:
            raise ValueError(f"the state_dict has {name!r}; wanted one of {prefix}({', '.join(PUBLISHED)})")
        if published == "gate.weight" and tensor.shape[0] != 1:
            raise ValueError(
                f"the state_dict's {name!r} has shape {tuple(tensor.shape)}; wanted (1, d), a gate by head"
            )
        target, adapted = PUBLISHED[published]
        if target in ours:
            raise ValueError(f"the state_dict's {name!r} is a second {target}; wanted one of the two")
        ours[target] = adapted(tensor)
    return ours
