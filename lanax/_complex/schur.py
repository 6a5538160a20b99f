"""Schur form, Hessenberg form, eigenvalues and eigenvectors of small complex matrices: the QR algorithm with
Wilkinson's shifts, one eigenvalue at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex import scaling
from lanax._complex.arithmetic import multiply
from lanax._complex.matrices import (
    column_of,
    conjugate,
    each,
    joined,
    less_outer,
    minus,
    of_stacks,
    plus,
    product,
    quotient,
    reflector_at,
    repeat,
    row_of,
    scaled,
    size_of,
    square,
    to_the_right,
    where,
)
from lanax._complex.registry import Complex, register_complex

#: Larger matrices are left to XLA.
_MOST = 16
#: Sweeps for one eigenvalue on average, at most; two or three are usual. Each tenth has a shift out of the order.
_SWEEPS, _ODD = 30, 10
#: What a rotation is computed from is multiplied by this.
_MAGNIFIED = 2.0**40
#: Eigenvectors that grow beyond this while they are computed are scaled.
_LARGE = 1e6


def _check(a: Any) -> int:
    if not isinstance(a, Complex) or not 0 < a.re.shape[0] <= _MOST:
        raise NotImplementedError("matrices that are real, too large, or empty")
    return a.re.shape[0]


def _root(x: Complex) -> Complex:
    """A square root of a number about one."""
    w = lax.sqrt((lax.sqrt(square(x)) + lax.abs(x.re)) / 2)
    other = lax.abs(x.im) / (2 * jnp.where(w > 0, w, 1))
    right = x.re >= 0
    return Complex(jnp.where(right, w, other), jnp.where(x.im < 0, -1, 1) * jnp.where(right, other, w))


# -- Hessenberg form -------------------------------------------------------------------------------------------------
def hessenberg(a: Complex) -> tuple[Complex, Complex, Complex, Complex]:
    """H of A = Q H Q^H, its elements below the diagonal real; Q; the reflectors whose product Q is, as columns; and
    their factors."""
    n = a.re.shape[0]
    place = np.arange(n)
    eye = jnp.eye(n, dtype=a.re.dtype)

    def step(k: Any, state: Any) -> Any:
        h, q, vs, ts = state
        v, beta, t = reflector_at(column_of(h, k), k + 1)
        left = Complex(v.re @ h.re + v.im @ h.im, v.re @ h.im - v.im @ h.re)
        h = to_the_right(less_outer(h, v, multiply(conjugate(t), left)), v, t)
        rest = (place[None] == k) & (place[:, None] > k)
        h = where(rest, Complex(jnp.where(place[:, None] == k + 1, beta, 0), 0), h)
        vs = each(lambda part, new: lax.dynamic_update_index_in_dim(part, new, k, 1), vs, v)
        ts = each(lambda part, new: lax.dynamic_update_index_in_dim(part, new, k, 0), ts, t)
        return h, to_the_right(q, v, t), vs, ts

    nothing = Complex(0 * eye, 0 * eye)
    state = a, Complex(eye, 0 * eye), nothing, each(lambda part: part[0], nothing)
    return repeat(0, n - 1, step, state)


@register_complex("hessenberg")
@of_stacks(2)
def _packed(a: Complex, **_: Any) -> list[Complex]:
    """As LAPACK's gehrd: H, the reflectors below it, and their factors."""
    n = _check(a)
    if n == 1:
        return [a, each(lambda part: part[0, :0], a)]
    h, _q, vectors, factors = hessenberg(a)
    below = np.tri(n, k=-2, dtype=bool)
    return [where(below, vectors, h), each(lambda part: part[: n - 1], factors)]


@register_complex("tridiagonal")
@of_stacks(2)
def _tridiagonal(a: Complex, *, lower: bool, **_: Any) -> list[Any]:
    """As LAPACK's hetrd: T with the reflectors beside it, its diagonals, and the factors of the reflectors."""
    n = _check(a)

    def turned(x: Any) -> Any:
        """The upper triangle is reduced from its end: as the lower one, with all in reverse order."""
        return x if lower else jnp.flip(x)

    a = each(turned, a)
    below, diagonal = np.tri(n, k=-1, dtype=bool), np.eye(n, dtype=bool)
    if n == 1:
        empty = a.re[0, :0]
        return [Complex(a.re, 0 * a.re), a.re[0], empty, Complex(empty, empty)]
    strict = where(below, a, 0)
    full = plus(where(diagonal, Complex(a.re, 0), strict), each(jnp.transpose, conjugate(strict)))
    h, _q, vectors, factors = hessenberg(full)
    d, e = jnp.diagonal(h.re), jnp.diagonal(h.re, -1)
    out = where(np.tri(n, k=-2, dtype=bool), vectors, where(np.tri(n, dtype=bool), Complex(h.re, 0 * h.re), a))
    return [each(turned, out), turned(d), turned(e), each(lambda part: turned(part[: n - 1]), factors)]


