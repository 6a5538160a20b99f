"""Rows for complex numbers: arithmetic, functions, what moves them about, control flow, small linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from case import Arg, Case
from jax import lax
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg

F32, C64, C128 = np.float32, np.complex64, np.complex128


def disc(shape: tuple[int, ...], dtype: Any, size: float = 1.0) -> Arg:
    """Normal numbers in both parts."""
    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        return (size * (rng.normal(size=(batch, *shape)) + 1j * rng.normal(size=(batch, *shape)))).astype(dtype)

    return make


def _both(primitive: str, fun: Callable[..., Any], count: int = 1, shape: tuple[int, ...] = (), size: float = 1.0,
          tolerance: float = 1.0) -> list[Case]:
    """One row for each complex dtype."""
    return [Case(primitive, np.dtype(d).name, fun, (disc(shape, d, size),) * count, rtol=tolerance * rtol,
                 atol=tolerance * rtol) for d, rtol in ((C64, 4e-6), (C128, 1e-14))]


def _arithmetic() -> list[Case]:
    out: list[Case] = []
    for name, fun in (("add", lax.add), ("sub", lax.sub), ("mul", lax.mul), ("div", lax.div), ("eq", lax.eq),
                      ("ne", lax.ne), ("max", lax.max), ("min", lax.min)):
        out += _both(name, fun, 2)
    for name, fun in (("neg", lax.neg), ("conj", lax.conj), ("abs", lax.abs), ("sign", lax.sign), ("real", lax.real),
                      ("imag", lax.imag), ("square", lax.square)):
        out += _both(name, fun)
    out += [Case("complex", np.dtype(d).name, lax.complex, (((3,), d), ((3,), d))) for d in (F32, np.float64)]
    out += [Case("complex", "large", lax.complex, (((9, 11), F32), ((9, 11), F32))),
            Case("real", "large", lambda z: lax.real(z) + 1, (disc((9, 11), C64),)),
            Case("conj", "real", lambda x: lax.conj(x), (((3,), F32),)),
            Case("eq", "equal", lambda z: lax.eq(z, lax.conj(z)), (lambda rng, batch: (
                rng.integers(-1, 2, batch) + 1j * rng.integers(-1, 2, batch)).astype(C64),)),
            Case("mul", "scalar", lambda z: z * 2 + 1j, (disc((3,), C64),)),
            Case("add_any", "complex", lambda z: jax.grad(lambda w: jnp.real(w * w + w))(z), (disc((), C64),))]
    for power in (-3, -1, 0, 1, 2, 3, 7):
        out += [Case("integer_pow", f"{power}-complex", lambda z, n=power: lax.integer_pow(z, n), (disc((), C128),),
                     rtol=1e-13)]
    out += _both("pow", lax.pow, 2, tolerance=4)
    out += [Case("pow", "int-complex", lambda z, n: lax.pow(z, n % 5), (disc((), C64), ((), np.int32)), rtol=1e-5),
            Case("pow", "zero", lambda z, w: lax.pow(z * 0, lax.complex(jnp.abs(w), w * 0)),
                 (disc((), C64), ((), F32))),
            Case("pow", "real", lambda z: z**2.5, (disc((3,), C64),), rtol=1e-5, atol=1e-5)]
    return out


def _functions() -> list[Case]:
    out: list[Case] = []
    for name in ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "logistic", "sin", "cos", "tan", "sinh",
                 "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh"):
        # XLA's `sinh` and `tan` are not better than this.
        out += _both(name, getattr(lax, name), tolerance=30 if name in ("sinh", "tan", "tanh") else 2)
        out += [Case(name, "far", getattr(lax, name), (disc((3,), C64, size=8.0),), rtol=2e-4, atol=1e-5)]
    return out + _both("atan2", lax.atan2, 2, tolerance=10)


def _moves() -> list[Case]:
    z, w = disc((3, 4), C64), disc((3, 4), C64)
    gather = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    funs: tuple[tuple[str, str, Callable[..., Any], tuple[Arg, ...]], ...] = (
        ("broadcast_in_dim", "", lambda z: jnp.broadcast_to(z, (2, 3, 4)), (z,)),
        ("reshape", "", lambda z: z.reshape(2, 6), (z,)),
        ("transpose", "", lambda z: z.T, (z,)),
        ("transpose", "large", lambda z: z.T * 1j, (disc((9, 11), C64),)),
        ("rev", "", lambda z: z[::-1], (z,)),
        ("slice", "", lambda z: z[1:, ::2], (z,)),
        ("squeeze", "", lambda z: z[:1][0], (z,)),
        ("concatenate", "", lambda z, w: jnp.concatenate([z, w]), (z, w)),
        ("pad", "", lambda z: jnp.pad(z, ((1, 0), (0, 2)), constant_values=1j), (z,)),
        ("split", "", lambda z: jnp.split(z, 2, axis=1), (z,)),
        ("select_n", "", lambda z, w: jnp.where(z.real > 0, z, w), (z, w)),
        ("convert_element_type", "from-real", lambda x: x.astype(C64), (((3,), F32),)),
        ("convert_element_type", "wider", lambda z: z.astype(C128), (z,)),
        ("convert_element_type", "to-real", lambda z: _lax._convert_element_type(
            z, np.dtype(np.float64), warn_on_complex_to_real_cast=False), (z,)),
        ("iota", "", lambda z: z + lax.iota(C64, 4), (z,)),
        ("dynamic_slice", "", lambda z, i: lax.dynamic_slice(z, (i, i), (2, 3)), (z, ((), np.int32))),
        ("dynamic_update_slice", "", lambda z, w, i: lax.dynamic_update_slice(z, w[:2, :2], (i, i)),
         (z, w, ((), np.int32))),
        ("gather", "", lambda z, i: z[i % 3], (z, ((2,), np.int32))),
        ("gather", "rows", lambda z, i: z[i % 7], (disc((7, 6), C64), ((7,), np.int32))),
        ("gather", "fill", lambda z, i: z.at[i].get(mode="fill"), (z, ((2,), np.int32))),
        ("gather", "fill-value", lambda z, i: lax.gather(z, i, gather, (1, 4), mode="fill", fill_value=2.0),
         (z, ((2, 1), np.int32))),
        ("scatter", "", lambda z, w, i: z.at[i % 3].set(w[0]), (z, w, ((), np.int32))),
        ("scatter-add", "", lambda z, w, i: z.at[i % 3].add(w[:2]), (z, w, ((2,), np.int32))),
        ("scatter-sub", "", lambda z, w, i: z.at[i % 3].subtract(w[:2]), (z, w, ((2,), np.int32))),
        ("tile", "", lambda z: jnp.tile(z, (2, 1)), (z,)),
        ("stack", "", lambda z, w: jnp.stack([z, w], 1), (z, w)),
        ("conv_general_dilated", "", lambda z, w: jnp.convolve(z[0], w[1]), (z, w)),
        ("reduce_window_sum", "", lambda z: lax.reduce_window(
            z, np.array(0, C64), lax.add, (2, 2), (1, 1), "VALID"), (z,)),
        ("mul", "polynomial", lambda z, w: jnp.polyval(z[0], w[0]), (z, w)),
        ("sort", "", lambda z: lax.sort(jnp.round(z.real) + 1j * z.imag), (z,)),
        ("sort", "with", lambda z, x: lax.sort((z[0], x), num_keys=1), (z, ((4,), F32))),
        ("cumsum", "", lambda z: jnp.cumsum(z, axis=1), (z,)),
        ("cumprod", "", lambda z: lax.cumprod(z, axis=1, reverse=True), (z,)),
        ("reduce_sum", "", lambda z: z.sum(axis=0), (z,)),
        ("reduce_prod", "", lambda z: z.prod(axis=1), (z,)),
        ("reduce_prod", "all", lambda z: z.prod(), (z,)),
        ("reduce_prod", "large", lambda z: (0.5 * z).prod(), (disc((99,), C64),)),
        ("reduce_max", "", lambda z: z.max(axis=1), (z,)),
        ("reduce_min", "", lambda z: (jnp.round(z.real) + 1j * z.imag).min(axis=0), (z,)),
        ("dot_general", "", lambda z, w: z @ w.T, (z, w)),
        ("dot_general", "vdot", jnp.vdot, (z, w)),
        ("dot_general", "large", lambda z, w: jnp.einsum("ij,kj->ik", z, w), (disc((9, 10), C128),) * 2),
    )
    return [Case(primitive, f"{name}-complex".strip("-"), fun, args, rtol=2e-5, atol=1e-5)
            for primitive, name, fun, args in funs]


def _mandelbrot(c: Any) -> Any:
    def inside(state: tuple[Any, Any]) -> Any:
        return (jnp.abs(state[0]) < 2) & (state[1] < 12)

    return lax.while_loop(inside, lambda state: (state[0] * state[0] + c, state[1] + 1), (0 * c, 0))


def _flow() -> list[Case]:
    def steps(z: Any, ws: Any) -> Any:
        return lax.scan(lambda s, w: (s * w + 1, jnp.abs(s)), z, ws)

    def sides(z: Any) -> Any:
        return lax.cond(z.real > 0, lambda z: jnp.exp(z) * 2, lambda z: jnp.conj(z), z)

    def newton(z: Any) -> Any:
        return lax.fori_loop(0, 6, lambda _, z: z - (z**3 - 1) / (3 * z**2), z)

    return [Case("while", "complex", _mandelbrot, (disc((), C128, 0.5),), rtol=1e-10),
            Case("while", "newton-complex", newton, (lambda rng, batch: np.exp(1j * rng.uniform(-1, 1, batch)),),
                 rtol=1e-10),
            Case("scan", "complex", steps, (disc((), C64), disc((5,), C64)), rtol=1e-4, atol=1e-4),
            Case("cond", "complex", sides, (disc((), C64),), rtol=1e-5, atol=1e-5)]


def well(n: int, dtype: Any) -> Arg:
    """Matrices with a heavy diagonal."""
    return lambda rng, batch: (rng.normal(size=(batch, n, n)) + 1j * rng.normal(size=(batch, n, n))
                               + 2 * n * np.eye(n)).astype(dtype)


def _spectral(a: Any) -> Any:
    """Eigenvectors have a sign that is theirs to choose."""
    a = a + a.conj().T
    w, v = jnp.linalg.eigh(a)
    return w, jnp.abs(v), (v * jnp.exp(w / 4)) @ v.conj().T, a @ v - v * w


def _schur(a: Any) -> Any:
    """Eigenvalues have an order, and Schur vectors phases, that are theirs to choose."""
    form, q = lax.linalg.schur(a)
    return q @ form @ q.conj().T, jnp.tril(form, -1), q @ q.conj().T


def _eigen(a: Any) -> Any:
    values, left, right = lax.linalg.eig(a)
    return (values**2).sum(), a @ right - right * values, left.conj().T @ a - values[:, None] * left.conj().T


def _singular(a: Any) -> Any:
    u, values, vh = jnp.linalg.svd(a, full_matrices=False)
    return values, (u * values) @ vh, u.conj().T @ u


def _reflected() -> list[Case]:
    def multiplied(a: Any, c: Any) -> Any:
        packed, taus = _linalg.geqrf(a)
        return [_linalg.ormqr(packed, taus, x, left=left, transpose=transpose)
                for left, x in ((True, c), (False, c.T)) for transpose in (True, False)]

    def pivoted(a: Any) -> Any:
        return lax.linalg.qr(a, pivoting=True, full_matrices=False)

    first = Case("geqp3", "some-first-complex", _linalg.geqp3, (
        disc((4, 5), C128), lambda rng, batch: rng.integers(0, 2, (batch, 5)).astype(np.int32)), rtol=1e-9, atol=1e-10)
    systems = [Case("tridiagonal_solve", f"{n}-complex", lax.linalg.tridiagonal_solve, (disc((n,), C128),) * 3
                    + (disc((n, 2), C128),), rtol=1e-8, atol=1e-8) for n in (1, 2, 7)]
    forms = [Case("tridiagonal", f"{n}-{lower}-complex", lambda a, lower=lower: lax.linalg.tridiagonal(a, lower=lower),
                  (disc((n, n), C128),), rtol=1e-9, atol=1e-10) for n, lower in ((1, True), (3, True), (4, False))]
    return [first, *systems, *forms,
            Case("ormqr", "complex", multiplied, (disc((4, 2), C128), disc((4, 3), C128)), rtol=1e-9, atol=1e-10),
            *(Case("qr", f"pivoted-{m}-{n}-complex", pivoted, (disc((m, n), C128),), rtol=1e-9, atol=1e-10)
              for m, n in ((3, 3), (4, 2), (2, 5)))]


def _linear_algebra() -> list[Case]:
    out = []
    chosen = ((True, True, False, False, False), (True, False, True, True, True), (False, True, True, False, False),
              (False, False, False, True, True))
    for left, lower, transposed, conjugated, unit in chosen:
        def solve(a: Any, b: Any, left: bool = left, **options: bool) -> Any:
            return lax.linalg.triangular_solve(a, b if left else b.T, left_side=left, **options)

        options = {"lower": lower, "transpose_a": transposed, "conjugate_a": conjugated, "unit_diagonal": unit}
        name = "-".join(k for k, on in {"left": left, **options}.items() if on)
        out.append(Case("triangular_solve", f"{name}-complex", lambda a, b, solve=solve, options=options: solve(
            a, b, **options), (well(3, C128), disc((3, 2), C128)), rtol=1e-10))
    small = (disc((3, 3), C128),)
    return [*out,
            Case("lu", "complex", lax.linalg.lu, small, rtol=1e-9, atol=1e-9),
            Case("lu", "tall-complex", lax.linalg.lu, (disc((4, 2), C64),), rtol=1e-3, atol=1e-4),
            Case("lu", "solve-complex", jnp.linalg.solve, (well(4, C64), disc((4, 2), C64)), rtol=1e-4, atol=1e-5),
            Case("lu", "inv-complex", jnp.linalg.inv, (well(3, C128),), rtol=1e-10, atol=1e-12),
            Case("lu", "det-complex", jnp.linalg.det, (disc((5, 5), C128),), rtol=1e-9, atol=1e-9),
            Case("cholesky", "complex", lambda a: jnp.linalg.cholesky(a @ a.conj().T + jnp.eye(3)), small, rtol=1e-9,
                 atol=1e-10),
            Case("eigh", "complex", lambda a: jnp.linalg.eigvalsh(a), small, rtol=1e-9, atol=1e-9),
            Case("eigh", "vectors-complex", _spectral, (disc((4, 4), C128),), rtol=1e-9, atol=1e-9),
            Case("eigh", "vectors-7-complex", _spectral, (disc((7, 7), C128),), rtol=1e-8, atol=1e-8),
            Case("qr", "complex", jnp.linalg.qr, small, rtol=1e-8, atol=1e-9),
            Case("qr", "full-complex", lambda a: jnp.linalg.qr(a, mode="complete"), (disc((4, 2), C128),),
                 rtol=1e-8, atol=1e-9),
            Case("geqrf", "complex", _linalg.geqrf, (disc((4, 2), C128),), rtol=1e-8, atol=1e-9),
            Case("schur", "complex", _schur, small, rtol=1e-9, atol=1e-12),
            Case("eig", "complex", _eigen, (disc((2, 2), C64),), rtol=1e-4, atol=1e-5),
            Case("svd", "complex", _singular, (disc((2, 3), C64),), rtol=1e-4, atol=1e-5),
            Case("hessenberg", "complex", lax.linalg.hessenberg, (disc((4, 4), C128),), rtol=1e-8, atol=1e-9),
            *_reflected(),
            Case("householder_product", "complex", lambda a: lax.linalg.householder_product(*_linalg.geqrf(a)), small,
                 rtol=1e-8, atol=1e-9)]


CASES = [*_arithmetic(), *_functions(), *_moves(), *_flow(), *_linear_algebra()]
