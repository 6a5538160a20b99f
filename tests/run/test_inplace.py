"""Arrays carried by loops and updated by index: right where lanes have left the loop, where the old contents are read
again, where carries change places; and in place where they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop, run_kernel
from jax import lax

from lanax import _jax
from lanax._lowering.kernel import build_kernel
from lanax._lowering.registry import COMPOSITIONS, RULES
from lanax._planning import uniformity
from lanax._rewrite import trace
from lanax._target import host

N = 200
BATCHES = (1, 7, 9, 27)


def fill(n, x):
    """A trip count of each example's own, and a buffer filled by index."""
    return lax.fori_loop(0, n, lambda i, buf: buf.at[i].set(x + i), jnp.zeros(N))


def fill_from_input(n, x, start):
    return lax.fori_loop(0, n, lambda i, buf: buf.at[i].set(x + i), start)


def fill_slices(n, x):
    def body(i, buf):
        return lax.dynamic_update_slice(buf, jnp.stack([x, x + 1, x + i]), (3 * i + jnp.int32(x),))

    return lax.fori_loop(0, n // 3, body, jnp.zeros(N))


def histogram(n, x):
    def body(i, carry):
        count, state = carry
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        return count.at[state % N].add(1), state

    return lax.fori_loop(0, n, body, (jnp.zeros(N, jnp.int32), jnp.int32(x * 100)))


def old_and_new(n, x):
    """The old contents are read after the update."""

    def body(i, carry):
        buf, total = carry
        new = buf.at[i].set(x + i)
        return new, total + buf[i] + new[i] + jnp.sum(buf) - jnp.sum(new)

    return lax.fori_loop(0, n, body, (jnp.ones(N), jnp.float32(0)))


def old_is_kept(n, x):
    """The carry before the last trip is a carry, too."""

    def body(i, carry):
        buf, _ = carry
        return buf.at[i].add(x), buf

    return lax.fori_loop(0, n, body, (jnp.ones(N), jnp.zeros(N)))


def swapped(n, x):
    def body(i, carry):
        a, b = carry
        return b.at[i].set(x), a.at[(7 * i) % N].add(1.0)

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.ones(N)))


def rotated(n, x):
    def body(i, carry):
        a, b, c = carry
        return c, a.at[i].set(x), b

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.ones(N), jnp.arange(float(N))))


def shifted(n, x):
    """The update reads the buffer that it overwrites."""

    def body(i, buf):
        return lax.dynamic_update_slice(buf, buf[:-1] + x, (1,))

    return lax.fori_loop(0, n, body, jnp.arange(float(N)))


def row_of_rows(n, x):
    """A row is read, kept, and another one is written."""

    def body(i, buf):
        row = buf[i % 3]
        buf = buf.at[(i + 1) % 3].set(row + x)
        return buf.at[i % 3, 5].add(jnp.sum(row) * 0.5)

    return lax.fori_loop(0, n, body, jnp.ones((3, 80)))


def scan_inside_while(n, x):
    """An inner loop with a buffer of the outer one, which some lanes have left."""

    def outer(carry):
        i, buf = carry
        buf, _ = lax.scan(lambda buf, j: (buf.at[(i + j) % N].add(x), None), buf, jnp.arange(7))
        return i + 1, buf

    return lax.while_loop(lambda c: c[0] < n, outer, (0, jnp.zeros(N)))


def whole_update_in_inner_scan(n, x):
    def outer(carry):
        i, buf = carry
        buf, _ = lax.scan(lambda buf, j: (buf * 0.5 + x, None), buf, jnp.arange(3))
        return i + 1, buf

    return lax.while_loop(lambda c: c[0] < n, outer, (0, jnp.zeros(N)))


def while_inside_while(n, x):
    def inner(i, carry):
        k, buf = carry
        return k - 2, buf.at[(i * 5 + k) % N].add(x)

    def outer(i, buf):
        return lax.while_loop(lambda c: c[0] > 0, lambda c: inner(i, c), (n % 5 + i % 3, buf))[1]

    return lax.fori_loop(0, n, outer, jnp.zeros(N))


