"""What the test of a `while` and its step compute alike, such as the residual of an iteration, is computed once: the
step hands on what the next test found out, as one more carry. Knows no LLVM."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from lanax import _jax
from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanax._planning.work import MOVES
from lanax._program import literal_key
from lanax._rewrite.common import Name, names
from lanax._rewrite.surgery import (
    While,
    fresh,
    inner_jaxprs,
    is_left_whole,
    reading,
    spliced,
    substituted,
    with_inner,
    without_dead_code,
)

#: Most elements that a loop carries for this; each takes a register.
_ELEMENTS = 16


def with_tests_shared(jaxpr: Jaxpr) -> Jaxpr:
    """The same program; in its loops, at any depth, nothing is computed both by the test and by the step after it."""
    shared = _opened(jaxpr)
    return jaxpr if shared is jaxpr else without_dead_code(shared)


def _opened(jaxpr: Jaxpr) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        eqns.extend([eqn] if is_left_whole(eqn) else _control_flow(eqn))
    if len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    return _jax.make_open(jaxpr.invars, jaxpr.outvars, eqns, jaxpr)


def _control_flow(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The equation, after what its first test hands on; the same one where there is nothing to share."""
    eqn = with_inner(eqn, tuple(map(_opened, inner_jaxprs(eqn))))
    loop = While.of(eqn) if eqn.primitive.name == "while" else None
    shared = _common(loop) if loop else {}
    if loop is None or not shared:
        return [eqn]
    before = _carry(loop, shared)
    return [*before, loop.equation(eqn)]


def _common(loop: While) -> dict[Var, Var]:
    """The values of the step that its test has computed before, and the test's."""
    numbers: dict[Name, int] = {}
    carries = [("carry", i) for i in range(len(loop.init))]
    of_test = names(loop.cond, [*map(_outer, loop.cond_consts), *carries], numbers)
    of_step = names(loop.body, [*map(_outer, loop.body_consts), *carries], numbers)
    changing = _depends(loop.cond, len(loop.cond_consts))
    tests = {of_test[v]: v for e in loop.cond.eqns for v in e.outvars if v in changing and _is_worth(e, v)}
    same = {v: tests[of_step[v]] for e in loop.body.eqns for v in e.outvars if of_step[v] in tests}
    read = {v for v in loop.body.outvars if not isinstance(v, Literal)}
    for e in reversed(loop.body.eqns):
        if any(v in read and v not in same for v in e.outvars):
            read.update(v for v in e.invars if not isinstance(v, Literal))
    found = {v: test for v, test in same.items() if v in read}
    return found if sum(v.aval.size for v in found) <= _ELEMENTS else {}


def _is_worth(eqn: JaxprEqn, v: Var) -> bool:
    """Integers are mostly counters, which cost nothing."""
    return eqn.primitive.name not in MOVES and jnp.issubdtype(v.aval.dtype, jnp.floating)


def _outer(atom: Atom) -> Name:
    return literal_key(atom) if isinstance(atom, Literal) else ("outside", atom)


def _depends(jaxpr: Jaxpr, first: int) -> set[Any]:
    """The values that depend on inputs from number `first` on."""
    found: set[Any] = {*jaxpr.invars[first:]}
    for e in jaxpr.eqns:
        if any(v in found for v in e.invars if not isinstance(v, Literal)):
            found.update(e.outvars)
    return found


def _carry(loop: While, shared: Mapping[Var, Var]) -> list[JaxprEqn]:
    """Make carries of the shared values, which map those of the step to those of the test; what computes the first."""
    tests = list(dict.fromkeys(shared.values()))
    compute = without_dead_code(_jax.make_open(loop.cond.invars, tests, loop.cond.eqns))
    before: list[JaxprEqn] = []
    first = spliced(compute, [*loop.cond_consts, *loop.init], before)

    handed = fresh(tests)
    env: dict[Var, Atom] = dict(zip(tests, handed, strict=True))
    loop.cond = _with_given(loop.cond, env, handed)

    handed = fresh(tests)
    new = dict(zip(tests, handed, strict=True))
    consts = fresh(loop.cond_consts)
    body = _with_given(loop.body, {v: new[test] for v, test in shared.items()}, handed, consts)
    after: list[JaxprEqn] = []
    again = spliced(compute, [*consts, *body.outvars], after)
    loop.body = _jax.make_open(body.invars, [*body.outvars, *again], [*body.eqns, *after])
    loop.body_consts = [*loop.cond_consts, *loop.body_consts]
    loop.init = [*loop.init, *first]
    loop.outvars = [*loop.outvars, *fresh(tests)]
    return before


def _with_given(jaxpr: Jaxpr, given: Mapping[Var, Atom], last: Sequence[Var], leading: Sequence[Var] = ()) -> Jaxpr:
    """The jaxpr with some of its values given by new inputs: `last` after its own inputs, `leading` before them."""
    eqns = [reading(e, given) for e in jaxpr.eqns if not all(v in given for v in e.outvars)]
    invars = [*leading, *jaxpr.invars, *last]
    return without_dead_code(_jax.make_open(invars, substituted(jaxpr.outvars, given), eqns))
