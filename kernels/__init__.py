"""The public functions of the course's kernels, each imported when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same for type checkers
    from kernels.conv_decode import conv_attention_decode as conv_attention_decode
    from kernels.conv_operators import conv_attention as conv_attention
    from kernels.distributed import conv_attention_decode_sharded as conv_attention_decode_sharded
    from kernels.distributed import conv_attention_sharded as conv_attention_sharded
    from kernels.flash_forward import flash_attention as flash_attention
    from kernels.kv_cache import KVCache as KVCache
    from kernels.kv_cache import LatentCache as LatentCache
    from kernels.latent_decode import latent_attention_decode as latent_attention_decode
    from kernels.latent_modules import LatentAttention as LatentAttention
    from kernels.latent_operators import latent_attention as latent_attention
    from kernels.modules import ConvAttention as ConvAttention
    from kernels.modules import FusedAttention as FusedAttention
    from kernels.multi_token_module import MultiTokenAttention as MultiTokenAttention
    from kernels.multi_token_operators import multi_token_attention as multi_token_attention
    from kernels.multi_token_operators import multi_token_attention_decode as multi_token_attention_decode
    from kernels.reference import attention as attention
    from kernels.warp_forward import warp_attention as warp_attention

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
    "LatentCache": "kernels.kv_cache",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
