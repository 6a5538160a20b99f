"""Fast Fourier transforms of short axes on pairs (real part, imaginary part), in `jax.lax`. Knows nothing of lanes.

Mixed radix, decimation in time (Cooley and Tukey, 1965): an axis of n = r * m becomes r transforms of every r-th
element, which are turned by roots of unity and put together by one transform of length r. Transforms of length 2, 3, 4,
5 and 8 are written out; those of larger primes are sums by the definition. The transform of real numbers of even
length is one of half the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from lanax._complex.registry import Complex, register_complex

Pair = tuple[Any, Any]

#: Lengths of an axis, elements of a transform and prime factors up to which it is done here; beyond, XLA is faster.
LONGEST, MOST_ELEMENTS, LARGEST_PRIME = 128, 4096, 61


def why_no_fft(lengths: Sequence[int]) -> str | None:
    """The reason why a transform over axes of these lengths is not done here, or None.

    Axes of up to 128 elements without a prime factor above 61, up to 4096 elements in all.
    """
    if math.prod(lengths) == 0:
        return "a transform of no elements"
    if max(lengths) > LONGEST or math.prod(lengths) > MOST_ELEMENTS:
        return f"a Fourier transform of {'x'.join(map(str, lengths))} elements per example is faster in XLA"
    if any(_largest_prime(n) > LARGEST_PRIME for n in lengths):
        return f"a Fourier transform whose length has a prime factor above {LARGEST_PRIME}"
    return None


@register_complex("fft")
def _fft(x: Any, *, fft_type: Any, fft_lengths: Sequence[int]) -> Any:
    re, im = (x.re, x.im) if isinstance(x, Complex) else (x, None)
    re, im = fft_pair(re, im, fft_type.name, fft_lengths)
    return re if im is None else Complex(re, im)


def fft_pair(re: Any, im: Any, kind: str, lengths: Sequence[int]) -> Pair:
    """The transform over the last axes of the array re + i im.

    Args:
      re, im: real arrays of one shape; of "RFFT" `im` is not read.
      kind: "FFT", "IFFT", "RFFT" or "IRFFT".
      lengths: of the axes; for "RFFT" and "IRFFT", of the real array.

    Returns:
      The real and the imaginary part; of "IRFFT" the latter is None.

    Raises:
      NotImplementedError: what `why_no_fft` says.
    """
    reason = why_no_fft(lengths)
    if reason:
        raise NotImplementedError(reason)
    axes = list(range(re.ndim - len(lengths), re.ndim))
    if kind == "RFFT":
        re, im = _real(re)
        return _over(re, im, axes[:-1])
    if kind == "FFT":
        return _over(re, im, axes)
    if kind == "IFFT":
        im, re = _over(im, re, axes)
        scale = np.asarray(1 / math.prod(lengths), re.dtype)
        return re * scale, im * scale
    if re.shape[-1] != lengths[-1] // 2 + 1:
        raise NotImplementedError("a half spectrum of another length")
    im, re = _over(im, re, axes[:-1])
    return _half_to_real(re, im, lengths[-1]) * np.asarray(1 / math.prod(lengths), re.dtype), None


def _over(re: Any, im: Any, axes: Sequence[int]) -> Pair:
    """The forward transform over some axes. (The inverse is the same with the parts swapped, before and after.)"""
    for axis in axes:
        order = [*(a for a in range(re.ndim) if a != axis), axis]
        back = np.argsort(order)
        re, im = _forward((lax.transpose(re, order), lax.transpose(im, order)))
        re, im = lax.transpose(re, back), lax.transpose(im, back)
    return re, im


# -- one axis, the last ----------------------------------------------------------------------------------------------
def _forward(x: Pair) -> Pair:
    n = x[0].shape[-1]
    if n == 1:
        return x
    radix = _radix(n)
    m, lead = n // radix, x[0].shape[:-1]
    parts = _map(lambda v: lax.reshape(v, (*lead, m, radix)), x)
    parts = _map(lambda v: lax.transpose(v, (*range(len(lead)), len(lead) + 1, len(lead))), parts)
    parts = _forward(parts)
    rows = [_map(lambda v, s=s: lax.slice_in_dim(v, s, s + 1, axis=-2), parts) for s in range(radix)]
    if m > 1:
        rows = [rows[0], *(_turned(row, s * np.arange(m), n) for s, row in enumerate(rows) if s)]
    rows = _BUTTERFLIES.get(radix, _by_definition)(rows)
    return _map(lambda *v: lax.reshape(lax.concatenate(v, len(lead)), (*lead, n)), *rows)


def _radix(n: int) -> int:
    """The first factor of a length."""
    if n == 16:
        return 4
    return next((r for r in (8, 4, 2, 3, 5) if n % r == 0), None) or _largest_prime(n)


def _largest_prime(n: int) -> int:
    """The largest prime factor; of 1, 1."""
    largest, p = 1, 2
    while n > 1:
        while n % p == 0:
            largest, n = p, n // p
        p += 1
    return largest


def _map(fun: Any, *pairs: Pair) -> Pair:
    return fun(*(re for re, _ in pairs)), fun(*(im for _, im in pairs))


def _root(k: Any, n: int, dtype: Any) -> tuple[Any, Any]:
    """cos and sin of 2 pi k / n, exact where they are -1, 0 or 1."""
    k = np.asarray(k) % n
    # By the angle to the nearest multiple of a quarter turn, where both functions are most accurate.
    quarter = (4 * k + n // 2) // n
    angle = 2 * np.pi * (k - quarter * n / 4) / n
    c, s = np.cos(angle), np.sin(angle)
    turned = np.select([quarter % 4 == q for q in range(4)], [c, -s, -c, s])
    return turned.astype(dtype), np.select([quarter % 4 == q for q in range(4)], [s, c, -s, -c]).astype(dtype)


def _turned(x: Pair, k: Any, n: int) -> Pair:
    """x exp(-2 pi i k / n), where k is a number for each element of the last axis."""
    (re, im), (c, s) = x, _root(k, n, x[0].dtype)
    shape = (1,) * (re.ndim - 1) + c.shape
    c, s = c.reshape(shape), s.reshape(shape)
    return re * c + im * s, im * c - re * s


def _add(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def _sub(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0], x[1] - y[1]


def _scaled(x: Pair, by: float) -> Pair:
    return _map(lambda v: v * np.asarray(by, v.dtype), x)


def _minus_i(x: Pair) -> Pair:
    """-i x, with the sign of its imaginary part left to whoever adds it."""
    return x[1], -x[0]


# -- transforms of one short length, of rows -------------------------------------------------------------------------
def _two(rows: Sequence[Pair]) -> list[Pair]:
    x, y = rows
    return [_add(x, y), _sub(x, y)]


def _four(rows: Sequence[Pair]) -> list[Pair]:
    a, b, c, d = rows
    even, odd = _two((a, c)), _two((b, d))
    (re, im), (u, v) = even[1], odd[1]
    return [_add(even[0], odd[0]), (re + v, im - u), _sub(even[0], odd[0]), (re - v, im + u)]


def _eight(rows: Sequence[Pair]) -> list[Pair]:
    even, odd = _four(rows[0::2]), _four(rows[1::2])
    half = math.sqrt(0.5)
    (re, im), (u, v) = odd[1], odd[3]
    turned = [odd[0], _scaled((re + im, im - re), half), _minus_i(odd[2]), _scaled((v - u, -(u + v)), half)]
    return [*map(_add, even, turned), *map(_sub, even, turned)]


def _by_definition(rows: Sequence[Pair]) -> list[Pair]:
    """Of odd length n: sums and differences of the elements k and n - k, times cosines and sines."""
    n, first, half = len(rows), rows[0], range(1, len(rows) // 2 + 1)
    sums = [_add(rows[k], rows[n - k]) for k in half]
    differences = [_sub(rows[k], rows[n - k]) for k in half]
    c, s = _root(np.outer(half, half), n, first[0].dtype)
    even, odd = _combined(sums, c), _combined(differences, s)
    out: list[Any] = [first, *[None] * (n - 1)]
    for total in sums:
        out[0] = _add(out[0], total)
    for k, (re, im), (u, v) in zip(half, even, odd, strict=True):
        re, im = first[0] + re, first[1] + im
        out[k], out[n - k] = (re + v, im - u), (re - v, im + u)
    return out


def _combined(rows: Sequence[Pair], matrix: np.ndarray) -> list[Pair]:
    """The rows times a matrix."""
    axis = rows[0][0].ndim - 2
    whole = _map(lambda *v: lax.concatenate(v, axis), *rows)
    product = _map(lambda v: lax.dot_general(matrix, v, (((1,), (axis,)), ((), ())), lax.Precision.HIGHEST), whole)
    # The axis that was summed over is now the first one.
    product = _map(lambda v: lax.transpose(v, (*range(1, axis + 1), 0, axis + 1)), product)
    return [_map(lambda v, k=k: lax.slice_in_dim(v, k, k + 1, axis=axis), product) for k in range(len(rows))]


_BUTTERFLIES = {2: _two, 4: _four, 8: _eight}


# -- real numbers ----------------------------------------------------------------------------------------------------
def _real(x: Any) -> Pair:
    """The first n // 2 + 1 elements of the transform of a real array: the others are their conjugates."""
    n, last = x.shape[-1], x.ndim - 1
    if n % 2:
        return _map(lambda v: lax.slice_in_dim(v, 0, n // 2 + 1, axis=last), _forward((x, lax.full_like(x, 0))))
    z = _forward((lax.slice_in_dim(x, 0, n, 2, last), lax.slice_in_dim(x, 1, n, 2, last)))
    z = _map(lambda v: lax.concatenate((v, lax.slice_in_dim(v, 0, 1, axis=last)), last), z)
    mirrored = _map(lambda v: lax.rev(v, (last,)), z)
    even = _scaled((z[0] + mirrored[0], z[1] - mirrored[1]), 0.5)
    odd = _scaled((z[1] + mirrored[1], mirrored[0] - z[0]), 0.5)
    return _add(even, _turned(odd, np.arange(n // 2 + 1), n))


def _half_to_real(re: Any, im: Any, n: int) -> Any:
    """n times the real array of which this is half the spectrum; what must be real of it counts as real."""
    last = re.ndim - 1

    def part(x: Any, start: int, stop: int) -> Any:
        return lax.slice_in_dim(x, start, stop, axis=last)

    zero = lax.full_like(part(im, 0, 1), 0)
    if n % 2:
        im = lax.concatenate((zero, part(im, 1, n // 2 + 1)), last)
        mirrored = [lax.rev(part(x, 1, n // 2 + 1), (last,)) for x in (re, im)]
        re, im = lax.concatenate((re, mirrored[0]), last), lax.concatenate((im, -mirrored[1]), last)
        return _forward((im, re))[1]
    m = n // 2
    im = lax.concatenate((zero, part(im, 1, m), zero), last) if m > 1 else lax.concatenate((zero, zero), last)
    mirrored = lax.rev(re, (last,)), lax.rev(im, (last,))
    even = _map(lambda v: part(v, 0, m), (re + mirrored[0], im - mirrored[1]))
    odd = _map(lambda v: part(v, 0, m), (re - mirrored[0], im + mirrored[1]))
    u, v = _turned(odd, -np.arange(m), n)
    im, re = _forward((even[1] + u, even[0] - v))  # the inverse, of even + i odd
    return lax.reshape(lax.concatenate([lax.expand_dims(x, (last + 1,)) for x in (re, im)], last + 1),
                       (*re.shape[:-1], n))
