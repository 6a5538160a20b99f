"""Complex numbers through `lanax.vmap`: routes, accuracy, branch cuts, derivatives, axes, what is left to XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose, assert_array_equal

import lanax

LANES = lanax.Plan(route="lanes")
LANE = 37


def numbers(*shape: int, dtype: Any = np.complex64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def assert_same(fun: Callable[..., Any], *args: Any, in_axes: Any = 0, out_axes: Any = 0, tol: float = 2e-5,
                plan: lanax.Plan = LANES) -> lanax.Report:
    """Equal to `jax.vmap` and to the loop; gives the report."""
    mapped = lanax.vmap(fun, in_axes, out_axes, plan=plan)
    got, want = jax.tree.leaves(mapped(*args)), jax.tree.leaves(jax.vmap(fun, in_axes, out_axes)(*args))
    for x, y in zip(got, want, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert_allclose(x, y, rtol=tol, atol=tol)
    if in_axes == 0 and out_axes == 0:
        for i in (0, len(args[0]) - 1):
            for x, y in zip(got, jax.tree.leaves(fun(*(a[i] for a in args))), strict=True):
                assert_allclose(x[i], y, rtol=tol, atol=tol)
    return lanax.explain(mapped, *args)


def mandelbrot(c: Any) -> Any:
    def inside(state: tuple[Any, Any]) -> Any:
        z, n = state
        return (jnp.abs(z) < 2) & (n < 50)

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        z, n = state
        return z * z + c, n + 1

    return lax.while_loop(inside, step, (jnp.zeros_like(c), 0))


def test_mandelbrot_is_one_kernel() -> None:
    rng = np.random.default_rng(0)
    c = (rng.uniform(-2, 1, 1003) + 1j * rng.uniform(-1.2, 1.2, 1003)).astype(np.complex64)
    report = lanax.explain(lanax.vmap(mandelbrot), c)
    assert report.routes == ("lanes",)
    assert not report.misses
    (z, n), (want_z, want_n) = lanax.vmap(mandelbrot)(c), jax.vmap(mandelbrot)(c)
    # Orbits amplify rounding errors; those of a few steps do not.
    assert np.mean(np.asarray(n) == np.asarray(want_n)) > 0.99
    short = np.asarray(want_n) < 8
    assert_array_equal(n[short], want_n[short])
    assert_allclose(z[short], want_z[short], rtol=1e-3)
    inside = np.abs(c) < 0.2
    assert_array_equal(n[inside], want_n[inside])
    assert_allclose(z[inside], want_z[inside], rtol=1e-4)


# -- functions -------------------------------------------------------------------------------------------------------

#: Function, and the same by mpmath.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "abs": (lax.abs, abs), "reciprocal": (lambda z: 1 / z, lambda z: 1 / z), "square": (lax.square, lambda z: z * z),
    "sqrt": (lax.sqrt, mpmath.sqrt), "rsqrt": (lax.rsqrt, lambda z: 1 / mpmath.sqrt(z)),
    "exp": (lax.exp, mpmath.exp), "expm1": (lax.expm1, lambda z: mpmath.exp(z) - 1),
    "log": (lax.log, mpmath.log), "log1p": (lax.log1p, lambda z: mpmath.log(1 + z)),
    "logistic": (lax.logistic, lambda z: 1 / (1 + mpmath.exp(-z))),
    "sin": (lax.sin, mpmath.sin), "cos": (lax.cos, mpmath.cos), "tan": (lax.tan, mpmath.tan),
    "sinh": (lax.sinh, mpmath.sinh), "cosh": (lax.cosh, mpmath.cosh), "tanh": (lax.tanh, mpmath.tanh),
    "asin": (lax.asin, mpmath.asin), "acos": (lax.acos, mpmath.acos), "atan": (lax.atan, mpmath.atan),
    "asinh": (lax.asinh, mpmath.asinh), "acosh": (lax.acosh, mpmath.acosh), "atanh": (lax.atanh, mpmath.atanh),
}
#: These take numbers of any size.
WIDE = ("abs", "reciprocal", "sqrt", "rsqrt", "log", "log1p", "asin", "acos", "atan", "asinh", "acosh", "atanh")


def hard(name: str, dtype: Any) -> np.ndarray:
    """Numbers near the unit circle, near -1, 0, 1, i and -i, and of all sizes."""
    rng = np.random.default_rng(1)
    count, digits = 40, 7 if dtype == np.complex64 else 15
    turn = np.exp(2j * np.pi * rng.random(count))
    small = 10.0 ** rng.uniform(-digits, -1, count)
    most = 30 if name in WIDE else 1
    sizes = 10.0 ** rng.uniform(-30 if name in WIDE else -3, most, (2, count)) * rng.choice([-1, 1], (2, count))
    return np.concatenate([turn * (1 + small), turn - 1, rng.choice([1, -1, 1j, -1j], count) + small * turn[::-1],
                           small * turn, sizes[0] + 1j * sizes[1]]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name: str, dtype: Any) -> None:
    """Four units of the last place of the whole number, anywhere."""
    fun, exact = FUNCTIONS[name]
    info = np.finfo(dtype)
    with jax.enable_x64(True), mpmath.workprec(250):
        z = hard(name, dtype)
        got = np.asarray(lanax.vmap(fun, plan=LANES)(z))
        for x, y in zip(z, got, strict=True):
            want = exact(mpmath.mpc(float(x.real), float(x.imag)))
            if 4 * float(info.tiny) < abs(want) < float(info.max):
                error = abs(mpmath.mpc(float(y.real), float(y.imag)) - want) / abs(want)
                assert error <= 4 * float(info.eps), (x, y, want)


#: Zeros of both signs on every branch cut, and infinities.
CUTS = np.array([complex(x, y) for x in (0.0, -0.0, 0.5, -0.5, 2.0, -2.0, np.inf, -np.inf)
                 for y in (0.0, -0.0, 1.5, -1.5, np.inf, -np.inf)])
#: Signs of zeros and infinities that XLA's code for finite numbers does not define, or that are its errors.
ODD = {"sign": np.isinf, "rsqrt": lambda z: np.isinf(z) | (z == 0), "logistic": np.isinf, "expm1": np.isinf}


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", [*FUNCTIONS, "sign"])
def test_branch_cuts_are_those_of_xla(name: str, dtype: Any) -> None:
    fun = FUNCTIONS[name][0] if name in FUNCTIONS else getattr(lax, name)
    with jax.enable_x64(True):
        z = CUTS.astype(dtype)
        z = z[~ODD[name](z)] if name in ODD else z
        got, want = np.asarray(lanax.vmap(fun, plan=LANES)(z)), np.asarray(jax.jit(jax.vmap(fun))(z))
        for part in (np.real, np.imag):
            assert_allclose(part(got), part(want), rtol=1e-5, atol=1e-7, err_msg=str(z))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_division_neither_overflows_nor_vanishes(dtype: Any) -> None:
    with jax.enable_x64(True):
        big, tiny = float(np.finfo(dtype).max) / 2, float(np.finfo(dtype).tiny) * 2
        x = np.array([complex(big, big), complex(big, 1), complex(tiny, tiny), 1, 3 - 4j, 1 + 2j, -2j, 0], dtype)
        y = np.array([complex(big, big), complex(0, 2), complex(tiny, -tiny), complex(tiny, 0) * 4, 1 + 1j, 0,
                      complex(np.inf, 1), 2 + 1j], dtype)
        got = np.asarray(lanax.vmap(lambda x, y: x / y, plan=LANES)(x, y))
        with np.errstate(all="ignore"):
            assert_allclose(got[:5], [1, complex(0.5, -big / 2), 1j, 1 / (4 * tiny), -0.5 - 3.5j], rtol=1e-6)
        assert_array_equal(np.isinf([got[5].real, got[5].imag]), True)
        assert_array_equal(got[6:], 0)


def test_absolute_value_neither_overflows_nor_vanishes() -> None:
    z = np.array([3e38 + 1e38j, 3e-38 + 4e-38j, 0, complex(np.inf, 1), complex(np.nan, 1), 3e-20 - 4e-20j],
                 np.complex64)
    assert_allclose(lanax.vmap(jnp.abs, plan=LANES)(z), [3.1622777e38, 5e-38, 0, np.inf, np.nan, 5e-20], rtol=2e-7)


# -- derivatives -----------------------------------------------------------------------------------------------------


def loss(z: Any) -> Any:
    return jnp.sum(jnp.abs(jnp.sin(z) * z + jnp.exp(z) / (z + 3)) ** 2)


def gauge(z: Any) -> Any:
    return jnp.sqrt(z) * jnp.conj(z) / (z + 2)


def test_derivatives_inside() -> None:
    z = numbers(LANE, 3)
    assert not assert_same(jax.grad(loss), z, tol=1e-4).misses
    assert not assert_same(lambda z: jax.grad(lambda w: w**3 + jnp.exp(w) * w, holomorphic=True)(z[0]), z).misses
    assert not assert_same(lambda z, t: jax.jvp(gauge, (z,), (t,)), z, numbers(LANE, 3, seed=1)).misses
    assert not assert_same(lambda z, ct: jax.vjp(gauge, z)[1](ct), z, numbers(LANE, 3, seed=1)).misses


def test_derivatives_of_the_mapped_call() -> None:
    z, w = numbers(LANE, 3), numbers(3, seed=1)
    results = []
    for vmap in (lambda *a: lanax.vmap(*a, plan=LANES), jax.vmap):
        results.append([
            jax.grad(lambda z: vmap(loss)(z).sum())(z),  # noqa: B023
            jax.vjp(vmap(gauge), z)[1](z * 1j)[0],
            jax.jvp(vmap(gauge), (z,), (z * 1j,))[1],
            jax.grad(lambda w: vmap(lambda z, w: jnp.abs(z @ w) ** 2, (0, None))(z, w).sum())(w),  # noqa: B023
            jax.grad(lambda z: vmap(lambda z: jnp.sum(z**3))(z).sum(), holomorphic=True)(z),  # noqa: B023
        ])
    for got, want in zip(*results, strict=True):
        assert got.dtype == want.dtype
        assert_allclose(got, want, rtol=5e-5, atol=2e-5)


# -- programs --------------------------------------------------------------------------------------------------------


def test_axes_and_unmapped_arguments() -> None:
    report = assert_same(lambda z, w: z @ w, numbers(3, LANE, 4), numbers(4, 5), in_axes=(1, None), out_axes=1)
    assert not report.misses
    assert not assert_same(lambda z: z.T * 2j, numbers(9, 11, LANE), in_axes=2, out_axes=2).misses
    assert_same(lambda z, w: (z, w, jnp.sin(w) * z), numbers(LANE, 3), numbers(3), in_axes=(0, None))
    assert_same(lambda x: lax.complex(x, 2 * x) * np.array([1j, 2, 3], np.complex64), numbers(LANE, 3).real)


@pytest.mark.parametrize("batch", [0, 1, 15, 16, 17, 67])
def test_tails(batch: int) -> None:
    z = numbers(batch, 3)
    assert_array_equal(lanax.vmap(lambda z: (z * z).sum(), plan=LANES)(z).shape, (batch,))
    assert_allclose(lanax.vmap(lambda z: z * z, plan=LANES)(z), z * z, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", [lanax.Plan(route=route) for route in ("auto", "lanes", "serial", "xla")],
                         ids=lambda plan: plan.route)
def test_routes(plan: lanax.Plan) -> None:
    assert_same(lambda z: lax.fori_loop(0, 5, lambda i, s: 0.5 * jnp.sin(s / 2) + i, z), numbers(LANE), plan=plan)


def test_bits_do_not_depend_on_lanes() -> None:
    z = numbers(LANE, 3, 3)

    def program(z: Any) -> Any:
        return jnp.linalg.inv(z) @ jnp.exp(z), jnp.log(z).sum(), lax.scan(lambda s, w: (s * w, jnp.abs(s)), z[0], z)

    first = lanax.vmap(program, plan=lanax.Plan(route="lanes", lanes=4))(z)
    for lanes in (8, 16):
        for x, y in zip(jax.tree.leaves(lanax.vmap(program, plan=lanax.Plan(route="lanes", lanes=lanes))(z)),
                        jax.tree.leaves(first), strict=True):
            assert_array_equal(x, y)


def test_control_flow() -> None:
    z, i = numbers(LANE, 4), np.arange(LANE) % 3
    assert not assert_same(lambda z: lax.scan(lambda s, w: (s * w, (s, w.real)), z[0], z), z).misses
    assert not assert_same(lambda z: lax.cond(z[0].real > 0, lambda z: (jnp.sqrt(z), 1), lambda z: (z * z, 2), z),
                           z).misses
    assert not assert_same(lambda z, i: lax.switch(i, [lambda z: z, jnp.conj, lambda z: 1 / z], z), z, i).misses


def test_a_complex_buffer_is_updated_in_a_loop() -> None:
    def program(z: Any) -> Any:
        return lax.fori_loop(1, 12, lambda i, out: out.at[i].set(out[i - 1] * z + 1j),
                             jnp.zeros(12, np.complex64).at[0].set(z))

    assert not assert_same(program, numbers(LANE)).misses


def test_nan_stays_in_its_example() -> None:
    z = numbers(LANE, 3, 3)
    z[5, 0, 0] = np.nan
    out = np.asarray(lanax.vmap(lambda z: jnp.linalg.inv(jnp.sin(z) + 3 * jnp.eye(3)), plan=LANES)(z))
    assert np.isnan(out[5]).any()
    assert np.isfinite(np.delete(out, 5, 0)).all()


def test_small_linear_algebra() -> None:
    a = numbers(LANE, 4, 4) + 4 * np.eye(4, dtype=np.complex64)
    assert not assert_same(lambda a: jnp.linalg.solve(a, a[:, 0]), a, tol=1e-4).misses
    assert not assert_same(lambda a: jax.grad(lambda a: jnp.abs(jnp.linalg.det(a[:3, :3])))(a), a, tol=1e-3).misses
    assert not assert_same(lambda a: jnp.linalg.eigvalsh(a + a.conj().T), a, tol=1e-5).misses


def test_a_matrix_that_is_not_positive_definite_gives_nan() -> None:
    a = np.stack([np.eye(2), -np.eye(2), np.array([[2, 1j], [-1j, 2]])]).astype(np.complex64)
    out = np.asarray(lanax.vmap(jnp.linalg.cholesky, plan=LANES)(a))
    assert_array_equal(np.isnan(out), np.isnan(jax.vmap(jnp.linalg.cholesky)(a)))
    assert_array_equal(np.isnan(out).any((1, 2)), [False, True, False])


def test_a_singular_matrix() -> None:
    a = np.array([[[0, 0], [0, 0]], [[1j, 2j], [1j, 2j]], [[0, 1], [1j, 0]]], np.complex64)
    for got, want in zip(lanax.vmap(lax.linalg.lu, plan=LANES)(a), jax.vmap(lax.linalg.lu)(a), strict=True):
        assert_allclose(got, want, atol=1e-7)


def matrices(m: int, n: int) -> np.ndarray:
    """Ordinary ones, and such on which algorithms fail: the second is NaN."""
    a = numbers(LANE + 5, m, n).astype(np.complex128)
    a[1], a[2], a[3], a[4] = np.nan, 0, np.eye(m, n), np.ones((m, n))
    a[5], a[6] = np.eye(m, n, 1), 1e-200 * a[6]
    return a


def _small(x: Any, a: np.ndarray) -> None:
    """Whether errors are small beside matrices, where those are not NaN."""
    sizes = np.maximum(np.abs(a).max((1, 2)), 1e-300)
    np.testing.assert_array_equal(np.isnan(x).any((1, 2)), np.isnan(sizes))
    assert np.nanmax(np.abs(x).max((1, 2)) / sizes) < 1e-13


def test_schur_form_of_larger_matrices() -> None:
    a = matrices(9, 9)
    with jax.enable_x64(True):
        form, q = map(np.asarray, lanax.vmap(lax.linalg.schur, plan=LANES)(a))
    _small(q @ form @ _adjoint(q) - a, a)
    assert not np.tril(np.where(np.isnan(form), 0, form), -1).any()


def test_schur_form_and_eigenvectors() -> None:
    def both(a: Any) -> Any:
        return lax.linalg.schur(a), lax.linalg.eig(a)

    n = 3
    a = matrices(n, n)
    with jax.enable_x64(True):
        (form, q), (values, left, right) = jax.tree.map(np.array, lanax.vmap(both, plan=LANES)(a))
    _small(q @ form @ _adjoint(q) - a, a)
    assert not np.tril(np.where(np.isnan(form), 0, form), -1).any()
    _small(np.where(np.isnan(a), a, _adjoint(q) @ q - np.eye(n)), np.where(np.isnan(a), a, 1))
    a[5] = a[7]  # but for what has one eigenvector only
    values[5], left[5], right[5] = values[7], left[7], right[7]
    _small(a @ right - right * values[:, None], a)
    _small(_adjoint(left) @ a - values[:, :, None] * _adjoint(left), a)


@pytest.mark.parametrize(("m", "n"), [(4, 3), (3, 7)])
def test_singular_values(m: int, n: int) -> None:
    a = matrices(m, n)
    with jax.enable_x64(True):
        u, values, vh = map(np.asarray, lanax.vmap(lambda a: jnp.linalg.svd(a, full_matrices=True), plan=LANES)(a))
    least = min(m, n)
    _small(u[:, :, :least] * values[:, None] @ vh[:, :least] - a, a)
    assert np.nanmax(np.abs(_adjoint(u) @ u - np.eye(m))) < 1e-13
    assert np.nanmax(np.abs(vh @ _adjoint(vh) - np.eye(n))) < 1e-13
    want = np.linalg.svd(np.delete(a, 1, 0), compute_uv=False)
    np.testing.assert_allclose(np.delete(values, 1, 0), want, rtol=1e-13, atol=1e-13)


def _adjoint(a: np.ndarray) -> np.ndarray:
    return a.conj().swapaxes(1, 2)


def test_larger_matrices_are_in_loops() -> None:
    def program(a: Any) -> Any:
        positive = a @ a.conj().T - jnp.eye(8)
        return lax.linalg.lu(a), jnp.linalg.cholesky(positive), jnp.linalg.qr(a[:, :5], mode="complete")

    a = numbers(LANE + 3, 8, 8)
    a[2] = 0  # Cholesky's factor is NaN
    with jax.enable_x64(True):
        assert not assert_same(program, a.astype(np.complex128), tol=1e-9).misses


def test_stacks_are_taken_one_after_another() -> None:
    def program(a: Any) -> Any:
        return jnp.linalg.inv(a), lax.linalg.tridiagonal(a)[1:3]

    with jax.enable_x64(True):
        assert not assert_same(program, numbers(LANE, 3, 2, 2, dtype=np.complex128), tol=1e-9).misses


# -- backward errors -------------------------------------------------------------------------------------------------
def hard_matrices(n: int) -> np.ndarray:
    """Ordinary ones, graded ones, nearly singular ones, and such with clustered eigenvalues."""
    rng = np.random.default_rng(n)
    ordinary = rng.normal(size=(4, 60, n, n)) + 1j * rng.normal(size=(4, 60, n, n))
    scales = 10.0 ** rng.integers(-3, 4, (2, 60, n))
    x = ordinary[2, :, :, :1]
    outer = x * x.conj().swapaxes(1, 2)
    return np.concatenate([ordinary[0], ordinary[1] * scales[0][:, :, None] * scales[1][:, None],
                           outer + 1e-4 * ordinary[2], np.eye(n) + outer + 1e-7 * ordinary[3]])


def pivoted_error(a: np.ndarray, q: np.ndarray, r: np.ndarray, order: np.ndarray) -> np.ndarray:
    rebuilt = np.abs(q @ r - np.take_along_axis(a, order[:, None].astype(int), 2)).max((1, 2)) / np.abs(a).max((1, 2))
    lengths = np.abs(np.diagonal(r, 0, 1, 2))
    assert (lengths[:, 1:] <= lengths[:, :-1] * (1 + 1e-3)).all()
    return np.maximum(rebuilt, np.abs(_adjoint(q) @ q - np.eye(q.shape[-1])).max((1, 2)))


def reduced(a: Any) -> Any:
    """T and Q of A = Q T Q^H."""
    packed, d, e, taus = lax.linalg.tridiagonal(a, lower=True)
    q = lax.linalg.householder_product(packed[1:, :-1], taus)
    return jnp.diag(d) + jnp.diag(e, 1) + jnp.diag(e, -1), jnp.pad(q, ((1, 0), (1, 0))).at[0, 0].set(1)


def reduced_error(a: np.ndarray, t: np.ndarray, q: np.ndarray) -> np.ndarray:
    strict = np.tril(a, -1)
    whole = strict + _adjoint(strict) + np.eye(a.shape[1]) * a.real
    return np.maximum(np.abs(q @ t @ _adjoint(q) - whole).max((1, 2)) / np.abs(whole).max((1, 2)),
                      np.abs(_adjoint(q) @ q - np.eye(a.shape[1])).max((1, 2)))


def beside_diagonal(a: Any) -> Any:
    return jnp.diagonal(jnp.roll(a, 1, 1)), jnp.diagonal(a), jnp.diagonal(jnp.roll(a, -1, 1))


def residual(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = np.where(np.abs(np.subtract.outer(*[np.arange(a.shape[1])] * 2)) <= 1, a, 0)
    return np.abs(t @ x - a[:, :, :2]).max((1, 2)) / (np.abs(t).max((1, 2)) * np.abs(x).max((1, 2)))


def largest(x: np.ndarray) -> np.ndarray:
    return np.abs(x).max((1, 2))


def rebuilt(of: Callable[..., tuple[np.ndarray, ...]]) -> Callable[..., np.ndarray]:
    """The error of the product of the factors; `of` gives it, and what is to be unitary."""

    def error(a: np.ndarray, *factors: np.ndarray) -> np.ndarray:
        product, *unitary = of(*factors)
        return np.maximum.reduce([largest(product - a) / largest(a),
                                  *(largest(_adjoint(q) @ q - np.eye(q.shape[-1])) for q in unitary)])

    return error


def system_error(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    b, x = a.sum(2, keepdims=True), x[..., None]
    return largest(a @ x - b) / (largest(a) * largest(x) + largest(b))


def eigen(a: Any) -> Any:
    """Of a Hermitian matrix, and that."""
    a = (a + a.conj().T) / 2
    v, w = lax.linalg.eigh(a, symmetrize_input=False)
    return a, v, w


def eigen_error(_: np.ndarray, a: np.ndarray, v: np.ndarray, w: np.ndarray) -> np.ndarray:
    return rebuilt(lambda v, w: (v * w[:, None] @ _adjoint(v), v))(a, v, w)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(("fun", "error"), [
    (lambda a: jnp.linalg.solve(a, a.sum(1)), system_error),
    (jnp.linalg.qr, rebuilt(lambda q, r: (q @ r, q))),
    (eigen, eigen_error),
    (jnp.linalg.svd, rebuilt(lambda u, s, vh: (u * s[:, None] @ vh, u, _adjoint(vh)))),
    (lax.linalg.schur, rebuilt(lambda t, z: (z @ t @ _adjoint(z), z))),
    (lambda a: lax.linalg.qr(a, pivoting=True), pivoted_error), (reduced, reduced_error),
    (lambda a: lax.linalg.tridiagonal_solve(*beside_diagonal(a), a[:, :2]), residual),
], ids=["system", "QR", "eigenvalues", "singular values", "Schur form", "pivoted QR", "tridiagonal form",
        "tridiagonal system"])
def test_backward_errors(fun: Callable[..., Any], error: Callable[..., np.ndarray], dtype: Any) -> None:
    """At worst, and on average, twice that of LAPACK; NaN stays in its example."""
    a = hard_matrices(6).astype(dtype)
    a[7] = np.nan
    with jax.enable_x64(True):
        results = [jax.tree.leaves(jax.jit(mapped)(a)) for mapped in (lanax.vmap(fun, plan=LANES), jax.vmap(fun))]
    exact = np.delete(a, 7, 0).astype(np.clongdouble)
    ours, theirs = (error(exact, *(np.delete(np.asarray(x), 7, 0).astype(
        np.clongdouble if x.dtype.kind == "c" else np.longdouble) for x in out)) for out in results)
    assert all(np.isnan(x[7]).any() for x in results[0] if x.dtype.kind != "i")
    assert ours.mean() <= 2 * theirs.mean()
    assert ours.max() <= 2 * theirs.max() + np.finfo(dtype).eps


def test_no_part_of_a_small_number_vanishes() -> None:
    """Rotations stay unitary where squares of what they are computed from are hardly normal numbers."""
    rng = np.random.default_rng(5)
    scales = 10.0 ** rng.integers(-4, 5, (500, 2, 8))
    a = (rng.normal(size=(500, 8, 8)) + 1j * rng.normal(size=(500, 8, 8))) * scales[:, 0, :, None] * scales[:, 1, None]
    a = a.astype(np.complex64)
    form, q = (np.asarray(x, np.complex128) for x in lanax.vmap(lax.linalg.schur, plan=LANES)(a))
    assert largest(_adjoint(q) @ q - np.eye(8)).max() < 40 * np.finfo(np.float32).eps
    assert (largest(q @ form @ _adjoint(q) - a) / largest(a)).max() < 40 * np.finfo(np.float32).eps


def test_toeplitz() -> None:
    """Some small convolutions are unrolled, and a program has room for so many."""
    a = numbers(LANE, 8)
    out = lanax.vmap(lambda a: jax.scipy.linalg.toeplitz(a, a[::-1]), plan=LANES)(a)
    places = np.subtract.outer(np.arange(8), np.arange(8))
    assert_array_equal(out, np.where(places >= 0, a[:, np.maximum(places, 0)], a[:, np.minimum(7 + places, 7)]))


# -- what stays complex ----------------------------------------------------------------------------------------------


def _middle(z: Any) -> Any:
    return lax.linalg.tridiagonal_solve(z[0], z[0] + 4, z[0], z, perturb_singular=True)


def test_an_unknown_primitive_is_left_to_xla() -> None:
    report = assert_same(lambda z: _middle(z * 2).sum() * jnp.sin(z).sum(), numbers(11, 3, 3), tol=1e-3)
    assert [miss.primitive for miss in report.misses] == ["tridiagonal_solve"]
    assert "test_complex.py" in report.misses[0].source


def test_an_unknown_primitive_takes_its_loop_along() -> None:
    def program(z: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, s: 0.5 * s + _middle(s).sum(), z)

    report = assert_same(program, numbers(11, 3, 3), tol=1e-3)
    assert "it holds `tridiagonal_solve`" in report.misses[0].reason


def test_nothing_but_what_stays_complex() -> None:
    assert_same(lambda z: z, numbers(5))
    assert_same(lambda z: _middle(z).sum(), numbers(5, 2, 2), tol=1e-4)


def test_under_shard_map() -> None:
    """What a composition loops over has plain types."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    z = numbers(6, 3)

    def total(vmap: Any) -> Any:
        mapped = vmap(lambda z: jnp.abs(lax.cumprod(z)).sum())
        along = jax.sharding.PartitionSpec("i")
        spread = jax.shard_map(mapped, mesh=mesh, in_specs=along, out_specs=along)
        return jax.value_and_grad(lambda z: spread(z).sum())(z)

    for got, want in zip(total(lambda f: lanax.vmap(f, plan=LANES)), total(jax.vmap), strict=True):
        assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_under_jit_and_another_vmap() -> None:
    z = numbers(5, 7)
    mapped = lanax.vmap(lambda z: jnp.exp(z) * 2j, plan=LANES)
    want = np.exp(z.astype(np.complex128)) * 2j
    assert_allclose(jax.jit(jax.vmap(mapped))(z), want, rtol=1e-5)
    assert_allclose(jax.vmap(mapped, in_axes=1, out_axes=1)(z), want, rtol=1e-5)
    assert_allclose(lax.map(mapped, z), want, rtol=1e-5)
