"""What the host functions are given, checked: tensors by the letters of their dimensions, types, devices,
numbers.

    check({"q": (q, "B H N d"), "k": (k, "B H N_k d"), "v": (v, "B H N_k d")})

A letter means one size in all tensors of a call, a number itself; `LIMITS` says how large a letter may be.
Errors name the argument, what it is, and what was wanted.
"""

import functools
import math

import torch
from numpy import float32

from kernels.common.extent import WHOLE, check_extent

FLOAT32, HALVES = (torch.float32,), (torch.bfloat16, torch.float16)
ANY_FLOAT = (*FLOAT32, *HALVES)
LARGEST = float(torch.finfo(torch.float32).max)
MAX_HEAD_DIM = 128
MOST_TAPS = 15
MAX_GRID_Y = MAX_GRID_Z = 65535
DEVICES = ("cpu", "cuda")

# letter -> the least and the largest size, and why no larger
LIMITS = {
    "B": (0, MAX_GRID_Z, "a size of the grid"),
    "H": (0, MAX_GRID_Y, "a size of the grid"),
    "N_k": (1, math.inf, ""),
    "d": (1, MAX_HEAD_DIM, "the widest row of a kernel"),
    "L": (1, MAX_HEAD_DIM, "the widest row of a kernel"),
    "c_q": (1, MOST_TAPS, ""),
    "c_k": (1, MOST_TAPS, ""),
}


# Tensors ----------------------------------------------------------------------------------------------------


def check(given, dtypes=FLOAT32, filled="", sizes=(), like=None):
    """The sizes by letter of tensors that fit each other, or an error.

    given: {name: (tensor, letters)}; a third element is the tensor's dtypes, of which None stands for the
        first tensor's. dtypes: those of the first tensor, which the others share; None allows any.
    filled: the letters that must be at least 1. sizes: letters whose size is known before.
    like: (name, tensor or cache) to which device and dtype of all must be equal; without it the first of
        `given`.
    Raises TypeError for what is no tensor and for a dtype, ValueError for sizes and devices.
    """
    for name, (tensor, *_) in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"argument {name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    facts = tuple(
        (name, letters, tuple(own[0]) if own else None, tuple(tensor.shape), tensor.dtype, tensor.device)
        for name, (tensor, letters, *own) in given.items()
    )
    like = like and (like[0], like[1].dtype, like[1].device)
    # a decoder asks the same for every token; a compiler's sizes may be symbols
    fits = fitting if torch.compiler.is_compiling() else fitting_again
    return dict(fits(facts, dtypes, filled, tuple(dict(sizes).items()), like))


def fitting(facts, dtypes, filled, sizes, like):
    """The sizes by letter, as `check`, of tensors by name, letters, own dtypes, shape, dtype and device; like
    by name, dtype and device."""
    sizes = dict(sizes)
    if like is not None:
        dtypes = dtypes and (like[1],)
    for name, letters, own, shape, dtype, device in facts:
        check_shape(name, shape, letters.split(), sizes)
        like = like or (name, dtype, device)
        wanted = own or dtypes
        if wanted is not None:
            check_dtype(name, dtype, [like[1] if other is None else other for other in wanted])
        check_device(name, device, like[0], like[2])
        dtypes = dtypes and (like[1],)
    for name, letters, _, shape, *_ in facts:
        for letter, size in zip(letters.split(), shape):
            check_size(name, letter, size, letter in filled.split())
    return sizes


fitting_again = functools.lru_cache(maxsize=1024)(fitting)


def check_shape(name, shape, letters, sizes):
    """A shape of these dimensions, where known letters have their sizes, or an error; `sizes` gets those of
    the others."""
    wanted = [int(letter) if letter.isdigit() else sizes.get(letter) for letter in letters]
    if len(shape) != len(wanted) or any(want not in (None, size) for want, size in zip(wanted, shape)):
        known = ", ".join(
            f"{letter} = {sizes[letter]}" for letter in dict.fromkeys(letters) if letter in sizes
        )
        names = ", ".join(letters) + "," * (len(letters) == 1)
        raise ValueError(f"argument {name} has shape {shape}; wanted ({names}){known and f' with {known}'}")
    sizes |= zip(letters, shape)


def check_size(name, letter, size, filled):
    """A size within the letter's limits, at least 1 if `filled`, or an error."""
    least, most, why = LIMITS.get(letter, (0, math.inf, ""))
    least = max(least, int(filled))
    if not least <= size <= most:
        wanted = f"at least {least}" if most == math.inf else f"{least} to {most}{why and f', {why}'}"
        raise ValueError(f"argument {name} has {letter} = {size}; wanted {wanted}")


def check_dtype(name, dtype, dtypes):
    """One of `dtypes`, or an error."""
    if dtype not in dtypes:
        first = str(dtypes[0]).removeprefix("torch.")
        convert = "float" if first == "float32" else "bfloat16" if first == "bfloat16" else "half"
        wanted = " or ".join(map(str, dict.fromkeys(dtypes)))
        raise TypeError(
            f"argument {name} has dtype {dtype}; wanted {wanted}: convert with {name}.{convert}()"
        )


def check_device(name, device, first_name, first):
    """The CPU or a CUDA GPU, and `first`, where a tensor or a cache is, or an error."""
    if device != first:
        raise ValueError(
            f"argument {name} is on {device}; wanted {first}, where {first_name} is: move it"
            f" with {name}.to({first_name}.device)"
        )
    if device.type not in DEVICES:
        raise ValueError(f"argument {name} is on {device}; wanted cpu or cuda")


# Numbers ----------------------------------------------------------------------------------------------------


