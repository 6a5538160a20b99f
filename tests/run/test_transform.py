"""Derivatives, nesting and control flow around and inside a mapped call: each as it is with `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same_under_both as same
from jax import lax

import lanax

Mapper = Callable[..., Any]

X = jnp.linspace(0.2, 1.7, 7)
MATRIX = jnp.linspace(-1.0, 2.0, 21).reshape(7, 3)
CUBE = jnp.linspace(-1.0, 1.5, 30).reshape(5, 2, 3)
W = jnp.array([0.3, -0.7, 1.1])


# ---- functions of one example ----------------------------------------------------------------------------------------
def smooth(x: Any, w: Any) -> Any:
    """Of a scalar and a vector."""
    return jnp.sin(x * w).sum() * jnp.exp(-x) + w[0] / x


def scanned(x: Any, w: Any) -> Any:
    def step(carry: Any, v: Any) -> Any:
        carry = jnp.tanh(carry * v + x)
        return carry, carry * v

    last, ys = lax.scan(step, x, w)
    return last + ys.sum()


def branching(x: Any, w: Any) -> Any:
    return lax.cond(x > 0.9, lambda: jnp.sin(x) * w.sum(), lambda: x**2 * w[1])


def switching(x: Any, w: Any) -> Any:
    return lax.switch((x * 3).astype(int), [lambda: x * w[0], lambda: jnp.sin(x) * w[1], lambda: w[2] / x])


def looping(x: Any, w: Any) -> Any:
    """Forward mode only."""
    return lax.while_loop(lambda v: v < 5, lambda v: v * 1.5 + w[0] ** 2, x)


def indexed(x: Any, w: Any) -> Any:
    i = (x * 2).astype(int) % 3
    return w[i] * x + jnp.zeros(4).at[i].add(x * w[1]).max()


def checkpointed(x: Any, w: Any) -> Any:
    return jax.checkpoint(lambda a: jnp.sin(jnp.sin(a) * w).sum())(x)


@jax.custom_jvp
def odd_jvp(x: Any) -> Any:
    return jnp.sin(x)


odd_jvp.defjvps(lambda t, out, x: 7 * t * x)


@jax.custom_vjp
def odd_vjp(x: Any) -> Any:
    return jnp.sin(x)


odd_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (5 * ct * x,))


def custom(x: Any, w: Any) -> Any:
    return odd_jvp(x) * w.sum() + odd_jvp(w[0] * x)


def custom_reverse(x: Any, w: Any) -> Any:
    return odd_vjp(x) * w.sum() + odd_vjp(w[0] * x)


def stopped(x: Any, w: Any) -> Any:
    return x * lax.stop_gradient(x) * w.sum()


def linear_algebra(x: Any, w: Any) -> Any:
    a = jnp.outer(w, w) * x + 3 * jnp.eye(3)
    return (a @ (a @ w))[0] + jnp.max(a) + jnp.cumsum(w * x)[-1]


FORWARD = {f.__name__: f for f in (smooth, scanned, branching, switching, looping, indexed, checkpointed, custom,
                                   stopped, linear_algebra)}
REVERSE = {name: f for name, f in FORWARD.items() if f is not looping} | {"custom_reverse": custom_reverse}


def each(functions: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("fun", functions.values(), ids=functions)


# ---- around a mapped call --------------------------------------------------------------------------------------------
@each(REVERSE)
def test_grad_of_a_mapped_call(fun: Any) -> None:
    """Of a mapped and of an unmapped argument, whose cotangent is a sum over the batch."""
    same(lambda mapper: jax.jit(jax.grad(lambda x, w: mapper(fun, (0, None))(x, w).sum(), (0, 1)))(X, W))


@each(FORWARD)
def test_jvp_of_a_mapped_call(fun: Any) -> None:
    same(lambda mapper: jax.jvp(mapper(fun, (0, None)), (X, W), (X * 2, W + 1)))
    same(lambda mapper: jax.jit(lambda x: jax.jvp(lambda v: mapper(fun, (0, None))(v, W), (x,), (x + 1,)))(X))


@each({name: REVERSE[name] for name in ("smooth", "scanned", "branching", "custom")})
def test_vjp_and_linearize_of_a_mapped_call(fun: Any) -> None:
    def both(mapper: Mapper) -> Any:
        mapped = mapper(fun, (0, None))
        out, back = jax.vjp(mapped, X, W)
        _, push = jax.linearize(mapped, X, W)
        return out, back(out), push(X, W), jax.linear_transpose(push, X, W)(out)

    same(both)


@each({name: REVERSE[name] for name in ("smooth", "scanned", "branching")})
def test_jacobians_of_a_mapped_call(fun: Any) -> None:
    same(lambda mapper: jax.jacfwd(mapper(fun, (0, None)), argnums=1)(X, W))
    same(lambda mapper: jax.jacrev(mapper(fun, (0, None)))(X, W))


def test_hessian_of_a_mapped_call() -> None:
    same(lambda mapper: jax.jit(jax.hessian(lambda w: mapper(scanned, (0, None))(X, w).sum()))(W), rtol=1e-4)


def test_axes_of_derivatives() -> None:
    def loss(mapper: Mapper) -> Any:
        return lambda a, b: (mapper(lambda v, u: jnp.sin(v) @ u, (1, -1))(a, b) ** 2).sum()

    same(lambda mapper: jax.grad(loss(mapper), (0, 1))(MATRIX, jnp.ones((7, 2, 3)).at[0].set(2.0)))


def test_ints_and_bools_beside_what_is_differentiated() -> None:
    n, flag = jnp.arange(7), jnp.arange(7) % 2 == 0

    def fun(x: Any, n: Any, flag: Any) -> Any:
        return jnp.where(flag, x * n, jnp.sin(x)), n + 1, flag

    same(lambda mapper: jax.jvp(lambda x: mapper(fun)(x, n, flag), (X,), (X,)))
    same(lambda mapper: jax.grad(lambda x, n: mapper(fun)(x, n, flag)[0].sum())(X, n))
    same(lambda mapper: jax.grad(lambda x, n: mapper(fun)(x, n, flag)[0].sum(), (0, 1), allow_int=True)(X, n))


def test_keys_beside_what_is_differentiated() -> None:
    keys = jax.random.split(jax.random.key(3), 7)
    same(lambda mapper: jax.grad(lambda x: mapper(lambda k, x: jax.random.normal(k) * x**2)(keys, x).sum())(X))


def test_results_of_which_one_is_used() -> None:
    def fun(x: Any) -> Any:
        return {"a": jnp.sin(x), "b": x.astype(int), "c": jnp.cos(x) * x}

    same(lambda mapper: jax.grad(lambda x: mapper(fun)(x)["c"].sum())(X))
    same(lambda mapper: jax.grad(lambda x: mapper(fun)(x)["b"].sum().astype(float))(X))


def test_positions_that_are_integers_of_numpy() -> None:
    """In the derivative of `pad`, and where the user gives them."""
    same(lambda mapper: jax.grad(lambda x: mapper(lambda v: lax.pad(jnp.sin(v), 0.0, ((1, -1, 2),)))(x).sum())(MATRIX))
    same(lambda mapper: mapper(lambda v: lax.slice(jnp.sin(v), np.array([1]), np.array([3])))(MATRIX))


def test_a_derivative_of_an_unused_argument_is_zero() -> None:
    same(lambda mapper: jax.grad(lambda x, y: mapper(lambda a, b: a**2)(x, y).sum(), (0, 1))(X, X))


def test_a_uniform_result_is_differentiated() -> None:
    same(lambda mapper: jax.grad(lambda w: mapper(lambda x, w: (x, jnp.sin(w)), (0, None))(X, w)[1].sum())(W))


def test_auxiliary_results() -> None:
    same(lambda mapper: jax.value_and_grad(lambda x: (mapper(smooth, (0, None))(x, W).sum(), x > 1), has_aux=True)(X))


def test_a_rematerialised_mapped_call() -> None:
    same(lambda mapper: jax.grad(jax.checkpoint(lambda x: mapper(smooth, (0, None))(x, W).sum()))(X))


def test_a_derivative_of_a_derivative() -> None:
    def twice(mapper: Mapper) -> Any:
        inner = jax.grad(lambda x: mapper(lambda v: jnp.sin(v) * v**3)(x).sum())
        return jax.jvp(inner, (X,), (X,)), jax.grad(lambda x: inner(x).sum())(X)

    same(twice)


def test_reverse_mode_through_while_is_refused_as_by_jax() -> None:
    for mapper in (lanax.vmap, jax.vmap):
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
            jax.grad(lambda x, m=mapper: m(looping, (0, None))(x, W).sum())(X)


def test_a_batch_of_none_is_differentiated() -> None:
    same(lambda mapper: jax.grad(lambda w: mapper(smooth, (0, None))(X[:0], w).sum())(W))


def test_equal_programs_with_different_rules_are_told_apart() -> None:
    def sine(slope: float) -> Any:
        fun = jax.custom_jvp(lambda x: jnp.sin(x))
        fun.defjvps(lambda t, out, x: slope * t)
        return fun

    for slope in (2.0, 3.0):
        fun = sine(slope)
        grad = jax.grad(lambda x, f=fun: lanax.vmap(lambda v: f(v))(x).sum())
        np.testing.assert_allclose(grad(X), slope)
        np.testing.assert_allclose(jax.jit(grad)(X), slope)


# ---- inside a mapped call --------------------------------------------------------------------------------------------
@each(REVERSE)
def test_grad_inside(fun: Any) -> None:
    same(lambda mapper: mapper(jax.value_and_grad(fun, (0, 1)), (0, None))(X, W))


def test_forward_mode_inside() -> None:
    same(lambda mapper: mapper(lambda x: jax.jvp(lambda v: looping(v, W), (x,), (1.0,)))(X))
    same(lambda mapper: mapper(jax.jacfwd(smooth, argnums=1), (0, None))(X, W))


def test_second_derivatives_inside() -> None:
    same(lambda mapper: mapper(jax.hessian(smooth, argnums=1), (0, None))(X, W), rtol=1e-4)
    same(lambda mapper: mapper(jax.jacrev(jax.grad(scanned)), (0, None))(X, W), rtol=1e-4)


def test_derivatives_inside_and_around() -> None:
    same(lambda mapper: jax.grad(lambda w: mapper(jax.grad(smooth), (0, None))(X, w).sum())(W), rtol=1e-4)
    same(lambda mapper: jax.jvp(lambda w: mapper(jax.grad(custom), (0, None))(X, w), (W,), (W,)))


def test_newton_steps_inside_a_loop() -> None:
    def root(x: Any) -> Any:
        f = lambda v: v**3 - x  # noqa: E731
        return lax.fori_loop(0, 8, lambda _, v: v - f(v) / jax.grad(f)(v), x)

    same(lambda mapper: jax.jit(mapper(root))(X))


# ---- mapped calls in mapped calls ------------------------------------------------------------------------------------
def norm(v: Any) -> Any:
    return lax.while_loop(lambda u: (u * u).sum() < 50, lambda u: 2 * u + 0.5, v).sum()


OTHER = {"jax.vmap": jax.vmap, "lanax.vmap": lanax.vmap}


@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (1, 0), (2, 1), (-1, -1)], ids=str)
@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_nested_over_two_axes(other: Mapper, axes: tuple[int, int]) -> None:
    want = jax.jit(jax.vmap(jax.vmap(norm, axes[1]), axes[0]))(CUBE)
    np.testing.assert_allclose(other(lanax.vmap(norm, axes[1]), axes[0])(CUBE), want, rtol=2e-5)
    np.testing.assert_allclose(jax.jit(lanax.vmap(other(norm, axes[1]), axes[0]))(CUBE), want, rtol=2e-5)


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
@pytest.mark.parametrize(("inner", "outer", "shapes"), [
    ((0, None), (None, 0), [(7,), (3,)]), ((None, 0), (0, None), [(3,), (7,)]), ((0, None), (1, 0), [(7, 3), (3,)]),
    ((0, 0), (1, None), [(7, 3), (7,)]), ((None, 1), (0, 1), [(3, 2), (2, 3, 7)]),
], ids=str)
def test_nested_with_unmapped_arguments(other: Mapper, inner: Any, outer: Any, shapes: Any) -> None:
    def pair(x: Any, y: Any) -> Any:
        return lax.while_loop(lambda v: v.sum() < 20, lambda v: v * 1.5 + jnp.abs(y), x), x * y

    args = [jnp.linspace(0.1, 2.0, int(np.prod(s))).reshape(s) for s in shapes]
    same(lambda mapper: (jax.vmap if mapper is jax.vmap else other)(mapper(pair, inner, (0, -1)), outer, 1)(*args))


def test_all_pairs() -> None:
    def distance(a: Any, b: Any) -> Any:
        return jnp.sqrt(((a - b) ** 2).sum())

    same(lambda mapper: mapper(mapper(distance, (0, None)), (None, 0))(MATRIX, MATRIX[:4] + 1))


def test_a_derivative_of_all_pairs() -> None:
    def loss(mapper: Mapper) -> Any:
        pairs = mapper(mapper(lambda a, b: (a * b).sum() ** 2, (0, None)), (None, 0))
        return lambda m: pairs(m, m).sum()

    same(lambda mapper: jax.jit(jax.grad(loss(mapper)))(MATRIX), rtol=1e-4)


def test_nested_three_deep() -> None:
    def fun(mapper: Mapper) -> Any:
        return mapper(mapper(mapper(looping_scalar), in_axes=1), in_axes=2, out_axes=-1)

    same(lambda mapper: fun(mapper)(CUBE))


def looping_scalar(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 9, lambda v: v * v + 1, x)


def test_out_axes_of_nested_calls() -> None:
    def fun(v: Any) -> Any:
        return jnp.stack([v, v + 1]), v.sum()

    for first, second in [(0, 0), (1, 0), (2, 1), (-1, -1)]:
        same(lambda mapper, a=first, b=second: jax.vmap(mapper(fun, 0, (a, 0)), 1, (b, -1))(CUBE))


def test_jvp_between_two_mapped_calls() -> None:
    def fun(mapper: Mapper) -> Any:
        return mapper(lambda v: jax.jvp(mapper(looping_scalar), (v,), (v,)))

    same(lambda mapper: fun(mapper)(MATRIX))


def test_grad_between_two_mapped_calls() -> None:
    same(lambda mapper: mapper(jax.grad(lambda v: mapper(scanned, (0, None))(v, W).sum()))(MATRIX))


def test_nested_with_keys() -> None:
    keys = jax.random.split(jax.random.key(1), (4, 3))
    same(lambda mapper: jax.vmap(mapper(jax.random.normal), in_axes=1)(keys))
    same(lambda mapper: jax.random.key_data(jax.vmap(mapper(lambda k: jax.random.split(k)[0]), 1, 1)(keys)))
    same(lambda mapper: jax.vmap(mapper(lambda k, x: jax.random.uniform(k) * x, (None, 0)))(keys[0], MATRIX[:3]))
    same(lambda mapper: mapper(mapper(lambda k: jax.random.bits(jax.random.split(k, 3)[1])))(keys))
    same(lambda mapper: mapper(mapper(lambda k: jax.random.permutation(jax.random.fold_in(k, 1), 40)))(keys))


# ---- control flow around a mapped call -------------------------------------------------------------------------------
def test_in_scan() -> None:
    def run(mapper: Mapper) -> Any:
        return lax.scan(lambda c, w: (mapper(looping_scalar)(c * w), mapper(smooth, (0, None))(c, W)), X, W)

    same(run)
    same(lambda mapper: jax.grad(lambda x: lax.scan(lambda c, w: (mapper(smooth, (0, None))(c, W * w), None), x, W)[0]
                                 .sum())(X), rtol=1e-4)


def test_in_while_and_fori() -> None:
    same(lambda mapper: jax.jit(lambda x: lax.while_loop(lambda c: c.sum() < 100, mapper(lambda v: v * 1.5), x))(X))
    same(lambda mapper: lax.fori_loop(0, 4, lambda i, c: mapper(lambda v, i: v + i, (0, None))(c, i), X))


def test_in_cond() -> None:
    def run(mapper: Mapper) -> Any:
        return lambda x: lax.cond(x[0] > 0, mapper(jnp.sin), mapper(looping_scalar), x)

    for x in (X, -X):
        same(lambda mapper, x=x: run(mapper)(x))
        same(lambda mapper, x=x: jax.jvp(run(mapper), (x,), (x,)))


def test_in_a_custom_rule() -> None:
    def run(mapper: Mapper) -> Any:
        @jax.custom_vjp
        def fun(x: Any) -> Any:
            return mapper(jnp.sin)(x)

        fun.defvjp(lambda x: (fun(x), x), lambda x, ct: (mapper(lambda a, b: 3 * a * b)(x, ct),))
        return jax.grad(lambda x: fun(x).sum())(X)

    same(run)


def test_the_program_that_is_differentiated_runs_in_lanes() -> None:
    """And so do its tangent and its transpose, where the plan asks for it."""
    mapped = lanax.vmap(scanned, (0, None), plan=lanax.Plan(route="lanes"))
    text = jax.jit(jax.grad(lambda x, w: mapped(x, w).sum(), (0, 1))).lower(X, W).as_text()
    assert "lanax_" in text
    assert "stablehlo.while" not in text
