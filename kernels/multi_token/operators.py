"""Public functions of the multi-token layer: argument checks, and custom operators for autograd and
torch.compile."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.common.arguments import (
    ANY_FLOAT,
    OR_FLOAT32,
    as_in_torch,
    check,
    checked_scale,
    in_autocasts_type,
)
from kernels.common.autograd import differentiable_once, operator
from kernels.common.graphs import replayed
from kernels.common.splits import checked_splits
from kernels.multi_token.bands import NAMES, Layer, backward, forward
from kernels.multi_token.decode import decode, fits_tensor_cores
from kernels.multi_token.kernels import MOST_GROUP
from kernels.reference import document_spans, gated_norm, in_groups

# maximum number of scores for which both passes are recorded as CUDA graphs; with more, they take longer on
# the GPU than in Python
MOST_REPLAYED = 2**22


def multi_token_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    taps: torch.Tensor | None = None,
    head_map: torch.Tensor | None = None,
    after_taps: torch.Tensor | None = None,
    after_head_map: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    gate: tuple[torch.Tensor, torch.Tensor] | None = None,
    causal: bool = True,
    scale: float | None = None,
    documents: Sequence[int] | torch.Tensor | None = None,
    *,
    is_causal: bool | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute the multi-token layer without its projections: y (B, H, N, d), like q, without N×N matrices in
    memory.

        S_h = scale · q_h k_hᵀ, 0 where masked           T_h = S_h convolved with the taps of head h
        T'_g = Σ_h M1[g, h] T_h                          P_g = softmax(T'_g), 0 where masked
        U_h = P_h convolved with the second taps, 0 where masked
        O_g = Σ_h M2[g, h] U_h v_g                       y = x · sigmoid(x·a + b), where x = RMSNorm(O)

    Source: Golovneva et al. 2025, arXiv 2504.00927. Each operation whose parameter is None is omitted.

    q, k, v: (B, H, N, d), float32, bfloat16 or float16, on one device, not empty, d <= 128.
    taps, after_taps: (H, c_q, c_k), each size from 1 to 15. These and the following parameters are float32 or
        have the dtype of q.
    head_map, after_head_map: M1 and M2, (H, H) or (H / s, s, s), with at most 32 heads per group.
    norm: (d,), the weight of the RMSNorm.
    gate: a pair (a, b), (d,) and one element.
    causal: query i sees the keys j <= i.
    scale: 1/sqrt(d) by default.
    documents: the first token of each document of a packed sequence. Documents are computed one by one, so
        many short ones need many launches.
    is_causal, enable_gqa: as for `kernels.conv_attention`.

    CPU tensors are simulated, and CUDA tensors run on their GPU. The function is differentiable once, with
    respect to all tensors. Under torch.compile, the layer up to O is one opaque operator. Under
    torch.autocast, q, k, v and y have autocast's dtype. Accumulators are float32. Scores are bfloat16 if q is
    (on tensor cores), and otherwise float32. PyTorch computes the products with q, k and v, so
    `torch.set_float32_matmul_precision` applies to them.

    The kernels' sums have a fixed order, so `torch.use_deterministic_algorithms(True)` changes nothing. For
    matrix products on a GPU, PyTorch may require the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8;
    its error message then names this variable. Raise TypeError or ValueError for an invalid argument; the
    message states the actual and the expected value.
    """
    causal, (q, k, v) = as_in_torch(causal, is_causal, enable_gqa, *in_autocasts_type(q, k, v))
    given = {name: (tensor, "B H N d") for name, tensor in (("q", q), ("k", k), ("v", v))}
    scale = checked_scale(scale, check(given, ANY_FLOAT, filled="B H N")["d"])
    *parts, norm, gate = layer_parts(q, taps, head_map, after_taps, after_head_map, norm, gate)
    spans = [(0, q.shape[2])] if documents is None else document_spans(documents, q.shape[2])
    o = [
        multi_token_forward_call(*(x[:, :, start:end] for x in (q, k, v)), *parts, bool(causal), float(scale))
        for start, end in spans
    ]
    return gated_norm(o[0] if len(o) == 1 else torch.cat(o, dim=2), norm, gate).to(q.dtype)


