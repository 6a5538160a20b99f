"""Small linear algebra: errors against LAPACK's, singular matrices and NaN, and whole programs in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix
import pytest
from helpers import run_kernel

import lanax

F32, F64 = np.float32, np.float64
COUNT = 100


# -- backward errors -------------------------------------------------------------------------------------------------
def ordinary(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(COUNT, n, n))


def graded(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows and columns of very different sizes."""
    scale = 10.0 ** rng.integers(-4, 5, (COUNT, 2, n))
    return rng.normal(size=(COUNT, n, n)) * scale[:, 0, :, None] * scale[:, 1, None, :]


def nearly_singular(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.normal(size=(COUNT, n, 1)) * rng.normal(size=(COUNT, 1, n))
    return x + 1e-5 * rng.normal(size=(COUNT, n, n))


FAMILIES = (ordinary, graded, nearly_singular)


def norm(x: np.ndarray) -> np.ndarray:
    return np.abs(x).max((-1, -2))


def not_worse(fun: Callable[..., Any], args: tuple[np.ndarray, ...], error: Callable[..., np.ndarray]) -> None:
    """`error(results, args)` is not above twice that of JAX's own results, on average and at worst."""
    with jax.enable_x64(True):
        got = run_kernel(fun, args)
        want = [np.asarray(x) for x in jax.tree.leaves(jax.jit(jax.vmap(fun))(*args))]
    eps = float(np.finfo(args[0].dtype).eps)
    ours, theirs = (error(*[x.astype(np.longdouble) for x in (*out, *args)]) / eps for out in (got, want))
    assert ours.mean() <= 2 * theirs.mean() + 0.01
    assert ours.max() <= 2 * theirs.max() + 0.5  # in units in the last place of the norm


def lower(x: np.ndarray, diagonal: bool) -> np.ndarray:
    k = min(x.shape[-2:])
    return np.tril(x, -1)[..., :k] + np.eye(x.shape[-2], k) if diagonal else np.tril(x)[..., :k]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("n", [3, 7, 12])
class TestBackwardErrors:
    """Of a factorisation: the error of the product; of a system: the residual."""

    def matrices(self, family: Any, dtype: Any, n: int) -> np.ndarray:
        return family(np.random.default_rng(n), n).astype(dtype)

    def test_lu(self, family: Any, dtype: Any, n: int) -> None:
        def error(lu: np.ndarray, _: Any, permutation: np.ndarray, a: np.ndarray) -> np.ndarray:
            rows = np.take_along_axis(a, permutation.astype(int)[..., None], -2)
            return norm(lower(lu, True) @ np.triu(lu) - rows) / norm(a)

        not_worse(jax.lax.linalg.lu, (self.matrices(family, dtype, n),), error)

    def test_solve(self, family: Any, dtype: Any, n: int) -> None:
        def error(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            x, b = x[..., None], b[..., None]
            return norm(a @ x - b) / (norm(a) * norm(x) + norm(b))

        a = self.matrices(family, dtype, n)
        not_worse(jnp.linalg.solve, (a, a[:, 0]), error)

    def test_qr(self, family: Any, dtype: Any, n: int) -> None:
        n = min(n, 8)
        def error(q: np.ndarray, r: np.ndarray, a: np.ndarray) -> np.ndarray:
            orthogonal = norm(np.swapaxes(q, -1, -2) @ q - np.eye(n))
            return np.maximum(norm(q @ r - a) / norm(a), orthogonal)

        not_worse(lambda a: jax.lax.linalg.qr(a, full_matrices=False), (self.matrices(family, dtype, n),), error)

    def test_cholesky(self, family: Any, dtype: Any, n: int) -> None:
        a = self.matrices(family, F64, n)
        a = (a @ np.swapaxes(a, -1, -2)) * (1 + 1e-3 * np.eye(n))

        def error(x: np.ndarray, a: np.ndarray) -> np.ndarray:
            return norm(x @ np.swapaxes(x, -1, -2) - a) / norm(a)

        not_worse(lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), (a.astype(dtype),), error)


    def test_eigh(self, family: Any, dtype: Any, n: int) -> None:
        n = min(n, 8)
        a = self.matrices(family, dtype, n)
        a = a + np.swapaxes(a, -1, -2)

        def error(v: np.ndarray, w: np.ndarray, a: np.ndarray) -> np.ndarray:
            orthogonal = norm(np.swapaxes(v, -1, -2) @ v - np.eye(n))
            return np.maximum(norm(v * w[..., None, :] @ np.swapaxes(v, -1, -2) - a) / norm(a), orthogonal)

        not_worse(lambda a: jax.lax.linalg.eigh(a, symmetrize_input=False), (a,), error)


@pytest.mark.parametrize(("dtype", "size"), [(F32, 1e30), (F32, 1e-30), (F64, 1e300), (F64, 1e-300)])
def test_qr_of_huge_and_tiny_matrices(dtype: Any, size: float) -> None:
    """No square overflows or vanishes."""
    with jax.enable_x64(True):
        a = (np.random.default_rng(0).normal(size=(9, 4, 3)) * size).astype(dtype)
        q, r = run_kernel(lambda a: jax.lax.linalg.qr(a, full_matrices=False), [a])
    np.testing.assert_allclose(q @ r, a, rtol=1e-4, atol=1e-6 * size)
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, np.broadcast_to(np.eye(3), (9, 3, 3)), atol=1e-6)