# -- the QR algorithm ------------------------------------------------------------------------------------------------
class _State(NamedTuple):
    """H, which becomes triangular, and Q, of which A = Q H Q^H; sweeps done; the last row of the block in work, or 0,
    and its first row."""

    h: Complex
    q: Complex
    sweep: Any
    last: Any
    first: Any


def _split_off(h: Complex, sweep: Any, q: Complex) -> _State:
    """Elements below the diagonal that are as good as zero made zero, and the block that is next."""
    n = h.re.shape[0]
    diagonal = size_of(each(jnp.diagonal, h))
    below = size_of(each(lambda part: jnp.diagonal(part, -1), h))
    epsilon = jnp.finfo(h.re.dtype).eps
    least = epsilon**2.5  # its square is a normal number
    whole = below > jnp.maximum(epsilon * (diagonal[1:] + diagonal[:-1]), least)
    rows, columns = np.indices((n, n))
    kept = (rows <= columns) | ((rows == columns + 1) & jnp.pad(whole, (1, 0))[:, None])
    place = jnp.arange(n, dtype=np.int32)
    last = jnp.max(jnp.where(whole, place[1:], 0), initial=0)
    starts = ~jnp.pad(whole, (1, 0)) & (place < last)
    return _State(where(kept, h, 0), q, sweep, last, jnp.max(jnp.where(starts, place, 0)))


def _shift(state: _State) -> Complex:
    """The eigenvalue of the last 2 x 2 block that is nearer to its last element."""
    h, n = state.h, state.h.re.shape[0]
    place = jnp.arange(n, dtype=np.int32)
    here = place == state.last

    def chosen(x: Complex, where: Any) -> Complex:
        return each(lambda part: jnp.sum(jnp.where(where, part, 0)), x)

    diagonal = each(jnp.diagonal, h)
    a, d = chosen(diagonal, place == state.last - 1), chosen(diagonal, here)
    b = chosen(each(lambda part: jnp.diagonal(part, 1), h), here[1:])
    c = chosen(each(lambda part: jnp.diagonal(part, -1), h), here[1:])
    half = scaled(minus(a, d), 0.5)
    bc = multiply(b, c)
    root = _root(plus(multiply(half, half), bc))
    against = half.re * root.re + half.im * root.im < 0
    under = plus(half, where(against, scaled(root, -1), root))
    nothing = square(under) == 0
    wilkinson = minus(d, where(nothing, 0, quotient(bc, where(nothing, 1, under))))
    odd = (state.sweep % _ODD) == _ODD - 1
    return Complex(jnp.where(odd, d.re + size_of(c), wilkinson.re), jnp.where(odd, d.im, wilkinson.im))


def _rotation(x: Complex, y: Complex, wanted: Any) -> tuple[Any, Complex]:
    """A real c and an s for which -conj(s) x + c y = 0; 1 and 0 where it is not wanted. Of x and y, of a matrix of
    numbers about one, squares do not overflow, and what is not negligible does not vanish."""
    x, y = scaled(x, _MAGNIFIED), scaled(y, _MAGNIFIED)
    xx, yy = square(x), square(y)
    wanted = wanted & (yy > 0)
    alone = xx == 0
    size = lax.rsqrt(jnp.where(wanted, xx + yy, 1))
    of_x = lax.sqrt(xx)
    phase = where(alone, 1, scaled(x, 1 / jnp.where(alone, 1, of_x)))
    of_y = where(alone, scaled(conjugate(y), size), scaled(multiply(phase, conjugate(y)), size))
    return jnp.where(wanted, of_x * size, 1), where(wanted, of_y, 0)


def _turned(x: Complex, k: Any, axis: int, c: Any, s: Complex) -> Complex:
    """Of rows or columns k and k + 1 the first becomes c p + s q, and the second c q - conj(s) p."""
    both = each(lambda part: lax.dynamic_slice_in_dim(part, k, 2, axis), x)
    p, q = (each(lambda part, i=i: lax.index_in_dim(part, i, axis), both) for i in (0, 1))
    new = joined([plus(scaled(p, c), multiply(q, s)), minus(scaled(q, c), multiply(p, conjugate(s)))], axis)
    return each(lambda part, part_new: lax.dynamic_update_slice_in_dim(part, part_new, k, axis), x, new)


def _swept(state: _State) -> _State:
    """One QR step on the block in work: rotations that chase the bulge down."""
    n = state.h.re.shape[0]
    shift = _shift(state)

    def step(k: Any, carry: tuple[Complex, Complex]) -> tuple[Complex, Complex]:
        h, q = carry
        own, before = column_of(h, k), column_of(h, jnp.maximum(k - 1, 0))
        starts = state.first == k
        x, y = (where(starts, *(row_of(v, i) for v in (own, before))) for i in (k, k + 1))
        x = minus(x, where(starts, shift, 0))
        c, s = _rotation(x, y, (state.first <= k) & (k < state.last))
        h = _turned(_turned(h, k, 0, c, s), k, 1, c, conjugate(s))
        return h, _turned(q, k, 1, c, conjugate(s))

    h, q = repeat(0, n - 1, step, (state.h, state.q))
    return _split_off(h, state.sweep + 1, q)


