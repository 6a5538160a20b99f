"""Random programs: loops in branches in loops, arrays updated by index, against the per-example loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop
from jax import lax

import lanax

Values = dict[str, list[Any]]


class Writer:
    """Writes one random program: the same seed, the same program. Values stay small, so that rounding stays small."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def choose(self, items: list[Any]) -> Any:
        return items[self.rng.integers(len(items))]

    def program(self, values: Values, depth: int, length: int) -> Values:
        """A few more values, made of those that are there."""
        values = {kind: list(items) for kind, items in values.items()}
        for _ in range(length):
            makers: list[Callable[[Values, int], tuple[str, Any]]] = [
                self.float_op, self.float_op, self.int_op, self.bool_op, self.array_op, self.index_op]
            if depth > 0:
                makers += [self.while_loop, self.cond, self.scan]
            kind, value = self.choose(makers)(values, depth)
            values[kind].append(value)
        return values

    def float_op(self, values: Values, _: int) -> tuple[str, Any]:
        x, y, p = (self.choose(values[k]) for k in "ffb")
        return "f", self.choose([
            lambda: jnp.sin(x) * y * 0.5, lambda: jnp.where(p, x, y), lambda: jnp.tanh(x + y), lambda: x - y * 0.25,
            lambda: jnp.maximum(x, y), lambda: x / (2 + y * y), lambda: jnp.exp(-x * x), lambda: jnp.abs(x) ** 0.5,
            lambda: jnp.floor(x * 4) * 0.25, lambda: self.choose(values["a"]).sum() * 0.1])()

    def int_op(self, values: Values, _: int) -> tuple[str, Any]:
        i, j, p = (self.choose(values[k]) for k in "iib")
        return "i", self.choose([
            lambda: (i * 7 + j) % 11, lambda: jnp.where(p, i, j), lambda: i ^ (j << 1), lambda: jnp.minimum(i, j + 3),
            lambda: i // jnp.where(j == 0, 2, j), lambda: lax.population_count(i)])() % 1000

    def bool_op(self, values: Values, _: int) -> tuple[str, Any]:
        i, j, p, q = (self.choose(values[k]) for k in "iibb")
        # Floats are compared with what rounding cannot reach.
        return "b", self.choose([lambda: i > j, lambda: p & ~q, lambda: p ^ q, lambda: (i + j) % 2 == 0])()

    def array_op(self, values: Values, _: int) -> tuple[str, Any]:
        a, c, x, p = (self.choose(values[k]) for k in "aafb")
        return "a", self.choose([
            lambda: jnp.flip(a) * 0.5 + c * 0.25, lambda: jnp.where(p, a, c), lambda: jnp.roll(a, 1) * x * 0.3,
            lambda: jnp.cumsum(a) * 0.1, lambda: jnp.tanh(a + c), lambda: jnp.sort(jnp.floor(a * 8)) * 0.1,
            lambda: jnp.concatenate([a[2:], c[:2]])])()

    def index_op(self, values: Values, _: int) -> tuple[str, Any]:
        a, x, i = (self.choose(values[k]) for k in "afi")
        return self.choose([
            lambda: ("f", a[i % a.size]), lambda: ("a", a.at[i % a.size].set(x)),
            lambda: ("a", a.at[i % a.size].add(x * 0.5)), lambda: ("a", jnp.where(i > 3, a.at[i % 5].set(x), a)),
            lambda: ("i", jnp.argmax(jnp.floor(a * 8)).astype(jnp.int32))])()

    def _carried(self, values: Values) -> tuple[Any, ...]:
        return tuple(self.choose(values[k]) for k in "fiba")

    def _body(self, values: Values, depth: int, seed: int) -> Callable[..., tuple[Any, ...]]:
        """The same code each time it is traced, whatever it is given."""
        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            inner = Writer(seed)
            more = {k: [*values[k][-3:], v] for k, v in zip("fiba", carry, strict=True)}
            new = inner.program(more, depth - 1, 4)
            return (jnp.tanh(inner.choose(new["f"])), inner.choose(new["i"]), inner.choose(new["b"]),
                    jnp.tanh(inner.choose(new["a"])))

        return body

    def _one_of(self, results: tuple[Any, ...]) -> tuple[str, Any]:
        which = int(self.rng.integers(4))
        return "fiba"[which], results[which]

    def while_loop(self, values: Values, depth: int) -> tuple[str, Any]:
        limit, body = self.choose(values["i"]) % 6, self._body(values, depth, int(self.rng.integers(1 << 30)))
        start = self._carried(values)
        out = lax.while_loop(lambda s: s[0] < limit, lambda s: (s[0] + 1, *body(s[1:])), (jnp.int32(0), *start))
        return self._one_of(out[1:])

    def scan(self, values: Values, depth: int) -> tuple[str, Any]:
        body = self._body(values, depth, int(self.rng.integers(1 << 30)))
        xs, length = self.choose(values["a"]), int(self.choose([3, 9]))

        def step(carry: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
            carry = body((carry[0] * 0.5 + x * 0.1, *carry[1:]))
            return carry, carry[0]

        carry, ys = lax.scan(step, self._carried(values), jnp.resize(xs, (length,)))
        return self._one_of((*carry[:3], carry[3] + ys.sum() * 0.1))

    def cond(self, values: Values, depth: int) -> tuple[str, Any]:
        sides = [self._body(values, depth, int(self.rng.integers(1 << 30))) for _ in range(int(self.choose([2, 3])))]
        return self._one_of(lax.switch(self.choose(values["i"]) % 3, sides, self._carried(values)))


def written(seed: int, size: int) -> Callable[..., Any]:
    """The program of a seed, on arrays of `size` elements."""
    def fun(x: Any, i: Any, w: Any) -> Any:
        start = {"f": [x, x * 0.5, w], "i": [i, i * 3 + 1, jnp.int32(2)], "b": [i > 3, x > 0],
                 "a": [jnp.linspace(-1, 1, size, dtype=jnp.float32) * x, jnp.ones(size, jnp.float32)]}
        out = Writer(seed).program(start, 2, 12)
        return out["f"][-3:], out["i"][-3:], out["b"][-2:], out["a"][-2:]

    return fun


@pytest.mark.parametrize("seed", range(40))
def test_random_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(1, 40))
    fun = written(seed, 7 if seed % 3 else 80)
    args = [rng.normal(size=batch).astype(np.float32), rng.integers(0, 20, batch).astype(np.int32), np.float32(0.7)]
    axes = (0, 0, None)
    plan = lanax.Plan(lanes=[1, 8, 16][seed % 3], route="lanes")
    got = jax.tree.leaves(jax.jit(lanax.vmap(fun, axes, plan=plan))(*args))
    for x, y in zip(got, loop(fun, args, axes), strict=True):
        if y.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-3)
        else:
            np.testing.assert_array_equal(x, y)
