"""Primitives that are functions of others, written in JAX: random keys and bits, loops with an array predicate."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanax._jax import jaxpr_as_fun, open_and_consts, prng, without_consts
from lanax._lowering.registry import register_composition


def _threefry_only(impl: Any) -> None:
    if impl.tag != "fry":
        raise NotImplementedError(f"keys of kind {impl.tag}")


def _random_bits(keys: Any, *, bit_width: int, shape: tuple[int, ...]) -> Any:
    impl = keys.dtype._impl
    _threefry_only(impl)
    return prng.random_bits_impl_base(impl, prng.random_unwrap(keys), keys.ndim, bit_width=bit_width, shape=shape)


def _random_split(keys: Any, *, shape: tuple[int, ...]) -> Any:
    impl = keys.dtype._impl
    _threefry_only(impl)
    words = prng.random_split_impl_base(impl, prng.random_unwrap(keys), keys.ndim, shape=shape)
    return prng.random_wrap(words, impl=impl)


def _random_fold_in(keys: Any, data: Any) -> Any:
    impl = keys.dtype._impl
    _threefry_only(impl)
    return prng.random_wrap(prng.random_fold_in_impl_base(impl, prng.random_unwrap(keys), data, keys.shape), impl=impl)


def _random_seed(seeds: Any, *, impl: Any) -> Any:
    _threefry_only(impl)
    return prng.random_wrap(prng.random_seed_impl_base(seeds, impl=impl), impl=impl)


def _iota_2x32_shape(*, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The high and low words of 0, 1, 2, ... in row-major order."""
    size = math.prod(shape)
    if size >= 1 << 32:
        raise NotImplementedError("more numbers than one word counts")
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return jnp.zeros(shape, jnp.uint32), low


def _while_any(*operands: Any, cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any,
               **_: Any) -> Any:
    """A loop whose predicate is an array, as `jax.vmap` makes them: it runs while any element is true, and advances the
    parts of the carry for which it is."""
    if open_and_consts(cond_jaxpr)[1] or open_and_consts(body_jaxpr)[1]:
        raise NotImplementedError("constants inside the loop")
    cond, body = jaxpr_as_fun(without_consts(cond_jaxpr)), jaxpr_as_fun(without_consts(body_jaxpr))
    split = cond_nconsts + body_nconsts
    cond_consts, body_consts, initial = operands[:cond_nconsts], operands[cond_nconsts:split], operands[split:]

    def step(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        on, carry = state
        new = [_select(on, y, x) for x, y in zip(carry, body(*body_consts, *carry), strict=True)]
        return cond(*cond_consts, *new)[0], new

    first = cond(*cond_consts, *initial)[0]
    return jax.lax.while_loop(lambda state: jnp.any(state[0]), step, (first, list(initial)))[1]


def _high_level(*operands: Any, _prim: Any) -> Any:
    """From jax 0.12 on some functions (`searchsorted`, `nonzero`, ...) are one equation that knows its own parts."""
    if _prim.effects:
        raise NotImplementedError("effects")
    return jax.tree.leaves(_prim.expand(*jax.tree.unflatten(_prim.in_tree, operands)))


def _log2(x: Any, **_: Any) -> Any:
    return jax.lax.log(x) * np.asarray(1 / math.log(2), x.dtype)


def _polynomial(x: Any, *coefficients: Any, **_: Any) -> Any:
    """By Horner's rule, highest degree last."""
    total = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _select(on: Any, x: Any, y: Any) -> Any:
    shape = jnp.shape(x)
    on = jax.lax.broadcast_in_dim(on, shape, tuple(range(on.ndim)))
    return jax.lax.select(on, x, y)


for _name, _fun in {
    "random_bits": _random_bits,
    "random_split": _random_split,
    "random_fold_in": _random_fold_in,
    "random_seed": _random_seed,
    "iota_2x32_shape": _iota_2x32_shape,
    "while": _while_any,
    "call_hi_primitive": _high_level,
    # From jax 0.12 on.
    "log2": _log2,
    "one_minus_square": lambda x: (1 + x) * (1 - x),
    "polynomial": _polynomial,
}.items():
    register_composition(_name, _fun)
