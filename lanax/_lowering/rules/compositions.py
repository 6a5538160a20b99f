"""Primitives that are functions of others, written in JAX: random keys and bits, loops with an array predicate, sparse
matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lanax._jax import (
    counter_hash,
    jaxpr_as_fun,
    open_and_consts,
    prng,
    random_gamma_impl,
    sparse_impl,
    without_consts,
)
from lanax._lowering.registry import register_composition

_SPARSE = (
    "bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_extract", "bcoo_fromdense", "bcoo_sort_indices",
    "bcoo_spdot_general", "bcoo_sum_duplicates", "bcoo_todense", "bcoo_transpose", "bcsr_dot_general", "bcsr_extract",
    "bcsr_fromdense", "bcsr_todense", "coo_fromdense", "coo_matmat", "coo_matvec", "coo_todense", "csr_fromdense",
    "csr_matmat", "csr_matvec", "csr_todense", "todense",
)  # fmt: skip
#: Kinds of keys whose bits are a hash of the key and a counter, and so those of each example by itself.
_COUNTERS = frozenset({"fry", "fry4", "phx2", "phx4"})
#: These make keys in the same way, and bits that under `jax.vmap` depend on the whole batch.
_KEYS = _COUNTERS | {"rbg"}


def _only(impl: Any, tags: Collection[str]) -> None:
    if impl.tag not in tags:
        raise NotImplementedError(f"keys of kind {impl.tag}")


def _random_bits(keys: Any, *, bit_width: int, shape: tuple[int, ...]) -> Any:
    """For keys of every kind but `rbg` and `unsafe_rbg`."""
    impl = keys.dtype._impl
    _only(impl, _COUNTERS)
    return prng.random_bits_impl_base(impl, prng.random_unwrap(keys), keys.ndim, bit_width=bit_width, shape=shape)


def _random_split(keys: Any, *, shape: tuple[int, ...]) -> Any:
    """For keys of every kind but `unsafe_rbg`."""
    impl = keys.dtype._impl
    _only(impl, _KEYS)
    words = prng.random_split_impl_base(impl, prng.random_unwrap(keys), keys.ndim, shape=shape)
    return prng.random_wrap(words, impl=impl)


def _random_fold_in(keys: Any, data: Any) -> Any:
    """For keys of every kind but `unsafe_rbg`."""
    impl = keys.dtype._impl
    _only(impl, _KEYS)
    return prng.random_wrap(prng.random_fold_in_impl_base(impl, prng.random_unwrap(keys), data, keys.shape), impl=impl)


def _random_seed(seeds: Any, *, impl: Any) -> Any:
    _only(impl, _KEYS | {"urbg"})
    return prng.random_wrap(prng.random_seed_impl_base(seeds, impl=impl), impl=impl)


def _random_gamma(keys: Any, a: Any, *, log_space: bool) -> Any:
    """One element after another, for keys of every kind but `rbg` and `unsafe_rbg`."""
    _only(keys.dtype._impl, _COUNTERS)
    return random_gamma_impl(keys, a, log_space=log_space)


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


def _hash(name: str) -> Callable[..., Any]:
    return lambda *words, **_: counter_hash(name)(*map(jnp.asarray, words))  # sums of NumPy's numbers may not wrap


def _sparse(name: str) -> Callable[..., Any]:
    def composition(*operands: Any, **params: Any) -> Any:
        """Of `jax.experimental.sparse`, as JAX itself does it with dense arrays."""
        return sparse_impl(name)(*operands, **params)

    return composition


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
    "random_gamma": _random_gamma,
    "iota_2x32_shape": _iota_2x32_shape,
    "while": _while_any,
    "call_hi_primitive": _high_level,
    # From jax 0.12 on.
    "log2": _log2,
    "one_minus_square": lambda x: (1 + x) * (1 - x),
    "polynomial": _polynomial,
    **{name: _hash(name) for name in ("philox2x32", "philox4x32", "threefry4x32")},
    "broadcast_to": lambda x, *, shape: jnp.broadcast_to(x, shape),
    "zeros_like": jnp.zeros_like,
    **{name: _sparse(name) for name in _SPARSE},
}.items():
    register_composition(_name, _fun)
