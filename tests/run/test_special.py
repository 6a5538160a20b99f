"""Bessel, zeta, incomplete gamma and beta functions: accuracy against mpmath, the ends of their domains, and that they
end for every argument."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jss
import ml_dtypes
import mpmath
import numpy as np
import pytest
from helpers import run_kernel
from jax import lax
from math_harness import mp_ulp_error, ulp_errors

import lanax

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
COUNT = 40
INF, NAN = np.inf, np.nan


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A function, its reference, where it is sampled, and its limits in ULP of float32 and float64.

    `arguments` gives points from a generator, spread evenly over the magnitudes.
    """

    name: str
    function: Callable[..., Any]
    exact: Callable[..., Any]
    arguments: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    limits: tuple[float, float]

    def __str__(self) -> str:
        return self.name


def spread(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), COUNT))


def about(rng: np.random.Generator, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """a, and x within some standard deviations of it."""
    a = spread(rng, low, high)
    return a, a + 1.5 * np.sqrt(a) * rng.normal(size=COUNT)


def lower_gamma(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, 0, x, regularized=True)


def upper_gamma(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, x, mpmath.inf, regularized=True)


def gamma_slope(a: Any, x: Any) -> Any:
    return mpmath.diff(lambda v: lower_gamma(v, x), a)


def beta(a: Any, b: Any, x: Any) -> Any:
    return mpmath.betainc(a, b, 0, x, regularized=True)


CASES = (
    Sampled("i0e", lax.bessel_i0e, lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)),
            lambda rng: (spread(rng, 1e-3, 1e4) * rng.choice([-1, 1], COUNT),), (0.6, 4)),
    Sampled("i1e", lax.bessel_i1e, lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)),
            lambda rng: (spread(rng, 1e-3, 1e4) * rng.choice([-1, 1], COUNT),), (0.6, 4)),
    Sampled("zeta", lax.zeta, mpmath.zeta, lambda rng: (1 + spread(rng, 1e-3, 20), spread(rng, 0.01, 100)), (0.6, 4)),
    Sampled("zeta left of 0", lax.zeta, mpmath.zeta,
            lambda rng: (rng.integers(2, 8, COUNT).astype(float), rng.uniform(-20, 0, COUNT)), (0.6, 1000)),
    Sampled("trigamma", lambda x: lax.polygamma(jnp.ones_like(x), x), lambda x: mpmath.polygamma(1, x),
            lambda rng: (spread(rng, 0.01, 100),), (0.6, 4)),
    Sampled("polygamma", lax.polygamma, lambda n, x: mpmath.polygamma(int(n), x),
            lambda rng: (rng.integers(0, 10, COUNT).astype(float), spread(rng, 0.1, 100)), (1, 40)),
    Sampled("igamma", lax.igamma, lower_gamma, lambda rng: (spread(rng, 0.01, 50), spread(rng, 0.01, 50)), (0.6, 1000)),
    Sampled("igamma about a", lax.igamma, lower_gamma, lambda rng: about(rng, 20, 1e5), (0.6, 100)),
    Sampled("igammac", lax.igammac, upper_gamma,
            lambda rng: (spread(rng, 1e-9, 50), spread(rng, 0.01, 90)), (0.6, 1000)),
    Sampled("igammac about a", lax.igammac, upper_gamma, lambda rng: about(rng, 20, 1e5), (0.6, 100)),
    Sampled("igamma_grad_a", lax.igamma_grad_a, gamma_slope,
            lambda rng: (spread(rng, 0.1, 30), spread(rng, 0.1, 30)), (0.6, 2000)),
    Sampled("igamma_grad_a about a", lax.igamma_grad_a, gamma_slope, lambda rng: about(rng, 70, 2000), (0.6, 500)),
    Sampled("betainc", lax.betainc, beta,
            lambda rng: (spread(rng, 0.1, 300), spread(rng, 0.1, 300), rng.uniform(0, 1, COUNT)), (0.6, 10000)),
)


@each_dtype
@pytest.mark.parametrize("case", CASES, ids=str)
def test_accuracy(case: Sampled, dtype: np.dtype) -> None:
    args = [x.astype(dtype) for x in case.arguments(np.random.default_rng(7))]
    with jax.enable_x64(dtype == np.float64):
        (got,) = run_kernel(case.function, args)
    with mpmath.workdps(60):
        want = [case.exact(*map(mpmath.mpf, point)) for point in zip(*(x.tolist() for x in args), strict=True)]
        if dtype == np.float32:
            errors = ulp_errors(got, np.array([float(y) for y in want]))
        else:
            errors = np.array([mp_ulp_error(y, e) for y, e in zip(got.tolist(), want, strict=True)])
    worst = int(errors.argmax())
    assert errors[worst] <= case.limits[dtype == np.float64], [x[worst] for x in args]


def at(function: Callable[..., Any], points: list[tuple[float, ...]], dtype: Any) -> list[float]:
    args = [np.array(column, dtype) for column in zip(*points, strict=True)]
    with jax.enable_x64(dtype == np.float64):
        return run_kernel(function, args)[0].tolist()


@each_dtype
def test_ends_of_the_incomplete_gamma_functions(dtype: np.dtype) -> None:
    large = 1e30
    points = [(0.0, 0.0), (0.0, 1.0), (2.0, 0.0), (2.0, INF), (-1.0, 1.0), (1.0, -1.0), (NAN, 1.0), (1.0, NAN),
              (INF, 3.0), (large, large), (large, 2 * large), (2 * large, large), (1e9, 1e9), (1e-30, 0.5)]
    p, q = at(lax.igamma, points, dtype), at(lax.igammac, points, dtype)
    half = [pytest.approx(0.5, abs=1e-3), pytest.approx(0.5, abs=1e-5)]
    small = pytest.approx(1e-30 * 0.5597735947761608, rel=1e-6)  # a E1(x)
    np.testing.assert_equal(p[:9], [NAN, 1, 0, 1, NAN, NAN, NAN, NAN, 0])
    np.testing.assert_equal(q[:9], [NAN, 0, 1, 0, NAN, NAN, NAN, NAN, 1])
    assert p[9:] == [half[0], 1, 0, half[1], pytest.approx(1, abs=1e-15)]
    assert q[9:] == [half[0], 0, 1, half[1], small]


