"""What the test of a loop and its step compute alike is computed once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax import _jax
from lanax._rewrite.loops import with_tests_shared
from lanax._rewrite.surgery import inner_jaxprs


def opened(fun, *args):
    return _jax.without_consts(jax.make_jaxpr(fun)(*args))


def count(jaxpr, name):
    """How often a primitive stands in the loops and branches of a program."""
    return sum(sum(e.primitive.name == name for e in inner.eqns) + count(inner, name)
               for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn))


def residual(x, a):
    return jnp.exp(x) * x - a


def newton(x, a):
    """x e^x = a; the residual stands in the test and in the step."""
    def step(state):
        x, trips = state
        return x - residual(x, a) / (jnp.exp(x) * (x + 1.0)), trips + 1

    return lax.while_loop(lambda s: (jnp.abs(residual(s[0], a)) > 1e-4) & (s[1] < 50), step, (x, 0))


def newtons_in_a_scan(x, a):
    return lax.scan(lambda x, _: (newton(x + 0.5, a)[0], x), x, None, length=3)


def newton_or_not(x, a):
    return lax.cond(x < 1.0, lambda: newton(x, a)[0], lambda: x)


def several(x, a):
    """A value of the test that the step hands on as it is; two tests of one value; one that depends on nothing."""
    def test(state):
        x, y = state
        return (jnp.sin(x) < jnp.exp(y)) & (jnp.sin(x) > -2.0) & (jnp.exp(a) > 0.0)

    def step(state):
        x, y = state
        return jnp.exp(y) * 0.1, y - 0.3 - 0.2 * jnp.sin(x) * jnp.exp(-a)

    return lax.while_loop(test, step, (x, a))


@pytest.mark.parametrize(("fun", "before", "after"), [(newton, 3, 1), (newtons_in_a_scan, 3, 2), (newton_or_not, 3, 2)])
def test_computed_once(fun, before, after):
    jaxpr = opened(fun, 1.0, 2.0)
    assert count(jaxpr, "exp") == before
    assert count(with_tests_shared(jaxpr), "exp") == after


def test_nothing_to_share_is_left_as_it_is():
    jaxpr = opened(lambda x, n: lax.fori_loop(0, n, lambda i, x: x * 1.5 + i, x), 1.0, 3)
    assert with_tests_shared(jaxpr) is jaxpr


@pytest.mark.parametrize("fun", [newton, newtons_in_a_scan, newton_or_not, several])
def test_same_results(fun):
    rng = np.random.default_rng(0)
    x, a = rng.uniform(0.5, 1.5, 37).astype(np.float32), rng.uniform(0.1, 5.0, 37).astype(np.float32)
    for in_axes in ((0, 0), (0, None)):
        args = x, a if in_axes[1] == 0 else a[0]
        got = lanax.vmap(fun, in_axes, plan=lanax.Plan(route="lanes"))(*args)
        want = jax.vmap(fun, in_axes)(*args)
        alone = [fun(x[i], a[i] if in_axes[1] == 0 else a[0]) for i in range(3)]
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-5)
        for i in range(3):
            for g, one in zip(jax.tree.leaves(got), jax.tree.leaves(alone[i]), strict=True):
                np.testing.assert_allclose(g[i], one, rtol=2e-5)
