"""Mutable arrays inside a mapped function: made and used there they are in lanes; others are left to `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax

S = jnp.linspace(0.2, 2.0, 19)
M = jnp.linspace(-1.0, 3.0, 57).reshape(19, 3)
I = jnp.arange(19) % 4  # noqa: E741

freeze = getattr(jax, "freeze", None) or jax.ref.freeze


def loop(v: Any) -> Any:
    """Something that gains in lanes."""
    return lax.while_loop(lambda u: (u * u).sum() < 90, lambda u: u * 1.5 + 0.1, v)


def got_and_set(v: Any) -> Any:
    ref = jax.new_ref(v)
    ref[0] = ref[1] * 2
    ref[...] += 1
    return loop(ref[...]), ref[2]


def swapped(v: Any) -> Any:
    ref = jax.new_ref(v)
    old = jax.ref.swap(ref, slice(0, 2), jnp.ones(2))
    return loop(old.sum() + 3), ref[...]


def added(v: Any) -> Any:
    ref = jax.new_ref(jnp.zeros(3))
    jax.ref.addupdate(ref, 1, v[0])
    jax.ref.addupdate(ref, slice(None), v)
    return loop(freeze(ref) + 2)


def filled(x: Any) -> Any:
    ref = jax.new_ref(jnp.zeros(4))

    def body(i: Any, c: Any) -> Any:
        ref[i] = c
        return c * 2

    last = lax.fori_loop(0, 4, body, x)
    return ref[...], last


def at_a_varying_index(x: Any, i: Any) -> Any:
    ref = jax.new_ref(jnp.arange(4.0))
    ref[i] += x
    return loop(ref[i] + 1), ref[...]


def in_a_while(x: Any) -> Any:
    count = jax.new_ref(0)

    def body(u: Any) -> Any:
        count[...] += 1
        return u * 1.5 + 0.1

    return lax.while_loop(lambda u: u < 50, body, x), count[...]


def in_a_scan(v: Any) -> Any:
    total = jax.new_ref(jnp.zeros(()))

    def body(c: Any, x: Any) -> Any:
        total[...] += x * c
        return c * 0.5, total[...]

    return lax.scan(body, 1.0, v), total[...]


def in_a_branch(x: Any) -> Any:
    ref = jax.new_ref(x)

    def above() -> None:
        ref[...] = x * 10

    def below() -> None:
        ref[...] -= 1

    lax.cond(x > 1, above, below)
    return loop(ref[...] + 2)


def in_a_jitted_function(v: Any) -> Any:
    ref = jax.new_ref(v)

    @jax.jit
    def write(x: Any) -> Any:
        ref[1] = x
        return ref[0]

    return loop(write(v[2]) + 5), ref[...]


def beside_a_rule(x: Any) -> Any:
    ref = jax.new_ref(jax.nn.relu(x - 1))
    ref[...] *= 2
    return jnp.sin(lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) + ref[...], x))


def of_bools_and_halves(v: Any) -> Any:
    flags, halves = jax.new_ref(v > 0), jax.new_ref(v.astype(jnp.bfloat16))
    flags[0] = ~flags[1]
    halves[...] *= 2
    return loop(v), flags[...], halves[...]


ROWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    f.__name__: (f, args) for f, args in (
        (got_and_set, (M,)), (swapped, (M,)), (added, (M,)), (filled, (S,)), (at_a_varying_index, (S, I)),
        (in_a_while, (S,)), (in_a_scan, (M,)), (in_a_branch, (S,)), (in_a_jitted_function, (M,)), (beside_a_rule, (S,)),
        (of_bools_and_halves, (M,)))}


def close(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("fun", "args"), ROWS.values(), ids=ROWS)
def test_made_inside(fun: Callable[..., Any], args: Any) -> None:
    got = lanax.vmap(fun)(*args)
    one = jax.jit(fun)
    rows = [one(*(a[k] for a in args)) for k in range(19)]
    close(got, jax.tree.map(lambda *xs: jnp.stack(xs), *rows))
    close(jax.jit(lanax.vmap(fun))(*args), got)
    report = lanax.explain(lanax.vmap(fun), *args)
    assert (report.routes, report.misses) == (("lanes",), ())


@pytest.mark.parametrize("fun", [got_and_set, swapped, added, in_a_jitted_function])
def test_as_jax_vmap(fun: Callable[..., Any]) -> None:
    # An index that is the same for all: others JAX's own vmap may refuse.
    try:
        want = jax.vmap(fun)(M)
    except Exception as error:
        pytest.skip(f"jax.vmap refuses it: {type(error).__name__}")
    close(lanax.vmap(fun)(M), want)


def test_axes_and_unmapped_arguments() -> None:
    def fun(v: Any, w: Any) -> Any:
        ref = jax.new_ref(v * w)
        ref[0] = w
        return loop(ref[...]), w * 2

    close(lanax.vmap(fun, (1, None), (1, None))(M.T, S[0]), jax.vmap(fun, (1, None), (1, None))(M.T, S[0]))


def test_derivatives() -> None:
    def plain(x: Any) -> Any:
        start = jax.nn.relu(x - 1) * 2
        return jnp.sin(lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) + start, x))

    close(jax.grad(lambda x: lanax.vmap(beside_a_rule)(x).sum())(S), jax.vmap(jax.grad(plain))(S))
    close(jax.jvp(lanax.vmap(beside_a_rule), (S,), (S,)), jax.jvp(jax.vmap(plain), (S,), (S,)))
    close(lanax.vmap(jax.grad(lambda v: added_smoothly(v).sum()))(M), 2 * M + 1)


def test_rules_for_derivatives_are_kept() -> None:
    @jax.custom_vjp
    def seven(x: Any) -> Any:
        return jnp.sin(x)

    seven.defvjp(lambda x: (jnp.sin(x), None), lambda _, ct: (7 * ct,))

    def looping(x: Any) -> Any:
        ref = jax.new_ref(x)

        def body(_: Any, c: Any) -> Any:
            ref[...] += seven(c)
            return c * 2

        lax.fori_loop(0, 2, body, x)
        return ref[...]

    def inside(x: Any) -> Any:
        @jax.custom_jvp
        def doubled(u: Any) -> Any:
            ref = jax.new_ref(u)
            ref[...] *= 2
            return ref[...]

        doubled.defjvp(lambda us, ts: (doubled(*us), 5 * ts[0]))
        return doubled(x)

    close(jax.grad(lambda x: lanax.vmap(looping)(x).sum())(S), jnp.full(19, 22.0))
    close(lanax.vmap(looping)(S), S + jnp.sin(S) + jnp.sin(2 * S))
    close(jax.jvp(lanax.vmap(inside), (S,), (S,)), (2 * S, 5 * S))


def added_smoothly(v: Any) -> Any:
    ref = jax.new_ref(v)
    ref[...] += v * v
    return ref[...]


def test_nested() -> None:
    close(lanax.vmap(lanax.vmap(filled))(M), jax.vmap(jax.vmap(filled))(M))
    close(jax.vmap(lanax.vmap(filled))(M), jax.vmap(jax.vmap(filled))(M))
    close(lanax.vmap(jax.vmap(filled))(M), jax.vmap(jax.vmap(filled))(M))


def test_with_effects(capfd: pytest.CaptureFixture[str]) -> None:
    def fun(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] *= 2
        jax.debug.print("{}", ref[...])
        ref[...] += 1
        return loop(ref[...])

    close(lanax.vmap(fun)(S[:3]), jax.jit(jax.vmap(lambda x: loop(x * 2 + 1)))(S[:3]))
    jax.effects_barrier()
    assert sorted(map(float, capfd.readouterr().out.split())) == sorted(map(float, S[:3] * 2))
    assert lanax.explain(lanax.vmap(fun), S).routes == ("xla", "lanes")


def outside(mapper: Any) -> Any:
    ref = jax.new_ref(jnp.zeros(19))

    def write(x: Any, r: Any) -> Any:
        r[...] = x * 2
        return loop(x)

    return mapper(write)(S, ref), ref[...]


def closed_over(mapper: Any) -> Any:
    ref = jax.new_ref(jnp.arange(3.0))

    def read(x: Any) -> Any:
        return loop(x) + ref[1]

    return mapper(read)(S), ref[...]


def passed_on(mapper: Any) -> Any:
    ref = jax.new_ref(jnp.zeros((19, 2)))

    def fun(x: Any, r: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            r[i] += c
            return c * 2

        return lax.fori_loop(0, 2, body, x)

    return mapper(fun)(S, ref), ref[...]


@pytest.mark.parametrize("program", [outside, closed_over, passed_on])
def test_from_outside(program: Any) -> None:
    close(program(lanax.vmap), program(jax.vmap))
    close(jax.jit(lambda: program(lanax.vmap))(), program(jax.vmap))


def test_what_is_left_to_jax_vmap_says_why() -> None:
    ref = jax.new_ref(jnp.zeros(19))

    def write(x: Any, r: Any) -> Any:
        r[...] = x * 2
        return loop(x)

    report = lanax.explain(lanax.vmap(write), S, ref)
    assert report.routes == ("xla",)
    assert "it uses mutable arrays that come from outside" in str(report)
