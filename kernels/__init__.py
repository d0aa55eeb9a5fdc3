"""Public functions and modules of the course's kernels, imported lazily on first access."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers do not run `__getattr__`
    from kernels.common.kv_cache import KVCache as KVCache
    from kernels.common.kv_cache import LatentCache as LatentCache
    from kernels.common.warm_up import compile_for as compile_for
    from kernels.conv.decode import conv_attention_decode as conv_attention_decode
    from kernels.conv.operators import conv_attention as conv_attention
    from kernels.distributed import conv_attention_decode_sharded as conv_attention_decode_sharded
    from kernels.distributed import conv_attention_sharded as conv_attention_sharded
    from kernels.flash.decode import flash_attention_decode as flash_attention_decode
    from kernels.flash.forward import flash_attention as flash_attention
    from kernels.flash.warp import warp_attention as warp_attention
    from kernels.latent.decode import latent_attention_decode as latent_attention_decode
    from kernels.latent.operators import latent_attention as latent_attention
    from kernels.modules.attention import ConvAttention as ConvAttention
    from kernels.modules.attention import FusedAttention as FusedAttention
    from kernels.modules.latent import LatentAttention as LatentAttention
    from kernels.modules.multi_token import MultiTokenAttention as MultiTokenAttention
    from kernels.multi_token.operators import multi_token_attention as multi_token_attention
    from kernels.multi_token.operators import multi_token_attention_decode as multi_token_attention_decode
    from kernels.reference import attention as attention

# public name -> the module that defines it
_HOME = {
    "attention": "kernels.reference",
    "compile_for": "kernels.common.warm_up",
    "flash_attention": "kernels.flash.forward",
    "flash_attention_decode": "kernels.flash.decode",
    "warp_attention": "kernels.flash.warp",
    "conv_attention": "kernels.conv.operators",
    "conv_attention_decode": "kernels.conv.decode",
    "conv_attention_sharded": "kernels.distributed",
    "conv_attention_decode_sharded": "kernels.distributed",
    "multi_token_attention": "kernels.multi_token.operators",
    "multi_token_attention_decode": "kernels.multi_token.operators",
    "FusedAttention": "kernels.modules.attention",
    "ConvAttention": "kernels.modules.attention",
    "MultiTokenAttention": "kernels.modules.multi_token",
    "KVCache": "kernels.common.kv_cache",
    "latent_attention": "kernels.latent.operators",
    "latent_attention_decode": "kernels.latent.decode",
    "LatentAttention": "kernels.modules.latent",
    "LatentCache": "kernels.common.kv_cache",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
        globals()[name] = found  # the next access finds the attribute and does not call this function
        return found
    raise AttributeError(f"module 'kernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
