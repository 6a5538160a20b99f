"""What the factorisations of complex matrices share: parts put together and taken apart, and reflectors. Knows no
primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex import scaling
from lanax._complex.arithmetic import multiply, reciprocal
from lanax._complex.registry import Complex

F = TypeVar("F", bound=Callable[..., Any])


def of_stacks(*ranks: int) -> Callable[[F], F]:
    """Decorator: a function of matrices and vectors of these ranks takes stacks of them as well, one after another."""

    def decorate(fun: Any) -> Any:
        @functools.wraps(fun)
        def run(*operands: Any, **params: Any) -> Any:
            shape = jax.tree.leaves(operands[0])[0].shape
            batch = shape[: len(shape) - ranks[0]]
            if not batch:
                return fun(*operands, **params)
            if 0 in shape:
                raise NotImplementedError("empty stacks")
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(batch) :]), operands)
            out = lax.map(lambda xs: fun(*xs, **params), flat)
            return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), out)

        return run

    return decorate


def each(fun: Callable[..., Any], *values: Complex) -> Complex:
    """A function of real arrays on both parts."""
    return Complex(*(fun(*parts) for parts in zip(*values, strict=True)))


def stacked(rows: Sequence[Complex], axis: int = 0) -> Complex:
    return each(lambda *parts: jnp.stack(parts, axis), *rows)


def joined(blocks: Sequence[Complex], axis: int) -> Complex:
    return each(lambda *parts: jnp.concatenate(parts, axis), *blocks)


def conjugate(x: Complex) -> Complex:
    return Complex(x.re, -x.im)


def less_outer(a: Complex, x: Complex, y: Complex) -> Complex:
    """a - x y^T."""
    x, y = each(lambda part: part[:, None], x), each(lambda part: part[None, :], y)
    return Complex((a.re - x.re * y.re) + x.im * y.im, (a.im - x.re * y.im) - x.im * y.re)


def reflector(x: Complex) -> tuple[Complex, Any, Complex]:
    """A vector v with first element one, a real b, and t, for which (1 - t v v^H)^H x = (b, 0, ...): as LAPACK's
    larfg gives them."""
    alpha, tail = each(lambda part: part[0], x), each(lambda part: part[1:], x)
    largest = jnp.max(jnp.concatenate([lax.abs(x.re), lax.abs(x.im)]))
    scale = jnp.where(largest > 0, largest, 1)
    norm = largest * lax.sqrt(jnp.sum((x.re / scale) ** 2 + (x.im / scale) ** 2))
    still = (jnp.sum(lax.abs(tail.re) + lax.abs(tail.im)) == 0) & (alpha.im == 0)
    beta = jnp.where(still, alpha.re, jnp.where(alpha.re < 0, norm, -norm))
    safe = jnp.where(still, 1, beta)
    t = Complex(jnp.where(still, 0, (beta - alpha.re) / safe), jnp.where(still, 0, -alpha.im / safe))
    under = Complex(jnp.where(still, 1, alpha.re - beta), alpha.im)
    v = multiply(tail, reciprocal(under))
    one = jnp.ones((1,), beta.dtype)
    return joined([Complex(one, 0 * one), v], 0), beta, t


def reflected(a: Complex, v: Complex, t: Complex) -> Complex:
    """(1 - t v v^H) a."""
    w = Complex(v.re @ a.re + v.im @ a.im, v.re @ a.im - v.im @ a.re)
    return less_outer(a, v, multiply(t, w))


def size_of(x: Complex) -> Any:
    """|Re| + |Im|."""
    return lax.abs(x.re) + lax.abs(x.im)


def square(x: Complex) -> Any:
    return x.re * x.re + x.im * x.im


def scaled(x: Complex, factor: Any) -> Complex:
    return Complex(x.re * factor, x.im * factor)


def plus(x: Complex, y: Complex) -> Complex:
    return Complex(x.re + y.re, x.im + y.im)


def minus(x: Complex, y: Complex) -> Complex:
    return Complex(x.re - y.re, x.im - y.im)


def where(condition: Any, x: Complex | Any, y: Complex | Any) -> Complex:
    x, y = (v if isinstance(v, Complex) else Complex(v, 0) for v in (x, y))
    return Complex(jnp.where(condition, x.re, y.re), jnp.where(condition, x.im, y.im))


def quotient(x: Complex, y: Complex) -> Complex:
    """x / y of numbers about one: no square overflows."""
    return scaled(multiply(x, conjugate(y)), 1 / square(y))


def product(x: Complex, y: Complex) -> Complex:
    return Complex(x.re @ y.re - x.im @ y.im, x.re @ y.im + x.im @ y.re)


def to_the_right(a: Complex, v: Complex, t: Complex) -> Complex:
    """a (1 - t v v^H)."""
    return less_outer(a, multiply(t, product(a, v)), conjugate(v))


def repeat(first: int, last: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """`state = body(i, state)` for i from `first` up to `last` - 1 or down to `last` + 1: a loop that stays one."""
    step = 1 if first < last else -1

    def again(carry: Any) -> Any:
        i, state = carry
        return i + step, body(i, state)

    return lax.while_loop(lambda carry: carry[0] * step < last * step, again, (jnp.int32(first), state))[1]


def row_of(x: Complex, i: Any) -> Complex:
    return each(lambda part: lax.dynamic_index_in_dim(part, i, keepdims=False), x)


def column_of(x: Complex, i: Any) -> Complex:
    return each(lambda part: lax.dynamic_index_in_dim(part, i, 1, keepdims=False), x)


def reflector_at(x: Complex, k: Any) -> tuple[Complex, Any, Complex]:
    """What `reflector` gives of the elements from number k on: v with zeros before its one, and b and t."""
    place = np.arange(x.re.shape[0])
    tail = where(place > k, x, 0)
    alpha = row_of(x, k)
    largest = jnp.maximum(jnp.max(size_of(tail)), size_of(alpha))
    e = scaling.exponent(largest)
    scale = scaling.inverse(e, largest.dtype)
    norm = scaling.power(e, largest.dtype) * lax.sqrt(
        jnp.sum(square(scaled(tail, scale))) + square(scaled(alpha, scale)))
    still = (jnp.max(size_of(tail)) == 0) & (alpha.im == 0)
    beta = jnp.where(still, alpha.re, jnp.where(alpha.re < 0, norm, -norm))
    safe = jnp.where(still, 1, beta)
    t = Complex(jnp.where(still, 0, (beta - alpha.re) / safe), jnp.where(still, 0, -alpha.im / safe))
    under = where(still, 1, scaled(Complex(alpha.re - beta, alpha.im), scale))
    v = plus(multiply(scaled(tail, scale), quotient(Complex(jnp.ones_like(beta), 0), under)),
             Complex((place == k).astype(beta.dtype), 0))
    return v, beta, t
