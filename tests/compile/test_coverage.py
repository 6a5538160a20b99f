"""Every primitive in lanes has a row in the table of cases, and the page of primitives is up to date."""

from __future__ import annotations

import gc
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import equinox.internal  # its primitives have rules too
import jax
import pytest
from case import Case
from cases import CASES
from jax.extend.core import Primitive

from lanax import _jax
from lanax._commands import primitives
from lanax._lowering.catalogue import NOT_NUMERIC, REASONS
from lanax._lowering.coverage import has_rule
from lanax._lowering.registry import COMPOSITIONS, RULES
from lanax._rewrite.surgery import inner_jaxprs
from lanax._rewrite.trace import IDENTITIES, expand

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "primitives.md"

assert equinox.internal
#: Primitives of the installed versions; a rule may be for one of another version.
INSTALLED = {p.name for p in gc.get_objects() if isinstance(p, Primitive)}


def names(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            yield from names(inner)


def has_its_primitive(case: Case) -> bool:
    """Whether the row's program holds the primitive that it is a row of; for one with a rule, when it is lowered."""
    name = case.primitive
    with jax.enable_x64(True):
        args = case.make(1)
        avals = [jax.core.ShapedArray(x.shape[1:], x.dtype) for x in args]
        closed = _jax.trace(lambda *a: jax.tree.leaves(case.fun(*a)), avals)
        if name not in IDENTITIES:
            closed = expand(closed, has_rule, COMPOSITIONS if name in RULES else {})
    return name in names(_jax.open_and_consts(closed)[0])


def test_every_primitive_with_a_rule_has_a_row() -> None:
    missing = sorted((RULES.keys() & INSTALLED) - {case.primitive for case in CASES})
    assert not missing, f"add a row to a tests/cases_*.py for: {', '.join(missing)}"


@pytest.mark.parametrize("name", sorted((RULES.keys() | COMPOSITIONS.keys()) & {case.primitive for case in CASES}))
def test_a_row_is_of_its_primitive(name: str) -> None:
    assert any(has_its_primitive(case) for case in CASES if case.primitive == name)


def test_what_is_not_taken_is_said() -> None:
    """The page says what `supports` takes in the words of its docstring."""
    silent = sorted({f.__qualname__ for f in (e.supports for e in RULES.values()) if f is not None and not f.__doc__})
    assert not silent, f"a docstring should say what it takes: {', '.join(silent)}"


def test_all_primitives_of_the_installed_jax_are_known() -> None:
    """What is neither in lanes nor of a kind that is not numeric has its reason."""
    share = primitives.coverage()
    unknown = sorted(share.numeric - share.in_lanes - REASONS.keys())
    assert not unknown, f"add a rule, or a line to lanax/_lowering/catalogue.py, for: {', '.join(unknown)}"


def test_95_percent_of_the_numeric_primitives_are_in_lanes() -> None:
    share = primitives.coverage()
    assert len(share.numeric) > 150
    assert share.percent >= 95


def test_no_primitive_is_of_two_kinds() -> None:
    kinds = list(NOT_NUMERIC.values())
    assert len(frozenset().union(*kinds)) == sum(map(len, kinds))


def test_the_command_prints_the_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert primitives.run(markdown=False) == 0
    assert "numeric primitives are in lanes" in " ".join(capsys.readouterr().out.split())
    assert primitives.run(markdown=False, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["percent"] >= 95
    assert {"primitive": "exp", "becomes": "elementwise", "cost": "19", "notes": ""} in found["primitives"]


def test_page_of_primitives_is_up_to_date() -> None:
    assert PAGE.read_text() == primitives.as_markdown(), f"run: python -m lanax primitives --markdown > {PAGE}"