@each_dtype
def test_ends_of_zeta_and_polygamma(dtype: np.dtype) -> None:
    got = at(lax.zeta, [(1.0, 2.0), (0.5, 2.0), (2.0, 0.0), (2.0, -3.0), (3.0, -3.0), (1.5, -0.5), (NAN, 1.0),
                        (2.0, NAN), (40.0, 1.0)], dtype)
    np.testing.assert_equal(got[:8], [INF, NAN, INF, INF, NAN, NAN, NAN, NAN])
    assert got[8] == pytest.approx(1.0, abs=1e-6)
    got = at(lax.polygamma, [(-1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (1.0, -2.0), (0.0, 1.0)], dtype)
    np.testing.assert_equal(got[:4], [NAN, NAN, INF, INF])
    assert got[4] == pytest.approx(-0.5772156649, rel=1e-6)


@each_dtype
def test_ends_of_the_bessel_functions(dtype: np.dtype) -> None:
    assert at(lax.bessel_i0e, [(0.0,), (-0.0,), (INF,), (-INF,)], dtype) == [1, 1, 0, 0]
    got = at(lax.bessel_i1e, [(0.0,), (-0.0,), (INF,), (-INF,)], dtype)
    assert got == [0] * 4
    assert np.signbit(got).tolist() == [False, True, False, True]
    assert np.isnan([at(f, [(NAN,)], dtype) for f in (lax.bessel_i0e, lax.bessel_i1e)]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("function", [lax.igamma, lax.igammac, lax.igamma_grad_a, lax.betainc, lax.zeta, lax.polygamma],
                         ids=lambda f: f.__name__)
def test_it_ends_for_every_argument(function: Callable[..., Any], dtype: Any) -> None:
    """And what is a probability lies between 0 and 1."""
    info = jnp.finfo(dtype)
    values = [0.0, -0.0, -1.0, -1.5, 0.5, 1.0, 2.0, 63.0, 64.0, 1e4, INF, -INF, NAN, *map(float, (info.max, info.tiny,
              info.eps, info.max / 2))]
    count = 3 if function is lax.betainc else 2
    got = at(function, list(itertools.product(values, repeat=count)), dtype)
    if function in (lax.igamma, lax.igammac, lax.betainc):
        known = [y for y in got if not np.isnan(y)]
        assert len(known) > 20
        assert min(known) >= 0
        assert max(known) <= 1


FUNCTIONS = {
    "gammainc": lambda a, x: jss.gammainc(a, x), "gammaincc": lambda a, x: jss.gammaincc(a, x),
    "betainc": lambda a, x: jss.betainc(a, 2.5, x / 10), "i0": lambda a, x: jss.i0(x), "i1": lambda a, x: jss.i1(x),
    "zeta": lambda a, x: jss.zeta(a + 1, x), "polygamma": lambda a, x: jss.polygamma(2, x),
    "d digamma": lambda a, x: jax.grad(jss.digamma)(x), "d gammainc": lambda a, x: jax.grad(jss.gammainc, (0, 1))(a, x),
    "d betainc": lambda a, x: jax.grad(jss.betainc, 2)(a, 2.5, x / 10), "d i0": lambda a, x: jax.grad(jss.i0)(x),
    "d i1": lambda a, x: jax.grad(jss.i1)(x), "ndtr": lambda a, x: jss.ndtr(x - a),
    "ndtri": lambda a, x: jss.ndtri(x / 9), "log_ndtr": lambda a, x: jss.log_ndtr(x - a),
    "factorial": lambda a, x: jss.factorial(x), "expi": lambda a, x: jss.expi(x), "expn": lambda a, x: jss.expn(3, x),
    "exp1": lambda a, x: jss.exp1(x),
    "kl_div": jss.kl_div, "rel_entr": jss.rel_entr, "betaln": jss.betaln, "beta": jss.beta,
    "multigammaln": lambda a, x: jss.multigammaln(a + 3, 3), "spence": lambda a, x: jss.spence(x),
    "hyp1f1": lambda a, x: jss.hyp1f1(a, a + 1, x), "bernoulli": lambda a, x: jss.bernoulli(6)[2] * x,
    "sici": lambda a, x: jss.sici(x), "fresnel": lambda a, x: jss.fresnel(x), "poch": jss.poch,
    "entr": lambda a, x: jss.entr(x),
    "bessel_jn": lambda a, x: jss.bessel_jn(x, v=3, n_iter=30),
    "random_gamma_grad": lambda a, x: lax.random_gamma_grad(a, x),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if hasattr(jss, n) or n.startswith(("d ", "random"))])
def test_functions_of_scipy(name: str) -> None:
    """In lanes, and what `jax.vmap` gives."""
    rng = np.random.default_rng(3)
    args = [rng.uniform(0.5, 8, 19).astype(np.float32) for _ in range(2)]
    got = lanax.vmap(FUNCTIONS[name])(*args)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(jax.vmap(FUNCTIONS[name])(*args)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    misses = lanax.explain(lanax.vmap(FUNCTIONS[name]), *args).misses
    assert not [m for m in misses if m.primitive != "program"]