def uniform_while_inside_while(n, x):
    """The inner loop makes as many trips for all lanes, and overwrites the whole buffer."""

    def outer(i, buf):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5 + x), (0, buf))[1]

    return lax.fori_loop(0, n, outer, jnp.zeros(N))


def scan_over_rows_of_its_carry(n, x):
    """What the loop reads was computed from the buffer that it updates."""
    buf = fill(n, x)
    rows = (buf * 2 + 1).reshape(2, 100)
    return lax.scan(lambda b, row: (b.at[:100].add(row), jnp.sum(row)), buf, rows)


def in_branches(n, x):
    def body(i, buf):
        odd = (i + jnp.int32(x * 4)) % 3 == 0
        return lax.cond(odd, lambda b: b.at[i].set(x), lambda b: b.at[N - 1 - i].add(1.0), buf)

    return lax.fori_loop(0, n, body, jnp.zeros(N))


def in_one_branch(n, x):
    def body(i, buf):
        return lax.cond((i + jnp.int32(x * 4)) % 2 == 0, lambda b: b.at[i].set(jnp.sin(x) + b[0]), lambda b: b, buf)

    return lax.fori_loop(0, n, body, jnp.ones(N))


def in_switch(n, x):
    def body(i, carry):
        a, b = carry
        sides = [lambda a, b: (a.at[i].set(x), b), lambda a, b: (b, a), lambda a, b: (a, b.at[i].add(a[i])),
                 lambda a, b: (a, a)]
        return lax.switch((i + jnp.int32(x * 4)) % 4, sides, a, b)

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.ones(N)))


def branch_result_is_read_later(n, x):
    buf = jnp.arange(float(N))
    new = lax.cond(x > 0, lambda b: b.at[n % N].set(-1.0), lambda b: b * 2, buf)
    return buf.at[3].set(x), new


def filter_by_index(n, x):
    """Appends where a condition holds: drops the write elsewhere."""

    def body(i, carry):
        buf, k = carry
        value = jnp.sin(x * i)
        keep = value > 0
        return buf.at[jnp.where(keep, k, N)].set(value, mode="drop"), k + keep

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.int32(0)))


def sieve(n, x):
    """Nested loops with strided writes."""

    def strike(p, marks):
        return lax.while_loop(lambda c: c[0] < N, lambda c: (c[0] + p, c[1].at[c[0]].set(False)), (p * p, marks))[1]

    def body(carry):
        p, marks = carry
        return p + 1, lax.cond(marks[p], lambda m: strike(p, m), lambda m: m, marks)

    marks = jnp.ones(N, bool)
    return lax.while_loop(lambda c: c[0] * c[0] < n, body, (2, marks))[1]


def sieve_of_floats(n, x):
    def strike(p, marks):
        return lax.while_loop(lambda c: c[0] < N, lambda c: (c[0] + p, c[1].at[c[0]].add(x)), (p * p, marks))[1]

    def body(carry):
        p, marks = carry
        return p + 1, lax.cond(marks[p] == 0, lambda m: strike(p, m), lambda m: m, marks)

    return lax.while_loop(lambda c: c[0] * c[0] < n, body, (2, jnp.zeros(N)))[1]


def uniform_branches(n, x):
    """The branch is the same for all lanes that are still in the loop."""

    def body(carry):
        i, buf = carry
        sides = [lambda b: b.at[i % N].add(x), lambda b: b * 0.5, lambda b: b.at[:].set(b[::-1] + x)]
        return i + 1, lax.switch(i % 3, sides, buf)

    return lax.while_loop(lambda c: (c[0] < 30) & (c[1][0] < 20), body, (0, jnp.full(N, n * 0.25)))[1]


def branches_swap(n, x):
    def body(i, carry):
        a, b = carry
        odd = (i + jnp.int32(x * 4)) % 3 == 0
        return lax.cond(odd, lambda a, b: (b.at[i].set(x), a), lambda a, b: (a.at[i].add(x), b.at[0].add(1.0)), a, b)

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.ones(N)))


