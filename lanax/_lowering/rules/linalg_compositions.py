"""Functions of matrices that are seldom asked for, written in JAX: general eigenvalues, updates and products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._lowering.registry import register_composition

#: Rows of the largest matrix whose general eigenvalues are in lanes.
_LARGEST = 16
#: Eigenvectors that grow beyond this while they are computed are scaled.
_LARGE = 1e6


# -- general eigenvalues ---------------------------------------------------------------------------------------------
def _eig(a: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **_: Any) -> list[Any]:
    """From the Schur form. As LAPACK's geev: pairs are exactly conjugate, the one with a positive imaginary part first;
    eigenvectors have length one, and their largest elements are real."""
    n = a.shape[-1]
    if np.dtype(a.dtype) not in (np.float32, np.float64) or not 1 <= n <= _LARGEST:
        raise NotImplementedError("matrices that are complex, too large or too small")

    if n == 1:
        wanted = compute_left_eigenvectors + compute_right_eigenvectors
        ones = jnp.where(jnp.isfinite(a), 1, jnp.nan).astype(a.dtype)
        return [lax.complex(x, 0 * x) for x in (a[..., 0] * ones[..., 0], *[ones] * wanted)]

    def of_one(a: Any) -> list[Any]:
        form, vectors = lax.linalg.schur(a)[:2]
        values, wanted = _eigenvalues(form), []
        if compute_left_eigenvectors:  # those of the transpose; in reverse order that is of Schur's form too
            flipped = form[::-1, ::-1].T
            x = _triangular_eigenvectors(flipped, _eigenvalues(flipped))[::-1, ::-1]
            wanted.append(_normalised(vectors, x, values))
        if compute_right_eigenvectors:
            wanted.append(_normalised(vectors, _triangular_eigenvectors(form, values), values))
        return [values, *wanted]

    for _axis in range(a.ndim - 2):
        of_one = jax.vmap(of_one)
    return of_one(a)


def _below(form: Any) -> Any:
    """The elements left of the diagonal, of which one is not zero in the second row of each pair."""
    return jnp.pad(jnp.diagonal(form, -1), (1, 0))


def _eigenvalues(form: Any) -> Any:
    below, above = _below(form), jnp.pad(jnp.diagonal(form, 1), (1, 0))
    size = jnp.sqrt(jnp.abs(below)) * jnp.sqrt(jnp.abs(above))
    pair = jnp.where(below != 0, size, 0)
    return lax.complex(jnp.diagonal(form), jnp.append(pair[1:], jnp.zeros_like(pair[:1])) - pair)


def _triangular_eigenvectors(form: Any, values: Any) -> Any:
    """The eigenvectors of a Schur form as columns, of any length, by substitution from the last row to the first."""
    n = form.shape[0]
    below, index = _below(form), jnp.arange(n)
    second = below != 0
    first = jnp.append(second[1:], False)
    top = index - second  # of each eigenvalue the first row that its block has
    least = jnp.finfo(form.dtype).eps
    largest = jnp.max(jnp.abs(form))
    scale = 1 / jnp.where(largest == 0, 1, largest)
    form, values = form * scale, _scaled(values, scale)

    def apart(x: Any) -> Any:
        return jnp.where(jnp.abs(x.real) + jnp.abs(x.imag) < least, least, x)

    def row(step: Any, x: Any) -> Any:
        i = n - 1 - step
        up = jnp.maximum(i - 1, 0)
        right = index > i
        rows = (jnp.where(right, -form[k], 0) for k in (i, up))
        here, there = (lax.complex(row @ x.real, row @ x.imag) for row in rows)
        p, q, r, s = apart(form[up, up] - values), form[up, i], form[i, up], apart(form[i, i] - values)
        determinant = p * s
        determinant = lax.complex(determinant.real - q * r, determinant.imag)
        tiny = jnp.abs(determinant.real) + jnp.abs(determinant.imag) < least * least
        determinant = jnp.where(tiny, least * least, determinant)
        inside = second[i]
        alone = _quotient(jnp.where(inside, p * here - _scaled(there, r), here), jnp.where(inside, determinant, s))
        above = _quotient(s * there - _scaled(here, q), determinant)
        open_ = i < top
        x = x.at[i].set(jnp.where(open_ & ~first[i], alone, x[i]))
        x = x.at[up].set(jnp.where(open_ & second[i], above, x[up]))
        size = jnp.max(jnp.abs(x.real) + jnp.abs(x.imag), axis=0)
        return _scaled(x, jnp.where(size > _LARGE, 1 / size, 1))

    return lax.fori_loop(0, n, row, _own_rows(form, values, first, second))


# Of numbers about one, so that no square overflows: much shorter than what complex numbers ask for in general.
def _square(x: Any) -> Any:
    return x.real**2 + x.imag**2


def _scaled(x: Any, scale: Any) -> Any:
    return lax.complex(x.real * scale, x.imag * scale)


def _quotient(x: Any, y: Any) -> Any:
    return _scaled(x * y.conj(), 1 / _square(y))


def _own_rows(form: Any, values: Any, first: Any, second: Any) -> Any:
    """The elements of each eigenvector in the rows of its eigenvalue's own block; zeros elsewhere."""
    n = form.shape[0]
    above, below = jnp.append(jnp.diagonal(form, 1), 0), jnp.append(jnp.diagonal(form, -1), 0)
    wide = jnp.abs(above) >= jnp.abs(below)
    # (T - value) v = 0 is -i w u + above v = 0, and below u - i w v = 0.
    zero, one = jnp.zeros_like(above), jnp.ones_like(above)
    ratio = lax.complex(zero, values.imag / jnp.where(first, jnp.where(wide, above, below), 1))
    one = lax.complex(one, zero)
    u, v = jnp.where(first & ~wide, ratio, one), jnp.where(wide, ratio, one)
    of_pair_u, of_pair_v = (jnp.roll(x, 1).conj() for x in (u, v))
    eye = jnp.eye(n, dtype=bool)
    on = jnp.where(second, of_pair_v, u)
    x = jnp.where(eye, on, 0)
    x = jnp.where(jnp.roll(eye, 1, 0) & first, v, x)
    return jnp.where(jnp.roll(eye, -1, 0) & second, of_pair_u, x)


