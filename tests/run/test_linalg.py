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
from helpers import loop, run_kernel

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
        a = self.matrices(family, dtype, n)
        a = a + np.swapaxes(a, -1, -2)

        def error(v: np.ndarray, w: np.ndarray, a: np.ndarray) -> np.ndarray:
            orthogonal = norm(np.swapaxes(v, -1, -2) @ v - np.eye(n))
            return np.maximum(norm(v * w[..., None, :] @ np.swapaxes(v, -1, -2) - a) / norm(a), orthogonal)

        not_worse(lambda a: jax.lax.linalg.eigh(a, symmetrize_input=False), (a,), error)


    def test_svd(self, family: Any, dtype: Any, n: int) -> None:
        a = self.matrices(family, dtype, n)

        def error(u: np.ndarray, s: np.ndarray, vt: np.ndarray, a: np.ndarray) -> np.ndarray:
            orthogonal = norm(np.swapaxes(u, -1, -2) @ u - np.eye(n)), norm(vt @ np.swapaxes(vt, -1, -2) - np.eye(n))
            return np.maximum(norm(u * s[..., None, :] @ vt - a) / norm(a), np.maximum(*orthogonal))

        not_worse(jnp.linalg.svd, (a,), error)

    def test_schur(self, family: Any, dtype: Any, n: int) -> None:
        a = self.matrices(family, dtype, n)

        def error(form: np.ndarray, z: np.ndarray, a: np.ndarray) -> np.ndarray:
            orthogonal = norm(np.swapaxes(z, -1, -2) @ z - np.eye(n))
            return np.maximum(norm(z @ form @ np.swapaxes(z, -1, -2) - a) / norm(a), orthogonal)

        not_worse(jax.lax.linalg.schur, (a,), error)


@pytest.mark.parametrize(("dtype", "size"), [(F32, 1e30), (F32, 1e-30), (F64, 1e300), (F64, 1e-300)])
def test_qr_of_huge_and_tiny_matrices(dtype: Any, size: float) -> None:
    """No square overflows or vanishes."""
    with jax.enable_x64(True):
        a = (np.random.default_rng(0).normal(size=(9, 4, 3)) * size).astype(dtype)
        q, r = run_kernel(lambda a: jax.lax.linalg.qr(a, full_matrices=False), [a])
    np.testing.assert_allclose(q @ r, a, rtol=1e-4, atol=1e-6 * size)
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, np.broadcast_to(np.eye(3), (9, 3, 3)), atol=1e-6)


SPECIAL = np.stack([np.zeros((4, 4)), np.eye(4), np.eye(4, k=-1), np.roll(np.eye(4), 1, 0), np.ones((4, 4)),
                    np.triu(np.ones((4, 4))), np.diag([3.0, 3, 0, -3]), np.kron(np.eye(2), [[0, 1], [-1, 0]]),
                    np.outer([1, 2, 0, 4], [0, 1, -1, 1e-9]), 1e-9 * np.eye(4, k=1) + np.eye(4)])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
class TestSpecialMatrices:
    """Zero, defective, of low rank, with equal eigenvalues of either sign; small and, in loops, larger."""

    def matrices(self, size: int, scale: float) -> np.ndarray:
        return scale * np.kron(np.eye(size), SPECIAL)

    def test_svd(self, size: int, scale: float) -> None:
        a = self.matrices(size, scale)
        with jax.enable_x64(True):
            u, s, vt = run_kernel(jnp.linalg.svd, [a])
        eye = np.broadcast_to(np.eye(4 * size), a.shape)
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-14 * scale)
        np.testing.assert_allclose(u * s[:, None] @ vt, a, atol=1e-14 * scale)
        np.testing.assert_allclose(np.swapaxes(u, -1, -2) @ u, eye, atol=1e-14)
        np.testing.assert_allclose(vt @ np.swapaxes(vt, -1, -2), eye, atol=1e-14)
        assert (s >= 0).all()
        assert (np.diff(s) <= 0).all()

    def test_eigh(self, size: int, scale: float) -> None:
        a = self.matrices(size, scale)
        a = a + np.swapaxes(a, -1, -2)
        with jax.enable_x64(True):
            w, v = run_kernel(jnp.linalg.eigh, [a])
        np.testing.assert_allclose(w, np.linalg.eigvalsh(a), atol=2e-14 * scale)
        np.testing.assert_allclose(v * w[:, None] @ np.swapaxes(v, -1, -2), a, atol=2e-14 * scale)
        np.testing.assert_allclose(np.swapaxes(v, -1, -2) @ v, np.broadcast_to(np.eye(4 * size), a.shape), atol=2e-14)

    def test_schur(self, size: int, scale: float) -> None:
        a = self.matrices(size, scale)
        with jax.enable_x64(True):
            form, z = run_kernel(jax.lax.linalg.schur, [a])
        np.testing.assert_allclose(z @ form @ np.swapaxes(z, -1, -2), a, atol=2e-14 * scale)
        np.testing.assert_allclose(np.swapaxes(z, -1, -2) @ z, np.broadcast_to(np.eye(4 * size), a.shape), atol=2e-14)
        assert not np.tril(form, -2).any()
        below = np.diagonal(form, -1, 1, 2)
        assert not (below[:, 1:] * below[:, :-1]).any()  # blocks of two rows at most, with equal elements
        above, diagonal = np.diagonal(form, 1, 1, 2), np.diagonal(form, 0, 1, 2)
        pairs = below != 0
        assert (diagonal[:, 1:] == diagonal[:, :-1])[pairs].all()
        assert (np.sign(above) == -np.sign(below))[pairs].all()


