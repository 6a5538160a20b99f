"""Short counted loops are laid out trip by trip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax import _jax
from lanax._rewrite.surgery import inner_jaxprs
from lanax._rewrite.unroll import with_short_loops_unrolled

#: Of a Runge-Kutta method: each stage reads the stages before it.
TABLE = np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.75, 0, 0], [2 / 9, 1 / 3, 4 / 9, 0]], np.float32)


def opened(fun, *args):
    """The jaxpr of `fun`, and the values of its constants."""
    closed = jax.make_jaxpr(fun)(*args)
    jaxpr = _jax.without_consts(closed)
    known = zip(jaxpr.invars, map(np.asarray, _jax.consts_of(closed)), strict=False)
    return jaxpr, {v: x for v, x in known if x.size <= 64}


def names(jaxpr):
    """The names of a program's primitives, those of inner jaxprs included."""
    return [name for e in jaxpr.eqns for name in (e.primitive.name, *(n for j in inner_jaxprs(e) for n in names(j)))]


def stages(x, rate, first, table=TABLE):
    """The stages from number `first` on, each at the place of its counter."""
    def stage(state):
        i, trips, k = state
        y = x + jnp.asarray(table)[i] @ k
        return i + 1, trips + 1, k.at[i].set(rate * jnp.sin(y))

    start = jnp.zeros((len(table), *x.shape)).at[0].set(x)
    return lax.while_loop(lambda s: (s[0] < len(table)) & (s[1] < len(table)), stage, (first, 0, start))[2]


def from_the_start(x, rate):
    return stages(x, rate, 0)


def from_one_or_two(x, rate):
    """Where the first trip is differs from example to example."""
    return stages(x, rate, lax.select(rate > 1.0, 1, 2))


def in_a_scan(x, rate):
    return lax.scan(lambda x, _: (stages(x, rate, 0)[-1], None), x, None, length=3)[0]


def in_a_branch(x, rate):
    return lax.cond(rate > 1.0, lambda: stages(x, rate, 1)[-1], lambda: x)


PROGRAMS = [from_the_start, from_one_or_two, in_a_scan, in_a_branch]


@pytest.mark.parametrize("fun", PROGRAMS)
def test_no_loop_is_left(fun):
    jaxpr, known = opened(fun, jnp.ones(3), 1.5)
    assert "while" in names(jaxpr)
    unrolled = names(with_short_loops_unrolled(jaxpr, known))
    assert "while" not in unrolled
    assert unrolled.count("cond") == names(jaxpr).count("cond") + (fun is from_one_or_two)


def long(x, rate):
    return lax.while_loop(lambda s: s[0] < 100, lambda s: (s[0] + 1, s[1] * rate), (0, x))[1]


def by_twos(x, rate):
    return lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 2, s[1] * rate), (0, x))[1]


def until_large(x, rate):
    return lax.while_loop(lambda s: (s[0] < 4) & (s[1][0] < 9.0), lambda s: (s[0] + 1, s[1] * rate), (0, x))[1]


def from_anywhere(x, rate):
    return lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] * rate), (jnp.int32(rate), x))[1]


def with_another_end(x, rate):
    return lax.while_loop(lambda s: (s[0] < 4) & (s[1] < 3), lambda s: (s[0] + 1, s[1] + 1, s[2] * rate),
                          (jnp.where(rate > 1.0, 0, 2), 0, x))[2]


OTHERS = [long, by_twos, until_large, from_anywhere, with_another_end]


@pytest.mark.parametrize("fun", OTHERS)
def test_other_loops_stay(fun):
    jaxpr, known = opened(fun, jnp.ones(3), 1.5)
    assert with_short_loops_unrolled(jaxpr, known) is jaxpr


@pytest.mark.parametrize("fun", [*PROGRAMS, *OTHERS])
def test_same_results(fun):
    rng = np.random.default_rng(0)
    x, rate = rng.normal(size=(37, 3)).astype(np.float32), rng.uniform(0.5, 1.5, 37).astype(np.float32)
    for in_axes in ((0, 0), (None, 0)):
        args = [a if axis == 0 else a[0] for a, axis in zip((x, rate), in_axes, strict=True)]
        got = lanax.vmap(fun, in_axes, plan=lanax.Plan(route="lanes"))(*args)
        np.testing.assert_allclose(got, jax.vmap(fun, in_axes)(*args), rtol=1e-5, atol=1e-6)
        for i in (0, 1, 36):
            alone = fun(*(a[i] if axis == 0 else a for a, axis in zip(args, in_axes, strict=True)))
            np.testing.assert_allclose(got[i], alone, rtol=1e-5, atol=1e-6)


def test_zero_times_infinity_is_not_left_out():
    def fun(x):
        return stages(jnp.stack([x, 1.0]), 1.0, 1)

    x = np.array([1.0, np.inf, np.nan], np.float32)
    got, want = lanax.vmap(fun, plan=lanax.Plan(route="lanes"))(x), jax.vmap(fun)(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert np.isnan(want[1, 2, 0])  # 0 of an infinite first stage
