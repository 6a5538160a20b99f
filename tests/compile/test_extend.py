"""`lanax.extend`: it has what the built-in rules are written with, and a rule from outside works as they do."""

from __future__ import annotations

import ast
import importlib
import itertools
import pathlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import run_kernel
from jax.extend.core import Primitive

import lanax
from lanax import extend
from lanax._lowering import rules

RULE_FILES = sorted(pathlib.Path(rules.__path__[0]).glob("[!_]*.py"))
#: What a rule takes from JAX itself stands in JAX's own modules for an outsider.
OF_JAX = {"ClosedJaxpr", "prng"}

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    tables = (extend.RULES, extend.COMPOSITIONS)
    saved = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, saved, strict=True):
        table.clear()
        table.update(before)


def primitive(results: int = 1, given: Any = None) -> Primitive:
    """A primitive of a name of its own; each result has the type `given`, or else the first operand's."""
    p = Primitive(f"lanax_test_{next(_numbers)}")
    p.multiple_results = results > 1
    p.def_abstract_eval(lambda x, *_, **__: [given or x] * results if results > 1 else given or x)
    return p


# -- what it exports -------------------------------------------------------------------------------------------------
def names_used(file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """What a file of rules takes from other parts of lanax: a name, or an attribute of a module, and its value."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("lanax."):
            continue
        for alias in [a for a in node.names if a.name not in OF_JAX]:
            value = getattr(importlib.import_module(str(node.module)), alias.name)
            yield from _attributes(tree, alias, value) if isinstance(value, ModuleType) else [(alias.name, value)]


def _attributes(tree: ast.AST, alias: ast.alias, module: ModuleType) -> Iterator[tuple[str, Any]]:
    if getattr(extend, alias.name, None) is module:
        return
    for node in ast.walk(tree):
        if (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                and node.value.id == (alias.asname or alias.name)):
            yield node.attr, getattr(module, node.attr)


@pytest.mark.parametrize("file", RULE_FILES, ids=lambda f: f.stem)
def test_exports_what_the_built_in_rules_use(file: pathlib.Path) -> None:
    missing = [name for name, value in names_used(file) if getattr(extend, name, None) is not value]
    assert not missing, f"add to lanax/extend.py: {', '.join(missing)}"


def test_exports_are_explicit() -> None:
    tree = ast.parse(pathlib.Path(str(extend.__file__)).read_text())
    assert all(isinstance(node, (ast.Expr, ast.ImportFrom)) for node in tree.body)
    assert all(a.name == a.asname for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names)


# -- rules from outside ----------------------------------------------------------------------------------------------
def test_elementwise_from_outside() -> None:
    p = primitive()
    extend.elementwise(p.name, lambda b, dtype, x, y: b.fma(x, x, b.mul(y, y)), cost=2.0)
    x = np.linspace(-2, 2, 37, dtype=np.float32)
    mapped = lanax.vmap(lambda a, b: p.bind(a, b) + 1, (0, None))
    np.testing.assert_allclose(mapped(x, 3.0), x * x + 10, rtol=1e-6)
    assert lanax.explain(mapped, x, 3.0).routes == ("lanes",)


def test_the_16_bit_floats_are_rounded_for_the_writer() -> None:
    p = primitive()
    extend.elementwise(p.name, lambda b, dtype, x: b.mul(x, 1.01))
    x = jnp.linspace(-2, 2, 21, dtype=jnp.bfloat16)
    (got,) = run_kernel(p.bind, [x])
    want = (x.astype(jnp.float32) * 1.01).astype(jnp.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float32), np.asarray(want, np.float32))


def test_rule_from_outside_agrees_with_vmap() -> None:
    """In a loop that lanes leave at different times, for a small and for a large array."""
    p = primitive(results=2)

    @extend.register(p.name, cost=2.0)
    def _rule(ctx: extend.Context, x: extend.Array, *, shift: int) -> list[extend.Array]:
        """The array turned by `shift` places: a view; and its cumulative maximum: memory, written in a loop."""
        b, (n,) = ctx.b, x.shape
        turned = b.view(x, x.shape, lambda i: (b.idivmod(b.iadd(i, shift), n)[1],))
        x, out = b.indexable(x), b.allocate(x.shape, x.dtype, x.varying)

        def step(i: Any, values: list[Any]) -> list[Any]:
            highest = extend.maximum(b, x.dtype, values[0], x.at(i))
            out.put((i,), highest)
            return [highest]

        lowest = b.constant(-np.inf, x.dtype)
        b.count(n, [b.splat(lowest) if x.varying else lowest], step)
        return [turned, b.settled(out)]

    def program(both: Any, x: Any) -> Any:
        def step(s: Any) -> Any:
            turned, highest = both(s[1])
            return s[0] + 1, turned * 0.5 + highest, highest.sum()

        return jax.lax.while_loop(lambda s: (s[2] < 40) & (s[0] < 20), step, (0, x, jnp.float32(0)))

    for n in (5, 90):
        x = np.random.default_rng(0).uniform(0, 1, (19, n)).astype(np.float32)
        mapped = lanax.vmap(lambda x: program(lambda v: p.bind(v, shift=2), x))
        plain = jax.vmap(lambda x: program(lambda v: (jnp.roll(v, -2), jax.lax.cummax(v)), x))
        for got, want in zip(mapped(x), plain(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
        assert not lanax.explain(mapped, x).misses


def test_composition_from_outside() -> None:
    p = primitive()
    extend.register_composition(p.name, lambda x, *, times: x * times + jnp.sin(x))
    x = np.linspace(0, 1, 9, dtype=np.float32)
    np.testing.assert_allclose(lanax.vmap(lambda v: p.bind(v, times=3))(x), 3 * x + np.sin(x), rtol=1e-6)


def test_supports_gives_the_reason_of_a_miss() -> None:
    p = primitive()

    def why_not(avals_in: Any, avals_out: Any, params: Any) -> str | None:
        """Only vectors."""
        return None if avals_in[0].ndim == 1 else "it takes vectors only"

    @extend.register(p.name, supports=why_not)
    def _rule(ctx: extend.Context, x: extend.Array) -> extend.Array:
        return ctx.b.map(lambda v: ctx.b.add(v, 1.0), x.dtype, x)

    (miss,) = lanax.explain(lanax.vmap(p.bind), jnp.ones((4, 2, 2))).misses
    assert (miss.primitive, miss.reason) == (p.name, "it takes vectors only")
    assert not lanax.explain(lanax.vmap(lambda x: jax.lax.fori_loop(0, 3, lambda i, v: p.bind(v), x)),
                             jnp.ones((4, 2))).misses


# -- errors ----------------------------------------------------------------------------------------------------------
def _first_rule(ctx: extend.Context, x: extend.Array) -> extend.Array:
    return x


def _second_rule(ctx: extend.Context, x: extend.Array) -> extend.Array:
    return x


def test_second_rule_is_refused_by_the_names_of_both() -> None:
    extend.register("lanax_test_twice")(_first_rule)
    with pytest.raises(lanax.RegistrationError, match=(r"`lanax_test_twice` has a rule already: .*_first_rule; the "
                                                       r"second one is .*_second_rule\. Remove one")):
        extend.register("lanax_test_twice")(_second_rule)
    assert extend.RULES["lanax_test_twice"].rule is _first_rule


def test_second_composition_is_refused() -> None:
    extend.register_composition("lanax_test_twice", jnp.sin)
    with pytest.raises(lanax.RegistrationError, match=r"`lanax_test_twice`.*sin.*cos"):
        extend.register_composition("lanax_test_twice", jnp.cos)


@pytest.mark.parametrize(("out", "gave"), [(np.float32, "float32[3]"), (np.int32, "int32[4]")])
def test_rule_that_gives_another_type(out: Any, gave: str) -> None:
    p = primitive()
    count = int(gave[-2])

    @extend.register(p.name)
    def _rule(ctx: extend.Context, x: extend.Array) -> extend.Array:
        return ctx.b.full((count,), 0, np.dtype(out))

    with pytest.raises(lanax.RuleError) as error:
        run_kernel(p.bind, [np.ones((9, 4), np.float32)])
    assert f"the rule of primitive `{p.name}` gave {gave} for results of type float32[4]" in str(error.value)
    assert re.search(r"test_extend\.py:\d+|helpers\.py:\d+", str(error.value))


def test_rule_that_gives_too_little() -> None:
    p = primitive()
    extend.register(p.name)(lambda ctx, x: [])
    with pytest.raises(lanax.RuleError, match=rf"`{p.name}` gave nothing for results of type float32\[\]"):
        run_kernel(p.bind, [np.ones(9, np.float32)])


def test_primitive_without_a_rule() -> None:
    p = primitive()
    with pytest.raises(lanax.LoweringError, match=rf"primitive `{p.name}` .* has no lowering rule.*extend\.register"):
        run_kernel(p.bind, [np.ones(9, np.float32)])
    miss = lanax.explain(lanax.vmap(lambda x: p.bind(x) * 2), jnp.ones(4)).misses[0]
    assert miss.reason == "no lowering rule"
    assert "test_extend.py" in miss.source
