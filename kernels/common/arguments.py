"""Argument checks for the host functions: shapes, types, devices and scalars.

Shapes are written as one letter per dimension:

    check({"q": (q, "B H N d"), "k": (k, "B H N_k d"), "v": (v, "B H N_k d")})

Dimensions with the same letter must have the same size in all tensors of a call. A digit is a fixed size.
`LIMITS` restricts the size of some letters. Error messages name the argument, its actual value and the
expected one.
"""

import functools
import math

import torch
from numpy import float32

from kernels.common.extent import check_extent

FLOAT32, HALVES = (torch.float32,), (torch.bfloat16, torch.float16)
ANY_FLOAT = (*FLOAT32, *HALVES)
LARGEST = float(torch.finfo(torch.float32).max)
MAX_HEAD_DIM = 128
MOST_TAPS = 15
# CUDA's limits for the y and z dimensions of a grid
MAX_GRID_Y = MAX_GRID_Z = 65535
DEVICES = ("cpu", "cuda")

# letter -> (smallest size, largest size, reason for the largest), for the letters with a limit
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
    """Check that the shapes, dtypes and devices of the tensors match, and return {letter: size}.

    given: {name: (tensor, letters)} or {name: (tensor, letters, dtypes)}. None in `dtypes` stands for the
        dtype of the first tensor.
    dtypes: the dtypes allowed for the first tensor; the other tensors must have the same dtype. None allows
        any dtype.
    filled: letters whose size must be at least 1.
    sizes: {letter: size} for the letters whose size is already known.
    like: (name, tensor or cache) whose device and dtype all tensors must share; the first tensor by default.

    Raise TypeError if an argument is not a tensor or has the wrong dtype, and ValueError for a wrong size or
    device.
    """
    for name, (tensor, *_) in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"argument {name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    facts = tuple(
        (name, letters, tuple(own[0]) if own else None, tuple(tensor.shape), tensor.dtype, tensor.device)
        for name, (tensor, letters, *own) in given.items()
    )
    like = like and (like[0], like[1].dtype, like[1].device)
    # Use the cache, because a decoder repeats this check for every token. Not under torch.compile, where
    # sizes can be symbolic and therefore unhashable.
    fits = fitting if torch.compiler.is_compiling() else fitting_again
    return dict(fits(facts, dtypes, filled, tuple(dict(sizes).items()), like))


def fitting(facts, dtypes, filled, sizes, like):
    """Return {letter: size}, as `check` does, from hashable facts about the tensors.

    facts: (name, letters, own dtypes, shape, dtype, device) for each tensor.
    like: (name, dtype, device).
    """
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
    """Raise ValueError unless `shape` matches `letters`; add the sizes of new letters to `sizes`."""
    wanted = [int(letter) if letter.isdigit() else sizes.get(letter) for letter in letters]
    if len(shape) != len(wanted) or any(want not in (None, size) for want, size in zip(wanted, shape)):
        known = ", ".join(
            f"{letter} = {sizes[letter]}" for letter in dict.fromkeys(letters) if letter in sizes
        )
        names = ", ".join(letters) + "," * (len(letters) == 1)
        raise ValueError(f"argument {name} has shape {shape}; wanted ({names}){known and f' with {known}'}")
    sizes |= zip(letters, shape)


def check_size(name, letter, size, filled):
    """Raise ValueError unless `size` is within the limits of its letter, and at least 1 if `filled`."""
    least, most, why = LIMITS.get(letter, (0, math.inf, ""))
    least = max(least, int(filled))
    if not least <= size <= most:
        wanted = f"at least {least}" if most == math.inf else f"{least} to {most}{why and f', {why}'}"
        raise ValueError(f"argument {name} has {letter} = {size}; wanted {wanted}")


def check_sharing(sizes):
    """Return the number of query heads that share a head of k and v: H / H_kv, or 1 without H_kv.

    Raise ValueError unless H_kv divides H.
    """
    heads, shared = sizes["H"], sizes.get("H_kv", sizes["H"])
    if heads and (shared == 0 or heads % shared):
        raise ValueError(f"arguments k and v have {shared} heads; wanted a divisor of H = {heads} of q")
    return heads // shared if heads else 1