def checked_scale(scale, d):
    """A finite number as a float32, 1/sqrt(d) for None, or an error."""
    if scale is None:
        return float32(1 / math.sqrt(d))
    if isinstance(scale, bool) or not isinstance(scale, (int, float, float32)):
        raise TypeError(f"argument scale is {scale!r}; wanted a number, or None for 1/sqrt(d)")
    if not abs(scale) <= LARGEST:
        raise ValueError(f"argument scale is {scale!r}; wanted a finite float32")
    return float32(scale)


# Of each kind of attention ----------------------------------------------------------------------------------

OR_FLOAT32 = torch.float32, None  # or like q
TAPS = "H c_q c_k", OR_FLOAT32


def attention_arguments(q, k, v, scale, dtypes=FLOAT32):
    """Check the arguments of an attention kernel, as `check_attention`; return q, k and v detached and
    contiguous, and scale."""
    scale = check_attention(q, k, v, scale, dtypes)
    return *(tensor.detach().contiguous() for tensor in (q, k, v)), scale


def check_attention(q, k, v, scale, dtypes=FLOAT32):
    """The scale of an attention kernel as a float32, or an error.

    q: (B, H, N, d), k and v: (B, H, N_k, d), of one of `dtypes`, on one device, 1 <= d <= 128, N_k >= 1;
        scale: a number, or None for 1/sqrt(d). Raises TypeError or ValueError that names the argument, what
        it is, and what was wanted.
    """
    sizes = check({"q": (q, "B H N d"), "k": (k, "B H N_k d"), "v": (v, "B H N_k d")}, dtypes)
    return checked_scale(scale, sizes["d"])


def conv_arguments(q, k, v, w, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments of convolutional attention, as `check_conv`; return q, k, v and w detached and
    contiguous, scale and extent."""
    scale, extent = check_conv(q, k, v, w, scale, extent, dtypes)
    return *(x.detach().contiguous() for x in (q, k, v, w)), scale, extent


def check_conv(q, k, v, w, scale, extent=None, dtypes=FLOAT32):
    """(scale, extent) of convolutional attention, scale as a float32, or an error.

    q, k, v: (B, H, N, d), or what `extent` says of pieces of a sequence; of one of `dtypes`; w: (H, c_q,
        c_k), float32 or like q; on one device, none empty, 1 <= d <= 128, c_q and c_k from 1 to 15; scale: a
        number, or None for 1/sqrt(d). Raises TypeError or ValueError that names the argument, what it is, and
        what was wanted.
    """
    keys, owned = ("N", "N") if extent is None else ("N_k", "owned")
    given = {"q": (q, "B H N d"), "k": (k, f"B H {keys} d"), "v": (v, f"B H {owned} d"), "w": (w, *TAPS)}
    sizes = check(given, dtypes, filled="B H N")
    extent = WHOLE if extent is None else check_extent(extent, q, k, v)
    return checked_scale(scale, sizes["d"]), extent


def backward_arguments(q, k, v, w, o, log_sum, d_o, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments of the backward pass of convolutional attention; return q, k, v and w, scale, d_o
    and extent, as conv_arguments does.

    o, d_o: like the owned rows of q; log_sum: (B, H, N) of them, float32. Raises TypeError or ValueError that
        names the argument, what it is, and what was wanted.
    """
    *qkvw, scale, extent = conv_arguments(q, k, v, w, scale, extent, dtypes)
    check_statistics(q, o, log_sum, d_o, q.shape[2] - extent.first_query)
    return *qkvw, scale, d_o.detach().contiguous(), extent


def check_statistics(q, o, log_sum, d_o, n):
    """o and d_o (B, H, n, d), like q, and log_sum (B, H, n), float32, where q is, or an error."""
    sizes = dict(zip("BHNd", (*q.shape[:2], n, q.shape[3])))
    given = {"o": (o, "B H N d"), "log_sum": (log_sum, "B H N", FLOAT32), "d_o": (d_o, "B H N d")}
    check(given, sizes=sizes, like=("q", q))


def as_in_torch(causal, is_causal, enable_gqa, q, k, v):
    """(causal, (q, k, v)) of a call with the names of `scaled_dot_product_attention`.

    is_causal, unless None, stands for causal; with enable_gqa each head of k and v (B, H_kv, N_k, d) is
    repeated for the H / H_kv neighbouring heads of q (B, H, N, d) that it serves. ValueError if H_kv does not
    divide H.
    """
    if enable_gqa and all(isinstance(x, torch.Tensor) and x.ndim == 4 for x in (q, k, v)):
        heads, shared = q.shape[1], k.shape[1]
        if shared == 0 or heads % shared or v.shape[1] != shared:
            raise ValueError(
                f"arguments k and v have {shared} and {v.shape[1]} heads; wanted equally many, a divisor"
                f" of H = {heads} of q"
            )
        k, v = (x.repeat_interleave(heads // shared, dim=1) for x in (k, v))
    return (causal if is_causal is None else is_causal), (q, k, v)


def in_autocasts_type(*tensors):
    """The tensors in the type of torch.autocast where that is on for the first one's device, float32 where it
    has none of HALVES; as they are elsewhere, and what is no tensor too."""
    dtype = autocasts_type(tensors[0])
    return tensors if dtype is None else [x.to(dtype) if isinstance(x, torch.Tensor) else x for x in tensors]


def autocasts_type(x):
    """The type of torch.autocast where that is on for the device of x, float32 where it has none of HALVES;
    else None."""
    if (
        not isinstance(x, torch.Tensor)
        or x.device.type not in DEVICES
        or not torch.is_autocast_enabled(x.device.type)
    ):
        return None
    given = torch.get_autocast_dtype(x.device.type)
    return given if given in HALVES else torch.float32
