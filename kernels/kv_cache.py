"""KVCache: the keys, the values and the last queries of the tokens so far, for a layer that takes one token
at a time."""

import torch


class KVCache:
    """Room for `capacity` tokens, made beforehand, and twice as much whenever it is full.

    `keys` and `values` are views (B, H, length, d) of larger buffers, so that a new token costs one row and
    no copy; `queries` are those of the last min(window, length) tokens, (B, H, R, d). window: c_q of the
    layer, the rows that its convolution reaches over. query_heads: of queries, where they have more heads
    than keys and values.
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
        sizes = dict(
            batch=batch,
            heads=heads,
            head_dim=head_dim,
            window=window,
            capacity=capacity,
            query_heads=query_heads,
        )
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"argument {name} is {size}; wanted at least 1")
        self.batch, self.heads, self.head_dim, self.window = batch, heads, head_dim, window
        self.query_heads = query_heads
        self.length = 0
        self.buffers = torch.empty(2, batch, heads, capacity, head_dim, device=device, dtype=dtype)
        self.queries = self.buffers.new_empty(batch, query_heads, 0, head_dim)

    @property
    def capacity(self) -> int:
        """For how many tokens there is room before the buffers grow."""
        return self.buffers.shape[3]

    @property
    def device(self) -> torch.device:
        return self.buffers.device

    @property
    def dtype(self) -> torch.dtype:
        return self.buffers.dtype

    @property
    def keys(self) -> torch.Tensor:
        return self.buffers[0, :, :, : self.length]

    @property
    def values(self) -> torch.Tensor:
        return self.buffers[1, :, :, : self.length]

    def append(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add the queries, keys and values (B, H, n, d) of n more tokens."""
        heads = {"q": self.query_heads, "k": self.heads, "v": self.heads}
        for name, tensor in {"q": q, "k": k, "v": v}.items():
            wanted = (self.batch, heads[name], q.shape[2], self.head_dim)
            if tuple(tensor.shape) != wanted:
                raise ValueError(
                    f"argument {name} has shape {tuple(tensor.shape)}; wanted (B, H, n, d) of the cache,"
                    f" {wanted}"
                )
        first, self.length = self.length, self.length + q.shape[2]
        self.make_room()
        self.buffers[0, :, :, first : self.length] = k
        self.buffers[1, :, :, first : self.length] = v
        self.queries = torch.cat([self.queries, q], dim=2)[:, :, -self.window :].contiguous()

    def make_room(self) -> None:
        """Double the buffers until `length` tokens fit; what was there is copied."""
        capacity = self.capacity
        while capacity < self.length:
            capacity *= 2
        if capacity > self.capacity:
            old = self.buffers
            self.buffers = old.new_empty(2, self.batch, self.heads, capacity, self.head_dim)
            self.buffers[:, :, :, : old.shape[3]] = old