def _normalised(vectors: Any, x: Any, values: Any) -> Any:
    """Eigenvectors in the original basis."""
    x = _scaled(x, 1 / jnp.max(jnp.abs(x.real) + jnp.abs(x.imag), axis=0))
    v = lax.complex(vectors @ x.real, vectors @ x.imag)
    squares = _square(v)
    v = _scaled(v, 1 / jnp.sqrt(jnp.sum(squares, axis=0)))
    largest = jnp.arange(v.shape[0])[:, None] == jnp.argmax(squares, axis=0)
    head = jnp.sum(jnp.where(largest, v, 0), axis=0)
    v = v * jnp.where(values.imag == 0, 1, _scaled(head.conj(), 1 / jnp.sqrt(_square(head))))
    imaginary = jnp.where((values.imag == 0) | largest, 0, v.imag)
    before = lax.complex(*(jnp.roll(part, 1, 1) for part in (v.real, -imaginary)))
    return jnp.where(values.imag < 0, before, lax.complex(v.real, imaginary))


# -- updates and products --------------------------------------------------------------------------------------------
def _cholesky_update(r: Any, z: Any) -> Any:
    """R of R^T R + z z^T, by Givens' rotations of its rows with z."""

    def row(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        r, z = state
        x, y = r[k, k], z[k]
        size = jnp.maximum(jnp.abs(x), jnp.abs(y))
        u, v = x / size, y / size
        length = jnp.sqrt(u**2 + v**2)
        cosine, sine = jnp.where(y == 0, 1, u / length), jnp.where(y == 0, 0, v / length)
        return r.at[k].set(cosine * r[k] + sine * z), cosine * z - sine * r[k]

    return lax.fori_loop(0, r.shape[0], row, (r, z))[0]


def _symmetric_product(a: Any, c: Any, *, alpha: float, beta: float) -> Any:
    return alpha * (a @ jnp.swapaxes(a, -1, -2)) + beta * c


for _name, _fun in {
    "cholesky_update": _cholesky_update,
    "eig": _eig,
    "symmetric_product": _symmetric_product,
}.items():
    register_composition(_name, _fun)
