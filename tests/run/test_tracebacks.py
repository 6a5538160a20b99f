"""What goes wrong in the user's function is raised as by `jax.vmap`: the same words, at the user's line, and without a
line of lanax's own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap

import lanax

X = jnp.linspace(0.2, 1.7, 7)
HERE = str(Path(__file__))
LANAX = str(Path(lanax.__file__).parent)

Mapper = Callable[..., Any]


def wrong_shapes(x: Any) -> Any:
    return jnp.ones(3) + jnp.ones(4) * x  # the line


def wrong_branch(x: Any) -> Any:
    return x if x > 1 else -x  # the line


def wrong_type(x: Any) -> Any:
    return x + "text"  # the line


def wrong_carry(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 3, lambda v: (v, v), x)  # the line


def wrong_numpy(x: Any) -> Any:
    return np.sin(x)  # the line


def users_own(x: Any) -> Any:
    raise KeyError("the user's own")  # the line


def in_a_loop(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        return wrong_shapes(c), None

    return lax.scan(step, x, None, 3)


def under_a_derivative(x: Any) -> Any:
    return jax.grad(wrong_branch)(x)


@custom_vmap
def badly_ruled(x: Any) -> Any:
    return x


badly_ruled.def_vmap(lambda size, batched, x: (x, [True, True]))


def wrong_rule(x: Any) -> Any:
    return badly_ruled(x)  # the line


def wrong_callback(x: Any) -> Any:
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), np.float32), x)  # the line


FUNCTIONS = [wrong_shapes, wrong_branch, wrong_type, wrong_carry, wrong_numpy, users_own, in_a_loop, under_a_derivative]
#: What `jax.vmap` alone has something against.
REFUSED = [wrong_rule, wrong_callback]

WAYS: dict[str, Callable[[Mapper, Any], Any]] = {
    "eager": lambda mapper, fun: mapper(fun)(X),
    "jit": lambda mapper, fun: jax.jit(mapper(fun))(X),
    "in a library": lambda mapper, fun: eqx.filter_jit(lambda x: mapper(fun)(x))(X),
    "in scan": lambda mapper, fun: lax.scan(lambda c, _: (c, mapper(fun)(c)), X, None, 2),
    "nested": lambda mapper, fun: mapper(mapper(fun))(X[None]),
    "grad": lambda mapper, fun: jax.grad(lambda x: mapper(fun)(x).sum())(X),
    "unmapped arguments": lambda mapper, fun: mapper(lambda x, y: fun(x), (0, None))(X, 1.0),
}


def raised(way: Callable[[Mapper, Any], Any], mapper: Mapper, fun: Any) -> BaseException:
    try:
        way(mapper, fun)
    except Exception as error:
        return error
    raise AssertionError("no error")


def lines(error: BaseException) -> list[tuple[str, int | None]]:
    """The lines of this file in an error's traceback, innermost last."""
    return [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == HERE]


def text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def words(error: BaseException) -> str:
    """The message without the numbers of objects and without where JAX's own lambdas are."""
    return "\n".join(line for line in str(error).splitlines() if "object id" not in line and " at 0x" not in line)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fun", [*FUNCTIONS, *REFUSED], ids=lambda f: f.__name__)
def test_errors_of_the_function(fun: Any, way: str) -> None:
    got, want = raised(WAYS[way], lanax.vmap, fun), raised(WAYS[way], jax.vmap, fun)
    assert type(got) is type(want)
    assert words(got) == words(want)
    assert lines(got) == lines(want)
    assert LANAX not in text(got)
    assert "During handling of the above exception" not in text(got)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda f: f.__name__)
def test_errors_in_map(fun: Any) -> None:
    got, want = (raised(lambda mapper, f: mapper(f, X), mapper, fun) for mapper in (lanax.map, lax.map))
    assert (type(got), words(got), lines(got)) == (type(want), words(want), lines(want))
    assert LANAX not in text(got)
    assert "During handling of the above exception" not in text(got)


@pytest.mark.parametrize("fun", [wrong_shapes, wrong_branch], ids=lambda f: f.__name__)
def test_errors_in_a_patched_library(fun: Any) -> None:
    def run(mapper: Mapper, fun: Any) -> Any:
        return eqx.filter_vmap(fun)(X)

    want = raised(run, jax.vmap, fun)
    with lanax.patch():
        got = raised(run, jax.vmap, fun)
    assert (type(got), words(got), lines(got)) == (type(want), words(want), lines(want))
    assert LANAX not in text(got)


ARGUMENTS: dict[str, Callable[[Mapper], Any]] = {
    "sizes that differ": lambda mapper: mapper(lambda x, y: x)(X, X[:3]),
    "a scalar": lambda mapper: mapper(lambda x: x)(1.0),
    "axes": lambda mapper: mapper(lambda x: x, in_axes=(0, 0))(X),
    "out_axes": lambda mapper: mapper(lambda x: x, out_axes=5)(X),
    "a tree of out_axes": lambda mapper: mapper(lambda x: x, out_axes=(0, 0))(X),
    "a permutation": lambda mapper: mapper(
        lambda x: lax.ppermute(x, "i", [(0, 0), (0, 1)]), axis_name="i")(X),
    "None out for what is mapped": lambda mapper: mapper(lambda x: x, out_axes=None)(X),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_errors_of_arguments(name: str) -> None:
    got, want = (raised(lambda m, _: ARGUMENTS[name](m), mapper, None) for mapper in (lanax.vmap, jax.vmap))
    assert (type(got), words(got), lines(got)) == (type(want), words(want), lines(want))
    assert LANAX not in text(got)


@pytest.mark.parametrize("options", [{"in_axes": "a"}, {"in_axes": 0.5}, {"out_axes": "a"}], ids=str)
def test_errors_before_there_are_arguments(options: dict[str, Any]) -> None:
    got, want = (raised(lambda m, _: m(jnp.sin, **options), mapper, None) for mapper in (lanax.vmap, jax.vmap))
    assert (type(got), words(got), lines(got)) == (type(want), words(want), lines(want))
    assert LANAX not in text(got)


def test_an_unfiltered_traceback_has_every_frame() -> None:
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        assert LANAX in text(raised(WAYS["eager"], lanax.vmap, wrong_shapes))
    finally:
        jax.config.update("jax_traceback_filtering", before)


def test_equations_have_the_users_line() -> None:
    located = str(jax.jit(lambda x: lanax.vmap(jnp.sin, out_axes=0)(x)).lower(X).as_text(debug_info=True))
    assert "test_tracebacks.py" in located
    assert LANAX not in located
