"""Decoders for exercise 14.3, correct and faulty. The learner's test has to tell them apart.

A decoder of one head is a function of (q, k, v, w, splits), where q has the last rows of queries. Each one
merges the states of `splits` ranges of keys. `head_by_head` makes it a decoder of (B, H, …).
"""

import math

import torch
from torch.nn.functional import pad

from course.check.lesson14 import hidden, only, sides, slid, state_of
from kernels.conv.decode import decode_arguments


def pieces(q, k, w, start, end, halo=True, mask=True, swap=False, below=False):
    """Return T for keys start to end - 1 of one head, correct or with a mistake."""
    if start == end:
        return k.new_empty(0)
    (left, right), n = sides(w.shape), len(k)
    left, right = (right, left) if swap else (left, right)
    k = pad(k if halo else only_here(k, start, end), (0, 0, left, right))[start : end + left + right]
    s = q @ k.T / math.sqrt(k.shape[1])
    s0 = hidden(s, n - len(q), start - left) if mask else s
    return slid(s0, w, 0, 0, above=0 if below else None)


def only_here(rows, start, end):
    """Replace rows outside [start, end) with 0."""
    return torch.nan_to_num(only(rows, start, end))


def owned_by(n, splits):
    """Return [start, end) for each split. The n keys are divided equally; the last splits may own fewer keys
    or none."""
    share = -(-n // splits)
    return [(min(s * share, n), min((s + 1) * share, n)) for s in range(splits)]


# The lesson prints these functions, and the learner looks for the fault. A docstring states what the author
# of the faulty code believed; it must not name the fault.
def faultless(q, k, v, w, splits):
    """Decode one head correctly."""
    return merged([state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)])


def merged(states):
    """Merge the states of all splits, and divide by l."""
    m = max(m for m, _, _ in states)
    weights = [math.exp(own - m) for own, _, _ in states]
    l = sum(weight * l for weight, (_, l, _) in zip(weights, states, strict=True))
    return sum(weight * o for weight, (_, _, o) in zip(weights, states, strict=True)) / l


def no_halo(q, k, v, w, splits):
    """Each split convolves the scores of its own keys, with zeros around them."""
    return merged(
        [state_of(pieces(q, k, w, *own, halo=False), v[slice(*own)]) for own in owned_by(len(k), splits)]
    )


def unmasked_window(q, k, v, w, splits):
    """All keys of the cache are in the past of the new token, so nothing is masked."""
    return merged(
        [state_of(pieces(q, k, w, *own, mask=False), v[slice(*own)]) for own in owned_by(len(k), splits)]
    )


def undivided(q, k, v, w, splits):
    """The merge divides by l; with one split there is nothing to merge."""
    states = [state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)]
    return merged(states) if splits > 1 else states[0][2]


def full_tiles(q, k, v, w, splits):
    """Every split works on a whole tile; keys after the end of the cache get a T of -inf."""
    share = -(-len(k) // splits)
    states = []
    for start, end in owned_by(len(k), splits):
        t = pad(pieces(q, k, w, start, end), (0, share - (end - start)), value=-math.inf)
        p = torch.exp(t - t.max())
        states.append((t.max(), p.sum(), p @ pad(v[start:end], (0, 0, 0, share - (end - start)))))
    return merged(states)


def head_by_head(decode):
    """Turn a single-head decoder into one for (B, H, …), including the package's argument checks."""

    def decode_all(q_window, k, v, w, splits):
        *tensors, _ = decode_arguments(q_window, k, v, w, None)
        # rounded once, at the end, so that large numbers do no harm
        tensors = [tensor.double() for tensor in tensors]
        rows = [
            [
                decode(*(tensor[b, h] for tensor in tensors[:3]), tensors[3][h], splits)
                for h in range(k.shape[1])
            ]
            for b in range(k.shape[0])
        ]
        return torch.stack([torch.stack(heads) for heads in rows])[:, :, None].to(k.dtype)

    return decode_all


FAULTY = {
    function.__name__: head_by_head(function)
    for function in (no_halo, unmasked_window, undivided, full_tiles)
}


def with_pieces(**mistakes):
    """Return a decoder with these mistakes in its scores."""
    return head_by_head(
        lambda q, k, v, w, splits: merged(
            [state_of(pieces(q, k, w, *own, **mistakes), v[slice(*own)]) for own in owned_by(len(k), splits)]
        )
    )


def altered(change):
    """Return a decoder that modifies the correct output: change(o, q_window, k, v, w, splits)."""

    def decode(q_window, k, v, w, splits):
        return change(head_by_head(faultless)(q_window, k, v, w, splits), q_window, k, v, w, splits)

    return decode


def first_taps(q_window, k, v, w, splits):
    return head_by_head(faultless)(q_window, k, v, w[:1].expand_as(w), splits)


def first_sequence(q_window, k, v, w, splits):
    return head_by_head(faultless)(q_window, k[:1].expand_as(k), v[:1].expand_as(v), w, splits)


def lost_end(q, k, v, w, splits):
    """Decode one head. The number of keys per split is rounded down, so no split owns the last keys."""
    share = max(len(k) // splits, 1)
    owned = [(min(s * share, len(k)), min((s + 1) * share, len(k))) for s in range(splits)]
    return merged([state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned])


def in_pairs(q, k, v, w, splits):
    """Decode one head. Merge the splits in pairs, then the results in pairs. The last of an odd number is
    lost."""
    states = [state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)]
    while len(states) > 1:
        states = [joined(*pair) for pair in zip(states[::2], states[1::2])]
    ((_, l, o),) = states
    return o / l


def joined(one, other):
    m = max(one[0], other[0])
    if m == -math.inf:
        return one
    shrink = [math.exp(part[0] - m) for part in (one, other)]
    return m, *(shrink[0] * mine + shrink[1] * theirs for mine, theirs in zip(one[1:], other[1:]))


def room_for_four(q, k, v, w, splits):
    """Decode one head. The merge ignores all splits after the fourth."""
    return merged([state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)][:4])


def not_rescaled(q, k, v, w, splits):
    states = [state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)]
    return sum(o for _, _, o in states) / sum(l for _, l, _ in states)


def first_too_high(o, *_):
    """Return the correct output, except for its first element."""
    o = o.clone()
    o.view(-1)[0] += 2e-5
    return o


def last_too_low(o, *_):
    """Return the correct output, except for its last element."""
    o = o.clone()
    o.view(-1)[-1] -= 2e-5
    return o


def both_off(o, *_):
    """Return the correct output, except for its first and last elements. The sum stays correct."""
    return last_too_low(first_too_high(o)) if o.numel() > 1 else first_too_high(o)


def undivided_scores(q_window, k, v, w, splits):
    """Decode without the division by √d."""
    return head_by_head(faultless)(q_window * math.sqrt(k.shape[3]), k, v, w, splits)


def square_taps(q_window, k, v, w, splits):
    """Decode with as many columns of taps as rows. Further columns are ignored."""
    column = torch.arange(w.shape[2])
    return head_by_head(faultless)(q_window, k, v, w * (column < w.shape[1]), splits)