def check_dtype(name, dtype, dtypes):
    """Raise TypeError unless `dtype` is one of `dtypes`."""
    if dtype not in dtypes:
        first = str(dtypes[0]).removeprefix("torch.")
        convert = "float" if first == "float32" else "bfloat16" if first == "bfloat16" else "half"
        wanted = " or ".join(map(str, dict.fromkeys(dtypes)))
        raise TypeError(
            f"argument {name} has dtype {dtype}; wanted {wanted}: convert with {name}.{convert}()"
        )


def check_device(name, device, first_name, first):
    """Raise ValueError unless `device` equals `first`, the device of argument `first_name`, and is a CPU or a
    GPU."""
    if device != first:
        raise ValueError(
            f"argument {name} is on {device}; wanted {first}, where {first_name} is: move it"
            f" with {name}.to({first_name}.device)"
        )
    if device.type not in DEVICES:
        raise ValueError(f"argument {name} is on {device}; wanted cpu or cuda")


# Numbers ----------------------------------------------------------------------------------------------------


def checked_scale(scale, d):
    """Return `scale` as a float32, with 1/sqrt(d) as the default. Raise an error unless it is finite."""
    if scale is None:
        return float32(1 / math.sqrt(d))
    if isinstance(scale, bool) or not isinstance(scale, (int, float, float32)):
        raise TypeError(f"argument scale is {scale!r}; wanted a number, or None for 1/sqrt(d)")
    if not abs(scale) <= LARGEST:
        raise ValueError(f"argument scale is {scale!r}; wanted a finite float32")
    return float32(scale)


# Arguments of each kind of attention ------------------------------------------------------------------------

# cached results of checks: the result of `facts_of` for valid arguments -> the result of their check
CHECKED: dict = {}
MOST_CHECKED = 4096
OR_FLOAT32 = torch.float32, None  # float32, or the type of q
TAPS = "H c_q c_k", OR_FLOAT32


def facts_of(tensors, *options):
    """Return everything that a check of these arguments depends on as a tuple, or None if that is impossible.

    A training loop and a decoder repeat the same check thousands of times, so valid facts are remembered in
    CHECKED. Arguments that are no tensors, and the symbolic sizes of torch.compile, have no facts.
    """
    if torch.compiler.is_compiling():
        return None
    facts = [options, *map(type, options)]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            return None
        facts += (tensor.shape, tensor.dtype, tensor.device)
    return tuple(facts)


def remembered(facts):
    """Return the result of an earlier check of equal facts, or None if there is none."""
    try:
        return CHECKED.get(facts)
    except TypeError:  # an option, or a symbolic size, is not hashable
        return None


def remember(facts, result):
    """Cache the result of a check, with its facts as the key unless they are None, and return the result."""
    if facts is not None and is_hashable(facts):
        if len(CHECKED) >= MOST_CHECKED:
            CHECKED.clear()
        CHECKED[facts] = result
    return result


def is_hashable(facts):
    try:
        hash(facts)
    except TypeError:
        return False
    return True


def attention_arguments(q, k, v, scale, dtypes=FLOAT32):
    """Check the arguments like `check_attention`; return q, k and v detached and contiguous, and scale."""
    scale = check_attention(q, k, v, scale, dtypes)
    return *(tensor.detach().contiguous() for tensor in (q, k, v)), scale


def check_attention(q, k, v, scale, dtypes=FLOAT32):
    """Check the arguments of an attention kernel, and return the scale as a float32.

    q: (B, H, N, d), of one of `dtypes`, 1 <= d <= 128.
    k, v: (B, H, N_k, d), with the dtype and device of q, N_k >= 1.
    scale: a number, or None for 1/sqrt(d).

    Raise TypeError or ValueError for an invalid argument.
    """
    facts = facts_of((q, k, v), scale, dtypes)
    known = remembered(facts)
    if known is not None:
        return known
    sizes = check({"q": (q, "B H N d"), "k": (k, "B H N_k d"), "v": (v, "B H N_k d")}, dtypes)
    return remember(facts, checked_scale(scale, sizes["d"]))


