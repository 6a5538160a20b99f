"""Rows for factors of matrices and systems of linear equations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from case import Case
from jax import lax
from jax._src.lax.linalg import geqp3, geqrf, ormqr

F32, F64, I32 = np.float32, np.float64, np.int32

Maker = Callable[[np.random.Generator, int], np.ndarray]


def matrices(*shape: int, dtype: Any = F32, diagonal: float = 0.0) -> Maker:
    """Random matrices, with a number added on the diagonal."""

    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        x = rng.normal(size=(batch, *shape))
        return (x + diagonal * np.eye(shape[-2], shape[-1]) if diagonal else x).astype(dtype)

    return make


def definite(*shape: int, dtype: Any = F32) -> Maker:
    """Symmetric positive definite matrices; of each seven one that is not."""

    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        x = rng.normal(size=(batch, *shape))
        x = x @ np.swapaxes(x, -1, -2) + 0.5 * np.eye(shape[-1])
        x[::7] -= 2 * np.eye(shape[-1])
        return x.astype(dtype)

    return make


def pivots(shape: tuple[int, ...], size: int) -> Maker:
    """Rows to exchange, in any order."""
    return lambda rng, batch: rng.integers(0, size, (batch, *shape)).astype(I32)


def row(primitive: str, name: str, fun: Callable[..., Any], *makers: Callable[..., Maker], dtype: Any = F64) -> Case:
    bounds = (2e-4, 2e-5) if dtype == F32 else (1e-10, 1e-12)
    return Case(primitive, f"{name}-{np.dtype(dtype)}", fun, tuple(make(dtype=dtype) for make in makers), *bounds)


def both(*args: Any) -> list[Case]:
    """One row for each of the two dtypes."""
    return [row(*args, dtype=dtype) for dtype in (F32, F64)]


def of(*shape: int, kind: Callable[..., Maker] = matrices, **options: Any) -> Callable[..., Maker]:
    return lambda dtype: kind(*shape, dtype=dtype, **options)


def _factors() -> list[Case]:
    rows: list[Case] = []
    for n in (1, 2, 3, 4, 6):
        rows += both("lu", f"{n}", lax.linalg.lu, of(n, n, diagonal=0.3))
        rows += both("cholesky", f"{n}", lax.linalg.cholesky, of(n, n, kind=definite))
    for m, n in ((3, 3), (5, 2), (2, 4)):
        rows.append(row("lu", f"{m} x {n}", lax.linalg.lu, of(m, n)))
        rows += both("geqrf", f"{m} x {n}", geqrf, of(m, n))
        for full in (False, True):
            qr = lambda a, full=full: lax.linalg.qr(a, full_matrices=full)  # noqa: E731
            rows.append(row("qr", f"{m} x {n} {full}", qr, of(m, n), dtype=F32 if m == n else F64))
    return [
        *rows,
        row("geqrf", "large", geqrf, of(11, 9), dtype=F32),
        row("geqrf", "large and wide", geqrf, of(2, 9, 15)),
        row("qr", "large", lambda a: lax.linalg.qr(a, full_matrices=False), of(12, 11), dtype=F32),
        row("qr", "large and full", lax.linalg.qr, of(12, 10)),
        row("qr", "tall", lambda a: lax.linalg.qr(a, full_matrices=False), of(50, 3)),
        row("qr", "large and wide", lax.linalg.qr, of(9, 17)),
        row("lu", "computed", lambda a: lax.linalg.lu(jnp.sin(a) + a.T), of(3, 3, diagonal=1.0)),
        row("lu", "large", lax.linalg.lu, of(2, 10, 9)),
        row("lu", "large and uniform", lambda a, x: (lax.linalg.lu(a)[0] * x, lax.linalg.lu(a)[2]), of(9, 9), of()),
        row("cholesky", "large", lax.linalg.cholesky, of(9, 9, kind=definite), dtype=F32),
        row("lu", "many", lax.linalg.lu, of(2, 9, 3, 3, diagonal=0.3), dtype=F32),
        row("cholesky", "many", lax.linalg.cholesky, of(2, 1, 3, 3, kind=definite)),
        row("cholesky", "lower", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), of(3, 3, diagonal=4.0)),
        row("qr", "many", lambda a: lax.linalg.qr(a, full_matrices=False), of(3, 2, 4, 3), dtype=F32),
        Case("lu_pivots_to_permutation", "", lambda p: lax.linalg.lu_pivots_to_permutation(p, 6), (pivots((4,), 6),)),
        Case("lu_pivots_to_permutation", "many", lambda p: lax.linalg.lu_pivots_to_permutation(p, 4),
             (pivots((5, 4), 4),)),
    ]


def _eigen() -> list[Case]:
    def rebuilt(a: Any, *, lower: bool = True) -> Any:
        """The eigenvalues, and what does not depend on the signs of the eigenvectors."""
        v, w = lax.linalg.eigh(a, symmetrize_input=False, lower=lower)
        return w, jnp.einsum("...ij,...j,...kj->...ik", v, w + jnp.arange(w.shape[-1]), v)

    rows = [row("eigh", f"{n}", rebuilt, of(n, n, diagonal=1.0)) for n in (1, 2, 3, 5, 9)]
    return [*rows, row("eigh", "upper", lambda a: rebuilt(a, lower=False), of(3, 3), dtype=F32),
            row("eigh", "upper 6", lambda a: rebuilt(a, lower=False), of(6, 6), dtype=F32),
            row("eigh", "values", lambda a: jnp.linalg.eigvalsh(a), of(4, 4), dtype=F32),
            row("eigh", "values 7", lambda a: jnp.linalg.eigvalsh(a), of(7, 7), dtype=F32),
            row("eigh", "many", rebuilt, of(2, 3, 3)), row("eigh", "many 6", rebuilt, of(2, 6, 6)),
            row("eigh", "blocks", rebuilt, blocks), row("eigh", "in a loop", _settled, of(5, 5))]


def blocks(dtype: Any) -> Maker:
    """Matrices of which some are diagonal, or zero, or fall into blocks, with zeros of either sign."""

    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        x = rng.normal(size=(batch, 6, 6))
        x[::2, :3, 3:] = x[::2, 3:, :3] = -0.0
        x[::3] *= np.eye(6)
        x[::5] = 0
        return x.astype(dtype)

    return make


def _settled(a: Any) -> Any:
    """Eigenvalues in a loop that examples leave at different times."""
    step = lambda state: (state[0] * 1.3 + 0.1, state[1] + jnp.linalg.eigvalsh(state[0])[-1])  # noqa: E731
    return lax.while_loop(lambda state: state[1] < 20.0, step, (a, jnp.zeros((), a.dtype)))[1]


def _singular() -> list[Case]:
    def rebuilt(a: Any, *, full: bool = False) -> Any:
        """The singular values, and what does not depend on the signs of the vectors."""
        u, s, vt = jnp.linalg.svd(a, full_matrices=full)
        k = s.shape[-1]
        left, right = u[..., k:], vt[..., k:, :]
        return (s, jnp.einsum("...ij,...j,...jk->...ik", u[..., :k], s + 1 + jnp.arange(k)[::-1], vt[..., :k, :]),
                left @ jnp.swapaxes(left, -1, -2), jnp.swapaxes(right, -1, -2) @ right)

    shapes = ((1, 1), (2, 2), (3, 3), (4, 2), (2, 5), (6, 6), (9, 5), (3, 12), (40, 5))
    rows = [row("svd", f"{m} x {n}", lambda a: rebuilt(a), of(m, n, diagonal=1.0), dtype=F64 if m < n or m > 9 else F32)
            for m, n in shapes]
    values = lambda a: jnp.linalg.svd(a, compute_uv=False)  # noqa: E731
    return [*rows, row("svd", "full 4 x 2", lambda a: rebuilt(a, full=True), of(4, 2)),
            row("svd", "full 3 x 7", lambda a: rebuilt(a, full=True), of(3, 7)),
            row("svd", "full 8 x 6", lambda a: rebuilt(a, full=True), of(8, 6)),
            row("svd", "values", values, of(3, 4)), row("svd", "values 6", values, of(5, 6)),
            row("svd", "blocks", values, blocks), row("svd", "many", rebuilt, of(2, 3, 2)),
            row("svd", "of rank one", lambda x: _of_low_rank(x, 3), of(3), dtype=F64),
            row("svd", "of rank one 6", lambda x: _of_low_rank(x, 6), of(6), dtype=F64)]


def _of_low_rank(x: Any, n: int) -> Any:
    """Of a matrix of rank one: its size, its two projectors, and how orthogonal all vectors are."""
    u, s, vt = jnp.linalg.svd(jnp.outer(x, x[::-1]))
    return s, jnp.outer(u[:, 0], vt[0]), u.T @ u, vt @ vt.T


def _reduced() -> list[Case]:
    """Forms that are similar to the matrix."""

    def schur(a: Any) -> Any:
        form, vectors = lax.linalg.schur(a)
        rebuilt = vectors @ form @ jnp.swapaxes(vectors, -1, -2)
        return rebuilt, jnp.tril(form, -2), jnp.swapaxes(vectors, -1, -2) @ vectors

    def eig(a: Any) -> Any:
        """What does not depend on the order."""
        w, v = lax.linalg.eig(a, compute_left_eigenvectors=False)
        return jnp.stack([jnp.sum(w.real), jnp.sum((w**2).real), jnp.max(w.real)]), jnp.abs(a @ v - v * w)

    def left(a: Any) -> Any:
        w, v = lax.linalg.eig(a, compute_right_eigenvectors=False)
        return jnp.abs(v.conj().T @ a - w[:, None] * v.conj().T)

    rows = [row("schur", f"{n}", schur, of(n, n)) for n in (2, 3, 6)]
    rows += [row("schur", "blocks", schur, blocks), row("schur", "many", schur, of(2, 3, 3)),
             row("eig", "3", eig, of(3, 3)), row("eig", "left", left, of(3, 3))]
    for n in (1, 2, 5):
        rows.append(row("hessenberg", f"{n}", lax.linalg.hessenberg, of(n, n)))
        for lower in (True, False):
            rows.append(row("tridiagonal", f"{n} {lower}", lambda a, o=lower: lax.linalg.tridiagonal(a, lower=o),
                            of(n, n)))
    return [*rows, row("hessenberg", "many", lax.linalg.hessenberg, of(2, 4, 4)),
            row("tridiagonal", "many", lambda a: lax.linalg.tridiagonal(a, lower=True), of(2, 3, 3))]


def _pivoted() -> list[Case]:
    rows = [row("qr", f"pivoted {m} x {n} {full}", lambda a, o=full: lax.linalg.qr(a, pivoting=True, full_matrices=o),
                of(m, n)) for m, n, full in ((3, 3, True), (5, 3, True), (2, 4, False), (9, 11, False))]
    some_first = Case("geqp3", "some first", lambda a, order: geqp3(a, order),
                      (matrices(4, 5, dtype=F64), lambda rng, batch: rng.integers(0, 2, (batch, 5)).astype(I32)))
    return [*rows, some_first, row("geqp3", "many", lambda a: geqp3(a, jnp.zeros((2, 3), I32)), of(2, 4, 3))]


def _products() -> list[Case]:
    rows = both("householder_product", "4 x 2", lambda a: lax.linalg.householder_product(a, _taus(a)), of(4, 2))
    rows.append(row("householder_product", "fewer taus", lambda a: lax.linalg.householder_product(a, _taus(a)[:2]),
                    of(4, 4)))
    for left, transpose in itertools.product((True, False), repeat=2):
        fun = lambda a, c, o=(left, transpose): ormqr(a, _taus(a), c, left=o[0], transpose=o[1])  # noqa: E731
        rows.append(row("ormqr", f"{left} {transpose}", fun, of(4, 2), of(4, 3) if left else of(3, 4),
                        dtype=F32 if transpose else F64))
    for left, transpose in ((True, False), (False, True)):
        fun = lambda a, c, o=(left, transpose): ormqr(a, _taus(a), c, left=o[0], transpose=o[1])  # noqa: E731
        rows.append(row("ormqr", f"large {left}", fun, of(10, 9), of(10, 13) if left else of(3, 10)))
    rows.append(row("ormqr", "both", lambda a, c: [ormqr(a, _taus(a), c, transpose=x) for x in (False, True)], of(4, 2),
                    of(4, 3)))
    rows.append(row("householder_product", "large", lambda a: lax.linalg.householder_product(a, _taus(a)[:7]),
                    of(12, 9)))
    return [*rows, row("symmetric_product", "", lambda a, c: lax.linalg.symmetric_product(a, c, alpha=2.0, beta=0.5),
                       of(3, 4), of(3, 3))]


def _taus(a: Any) -> Any:
    """The taus with which the columns of `a`, below the diagonal, are reflections."""
    return 2 / (1 + jnp.sum(jnp.tril(a, -1) ** 2, axis=-2))


def _systems() -> list[Case]:
    rows: list[Case] = []
    for left, lower, transpose, unit in itertools.product((True, False), repeat=4):
        fun = lambda a, b, o=(left, lower, transpose, unit): _triangular(a, b, *o)  # noqa: E731
        name = "".join("01"[x] for x in (left, lower, transpose, unit))
        rows.append(row("triangular_solve", name, fun, of(4, 4, diagonal=5.0), of(4, 2) if left else of(2, 4),
                        dtype=F32 if lower else F64))
    for left in (True, False):
        fun = lambda a, b, left=left: _triangular(a, b, left, True, False, False)  # noqa: E731
        rows.append(row("triangular_solve", f"many {left}", fun, of(3, 2, 3, 3, diagonal=5.0),
                        of(3, 2, 3, 5) if left else of(3, 2, 5, 3)))
        rows.append(row("triangular_solve", f"large {left}", fun, of(2, 9, 9, diagonal=25.0),
                        of(2, 9, 2) if left else of(2, 2, 9)))
        rows.append(row("triangular_solve", f"wide {left}", fun, of(2, 3, 3, diagonal=5.0),
                        of(2, 3, 50) if left else of(2, 50, 3)))
    for n in (1, 2, 5):
        diagonals = of(n), of(n), of(n)
        rows.append(row("tridiagonal_solve", f"{n}", lax.linalg.tridiagonal_solve, *diagonals, of(n, 2)))
    rows.append(row("tridiagonal_solve", "many", lax.linalg.tridiagonal_solve, *[of(3, 4)] * 3, of(3, 4, 2), dtype=F32))
    rows.append(row("tridiagonal_solve", "long", lax.linalg.tridiagonal_solve, *[of(40)] * 3, of(40, 5)))
    perturbed = functools.partial(lax.linalg.tridiagonal_solve, perturb_singular=True)
    rows += [row("tridiagonal_solve", f"perturbed {n}", perturbed, *[of(n)] * 3, of(n, 2)) for n in (1, 2, 9)]
    rows.append(row("tridiagonal_solve", "singular", lambda b: perturbed(0 * b[0], 0 * b[0], 0 * b[0], b.T), of(3, 7)))
    return rows


def _triangular(a: Any, b: Any, left: bool, lower: bool, transpose: bool, unit: bool) -> jax.Array:
    a = a / 5  # so that a triangle with ones on the diagonal is as easy
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, transpose_a=transpose, unit_diagonal=unit)


CASES = [*_factors(), *_eigen(), *_singular(), *_reduced(), *_pivoted(), *_products(), *_systems()]
