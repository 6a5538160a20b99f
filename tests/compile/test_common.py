"""Values that are computed alike are computed once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax import _jax
from lanax._rewrite.common import without_repeats
from lanax._rewrite.surgery import inner_jaxprs


def opened(fun, *args):
    return _jax.without_consts(jax.make_jaxpr(fun)(*args))


def count(jaxpr, name):
    """How often a primitive stands in a program, at any depth."""
    return sum((e.primitive.name == name) + sum(count(j, name) for j in inner_jaxprs(e)) for e in jaxpr.eqns)


def twice(x):
    return lax.exp(lax.sin(x)) + lax.exp(lax.sin(x))


def with_derivative(x):
    return jax.value_and_grad(lambda x: lax.exp(lax.sin(x)))(x)[1] + lax.exp(lax.sin(x))


def in_a_loop(x):
    return lax.fori_loop(0, 3, lambda _, x: twice(x), x)


def in_a_branch(x):
    return lax.cond(x > 0.0, twice, lambda x: x, x)


@pytest.mark.parametrize("fun", [twice, with_derivative, in_a_loop, in_a_branch])
def test_computed_once(fun):
    jaxpr = opened(fun, 0.5)
    assert count(jaxpr, "exp") == 2
    assert count(without_repeats(jaxpr), "exp") == 1
    x = np.linspace(-1.0, 1.0, 21, dtype=np.float32)
    got = lanax.vmap(fun, plan=lanax.Plan(route="lanes"))(x)
    np.testing.assert_allclose(got, jax.vmap(fun)(x), rtol=1e-5)
    np.testing.assert_allclose(got[3], fun(x[3]), rtol=1e-5)


def other_zeros(x):
    return lax.div(x, jnp.float32(0.0)), lax.div(x, jnp.float32(-0.0))


def other_types(x):
    return lax.convert_element_type(x, jnp.int32), lax.convert_element_type(x, jnp.int16)


def other_parameters(x):
    return lax.integer_pow(x, 2), lax.integer_pow(x, 3)


def other_operands(x):
    return x - 1.0, 1.0 - x


def loops(x):
    """Only what has no jaxpr of its own is compared."""
    return lax.fori_loop(0, 3, lambda _, x: x * 2, x), lax.fori_loop(0, 3, lambda _, x: x * 3, x)


@pytest.mark.parametrize("fun", [other_zeros, other_types, other_parameters, other_operands, loops])
def test_what_differs_stays(fun):
    jaxpr = opened(fun, jnp.float32(0.5))
    assert without_repeats(jaxpr) is jaxpr