# -- singular matrices and NaN ---------------------------------------------------------------------------------------
SINGULAR = np.array([[[0, 0], [0, 0]], [[1, 2], [2, 4]], [[0, 1], [0, 2]], [[0, 2], [3, 0]]], F64)


@pytest.mark.parametrize("fun", [
    jax.lax.linalg.lu, jnp.linalg.inv, jnp.linalg.det, jnp.linalg.slogdet, jnp.linalg.qr, jnp.linalg.cholesky,
    lambda a: jnp.linalg.solve(a, jnp.ones(2)),
])
def test_singular_matrices(fun: Callable[..., Any]) -> None:
    with jax.enable_x64(True):
        for x, y in zip(run_kernel(fun, [SINGULAR]), jax.tree.leaves(jax.vmap(fun)(SINGULAR)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-14, atol=1e-15)


def test_first_of_equal_rows_is_the_pivot() -> None:
    a = np.array([[[2, 1, 0], [-2, 3, 1], [2, 0, 5]]], F32)
    np.testing.assert_array_equal(run_kernel(jax.lax.linalg.lu, [a])[1], jax.vmap(jax.lax.linalg.lu)(a)[1])


@pytest.mark.parametrize("fun", [
    jax.lax.linalg.lu, jnp.linalg.cholesky, lambda a: jnp.linalg.qr(a), lambda a: jnp.linalg.solve(a, jnp.ones(3)),
    jnp.linalg.inv,
])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_example(fun: Callable[..., Any], bad: float) -> None:
    a = np.random.default_rng(1).normal(size=(19, 3, 3)).astype(F32)
    a = a @ np.swapaxes(a, -1, -2) + np.eye(3, dtype=F32)
    clean = run_kernel(fun, [a])
    a[5, 1, 1] = bad
    for x, y in zip(run_kernel(fun, [a]), clean, strict=True):
        np.testing.assert_array_equal(np.delete(x, 5, 0), np.delete(y, 5, 0))


def test_nan_where_cholesky_and_solutions_have_it() -> None:
    a = np.broadcast_to(4 * np.eye(3, dtype=F32), (4, 3, 3)).copy()
    a[0, 0, 0], a[1, 1, 1], a[2, 2, 2] = np.nan, -1, 0

    for fun in (jnp.linalg.cholesky, jnp.linalg.inv):
        got, want = run_kernel(fun, [a])[0], jax.vmap(fun)(a)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


# -- programs --------------------------------------------------------------------------------------------------------
def same_in_one_kernel(fun: Callable[..., Any], *args: Any, tolerance: float = 1e-9) -> None:
    with jax.enable_x64(True):
        mapped = lanax.vmap(fun)
        for x, y in zip(jax.tree.leaves(mapped(*args)), jax.tree.leaves(jax.vmap(fun)(*args)), strict=True):
            np.testing.assert_allclose(x, y, tolerance, tolerance)
        explained = lanax.explain(mapped, *args)
        assert explained.routes == ("lanes",), explained.misses


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape)