def multi_token_attention_decode(
    q_window: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    taps: torch.Tensor | None = None,
    head_map: torch.Tensor | None = None,
    after_taps: torch.Tensor | None = None,
    after_head_map: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    gate: tuple[torch.Tensor, torch.Tensor] | None = None,
    scale: float | None = None,
    splits: int | None = None,
    run: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Compute the last row of causal `multi_token_attention`, (B, H, 1, d), for one new token. It has no
    gradient.

    q_window: (B, H, R, d), the queries of the last R = min(c_q + after_c_q - 1, N_k) tokens, the new one
        last. For omitted (None) taps, c_q is 1.
    k, v: (B, H_kv, N_k, d), of all tokens including the new one. Each head is shared by H / H_kv neighbouring
        query heads. They may be views; they are not copied.
    splits: the maximum number of blocks among which the sum over a head's keys is divided, 1 or more; chosen
        automatically by default. It affects only rounding.
    run: the runner that launches the kernels (`kernels.common.launch`).

    The other arguments are the same as for `multi_token_attention`. The host does not read any tensor
    element, so the call can be captured in a CUDA graph. The four kernels (`kernels.multi_token.decode`) are
    deterministic. torch.autocast has no effect, because a cache has its own dtype.
    """
    sizes = check_window(q_window, k, v)
    given = taps, head_map, after_taps, after_head_map, norm, gate
    *parts, norm, gate = layer_parts(q_window, *given, as_given=fits_tensor_cores(q_window))
    scale = checked_scale(scale, sizes["d"])
    layer = layer_of(parts, True, scale)
    rows = min(1 + layer.above + layer.after_above, sizes["N_k"])
    if sizes["R"] != rows:
        raise ValueError(
            f"argument q_window has R = {sizes['R']}; wanted min(c_q + after_c_q - 1, N_k) = {rows}, the"
            " queries of the last tokens"
        )
    if splits is not None:
        checked_splits(splits)
    q, k, v = (x.detach() for x in (q_window, k, v))
    return decode(q.contiguous(), k, v, layer, norm, gate, splits, run)


# Arguments --------------------------------------------------------------------------------------------------


def check_window(q, k, v):
    """Return {letter: size} of q_window (B, H, R, d), k and v (B, H_kv, N_k, d).

    Raise an error unless their shapes match and H_kv divides H.
    """
    given = {"q_window": (q, "B H R d"), "k": (k, "B H_kv N_k d"), "v": (v, "B H_kv N_k d")}
    sizes = check(given, ANY_FLOAT, filled="B H H_kv")
    if sizes["H"] % sizes["H_kv"]:
        raise ValueError(
            f"argument k has H_kv = {sizes['H_kv']}; wanted a divisor of H = {sizes['H']} of q_window"
        )
    return sizes


def layer_parts(q, taps, head_map, after_taps, after_head_map, norm, gate, as_given=False):
    """Check the parameters of all optional operations; return them in float32, with head maps in groups.

    as_given: return them in the dtype of q if all have it.
    """
    if gate is not None and (not isinstance(gate, (tuple, list)) or len(gate) != 2):
        raise TypeError(f"argument gate is a {type(gate).__name__}; wanted a pair of tensors, (d,) and ()")
    parts = {"taps": (taps, "H c_q c_k"), "after_taps": (after_taps, "H c_q c_k"), "norm": (norm, "d")}
    for name, (part, letters) in parts.items():
        if part is not None:
            check_part(part, q, name, letters)
    if gate is not None:
        check_part(gate[0], q, "gate[0]", "d")
        check_part(gate[1], q, "gate[1]", "1" if getattr(gate[1], "ndim", 0) else "")
    for name, part in {"head_map": head_map, "after_head_map": after_head_map}.items():
        if part is not None:
            check_map(part, q, name)
    head_map, after_head_map = (
        part if part is None else in_groups(part) for part in (head_map, after_head_map)
    )
    parts = taps, head_map, after_taps, after_head_map, norm
    kept = as_given and all(part is None or part.dtype == q.dtype for part in (*parts, *(gate or ())))
    dtype = q.dtype if kept else torch.float32
    gate = gate and tuple(part.to(dtype) for part in gate)
    return *(part if part is None else part.to(dtype) for part in parts), gate


def check_part(part, q, name, letters):
    """Raise an error unless a parameter has these dimensions, q's device, and float32 or the dtype of q."""
    check({name: (part, letters, OR_FLOAT32)}, sizes=dict(zip("BHNd", q.shape)), like=("q", q))


def check_map(head_map, q, name):
    """Raise an error unless a map over the heads of q is (H, H) or (H / s, s, s)."""
    heads = q.shape[1]
    groups = [size for size in range(1, MOST_GROUP + 1) if heads % size == 0]
    shapes = [(heads // size, size, size) for size in groups] + [(heads, heads)] * (heads in groups)
    if isinstance(head_map, torch.Tensor) and tuple(head_map.shape) not in shapes:
        raise ValueError(
            f"argument {name} has shape {tuple(head_map.shape)}; wanted (H, H) or (H / s, s, s), with groups"
            f" of at most {MOST_GROUP} heads that divide H = {heads}: a thread holds an element of every head"
            " of a group"
        )
    check_part(head_map, q, name, " ".join(map(str, getattr(head_map, "shape", ()))))


def layer_of(parts, causal, scale):
    """Return the Layer for the parameters (taps, head_map, after_taps, after_head_map)."""
    return Layer(*(x if x is None else x.detach().contiguous() for x in parts), float(scale), causal)


# Operators --------------------------------------------------------------------------------------------------


def multi_token_forward_checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    taps: torch.Tensor | None,
    head_map: torch.Tensor | None,
    after_taps: torch.Tensor | None,
    after_head_map: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    """Return O, float32, as `bands.forward` does; parameters are float32, and head maps are in groups."""
    layer = layer_of((taps, head_map, after_taps, after_head_map), causal, scale)
    tensors, compute = present((q, k, v, *layer[:4]), lambda *given: [forward_of(layer, *given)])
    if not fits_recording(q):
        return compute(*tensors)[0]
    key = multi_token_forward_checked, facts_of(layer)
    return replayed(key, compute, tensors)[0]


def forward_of(layer, q, k, v, *parts):
    """Return O of a layer that has the options of `layer`, and `parts` as its parameters."""
    with torch.autocast(q.device.type, enabled=False):
        return forward(q, k, v, layer.with_parts(parts))


def fits_recording(q):
    """Return whether a call with these queries has few enough scores to be recorded as a CUDA graph."""
    return q.shape[0] * q.shape[1] * q.shape[2] ** 2 <= MOST_REPLAYED


def facts_of(layer):
    """Return the options of a layer, and whether each of its parameters is missing, as a tuple."""
    return tuple(part is None for part in layer[:4]), layer.causal, layer.scale


def present(tensors, compute):
    """Return the tensors that are not None, and a function that takes only these and calls `compute`, with
    None in the place of the others."""
    places = [place for place, x in enumerate(tensors) if x is not None]

    def computed(*given):
        found = dict(zip(places, given))
        return compute(*(found.get(place) for place in range(len(tensors))))

    return [tensors[place].detach().contiguous() for place in places], computed


multi_token_forward_operator = operator("multi_token_forward", multi_token_forward_checked)


@multi_token_forward_operator.register_fake
def shape_forward(q, *_):
    return q.new_empty(q.shape, dtype=torch.float32)


def multi_token_backward_checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    taps: torch.Tensor | None,
    head_map: torch.Tensor | None,
    after_taps: torch.Tensor | None,
    after_head_map: torch.Tensor | None,
    d_o: torch.Tensor,
    causal: bool,
    scale: float,
    wanted: list[bool],
) -> list[torch.Tensor]:
    """Return the gradients of NAMES as `bands.backward` does. Gradients that are not needed are returned as
    empty tensors."""
    layer = layer_of((taps, head_map, after_taps, after_head_map), causal, scale)
    names = tuple(name for name, want in zip(NAMES, wanted) if want)
    given = q, k, v, *layer[:4], d_o
    tensors, compute = present(given, functools.partial(backward_of, layer, names))
    if not fits_recording(q):
        return compute(*tensors)
    return replayed((multi_token_backward_checked, names, facts_of(layer)), compute, tensors)


def backward_of(layer, names, q, k, v, *parts_and_d_o):
    """Return the results of `multi_token_backward_checked` for a layer that has the options of `layer`, and
    `parts_and_d_o` as its parameters, followed by d_o."""
    *parts, d_o = parts_and_d_o
    with torch.autocast(q.device.type, enabled=False):
        sums = backward(q, k, v, layer.with_parts(parts), d_o, names)
    return like(sums, (q, k, v, *parts))


def like(sums, given):
    """Convert each gradient to the dtype of its argument, and replace missing gradients with empty
    tensors."""
    nothing = given[0].new_empty(0, dtype=torch.float32)
    return [sums[name].to(x.dtype) if name in sums else nothing.clone() for name, x in zip(NAMES, given)]


multi_token_backward_operator = operator("multi_token_backward", multi_token_backward_checked)


@multi_token_backward_operator.register_fake
def shapes_backward(q, k, v, taps, head_map, after_taps, after_head_map, d_o, causal, scale, wanted):
    given = (q, k, v, taps, head_map, after_taps, after_head_map)
    return [
        x.new_empty(x.shape) if want and x is not None else q.new_empty(0, dtype=torch.float32)
        for x, want in zip(given, wanted)
    ]


multi_token_forward_call = differentiable_once(
    multi_token_forward_operator,
    multi_token_backward_operator,
    (multi_token_forward_checked, multi_token_backward_checked),
    len(NAMES),
    2,
    "multi_token_attention",
    outputs=0,
)
