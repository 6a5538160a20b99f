"""The faster tier of functions: within 4 ULP, right at special values, the same bits for any number of lanes; and that
a plan asks for it."""

from __future__ import annotations

import jax.numpy as jnp
import math_harness
import mpmath
import numpy as np
import pytest
import test_math_elementary as elementary
import test_math_special as special
from math_harness import Compiled, hard

import lanax
from lanax._math import gamma, inverse, power

LIMIT = 4.0
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
SPECIAL = elementary.SPECIAL | special.SPECIAL
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@each_dtype
@pytest.mark.parametrize("case", [*elementary.CASES, *special.CASES], ids=str)
def test_functions(case: math_harness.Case, dtype: np.dtype) -> None:
    fast, scalar = (Compiled(case.function, dtype, lanes, fast=True) for lanes in (8, 1))
    x = np.concatenate([case.samples(dtype, 150), hard(dtype, case.domain, np.random.default_rng(1), 40)])
    with mpmath.workprec(120):
        assert special.largest_error(fast(x), [case.exact(mpmath.mpf(v)) for v in x.tolist()]) <= LIMIT
    x, want = (np.array(column, dtype) for column in zip(*SPECIAL[case.function], (np.nan, np.nan), strict=True))
    if case.function is gamma.lgamma:  # 0 at 1 and 2, where terms cancel
        x, want = x[want != 0], want[want != 0]
    got = fast(x)
    np.testing.assert_allclose(got, want, rtol=LIMIT * np.finfo(dtype).eps)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])
    x = elementary.any_bits(dtype, 0)
    special.assert_same(fast(x), scalar(x))


@each_dtype
def test_functions_of_two_arguments(dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    far = 0.98 * np.finfo(dtype).maxexp
    x = np.concatenate([rng.uniform(0.1, 10, 300), rng.uniform(0.7, 1.4, 300), 1 + rng.uniform(-1, 1, 300) * 1e-3])
    y = rng.uniform(-far, far, 900) / np.log2(x)
    for function, exact, args in ((power.pow, mpmath.power, (x, y)),
                                  (inverse.atan2, mpmath.atan2, (rng.normal(size=600), rng.normal(size=600)))):
        args = [a.astype(dtype) for a in args]
        fast, scalar = (Compiled(function, dtype, lanes, arity=2, fast=True) for lanes in (8, 1))
        with mpmath.workprec(140):
            want = [exact(*map(mpmath.mpf, point)) for point in zip(*(a.tolist() for a in args), strict=True)]
            assert special.largest_error(fast(*args), want) <= LIMIT
        args = [elementary.any_bits(dtype, seed) for seed in range(2)]
        special.assert_same(fast(*args), scalar(*args))
        usual = Compiled(function, dtype, 8, arity=2)(*args)
        odd = ~np.isfinite(usual) | (usual == 0)
        special.assert_same(fast(*args)[odd], usual[odd])


def test_a_plan_asks_for_it() -> None:
    """Under each source of settings, on its own kernel; the bits do not depend on lanes."""
    x = jnp.linspace(-3.0, 3.0, 203)
    mapped = lanax.vmap(lambda v: jnp.sin(v) + jnp.tanh(v))
    usual, exact = mapped(x), np.sin(np.float64(x)) + np.tanh(np.float64(x))
    with lanax.use_plan(accuracy="fast"):
        fast = mapped(x)
        report = lanax.explain(mapped, x)
        for lanes in (1, 8, 32):
            other = lanax.vmap(lambda v: jnp.sin(v) + jnp.tanh(v), plan=lanax.Plan(lanes=lanes))
            np.testing.assert_array_equal(other(x), fast)
    assert report.kernels[0].accuracy == "fast"
    assert "asked for: accuracy=fast (use_plan)" in str(report)
    assert "accuracy: fast: functions within 4 ULP" in str(report)
    assert (fast != usual).any()
    np.testing.assert_allclose(fast, exact, rtol=1e-6)
    np.testing.assert_array_equal(mapped(x), usual)
    assert lanax.explain(mapped, x).kernels[0].accuracy == "default"
    with pytest.raises(lanax.PlanError, match="`accuracy` of a Plan must be one of 'default', 'fast'; got 'high'"):
        lanax.Plan(accuracy="high")
