"""KVCache and LatentCache: the keys, values and latest queries that decoding reuses for each new token."""

from numbers import Integral

import torch

from kernels.common.arguments import check


class Cache:
    """A growing cache of keys and values, and of the queries of the latest tokens.

    Buffers double in size when they are full. `keys` and `values` are views (..., length, width) of the
    buffers, so appending a token writes one row and copies nothing else. `queries` (B, H, R, d) holds the
    queries of the last R = min(reach, length) tokens. New elements are converted to the cache's dtype.
    """

    # arguments of `append`, with the letters of their dimensions (kernels.common.arguments)
    ARGUMENTS = {"q": "B H n head_dim", "k": "B H_kv n head_dim", "v": "B H_kv n head_dim"}

    def __init__(
        self,
        rows: tuple[int, ...],
        queries: tuple[int, int, int],
        reach: int,
        device: torch.device | str | None,
        dtype: torch.dtype,
    ) -> None:
        """Allocate the buffers.

        rows: (..., capacity, width), the shape of the key buffer and of the value buffer.
        queries: (B, H, d).
        reach: the number of latest queries to keep.
        """
        self.buffers = torch.empty(2, *rows, device=device, dtype=dtype)
        self.queries = self.buffers.new_empty(*queries[:2], 0, queries[2])
        self.reach, self.length = reach, 0

    @property
    def capacity(self) -> int:
        """The number of tokens that fit before the buffers grow."""
        return self.buffers.shape[-2]

    @property
    def device(self) -> torch.device:
        return self.buffers.device

    @property
    def dtype(self) -> torch.dtype:
        return self.buffers.dtype

    @property
    def keys(self) -> torch.Tensor:
        return self.buffers[0, ..., : self.length, :]

    @property
    def values(self) -> torch.Tensor:
        return self.buffers[1, ..., : self.length, :]

    @torch.no_grad()  # otherwise the buffers would keep alive the autograd graphs of all tokens so far
    def append(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Append n tokens: queries (B, H, n, d), and keys and values (..., n, width). Gradients are not
        recorded."""
        self.check(q, k, v)
        first, self.length = self.length, self.length + q.shape[2]
        self.make_room()
        self.buffers[0, ..., first : self.length, :] = k
        self.buffers[1, ..., first : self.length, :] = v
        queries = torch.cat([self.queries, q.to(self.dtype)], dim=2)
        # a copy, so that the older queries can be freed
        self.queries = queries[:, :, -self.reach :].contiguous()

    def check(self, *tensors: torch.Tensor) -> None:
        """Raise an error unless all tensors match the cache's sizes and device, and have the same number of
        tokens."""
        sizes: dict[str, int] = {}
        for letters, held in zip(self.ARGUMENTS.values(), (self.queries, *self.buffers)):
            sizes |= zip(letters.split(), held.shape)
        del sizes["n"]
        given = {name: (x, letters) for (name, letters), x in zip(self.ARGUMENTS.items(), tensors)}
        check(given, None, sizes=sizes, like=("cache", self))

    def make_room(self) -> None:
        """Double the buffers until `length` tokens fit, keeping their contents."""
        capacity = self.capacity
        while capacity < self.length:
            capacity *= 2
        if capacity > self.capacity:
            old = self.buffers
            self.buffers = old.new_empty(*old.shape[:-2], capacity, old.shape[-1])
            self.buffers[..., : old.shape[-2], :] = old


class KVCache(Cache):
    """A Cache with keys and values per head, (B, H, length, d).

    window: the layer's c_q. The convolution reads this many query rows, so the cache keeps that many.
    query_heads: the number of query heads, if it differs from the number of key and value heads.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        head_dim: int,
        window: int,
        capacity: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        query_heads: int | None = None,
    ) -> None:
        query_heads = heads if query_heads is None else query_heads
        check_sizes(
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            window=window,
            capacity=capacity,
            query_heads=query_heads,
        )
        self.batch, self.heads, self.head_dim, self.window = batch, heads, head_dim, window
        self.query_heads = query_heads
        queries = batch, query_heads, head_dim
        super().__init__((batch, heads, capacity, head_dim), queries, window, device, dtype)


class LatentCache(Cache):
    """A Cache of latents shared by all heads: keys and values are (B, length, L), 2·L elements per token.

    window: the number of latest keys that the reciprocal term covers; the last max(window, 1) queries are
        kept.
    """

    ARGUMENTS = {"q": "B H n head_dim", "k_latent": "B n L", "v_latent": "B n L"}

    def __init__(
        self,
        batch: int,
        heads: int,
        head_dim: int,
        latent_dim: int,
        window: int = 0,
        capacity: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_sizes(batch=batch, heads=heads, head_dim=head_dim, latent_dim=latent_dim, capacity=capacity)
        check_sizes(least=0, window=window)
        self.batch, self.heads, self.head_dim, self.latent_dim = batch, heads, head_dim, latent_dim
        self.window = window
        queries = batch, heads, head_dim
        super().__init__((batch, capacity, latent_dim), queries, max(window, 1), device, dtype)


def check_sizes(least: int = 1, **sizes: int) -> None:
    """Raise an error unless all sizes are integers of at least `least`."""
    for name, size in sizes.items():
        if not isinstance(size, Integral):
            raise TypeError(f"argument {name} is {size!r}; wanted a whole number")
        if size < least:
            raise ValueError(f"argument {name} is {size}; wanted at least {least}")


def check_cache(cache: Cache, **wanted: object) -> None:
    """Raise ValueError unless the cache's attributes equal the expected values."""
    for name, value in wanted.items():
        if (got := getattr(cache, name, None)) != value:
            raise ValueError(
                f"argument cache has {name} = {got}; wanted {value}: make it with"
                f" layer.new_cache({wanted['batch']})"
            )


def check_one_token(x: torch.Tensor) -> None:
    """Raise ValueError unless x (B, N, E) has one token, as `step` requires."""
    if x.shape[1] != 1:
        raise ValueError(
            f"argument x has {x.shape[1]} tokens; wanted 1: a step takes one, and prefill several"
        )


def check_causal(causal: bool) -> None:
    """Raise ValueError unless a layer that decodes is causal."""
    if not causal:
        raise ValueError(
            "the layer has causal = False; wanted True, as a token's row must not change when others follow"
        )