def positive(x: Any) -> Any:
    return x @ x.T + jnp.eye(len(x))


@pytest.mark.parametrize("fun", [
    jnp.linalg.inv, jnp.linalg.det, jnp.linalg.slogdet, jnp.linalg.qr,
    lambda a: jnp.linalg.cholesky(positive(a)),
    lambda a: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(positive(a)), a[0]),
    lambda a: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), a[0], trans=1),
    lambda a: jax.scipy.linalg.solve_triangular(a, a[0], lower=True),
    lambda a: jax.scipy.linalg.expm(a / 4),
    lambda a: jax.grad(lambda x: jnp.linalg.slogdet(positive(x))[1])(a),
    lambda a: jax.jacfwd(lambda x: jnp.linalg.solve(x, x[0] ** 2))(a),
], ids=["inv", "det", "slogdet", "qr", "cholesky", "cho_solve", "lu_solve", "triangular", "expm", "grad", "jacobian"])
def test_functions(fun: Callable[..., Any]) -> None:
    same_in_one_kernel(fun, numbers(21, 4, 4))


@pytest.mark.parametrize("n", [2, 5])
def test_solve(n: int) -> None:
    same_in_one_kernel(jnp.linalg.solve, numbers(21, n, n), numbers(21, n))
    same_in_one_kernel(jnp.linalg.solve, numbers(21, n, n), numbers(21, n, 3))


@pytest.mark.parametrize("solver", [lineax.LU(), lineax.QR(), lineax.Cholesky()], ids=lambda s: type(s).__name__)
def test_lineax(solver: Any) -> None:
    def solve(a: Any, b: Any) -> Any:
        operator = lineax.MatrixLinearOperator(positive(a), lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, b, solver).value

    same_in_one_kernel(solve, numbers(21, 3, 3), numbers(21, 3))


def test_newton() -> None:
    def residual(v: Any, c: Any) -> Any:
        return jnp.stack([v[0] ** 2 + v[1] - c[0], v[0] - v[1] ** 3 - c[1]])

    def root(c: Any) -> Any:
        solver = optimistix.Newton(rtol=1e-9, atol=1e-9)
        return optimistix.root_find(residual, solver, jnp.array([1.0, 0.5]), c, throw=False).value

    same_in_one_kernel(root, np.random.default_rng(0).uniform(0.5, 1.5, (21, 2)))


def test_levenberg_marquardt() -> None:
    times = np.linspace(0, 1, 8)

    def residual(p: Any, data: Any) -> Any:
        return p[0] * jnp.exp(-p[1] * times) + p[2] - data

    def fit(data: Any) -> Any:
        solver = optimistix.LevenbergMarquardt(rtol=1e-10, atol=1e-10)
        return optimistix.least_squares(residual, solver, jnp.array([1.0, 1.0, 0.0]), data, throw=False).value

    same_in_one_kernel(fit, 2 * np.exp(-1.5 * times) + 0.3 + 0.01 * numbers(21, 8), tolerance=1e-5)


# -- what is left to XLA ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fun", "reason"), [
    (lambda a: jnp.linalg.inv(jnp.tile(a, (11, 11)) + jnp.eye(33)), "33 x 33 is left to XLA"),
    (lambda a: jnp.linalg.qr(jnp.tile(a, (3, 3))), "9 x 9 is left to XLA"),
    (lambda a: jax.lax.linalg.qr(a, pivoting=True), "pivoting"),
])
def test_reasons(fun: Callable[..., Any], reason: str) -> None:
    assert any(reason in str(miss) for miss in lanax.explain(lanax.vmap(fun), numbers(5, 3, 3).astype(F32)).misses)