def branch_reads_the_other(n, x):
    def body(i, carry):
        a, b = carry
        odd = (i + jnp.int32(x * 4)) % 2 == 0
        return lax.cond(odd, lambda a, b: (a.at[i].set(x), b.at[i].set(a[i] + 1)),
                        lambda a, b: (a + b, b.at[i].add(a[i])), a, b)

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.ones(N)))


def small_buffer(n, x):
    return lax.fori_loop(0, n, lambda i, buf: buf.at[(i * 3) % 12].add(x * i), jnp.zeros(12))


def stack_machine(n, x):
    """Pushes and pops at a pointer of each example's own."""

    def body(i, carry):
        stack, top = carry
        push = (i * 7 + jnp.int32(x * 8)) % 3 > 0
        stack = jnp.where(push, stack.at[top].set(x + i), stack)
        return stack, jnp.clip(top + jnp.where(push, 1, -1), 0, N - 1)

    return lax.fori_loop(0, n, body, (jnp.zeros(N), jnp.int32(0)))


PROGRAMS = (
    sieve_of_floats, uniform_branches, branches_swap, branch_reads_the_other, fill, fill_slices, histogram,
    old_and_new, old_is_kept, swapped, rotated, shifted, row_of_rows, scan_inside_while,
    scan_over_rows_of_its_carry, whole_update_in_inner_scan, while_inside_while, uniform_while_inside_while,
    in_branches, in_one_branch, in_switch, branch_result_is_read_later, filter_by_index, sieve, small_buffer,
    stack_machine,
)


def arguments(batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(batch)
    return rng.integers(0, N, batch).astype(np.int32), (rng.integers(-8, 9, batch) / 4).astype(np.float32)


def check(fun: Callable[..., Any], args: tuple[Any, ...], in_axes: Any, lanes: int) -> None:
    for expected, found in zip(loop(fun, args, in_axes), run_kernel(fun, args, in_axes, lanes), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_loops(fun: Callable[..., Any]) -> None:
    for batch in BATCHES:
        check(fun, arguments(batch), 0, 8)
    check(fun, arguments(3), 0, 1)


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_uniform_trips(fun: Callable[..., Any]) -> None:
    n, x = arguments(9)
    check(fun, (n[2], x), [None, 0], 8)
    check(fun, (n, x[2]), [0, None], 8)


@pytest.mark.parametrize("axis", [0, None])
def test_input_is_not_overwritten(axis: int | None) -> None:
    n, x = arguments(9)
    start = np.random.default_rng(0).normal(size=(9, N) if axis == 0 else (N,)).astype(np.float32)
    before = start.copy()
    check(fill_from_input, (n, x, start), [0, 0, axis], 8)
    np.testing.assert_array_equal(start, before)


def scratch(fun: Callable[..., Any], lanes: int) -> int:
    """Scratch for the kernel's whole steps, in buffers of N float32."""
    avals = [jax.core.ShapedArray((), np.int32), jax.core.ShapedArray((), np.float32)]
    closed = _jax.trace(lambda *a: jax.tree.leaves(fun(*a)), avals)
    jaxpr, consts = _jax.open_and_consts(trace.expand(closed, lambda p, _: p.name in RULES, COMPOSITIONS))
    assert not consts
    found = uniformity.analyse(jaxpr, [True, True])
    source = build_kernel(found, [0, 0], [0] * len(jaxpr.outvars), host(), lanes, 32)
    tail = sum(4 * lanes * (v.aval.size if v.aval.shape else 16) for v in (*jaxpr.invars, *jaxpr.outvars))
    return (source.scratch_bytes - tail) // (4 * N * lanes)


@pytest.mark.parametrize(("fun", "buffers"), [(fill, 1), (fill_slices, 1), (histogram, 1), (scan_inside_while, 1),
                                              (while_inside_while, 1), (filter_by_index, 1), (in_branches, 1),
                                              (in_one_branch, 1), (sieve_of_floats, 1)])
def test_in_place(fun: Callable[..., Any], buffers: int) -> None:
    """An update in place needs no second buffer."""
    assert scratch(fun, 8) <= buffers
