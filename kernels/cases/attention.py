"""The attention functions in the form that a Case needs: tensors in, a tuple of outputs out.

For each kind of attention, this file defines calls of the kernels, the reference and the tiled reference.
"""

import torch

from kernels.conv import backward as conv_backward
from kernels.conv import decode as conv_decode
from kernels.multi_token import bands as multi_token_bands
from kernels.multi_token import decode as multi_token_decode
from kernels.reference import (
    attention,
    conv_attention,
    conv_attention_backward,
    conv_scores,
    conv_tiled,
    scores,
)
from kernels.reference.tiled import Traffic, queries_outer


def attention_and_log_sum(q, k, v):
    return attention(q, k, v, causal=True), torch.logsumexp(scores(q, k, causal=True), dim=-1)


def tile_by_tile(q, k, v):
    heads = [queries_outer(*head, 16, 16, Traffic(), causal=True) for head in zip(q[0], k[0], v[0])]
    return (torch.stack(heads)[None],)


def conv_and_log_sum(q, k, v, w):
    return conv_attention(q, k, v, w), torch.logsumexp(conv_scores(q, k, w), dim=-1)


def conv_tile_by_tile(q, k, v, w):
    heads = [conv_tiled.forward(*head, (32, 32), Traffic()) for head in zip(q[0], k[0], v[0], w)]
    return tuple(torch.stack(outputs)[None] for outputs in zip(*heads))


def conv_gradients(q, k, v, w, d_o):
    return conv_attention_backward(q, k, v, w, *conv_and_log_sum(q, k, v, w), d_o)


def conv_gradients_tile_by_tile(q, k, v, w, d_o):
    o, log_sum = conv_and_log_sum(q, k, v, w)
    heads = []
    for given in zip(q[0], k[0], v[0], w, log_sum[0], (d_o * o).sum(-1)[0], d_o[0]):
        d_q, d_w = conv_tiled.backward_queries(*given, (32, 32), Traffic())
        heads.append((d_q, *conv_tiled.backward_keys(*given, (32, 32), Traffic()), d_w))
    d_q, d_k, d_v, d_w = (torch.stack(gradients) for gradients in zip(*heads))
    return d_q[None], d_k[None], d_v[None], d_w


def conv_gradients_by_kernels(q, k, v, w, d_o, run=None):
    """Run the backward pass with O and L from the reference, so that only backward kernels are launched."""
    return conv_backward.conv_backward(q, k, v, w, *conv_and_log_sum(q, k, v, w), d_o, run=run)


def decode(q, k, v, w, run=None):
    return (conv_decode.conv_attention_decode(q[:, :, -w.shape[1] :], k, v, w, splits=3, run=run),)


def layer_of(*parts):
    return multi_token_bands.Layer(*parts, 0.25, True)


def multi_token(q, k, v, *parts, run=None):
    return (multi_token_bands.forward(q, k, v, layer_of(*parts), run=run),)


def multi_token_row(q, k, v, *parts, run=None):
    layer = layer_of(*parts)
    rows = 1 + layer.above + layer.after_above
    return (multi_token_decode.decode(q[:, :, -rows:].contiguous(), k, v, layer, splits=3, run=run),)


def multi_token_gradients(q, k, v, *parts, run=None):
    """Run the backward pass with v as the gradient of O."""
    return tuple(multi_token_bands.backward(q, k, v, layer_of(*parts), v, run=run).values())
