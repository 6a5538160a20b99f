"""Small linear algebra, one set of matrices for each example. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, expm

from lanax._suite.program import Case


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _positive(seed: int, batch: int, n: int) -> np.ndarray:
    """Positive definite matrices, (batch, n, n)."""
    a = _normal(seed, batch, n, n)
    return a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)


def matmul4(batch: int) -> Case:
    """Products of two 4 x 4 matrices."""
    return Case(jnp.matmul, 0, (_normal(20, batch, 4, 4), _normal(21, batch, 4, 4)))


def matmul8(batch: int) -> Case:
    """Products of two 8 x 8 matrices."""
    return Case(jnp.matmul, 0, (_normal(22, batch, 8, 8), _normal(23, batch, 8, 8)))


def cholesky3(batch: int) -> Case:
    """Cholesky factors of 3 x 3 matrices."""
    return Case(jnp.linalg.cholesky, 0, (_positive(24, batch, 3),))


def solve4(batch: int) -> Case:
    """One right-hand side for each 4 x 4 matrix."""
    near_four = _normal(25, batch, 4, 4) + 4 * np.eye(4, dtype=np.float32)
    return Case(jnp.linalg.solve, 0, (near_four, _normal(26, batch, 4)))


def inv3(batch: int) -> Case:
    """The inverse of a product of 3 x 3 matrices."""
    near_one = [_normal(seed, batch, 3, 3) / 2 + 2 * np.eye(3, dtype=np.float32) for seed in (27, 28)]
    return Case(lambda a, b: jnp.linalg.inv(a @ b), 0, tuple(near_one))


def cholesky_solve6(batch: int) -> Case:
    """A 6 x 6 Cholesky factor and its two triangular solves."""
    return Case(lambda a, b: cho_solve(cho_factor(a), b), 0, (_positive(29, batch, 6), _normal(30, batch, 6)))


def eigenpairs(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues and eigenvectors of a symmetric matrix; the first element of each vector is not negative."""
    values, vectors = jnp.linalg.eigh(a)
    return values, vectors * jnp.where(vectors[0] < 0, -1.0, 1.0)


def eigh8(batch: int) -> Case:
    """8 x 8 symmetric matrices."""
    a = _normal(31, batch, 8, 8)
    return Case(eigenpairs, 0, (a + a.swapaxes(-1, -2),))


def singular(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Singular values and vectors; the first element of each left vector is not negative."""
    u, s, vt = jnp.linalg.svd(a)
    sign = jnp.where(u[0] < 0, -1.0, 1.0)
    return u * sign, s, vt * sign[:, None]


def svd3(batch: int) -> Case:
    """3 x 3 matrices."""
    return Case(singular, 0, (_normal(32, batch, 3, 3),))


def expm3(batch: int) -> Case:
    """Exponentials of 3 x 3 matrices whose norms span four decades, so that each needs its own number of squarings."""
    norms = 10.0 ** np.random.default_rng(33).uniform(-3, 1, (batch, 1, 1))
    a = _normal(34, batch, 3, 3)
    return Case(expm, 0, ((a / np.linalg.norm(a, axis=(1, 2), keepdims=True) * norms).astype(np.float32),))