def test_conjugate_pairs_are_exact() -> None:
    with jax.enable_x64(True):
        w, v = lanax.vmap(jnp.linalg.eig)(numbers(40, 3, 3))
    assert (np.sort_complex(w) == np.sort_complex(np.conj(w))).all()
    positive = np.asarray(w).imag > 0
    following = np.roll(positive, 1, -1)
    assert positive.any()
    np.testing.assert_array_equal(w[following], np.conj(w[positive]))
    columns = np.swapaxes(v, -1, -2)
    np.testing.assert_array_equal(columns[following], np.conj(columns[positive]))
    largest = np.take_along_axis(columns, np.abs(columns).argmax(-1)[..., None], -1)
    assert not largest.imag.any()
    np.testing.assert_allclose(np.linalg.norm(v, axis=-2), 1.0, rtol=1e-14)


def test_cholesky_update() -> None:
    """`jax.vmap` has no rule for it."""
    def updated(a: Any) -> Any:
        r = jnp.linalg.cholesky(positive(a)).T
        return jax.lax.linalg.cholesky_update(r, a[0]), r.T @ r + jnp.outer(a[0], a[0])

    with jax.enable_x64(True):
        got, want = run_kernel(updated, [numbers(11, 4, 4)])
        np.testing.assert_allclose(got, loop(updated, [numbers(11, 4, 4)])[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.swapaxes(got, -1, -2) @ got, want, rtol=1e-12, atol=1e-12)


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
    jnp.linalg.inv, jnp.linalg.svd, jnp.linalg.eigh, jax.lax.linalg.schur,
    lambda a: jnp.linalg.svd(jnp.tile(a, (2, 2))), lambda a: jnp.linalg.eigh(jnp.tile(a, (2, 2))),
    lambda a: jax.lax.linalg.qr(a, pivoting=True),
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


@pytest.mark.parametrize("fun", [jnp.linalg.svd, jnp.linalg.eigh, jax.lax.linalg.schur])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_all_is_nan_where_a_matrix_is_not_finite(fun: Callable[..., Any], copies: int, bad: float) -> None:
    a = np.ones((3, 3 * copies, 3 * copies), F32)
    a[1, 1, 1] = bad
    for x in run_kernel(fun, [a]):
        assert np.isnan(x[1]).all()
        assert not np.isnan(x[::2]).any()


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("n", [2, 5, 24])
def test_perturbed_systems_give_the_vectors_of_eigenvalues(n: int, dtype: Any) -> None:
    """A singular matrix: the solution is long, and its direction is what the matrix takes to zero."""
    rng = np.random.default_rng(n)
    diagonal, beside = rng.normal(size=(19, n)), rng.normal(size=(19, n - 1))
    whole = np.stack([np.diag(d) + np.diag(e, 1) + np.diag(e, -1) for d, e in zip(diagonal, beside, strict=True)])
    values, vectors = np.linalg.eigh(whole)
    shifted = (diagonal - values[:, :1]).astype(dtype)
    low, high = (np.pad(beside, ((0, 0), side)).astype(dtype) for side in ((1, 0), (0, 1)))
    (x,) = run_kernel(lambda *args: jax.lax.linalg.tridiagonal_solve(*args, perturb_singular=True),
                      [low, shifted, high, np.ones((19, n, 1), dtype)])
    x = x[..., 0] / np.linalg.norm(x[..., 0], axis=-1, keepdims=True)
    residual = np.abs(np.einsum("bij,bj->bi", whole - values[:, :1, None] * np.eye(n), x)).max(-1)
    assert (residual < 1000 * np.finfo(dtype).eps).all()
    assert (np.abs(np.einsum("bi,bi->b", x, vectors[:, :, 0])) > 0.999).all()


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
    jnp.linalg.svdvals, jnp.linalg.pinv, jnp.linalg.cond, jnp.linalg.matrix_rank, jax.scipy.linalg.polar,
    lambda a: jnp.linalg.norm(a, ord=2), lambda a: jnp.linalg.norm(a, ord="nuc"), jax.scipy.linalg.lu,
    lambda a: jnp.linalg.lstsq(a[:, :2], a[:, 2]), lambda a: jnp.linalg.matrix_power(a, -2),
    lambda a: jax.scipy.linalg.hessenberg(a, calc_q=True), lambda a: jax.scipy.linalg.qr(a, pivoting=True),
    jax.grad(lambda a: jnp.sum(jnp.linalg.svdvals(a) ** 3)), jax.grad(lambda a: jnp.linalg.eigvalsh(a)[0]),
], ids=["inv", "det", "slogdet", "qr", "cholesky", "cho_solve", "lu_solve", "triangular", "expm", "grad", "jacobian",
        "svdvals", "pinv", "cond", "rank", "polar", "norm2", "nuclear", "lu", "lstsq", "power", "hessenberg",
        "pivoted qr", "grad of svd", "grad of eigenvalues"])
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
    (lambda a: jnp.linalg.qr(jnp.tile(a, (11, 11))), "33 x 33 is left to XLA"),
    (lambda a: jnp.linalg.svd(jnp.tile(a, (7, 7))), "21 x 21 is left to XLA"),
    (lambda a: jax.lax.linalg.svd(a, algorithm=jax.lax.linalg.SvdAlgorithm.JACOBI), "not for CPUs"),
    (lambda a: jnp.linalg.eigvals(jnp.tile(a, (6, 6))), "more than 16 rows"),
])
def test_reasons(fun: Callable[..., Any], reason: str) -> None:
    assert any(reason in str(miss) for miss in lanax.explain(lanax.vmap(fun), numbers(5, 3, 3).astype(F32)).misses)
