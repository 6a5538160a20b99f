"""Checks taken out of a program raise what they raise under `jax.vmap`, and nothing else changes."""

import re

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanax import _jax
from lanax._rewrite.checks import extract_checks, run_all, tie
from lanax._rewrite.trace import expand


def extracted(fun, example):
    closed = expand(jax.make_jaxpr(fun)(example), lambda primitive, params: False, {})
    free, checks = extract_checks(closed)
    _jax.core.check_jaxpr(_jax.open_and_consts(free)[0])
    return closed, free, checks


def batched(fun, example):
    """What is done with a program: map it, then run its checks."""
    closed, free, checks = extracted(fun, example)
    assert "callback" not in str(free)
    jaxpr, consts = _jax.open_and_consts(free)
    count = len(closed.out_avals)

    def run(xs):
        results = jax.vmap(lambda x: _jax.core.eval_jaxpr(jaxpr, consts, x))(xs)
        return tie(results[:count], run_all(checks, results[count:]))

    return run


def outcome(fun, xs):
    """The results, or the message of the error."""
    try:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.block_until_ready(jax.jit(fun)(xs)))]
    except (ValueError, jax.errors.JaxRuntimeError) as error:  # XLA's class depends on the thread that finds it
        text = str(error)
    return re.findall(r"_EquinoxRuntimeError: (.*)", text)[0]


def plain(x):
    return eqx.error_if(x, x > 5, "plain") + 1


def in_while(x):
    def body(carry):
        i, v = carry
        return i + 1, eqx.error_if(v, v > 10, "in while") * 2

    return jax.lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1]


def in_condition(x):
    def condition(carry):
        i, v = carry
        return (i < 3) & (eqx.error_if(v, v > 40, "in condition") > -1)

    return jax.lax.while_loop(condition, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]


def in_scan_in_cond(x):
    def body(carry, _):
        carry = eqx.error_if(carry, carry > 10, "in scan")
        return carry * 2, carry

    def loop(x):
        last, all_of_them = jax.lax.scan(body, x, length=3)
        return last + all_of_them.sum()

    return jax.lax.cond(x > 2, loop, lambda x: x, x)


def branched(x):
    index = jnp.where(x > 7, 2, jnp.where(x > 5, 1, 0))
    return eqxi.branched_error_if(x, x > 5, index, ["zero", "one", "two"]) * 2


def branched_in_while(x):
    def body(carry):
        i, v = carry
        return i + 1, eqxi.branched_error_if(v, v > 10, i, ["zero", "one", "two"]) * 2

    return jax.lax.while_loop(lambda c: c[0] < 3, body, (0, x))[1]


def two(x):
    x = eqx.error_if(x, x > 7, "first")
    return eqx.error_if(x * 2, x > 5, "second")


PROGRAMS = {f.__name__: f for f in (plain, in_while, in_condition, in_scan_in_cond, branched, branched_in_while, two)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_vmap(name):
    fun = PROGRAMS[name]
    run = batched(fun, 1.0)
    # None fails, one, another, several; the last batch fails in the condition before the loop.
    batches = [[1, 2, 1.5], [1, 6, 2], [1, 2, 8], [6, 8, 9], [50, 1, 1]]
    outcomes = []
    for xs in batches:
        xs = jnp.array(xs, jnp.float32)
        want, got = outcome(jax.vmap(fun), xs), outcome(run, xs)
        outcomes.append(type(want))
        np.testing.assert_array_equal(got, want)
    assert list in outcomes
    assert str in outcomes


def test_an_example_that_does_not_get_there_does_not_raise():
    run = batched(lambda x: jax.lax.cond(x > 0, lambda x: eqx.error_if(x, x > -10, "taken"), lambda x: x, x), 1.0)
    np.testing.assert_array_equal(outcome(run, jnp.array([-1.0, -2.0])), [[-1.0, -2.0]])
    assert outcome(run, jnp.array([-1.0, 1.0])) == "taken"


def test_what_does_not_vary_may_come_as_a_scalar():
    _, _, (check,) = extracted(branched, 1.0)
    run = jax.jit(lambda raised, index: jnp.where(check.run(raised, index), 1.0, 2.0))
    np.testing.assert_array_equal(outcome(lambda raised: run(raised, jnp.array(2)), jnp.array(False)), [2.0])
    assert outcome(lambda raised: run(raised, jnp.array(2)), jnp.array(True)) == "two"
    assert outcome(lambda raised: run(raised, jnp.array(2)), jnp.array([False, True])) == "two"


def test_empty_batch():
    np.testing.assert_array_equal(outcome(batched(plain, 1.0), jnp.zeros(0)), [jnp.zeros(0)])


def test_diffrax_max_steps():
    def solve(y0):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: -50 * y), diffrax.Tsit5(), 0.0, y0[0], 0.01, y0, max_steps=8,
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        ).ys  # fmt: skip

    run = batched(solve, jnp.ones(2))
    good, bad = jnp.array([[0.02, 1.0], [0.03, 1.0]]), jnp.array([[0.02, 1.0], [3.0, 1.0]])
    message = outcome(jax.vmap(solve), bad)
    assert "maximum number of solver steps" in message
    assert outcome(run, bad) == message
    np.testing.assert_allclose(outcome(run, good), outcome(jax.vmap(solve), good), rtol=1e-5)


def test_callbacks_that_give_results_stay():
    def fun(x):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.lax.cond(x > 0, lambda: jax.pure_callback(np.sin, shape, x, vmap_method="sequential"), lambda: x)

    closed, free, checks = extracted(fun, 1.0)
    assert free is closed
    assert not checks


def test_errors_as_nan_need_no_check():
    _, free, checks = extracted(lambda x: eqx.error_if(x, x > 5, "nan", on_error="nan"), 1.0)
    assert not checks
    assert "callback" not in str(free)


def test_a_check_knows_its_line():
    _, _, checks = extracted(plain, 1.0)
    assert [check.source.split(":")[0] for check in checks] == [__file__]
    assert checks[0].source.endswith("(plain)")


def test_nobody_reads_a_check():
    _, _, checks = extracted(lambda x: (eqx.error_if(x, x > 5, "unread"), x)[1], 1.0)
    assert not checks
