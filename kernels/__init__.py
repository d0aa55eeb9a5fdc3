"""The public functions of the course's kernels, each imported when it is first asked for."""

from importlib import import_module

_HOME = {
    "attention": "kernels.reference",
    "flash_attention": "kernels.flash_forward",
    "warp_attention": "kernels.warp_forward",
    "conv_attention": "kernels.conv_operators",
    "conv_attention_decode": "kernels.conv_decode",
    "conv_attention_sharded": "kernels.distributed",
    "conv_attention_decode_sharded": "kernels.distributed",
    "multi_token_attention": "kernels.multi_token_operators",
    "multi_token_attention_decode": "kernels.multi_token_operators",
    "FusedAttention": "kernels.modules",
    "ConvAttention": "kernels.modules",
    "MultiTokenAttention": "kernels.multi_token_module",
    "KVCache": "kernels.kv_cache",
    "latent_attention": "kernels.latent_operators",
    "latent_attention_decode": "kernels.latent_decode",
    "LatentAttention": "kernels.latent_modules",
    "LatentCache": "kernels.latent_modules",
}

__all__ = sorted(_HOME)


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kernels' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_HOME})