def schur_form(a: Complex) -> tuple[Complex, Complex]:
    """An upper triangular T and a unitary Q of which A = Q T Q^H; NaN where A is not finite."""
    n = a.re.shape[0]
    largest = jnp.max(jnp.concatenate([lax.abs(part).ravel() for part in a]))
    finite = largest < jnp.inf
    if n == 1:
        one = jnp.ones((1, 1), a.re.dtype)
        return each(lambda part: jnp.where(finite, part, jnp.nan), a), Complex(one, 0 * one)
    e = scaling.exponent(largest)
    down = scaling.inverse(e, a.re.dtype)
    h, q, *_ = hessenberg(each(lambda part: jnp.where(finite, part * down, 0), a))
    state = lax.while_loop(lambda s: (s.last > 0) & (s.sweep < _SWEEPS * n), _swept, _split_off(h, 0, q))
    fine = finite & (state.last == 0)
    up = scaling.power(e, a.re.dtype)
    return (each(lambda part: jnp.where(fine, jnp.triu(part) * up, jnp.nan), state.h),
            each(lambda part: jnp.where(fine, part, jnp.nan), state.q))


@register_complex("schur")
@of_stacks(2)
def _schur(a: Complex, *, compute_schur_vectors: bool, sort_eig_vals: bool, **_: Any) -> list[Complex]:
    """Eigenvalues come in an order of the algorithm's, and a Schur vector may have another phase than LAPACK's."""
    _check(a)
    if sort_eig_vals:
        raise NotImplementedError("sorted eigenvalues")
    form, vectors = schur_form(a)
    return [form, vectors] if compute_schur_vectors else [form]


# -- eigenvectors ----------------------------------------------------------------------------------------------------
@register_complex("eig")
@of_stacks(2)
def _eig(a: Complex, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **_: Any) -> list[Complex]:
    """As LAPACK's geev: eigenvectors have length one, and their largest elements are real."""
    _check(a)
    form, q = schur_form(a)
    wanted = [each(jnp.diagonal, form)]
    if compute_left_eigenvectors:  # those of A^H, whose Schur form is T^H; in reverse order that is upper triangular
        flipped = Complex(form.re[::-1, ::-1].T, -form.im[::-1, ::-1].T)
        x = _triangular_eigenvectors(flipped)
        wanted.append(_normalised(q, each(lambda part: part[::-1, ::-1], x)))
    if compute_right_eigenvectors:
        wanted.append(_normalised(q, _triangular_eigenvectors(form)))
    return wanted


def _triangular_eigenvectors(form: Complex) -> Complex:
    """The eigenvectors of an upper triangular matrix as columns, of any length, by substitution."""
    n = form.re.shape[0]
    largest = jnp.max(jnp.concatenate([size_of(form).ravel()]))
    form = scaled(form, 1 / jnp.where(largest > 0, largest, 1))
    least = jnp.finfo(form.re.dtype).eps
    values = each(jnp.diagonal, form)
    place = np.arange(n)
    eye = jnp.eye(n, dtype=form.re.dtype)
    strict = where(np.tri(n, k=-1, dtype=bool).T, form, 0)

    def step(i: Any, x: Complex) -> Complex:
        right, own = row_of(strict, i), row_of(values, i)
        apart = minus(values, own)
        apart = where(size_of(apart) < least, least, apart)
        total = product(right, x)
        new = where(place > i, quotient(total, apart), Complex((place == i).astype(least.dtype), 0))
        x = each(lambda part, part_new: lax.dynamic_update_index_in_dim(part, part_new, i, 0), x, new)
        size = jnp.max(size_of(x), axis=0)
        return scaled(x, jnp.where(size > _LARGE, 1 / size, 1))

    return repeat(n - 1, -1, step, Complex(0 * eye, 0 * eye))


def _normalised(q: Complex, x: Complex) -> Complex:
    """Eigenvectors in the original basis."""
    x = scaled(x, 1 / jnp.max(size_of(x), axis=0))
    v = Complex(q.re @ x.re - q.im @ x.im, q.re @ x.im + q.im @ x.re)
    v = scaled(v, lax.rsqrt(jnp.sum(square(v), axis=0)))
    squares = square(v)
    largest = np.arange(v.re.shape[0])[:, None] == jnp.argmax(squares, axis=0)
    head = each(lambda part: jnp.sum(jnp.where(largest, part, 0), axis=0), v)
    v = multiply(v, scaled(conjugate(head), lax.rsqrt(square(head))))
    return Complex(v.re, jnp.where(largest, 0, v.im))
