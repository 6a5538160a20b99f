"""Derivatives of what is not smooth, not used, or has a rule of its own: around a mapped call and inside one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same_under_both as same
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_batching import custom_vmap
from jax.sharding import Mesh, PartitionSpec

import lanax

Mapper = Callable[..., Any]

X = jnp.linspace(0.2, 1.7, 7)
MATRIX = jnp.linspace(-1.0, 2.0, 21).reshape(7, 3)
W = jnp.array([0.3, -0.7, 1.1])
N = jnp.arange(7)


def both_ways(fun: Callable[..., Any], rtol: float = 2e-5) -> None:
    """Derivatives of the mapped function, and the mapped derivatives, of a smooth function of a scalar and a vector."""
    same(lambda mapper: jax.jvp(mapper(fun, (0, None)), (X, W), (X + 1, W)), rtol)
    same(lambda mapper: jax.jit(jax.grad(lambda x, w: mapper(fun, (0, None))(x, w).sum(), (0, 1)))(X, W), rtol)
    same(lambda mapper: jax.jit(mapper(jax.value_and_grad(fun, (0, 1)), (0, None)))(X, W), rtol)
    same(lambda mapper: mapper(lambda x, w: jax.jvp(lambda v: fun(v, w), (x,), (x,)), (0, None))(X, W), rtol)


# ---- rules of the user's own -----------------------------------------------------------------------------------------
@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def applied(f: Any, x: Any, n: int) -> Any:
    return f(x) * n


@applied.defjvp
def _applied_jvp(f: Any, n: int, primals: Any, tangents: Any) -> Any:
    return applied(f, primals[0], n), 3.0 * n * tangents[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped(x: Any, limit: float) -> Any:
    return jnp.sin(x)


clipped.defvjp(lambda x, limit: (jnp.sin(x), x), lambda limit, x, ct: (jnp.clip(ct * x, -limit, limit),))


@jax.custom_jvp
def closing_over(x: Any) -> Any:
    return jnp.sin(x)


# The rule closes over an array, which becomes an input of the tangent program.
closing_over.defjvp(lambda p, t: (jnp.sin(p[0]), t[0] * (W * p[0]).sum() + 0 * jnp.asarray(np.arange(40.0))[3] * t[0]))


@jax.custom_vjp
def closing_over_in_reverse(x: Any) -> Any:
    return jnp.sin(x)


closing_over_in_reverse.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * (W * x).sum(),))


def test_arguments_that_are_not_differentiated() -> None:
    both_ways(lambda x, w: applied(jnp.sin, x, 2) * w.sum())
    same(lambda mapper: jax.grad(lambda x: mapper(lambda v: clipped(v, 0.5) * 2)(x).sum())(X))
    same(lambda mapper: mapper(jax.grad(lambda v: clipped(v, 0.5) * 2))(X))


def test_rules_that_close_over_arrays() -> None:
    both_ways(lambda x, w: closing_over(x * w[0]) * w.sum())
    same(lambda mapper: jax.grad(lambda x: mapper(closing_over_in_reverse)(x).sum())(X))
    same(lambda mapper: jax.jit(mapper(jax.grad(closing_over_in_reverse)))(X))


def test_rules_of_custom_vmap_that_close_over_arrays() -> None:
    @custom_vmap
    def fun(x: Any) -> Any:
        return x * 2

    fun.def_vmap(lambda size, batched, x: (x * 2 + W[2], batched[0]))
    same(lambda mapper: mapper(lambda x, y: fun(x) * y)(X, X))
    same(lambda mapper: jax.vmap(mapper(lambda x, y: fun(x) * y, (0, None)), (None, 0))(X, W))
    same(lambda mapper: jax.vmap(mapper(lambda x, y: fun(x) * y, (None, 0)), (0, None))(X, W))


def test_rules_for_reverse_mode_are_differentiated_again() -> None:
    """A forward derivative around a reverse one; the value is that of the rule."""
    @jax.custom_vjp
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    fun.defvjp(lambda x: (jnp.sin(x) + 1, x), lambda x, ct: (ct * x**3,))
    same(lambda mapper: jax.hessian(lambda x: mapper(fun)(x).sum())(X))
    same(lambda mapper: jax.value_and_grad(lambda x: mapper(fun)(x).sum())(X))
    same(lambda mapper: mapper(jax.hessian(lambda x: mapper(lambda w: fun(x * w))(W).sum()))(X))


def test_rules_of_custom_vmap_are_differentiated() -> None:
    """The rule for the batch, and not the function."""
    @custom_vmap
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    fun.def_vmap(lambda size, batched, x: (x**3, batched[0]))
    same(lambda mapper: jax.grad(lambda x: mapper(lambda v: fun(jnp.sin(v)) * v)(x).sum())(X))
    same(lambda mapper: jax.jit(jax.jacfwd(mapper(lambda v: jnp.sin(fun(v)))))(X))


def test_custom_root() -> None:
    def root(x: Any, w: Any) -> Any:
        def solve(f: Any, guess: Any) -> Any:
            return lax.while_loop(lambda v: jnp.abs(f(v)) > 1e-5, lambda v: v - f(v) / jax.grad(f)(v), guess)

        return lax.custom_root(lambda v: v**3 - x - w[2], x + 1, solve, lambda g, y: y / g(1.0))

    both_ways(root, rtol=2e-4)


def test_custom_gradient_and_stop_gradient() -> None:
    @jax.custom_gradient
    def fun(x: Any) -> Any:
        return x**2, lambda ct: 5 * ct

    same(lambda mapper: jax.grad(lambda x: mapper(fun)(x).sum())(X))
    both_ways(lambda x, w: lax.stop_gradient(x * w[0]) * jnp.sin(x) + lax.stop_gradient(w).sum())


# ---- linearize, Jacobians, Hessians ----------------------------------------------------------------------------------
def curved(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, v: jnp.sin(v * w[0]) + x, x) * w.prod()


def test_linearized_once_and_used_often() -> None:
    def run(mapper: Mapper) -> Any:
        out, push = jax.linearize(mapper(curved, (0, None)), X, W)
        back = jax.linear_transpose(push, X, W)
        return out, push(X, W), push(X * 2, W + 1), back(X), jax.jit(push)(X, W)

    same(run)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev, jax.hessian], ids=lambda d: d.__name__)
def test_matrices_of_derivatives(derivative: Any) -> None:
    same(lambda mapper: derivative(lambda w: mapper(curved, (0, None))(X, w))(W), rtol=1e-4)
    same(lambda mapper: jax.jit(mapper(derivative(curved, 1), (0, None)))(X, W), rtol=1e-4)


@pytest.mark.parametrize("policy", [
    None, jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.nothing_saveable,
    jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names("kept"),
], ids=["none", "everything", "nothing", "products", "by name"])
def test_checkpoints(policy: Any) -> None:
    def fun(x: Any, w: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.exp(-x) * (w @ w), "kept")) * x

    inside = jax.checkpoint(fun, policy=policy)
    same(lambda mapper: jax.jit(jax.grad(lambda x: mapper(inside, (0, None))(x, W).sum()))(X))

    def around(mapper: Mapper) -> Any:
        return jax.checkpoint(lambda x, w: jnp.sin(mapper(fun, (0, None))(x, w)).sum(), policy=policy)

    same(lambda mapper: jax.jit(jax.grad(around(mapper), (0, 1)))(X, W))


# ---- integers, zeros, dead code --------------------------------------------------------------------------------------
def test_integers_have_no_tangents() -> None:
    def fun(x: Any, n: Any) -> Any:
        return x * n, n * 2, x > 1

    dots = np.zeros(7, jax.dtypes.float0)
    same(lambda mapper: jax.jvp(mapper(fun), (X, N), (X, dots)))
    same(lambda mapper: jax.vjp(lambda x, n: mapper(fun)(x, n), X, N)[1]((X, dots, dots)))
    same(lambda mapper: mapper(jax.grad(lambda x, n: x * n**2, (0, 1), allow_int=True))(X, N))


def calls(fun: Callable[..., Any], *args: Any) -> list[Any]:
    """The mapped calls in the jaxpr of a function, without what nobody reads."""
    closed = jax.make_jaxpr(fun)(*args)
    lean, _ = jax.interpreters.partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return [e for e in lean.eqns if e.primitive.name == "lanax_batched_call"]


def two(x: Any, y: Any) -> Any:
    return jnp.sin(x), lax.while_loop(lambda v: v < 20, lambda v: v * 1.5 + 1, y), (x * 3).astype(int)


def test_results_that_nobody_reads_are_not_computed() -> None:
    (call,) = calls(lambda x, y: lanax.vmap(two)(x, y)[0], X, X)
    assert [e.primitive.name for e in call.params["program"].jaxpr.eqns] == ["sin"]
    assert (len(call.invars), len(call.outvars)) == (1, 1)
    (call,) = calls(lambda x, y: lanax.vmap(two, out_axes=(0, 0, 0))(x, y)[1:], X, X)
    assert (len(call.invars), len(call.outvars)) == (2, 2)
    assert calls(lambda x, y: (lanax.vmap(two)(x, y), x)[1], X, X) == []


def test_dead_code_of_compiled_functions() -> None:
    """`jit` removes it by itself, and the results that are left are right, wherever their batch axes are."""
    mapped = lanax.vmap(lambda v, w: (v * 2, w, v.sum(), v + w), in_axes=(1, None), out_axes=(0, 0, 0, 1))
    whole = mapped(MATRIX.T, W)
    for chosen in ([0], [1], [2], [3], [0, 2], [1, 3], [3, 2, 0]):
        got = jax.jit(lambda m, w, c=chosen: [mapped(m, w)[k] for k in c])(MATRIX.T, W)
        for k, out in zip(chosen, got, strict=True):
            np.testing.assert_array_equal(out, whole[k])
    text = jax.jit(lambda x, y: lanax.vmap(two)(x, y)[0]).lower(X, X).as_text()
    assert text.count("tensor<7xf32>") < 8
    assert "tensor<7xi32>" not in text


def test_tangents_that_are_zero_are_not_carried() -> None:
    _, tangent = calls(lambda x, y: jax.jvp(lambda v: lanax.vmap(two)(v, y), (x,), (x,)), X, X)
    assert len(tangent.outvars) == 1, "only the sine moves with x"
    assert len(tangent.invars) == 2
    assert "while" not in str(tangent.params["program"].jaxpr)

    def stopped(x: Any, y: Any) -> Any:
        return lax.stop_gradient(x) * 2, x * y

    _, tangent = calls(lambda x, y: jax.jvp(lambda v: lanax.vmap(stopped)(v, y), (x,), (x,)), X, X)
    assert len(tangent.outvars) == 1
    assert len(calls(lambda x: jax.jvp(lanax.vmap(lax.stop_gradient), (x,), (x,)), X)) == 1, "no tangent at all"


def test_what_the_reverse_pass_does_not_need_is_not_kept() -> None:
    def fun(x: Any, y: Any) -> Any:
        return jnp.sin(x) * 2, jnp.cos(y) * 3

    def back(x: Any, y: Any, ct: Any) -> Any:
        return jax.vjp(lambda a, b: lanax.vmap(fun)(a, b)[0], x, y)[1](ct)

    (call,) = calls(back, X, X, X)
    assert len(call.invars) == 2
    assert [e.primitive.name for e in call.params["program"].jaxpr.eqns].count("sin") == 0
    _, vjp = jax.vjp(lambda a: lanax.vmap(lambda v: jnp.exp(jnp.sin(v) * jnp.cos(v)))(a).sum(), X)
    assert sum(leaf.size for leaf in jax.tree.leaves(vjp)) == X.size, "the argument, and nothing in between"


def test_dead_code_keeps_the_values() -> None:
    same(lambda mapper: jax.jit(lambda x, y: jax.jvp(lambda v: mapper(two)(v, y), (x,), (x,))[1][0])(X, X))
    same(lambda mapper: jax.jit(jax.grad(lambda x: mapper(lambda v: (v**2, jnp.sin(v)))(x)[1].sum()))(X))
    same(lambda mapper: lax.scan(lambda c, _: (mapper(two)(c, c)[0], mapper(two)(c, c)[2]), X, None, 3)[0])


# ---- other ways to map -----------------------------------------------------------------------------------------------
def grown(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 20, lambda v: v * 1.5 + 1, x)


def test_vectorize() -> None:
    signature = jnp.vectorize(lambda v, x: (v * grown(x)).sum(), signature="(n),()->()")
    same(lambda mapper: mapper(signature)(MATRIX[:, None], MATRIX))
    same(lambda mapper: jnp.vectorize(lambda v: mapper(grown)(v), signature="(n)->(n)")(MATRIX))


def test_a_rule_of_custom_vmap_around_and_inside() -> None:
    @custom_vmap
    def fun(x: Any) -> Any:
        return jnp.sin(x)

    fun.def_vmap(lambda size, batched, x: (jnp.cos(x), True))
    same(lambda mapper: mapper(lambda x: grown(fun(x)))(X))
    same(lambda mapper: mapper(lambda v: mapper(fun)(v) + 1)(MATRIX))

    def outer(mapper: Mapper) -> Any:
        @custom_vmap
        def mapped(v: Any) -> Any:
            return mapper(grown)(v)

        mapped.def_vmap(lambda size, batched, v: (mapper(mapper(grown))(v) * 2, True))
        return mapped(X), jax.vmap(mapped)(MATRIX)

    same(outer)


def test_in_pmap_and_shard_map() -> None:
    same(lambda mapper: jax.pmap(mapper(grown))(X[None]))
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec("d")

    def sharded(mapper: Mapper) -> Any:
        inside = jax.shard_map(lambda x: mapper(grown)(x), mesh=mesh, in_specs=spec, out_specs=spec)
        grads = jax.shard_map(lambda x: jax.grad(lambda v: mapper(jnp.sin)(v).sum())(x), mesh=mesh, in_specs=spec,
                              out_specs=spec)
        return inside(X), jax.jit(grads)(X), jax.grad(lambda x: jax.shard_map(
            mapper(jnp.sin), mesh=mesh, in_specs=spec, out_specs=spec)(x).sum())(X)

    same(sharded)