def conv_arguments(q, k, v, w, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments like `check_conv`; return q, k, v and w detached and contiguous, scale, extent."""
    scale, extent = check_conv(q, k, v, w, scale, extent, dtypes)
    return *(x.detach().contiguous() for x in (q, k, v, w)), scale, extent


def check_conv(q, k, v, w, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments of convolutional attention, and return (scale as a float32, extent).

    q, k, v: (B, H, N, d), or rows of a longer sequence as `extent` describes. They share one of `dtypes` and
        one device, are not empty, and 1 <= d <= 128.
    w: (H, c_q, c_k), float32 or the dtype of q, with c_q and c_k from 1 to 15.
    scale: a number, or None for 1/sqrt(d).

    Raise TypeError or ValueError for an invalid argument.
    """
    facts = facts_of((q, k, v, w), extent, scale, dtypes)
    known = remembered(facts)
    if known is not None:
        return known
    keys, owned = ("N", "N") if extent is None else ("N_k", "owned")
    given = {"q": (q, "B H N d"), "k": (k, f"B H {keys} d"), "v": (v, f"B H {owned} d"), "w": (w, *TAPS)}
    sizes = check(given, dtypes, filled="B H N")
    extent = None if extent is None else check_extent(extent, q, k, v)
    return remember(facts, (checked_scale(scale, sizes["d"]), extent))


def backward_arguments(q, k, v, w, o, log_sum, d_o, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments of a backward pass; return q, k, v, w, scale, d_o and extent.

    o, d_o: the output and its gradient, shaped like the owned rows of q.
    log_sum: (B, H, N), float32, the log-sum-exp of the same rows.

    The other arguments are the same as for `conv_arguments`. Raise TypeError or ValueError for an invalid
    argument.
    """
    *qkvw, scale, extent = conv_arguments(q, k, v, w, scale, extent, dtypes)
    n, types = (q.shape[2], ()) if extent is None else (q.shape[2] - extent.first_query, (OR_FLOAT32,))
    check_statistics(q, o, log_sum, d_o, n, *types)
    return *qkvw, scale, d_o.detach().contiguous(), extent


def check_statistics(q, o, log_sum, d_o, n, *dtypes_of_o):
    """Raise an error unless o and d_o are (B, H, n, d) with the dtype and device of q, and log_sum is (B, H,
    n), float32."""
    sizes = dict(zip("BHNd", (*q.shape[:2], n, q.shape[3])))
    given = {
        "o": (o, "B H N d", *dtypes_of_o),
        "log_sum": (log_sum, "B H N", FLOAT32),
        "d_o": (d_o, "B H N d"),
    }
    check(given, sizes=sizes, like=("q", q))


def as_in_torch(causal, is_causal, enable_gqa, q, k, v):
    """Return (causal, (q, k, v)) after applying the options of `scaled_dot_product_attention`.

    is_causal: overrides `causal` unless it is None.
    enable_gqa: grouped-query attention. Repeat each head of k and v (B, H_kv, N, d) for the H / H_kv
        neighbouring heads of q that share it.

    Raise ValueError if H_kv does not divide H.
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


def in_autocasts_type(*tensors, exact=()):
    """Return `tensors` cast to autocast's dtype, followed by `exact` cast to float32. Without autocast,
    return all unchanged."""
    dtype = autocasts_type(tensors[0])
    if dtype is None:
        return *tensors, *exact
    wanted = [(x, dtype) for x in tensors] + [(x, torch.float32) for x in exact]
    return tuple(x.to(own) if isinstance(x, torch.Tensor) else x for x, own in wanted)


def autocasts_type(x):
    """Return the dtype that torch.autocast prescribes on the device of x, or None if autocast is disabled for
    that device.

    The result is float32 if autocast's dtype is not in HALVES.
    """
    kind = x.device.type if isinstance(x, torch.Tensor) else None
    if kind not in DEVICES or not torch.is_autocast_enabled(kind):
        return None
    given = torch.get_autocast_dtype(kind)
    return given if given in HALVES else torch.float32
