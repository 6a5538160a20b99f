"""`lanax.vmap` raises where `jax.vmap` raises: the same class with the same words, naming the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax

X = jnp.arange(5.0)
MATRIX = jnp.arange(12.0).reshape(3, 4)


def row(name: str, fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return pytest.param(fun, args, options, id=name)


def _raising(x: Any) -> Any:
    raise KeyError("the user's own")


ERRORS = [
    row("axes of a wrong type", lambda x: x, X, in_axes="0"),
    row("axes too few", lambda x, y: x, X, X, in_axes=(0,)),
    row("axes too many", lambda x: x, X, in_axes=(0, 0)),
    row("axes as a dict", lambda x: x, X, in_axes={"x": 0}),
    row("a float for an axis", lambda x: x, X, in_axes=(0.5,)),
    row("a wrong tree of axes", lambda d: d["a"], {"a": X}, in_axes=({"b": 0},)),
    row("an axis out of range", lambda x: x, X, in_axes=1),
    row("a negative axis out of range", lambda x: x, X, in_axes=-2),
    row("an out axis out of range", lambda x: x, X, out_axes=1),
    row("an out axis out of range, uniform", lambda x: 1.0, X, out_axes=1),
    row("a wrong tree of out axes", lambda x: (x, x), X, out_axes=(0, 0, 0)),
    row("a wrong type of out axes", lambda x: (x, x), X, out_axes="0"),
    row("None out for a mapped result", lambda x: x, X, out_axes=None),
    row("sizes that differ", lambda x, y: x + y, X, X[:3]),
    row("sizes that differ, of a keyword", lambda x: x, X, axis_size=4),
    row("a size that is none", lambda x: x, X, axis_size="5"),
    row("nothing mapped", lambda x: x, X, in_axes=None),
    row("no arguments", lambda: 1.0),
    row("a scalar mapped", lambda x: x, 1.0),
    row("no array", lambda x: x, "abc"),
    row("an object", lambda x: x, object()),
    row("a result that is no array", lambda x: "abc", X),
    row("a result that is an object", lambda x: (x, object()), X),
    row("too few for the function", lambda x, y: x, X),
    row("the user's own", _raising, X),
    row("shapes that do not fit", lambda x, y: x @ y, MATRIX, MATRIX.T, in_axes=(0, 0)),
    row("dtypes that do not fit", lambda x: lax.add(x, 1 * lax.iota(jnp.int32, 1)[0]), X),
    row("a branch on a mapped value", lambda x: x if x > 0 else -x, X),
    row("an int of a mapped value", lambda x: sum(range(int(x))), X),
    row("NumPy of a mapped value", lambda x: np.sin(np.asarray(x)), X),
    row("a carry that changes its type", lambda x: lax.while_loop(lambda c: c < 1, lambda c: c.astype(int), x), X),
    row("a name that is not bound", lambda x: lax.psum(x, "nowhere"), X),
]


def _error(call: Callable[..., Any], mapper: Any) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(mapper)
    return caught.type, re.sub(r"0x[0-9a-f]+|object id \d+", "<id>", str(caught.value))


@pytest.mark.parametrize(("fun", "args", "options"), ERRORS)
def test_errors_are_those_of_jax_vmap(fun: Any, args: Any, options: Any) -> None:
    call = lambda mapper: mapper(fun, **options)(*args)  # noqa: E731 (one line for both, since messages name it)
    assert _error(call, lanax.vmap) == _error(call, jax.vmap)


@pytest.mark.parametrize(("fun", "args", "options"), ERRORS[6:14])
def test_errors_are_those_of_jax_vmap_under_jit(fun: Any, args: Any, options: Any) -> None:
    call = lambda mapper: jax.jit(mapper(fun, **options))(*args)  # noqa: E731
    assert _error(call, lanax.vmap) == _error(call, jax.vmap)


@pytest.mark.parametrize("fun", [3, None, "abc", X], ids=["int", "None", "str", "array"])
def test_what_cannot_be_called_is_an_error(fun: Any) -> None:
    assert _error(lambda mapper: mapper(fun), lanax.vmap) == _error(lambda mapper: mapper(fun), jax.vmap)


def test_a_wrong_plan_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"`plan` of lanax.vmap must be a lanax.Plan or None; got dict"):
        lanax.vmap(lambda x: x, plan={"lanes": 4})


def test_after_an_error_the_next_call_is_right() -> None:
    broken = True

    def fun(x: Any) -> Any:
        if broken:
            raise ValueError("broken")
        return x + 1

    mapped = lanax.vmap(fun)
    with pytest.raises(ValueError, match="broken"):
        mapped(X)
    broken = False
    np.testing.assert_array_equal(mapped(X), X + 1)
