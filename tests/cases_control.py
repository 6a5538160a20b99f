"""Rows for loops, branches, keys, and whole small programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from case import Arg, Case
from jax import lax

F32, F64, I32 = np.float32, np.float64, np.int32


def keys(rng: np.random.Generator, batch: int) -> np.ndarray:
    """Words of keys."""
    return rng.integers(0, 1 << 32, (batch, 2), dtype=np.uint32)


def counts(high: int) -> Arg:
    """Numbers of trips, some zero."""
    return lambda rng, batch: rng.integers(0, high, batch).astype(np.int32)


def _newton(x: Any) -> Any:
    def go_on(s: Any) -> Any:
        return (jnp.abs(s[0] * s[0] - x) > 1e-4 * x) & (s[1] < 30)

    return lax.while_loop(go_on, lambda s: (0.5 * (s[0] + x / s[0]), s[1] + 1), (x, 0))


def _collatz(n: Any) -> Any:
    def step(s: Any) -> Any:
        n, k = s
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1

    return lax.while_loop(lambda s: s[0] > 1, step, (n, 0))[1]


def _nested_while(n: Any, x: Any) -> Any:
    def outer(s: Any) -> Any:
        i, acc = s
        inner = lax.while_loop(lambda t: t[0] < i, lambda t: (t[0] + 1, t[1] * 0.5 + x), (0, acc))
        return i + 1, inner[1]

    return lax.while_loop(lambda s: s[0] < n, outer, (0, x))


def _fill(n: Any, x: Any, size: int) -> Any:
    """A buffer written by index, as many places as the example says."""
    def step(s: Any) -> Any:
        i, buffer = s
        return i + 1, buffer.at[i].set(x * i)

    return lax.while_loop(lambda s: s[0] < n, step, (0, jnp.zeros(size, x.dtype)))


def _swap(n: Any, x: Any) -> Any:
    """Carries that change places; large enough to be in memory."""
    a, b = jnp.full(80, x), jnp.arange(80, dtype=x.dtype)
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[2], s[1] * 0.5), (0, a, b))


def _kalman(zs: Any) -> Any:
    def step(c: Any, z: Any) -> Any:
        m, p = c
        gain = p / (p + 0.1)
        m, p = m + gain * (z - m), (1 - gain) * p + 0.01
        return (m, p), (m, gain)

    return lax.scan(step, (jnp.zeros((), zs.dtype), jnp.ones((), zs.dtype)), zs)


def _branches(i: Any, x: Any) -> Any:
    return lax.switch(i, [lambda v: v * 2, jnp.sin, lambda v: lax.fori_loop(0, 9, lambda k, a: a * 0.9 + k, v)], x)


def _never_taken(x: Any) -> Any:
    """The untaken side loops for ever on these inputs."""
    def forever(v: Any) -> Any:
        return lax.while_loop(lambda s: s >= 0, lambda s: s * 1.0, jnp.abs(v))

    return lax.cond(x > 1e6, forever, lambda v: v + 1, x)


def _draws(words: Any) -> Any:
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    a, b, c = jax.random.split(key, 3)
    return (jax.random.uniform(a, (3,)), jax.random.randint(b, (), 0, 100),
            jax.random.key_data(jax.random.fold_in(c, 7)), jax.random.bits(c, (2,), np.uint32), jax.random.bernoulli(a))


def _key_loop(words: Any) -> Any:
    key = jax.random.wrap_key_data(words, impl="threefry2x32")

    def step(s: Any) -> Any:
        key, total, n = s
        key, sub = jax.random.split(key)
        return key, total + jax.random.uniform(sub, dtype=jnp.float32), n + 1

    key, total, n = lax.while_loop(lambda s: s[1] < 3.0, step, (key, jnp.float32(0), 0))
    return jax.random.key_data(key), total, n


def _reading(n: Any, x: Any) -> Any:
    """A loop that reads all of an array in its test and its body, in a loop within it and a branch, and some of it."""
    scale = (1 / x.size) if jnp.issubdtype(x.dtype, jnp.inexact) else 1

    def inner(k: Any, total: Any) -> Any:
        return total * x.dtype.type(scale) + jnp.sum(x, dtype=x.dtype) + x.ravel()[7 * k]

    def body(state: tuple[Any, Any]) -> tuple[Any, Any]:
        i, total = state
        total = lax.fori_loop(0, 3, inner, total)
        return i + 1, lax.cond(i % 2 == 0, lambda: total - jnp.sum(x * x[::-1], dtype=x.dtype),
                               lambda: total + jnp.sum(x[-1], dtype=x.dtype))

    start = (0, jnp.zeros((), x.dtype))
    total = lax.while_loop(lambda s: (s[0] < n) & jnp.any(x != s[1]), body, start)[1]
    return total, x + total


@jax.custom_jvp
def _custom(x: Any) -> Any:
    return jnp.tanh(x) * 2


_custom.defjvp(lambda p, t: (_custom(p[0]), t[0] * 3))

#: Dtypes of all kinds, shapes around what is unrolled and what blocks of rows fit.
_READ = [((71,), F32), ((9, 9), F64), ((70, 3), I32), ((9, 8), np.int64), ((65,), np.uint8), ((66,), np.float16),
         ((130,), np.complex64), ((3, 30), np.complex128)]

CASES = [
    *(Case("while", f"reads-{np.dtype(dtype)}", _reading, (counts(5), (shape, dtype)), rtol=1e-4,
           atol=0.05 if dtype is np.float16 else 1e-4)
      for shape, dtype in _READ),
    Case("while", "newton", _newton, (lambda rng, n: rng.uniform(0.5, 100, n).astype(F32),)),
    Case("while", "newton-float64", _newton, (lambda rng, n: rng.uniform(0.5, 100, n),)),
    Case("while", "collatz", _collatz, (lambda rng, n: rng.integers(1, 99, n).astype(I32),)),
    Case("while", "collatz-int64", _collatz, (lambda rng, n: rng.integers(1, 99, n),)),
    Case("while", "nested", _nested_while, (counts(7), ((), F32))),
    Case("while", "uniform", lambda x: lax.fori_loop(0, 5, lambda i, a: a * x + i, x), (((), F32),)),
    Case("while", "fill-small", lambda n, x: _fill(n, x, 12), (counts(14), ((), F32))),
    Case("while", "fill-large", lambda n, x: _fill(n, x, 90), (counts(100), ((), F32))),
    Case("while", "swap", _swap, (counts(9), ((), F32))),
    Case("while", "bool-carry", lambda n, x: lax.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1, ~s[1] | (x > 1), s[1]), (0, x > 0, x < 0)), (counts(9), ((), F32))),
    Case("while", "array-predicate", jax.vmap(_newton),
         (lambda rng, n: rng.uniform(0.5, 100, (n, 3)).astype(F32),)),
    Case("while", "bfloat16", lambda n, x: lax.fori_loop(0, n, lambda i, a: a * x + 1, x),
         (counts(5), ((), jnp.bfloat16)), rtol=3e-2),
    Case("scan", "kalman", _kalman, (((6,), F32),)),
    Case("scan", "kalman-long", _kalman, (((200,), F64),), rtol=1e-12),
    Case("scan", "reverse", lambda x: lax.scan(lambda c, v: (c * 0.5 + v, c), jnp.zeros(2, F32), x, reverse=True),
         (((70, 2), F32),)),
    Case("scan", "no-xs", lambda x: lax.scan(lambda c, _: (c * x, c), x, None, length=90), (((), F32),), atol=1e-30),
    Case("scan", "empty", lambda x: lax.scan(lambda c, v: (c + v, c), jnp.float32(1), x), (((0,), F32),)),
    Case("scan", "matrix-carry", lambda a, x: lax.scan(lambda c, v: (a @ c * 0.2 + v, c.sum()),
                                                      jnp.zeros((3, 3), F32), x), (((3, 3), F32), ((40,), F32))),
    Case("scan", "large-carry", lambda x: lax.scan(lambda c, v: (c.at[v].add(1.0), c[0]), jnp.zeros(90, F32), x),
         (lambda rng, n: rng.integers(0, 90, (n, 150)).astype(I32),)),
    Case("scan", "uniform-xs", lambda x: lax.scan(lambda c, i: (c * 0.7 + jnp.sin(i * x), i), x,
                                                  jnp.arange(70, dtype=F32)), (((), F32),), rtol=1e-4),
    Case("cond", "varying", lambda x: lax.cond(x > 0, lambda: jnp.sin(x) + 1, lambda: x * x), (((), F32),)),
    Case("cond", "loop-inside", lambda n, x: lax.cond(x > 0, lambda: _nested_while(n, x)[1], lambda: x),
         (counts(6), ((), F32))),
    Case("cond", "switch", _branches, (lambda rng, n: rng.integers(-1, 4, n).astype(I32), ((), F32))),
    Case("cond", "never-taken", _never_taken, (((), F32),)),
    Case("cond", "large", lambda x, y: lax.cond(x > 0, lambda: y * x, lambda: jnp.flip(y)), (((), F32), ((70,), F32))),
    Case("cond", "bool-result", lambda x: lax.cond(x > 0, lambda: (x > 1, 1), lambda: (x < -1, 2)), (((), F32),)),
    Case("threefry2x32", "draws", _draws, (keys,)),
    Case("threefry2x32", "many", lambda w: jax.random.bits(jax.random.wrap_key_data(w, impl="threefry2x32"), (99,)),
         (keys,), exact=True),
    Case("threefry2x32", "normal", lambda w: jax.random.normal(jax.random.wrap_key_data(w, impl="threefry2x32"), (4,)),
         (keys,)),
    Case("random_wrap", "loop", _key_loop, (keys,)),
    Case("random_unwrap", "seed", lambda n: jax.random.key_data(jax.random.key(n)), (counts(1000),)),
    Case("random_unwrap", "choose", lambda p, w: jax.random.key_data(jnp.where(
        p, jax.random.wrap_key_data(w[0]), jax.random.wrap_key_data(w[1]))),
        (((), np.bool_), lambda rng, n: rng.integers(0, 1 << 32, (n, 2, 2), dtype=np.uint32))),
    Case("mul", "custom_jvp", _custom, (((), F32),)),
    Case("mul", "custom_jvp-grad", jax.grad(_custom), (((), F32),)),
    Case("add", "remat", jax.checkpoint(lambda x: jnp.sin(x) * x + jnp.cos(x)), (((), F32),)),
]
