"""The kernels as layers (nn.Module) with projections and caches.

A layer takes x (B, N, E) and returns (B, N, E). For decoding, `new_cache` makes a cache, `prefill` fills it
with a prompt, and `step` adds one token.

    attention.py     FusedAttention and ConvAttention, with the parameters of nn.MultiheadAttention
    latent.py        LatentAttention, which caches latents instead of keys and values
    multi_token.py   MultiTokenAttention, with rotary embedding; loads published checkpoints
"""
