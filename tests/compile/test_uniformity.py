"""What varies, through loops and branches."""

import jax
import jax.numpy as jnp
import pytest

from lanax import _jax
from lanax._planning.uniformity import analyse
from lanax._rewrite.trace import expand


def analysed(fun, *args, varying, while_active=False):
    closed = expand(jax.make_jaxpr(fun)(*args), lambda primitive, params: False, {})
    jaxpr, _ = _jax.open_and_consts(closed)
    return analyse(jaxpr, varying, while_active)


def test_straight_line():
    result = analysed(lambda x, y: (x + y, y * 2, 1.0), 1.0, 2.0, varying=[True, False])
    assert result.varying_out == [True, False, False]


def test_constants_are_uniform():
    table = jnp.arange(3.0)
    result = analysed(lambda x: (table * 2, table * x), 1.0, varying=[True])
    assert result.varying_out == [False, True]


def count_until(limit, step):
    """Two carries: a count, which is the same for all that are still counting, and a sum."""
    return jax.lax.while_loop(lambda c: c[1] < limit, lambda c: (c[0] + 1, c[1] + step), (0, 0.0))


@pytest.mark.parametrize(
    ("varying", "expected", "predicate"),
    [
        ([False, False], [False, False], False),
        ([True, False], [True, True], True),
        ([False, True], [True, True], True),
    ],
)
def test_while(varying, expected, predicate):
    result = analysed(count_until, 1.0, 1.0, varying=varying)
    assert result.varying_out == expected
    assert result.predicate_varies(0) == predicate


def test_while_that_lanes_leave_apart_has_carries_that_are_uniform_inside():
    result = analysed(count_until, 1.0, 1.0, varying=[True, False], while_active=True)
    assert result.varying_out == [True, True]
    _, body = result.inner[0]
    assert not any(body.varying_out)


def test_a_carry_handed_on_keeps_its_state():
    def fun(limit, kept):
        def body(carry):
            value, kept, other = carry
            return value + 1, kept, other + kept

        # Two carries that swap at every iteration are not handed on.
        return jax.lax.while_loop(lambda c: c[0] < limit, body, (0.0, kept, 0.0))

    assert analysed(fun, 1.0, 2.0, varying=[True, False]).varying_out == [True, False, True]
    assert analysed(fun, 1.0, 2.0, varying=[False, True]).varying_out == [False, True, True]


def test_scan_reaches_a_fixed_point():
    def fun(x, xs):
        def body(carry, item):
            a, b, c = carry
            return (b, c, c), (a, item)

        return jax.lax.scan(body, (0.0, 0.0, x), xs)

    varying = analysed(fun, 1.0, jnp.arange(4.0), varying=[True, False]).varying_out
    assert varying == [True, True, True, True, False]
    assert analysed(fun, 1.0, jnp.arange(4.0), varying=[False, True]).varying_out == [False, False, False, False, True]


def test_scan_counter_is_uniform():
    def fun(x, table):
        return jax.lax.fori_loop(0, 4, lambda i, c: c * table[i], x)

    result = analysed(fun, 1.0, jnp.arange(4.0), varying=[True, False])
    (body,) = next(iter(result.inner.values()))
    gathers = [e for e in body.jaxpr.eqns if e.primitive.name in ("gather", "dynamic_slice")]
    assert gathers
    assert not any(body.varying[v] for e in gathers for v in e.outvars)


@pytest.mark.parametrize(
    ("varying", "expected"),
    [([False, False], [False, False]), ([True, False], [True, True]), ([False, True], [True, False])],
)
def test_cond(varying, expected):
    def fun(p, x):
        return jax.lax.cond(p > 0, lambda: (x, 1.0), lambda: (2.0, 2.0))

    assert analysed(fun, 1.0, 2.0, varying=varying).varying_out == expected


def test_every_inner_variable_has_an_answer():
    def fun(x):
        def body(carry):
            i, v = carry
            v = jax.lax.cond(v > 2, lambda v: jax.lax.fori_loop(0, 2, lambda _, w: w + 1, v), lambda v: v, v)
            return i + 1, v

        return jax.lax.while_loop(lambda c: c[0] < 3, body, (0, x))

    def visit(result):
        for eqn in result.jaxpr.eqns:
            assert all(v in result.varying for v in eqn.outvars)
        for inners in result.inner.values():
            for inner in inners:
                visit(inner)
                yield inner

    # The while's condition and body, the cond's branches, and the inner loop.
    result = analysed(fun, 1.0, varying=[True])
    assert len(list(visit(result))) == 2
    assert not result.predicate_varies(0)
    cond = next(i for i, e in enumerate(result.inner[0][1].jaxpr.eqns) if e.primitive.name == "cond")
    assert result.inner[0][1].predicate_varies(cond)


def test_text():
    text = analysed(count_until, 1.0, 1.0, varying=[True, False]).text()
    assert text.splitlines()[0] == "(v a:f32[], u b:f32[]) ->"
    assert "v c:i32[], v d:f32[] = while" in text
    assert text.splitlines()[-1].strip() == "return c, d"
