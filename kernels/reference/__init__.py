"""Reference implementations of all kinds of attention, in plain PyTorch.

Read the files in this order:

    standard.py                  attention, with the N×N matrix in memory
    conv.py                      convolutional attention
    multi_token.py               the multi-token layer
    latent.py                    latent attention with a reciprocal term
    multi_token_gradients.py     the backward pass of the multi-token layer
    tiled.py                     flash attention tile by tile, counting the memory traffic
    conv_tiled.py, latent_tiled.py, multi_token_tiled.py
                                 the other kinds of attention tile by tile
"""

from kernels.reference.conv import conv_attention as conv_attention
from kernels.reference.conv import conv_attention_backward as conv_attention_backward
from kernels.reference.conv import conv_attention_decode as conv_attention_decode
from kernels.reference.conv import conv_attention_part as conv_attention_part
from kernels.reference.conv import conv_scores as conv_scores
from kernels.reference.conv import convolve as convolve
from kernels.reference.conv import identity_taps as identity_taps
from kernels.reference.conv import masked_scores as masked_scores
from kernels.reference.conv import tap_gradient as tap_gradient
from kernels.reference.conv import tap_sums as tap_sums
from kernels.reference.conv import transposed_convolve as transposed_convolve
from kernels.reference.latent import latent_attention as latent_attention
from kernels.reference.latent import latent_attention_decode as latent_attention_decode
from kernels.reference.multi_token import EPSILON as EPSILON
from kernels.reference.multi_token import after_weights as after_weights
from kernels.reference.multi_token import document_spans as document_spans
from kernels.reference.multi_token import gated_norm as gated_norm
from kernels.reference.multi_token import identity_map as identity_map
from kernels.reference.multi_token import in_groups as in_groups
from kernels.reference.multi_token import mix_heads as mix_heads
from kernels.reference.multi_token import mixed_scores as mixed_scores
from kernels.reference.multi_token import multi_token_attention as multi_token_attention
from kernels.reference.multi_token import multi_token_attention_decode as multi_token_attention_decode
from kernels.reference.multi_token import normed as normed
from kernels.reference.multi_token import seen as seen
from kernels.reference.multi_token import weights as weights
from kernels.reference.standard import above_diagonal as above_diagonal
from kernels.reference.standard import attention as attention
from kernels.reference.standard import attention_backward as attention_backward
from kernels.reference.standard import blind as blind
from kernels.reference.standard import outside as outside
from kernels.reference.standard import scores as scores
