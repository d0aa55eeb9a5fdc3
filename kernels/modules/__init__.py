"""The kernels as layers (nn.Module) with projections and caches.

A layer maps x (B, N, E) to (B, N, E). For decoding, `new_cache` creates a cache, `prefill` fills it with a
prompt, and `step` processes one more token.

    attention.py     FusedAttention and ConvAttention, with the parameters of nn.MultiheadAttention
    latent.py        LatentAttention, which caches latents instead of keys and values
    multi_token.py   MultiTokenAttention, with rotary embedding; loads published checkpoints
"""
