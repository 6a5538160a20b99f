"""Values that are computed alike: they get one number, and are computed once. Knows no LLVM."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence

from lanax import _jax
from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanax._program import equation_key, literal_key
from lanax._rewrite.surgery import CONTROL_FLOW, inner_jaxprs, is_left_whole, reading, substituted, with_inner

#: What a value is, in terms of inputs: equal for values that are computed alike.
Name = Hashable


#: Gives other numbers each time, though it declares no effect.
_IMPURE = frozenset({"rng_uniform"})


def names(jaxpr: Jaxpr, inputs: Sequence[Name], numbers: dict[Name, int]) -> dict[Var, int]:
    """A number for each value; values that are computed alike have the same, in several jaxprs with one `numbers`."""

    def number(name: Name) -> int:
        return numbers.setdefault(name, len(numbers))

    found = {v: number(name) for v, name in zip(jaxpr.invars, inputs, strict=True)}
    for e in jaxpr.eqns:
        operands = tuple(number(literal_key(v)) if isinstance(v, Literal) else found[v] for v in e.invars)
        function = _function(e)
        for i, v in enumerate(e.outvars):
            found[v] = number((function, operands, i))
    return found


def _function(eqn: JaxprEqn) -> Name:
    """What an equation does; loops, branches and what has effects are like no other."""
    if eqn.primitive.name in CONTROL_FLOW | _IMPURE or eqn.effects:
        return object()
    return equation_key(eqn)


def without_repeats(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, in which no equation stands twice at one depth; the same object where none does. What a
    derivative and its function have in common is written twice, for example."""
    found = names(jaxpr, [("input", i) for i in range(len(jaxpr.invars))], {})
    first: dict[int, Atom] = {}
    env: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if all(found[v] in first for v in eqn.outvars):
            env.update((v, first[found[v]]) for v in eqn.outvars)
            continue
        first.update((found[v], v) for v in eqn.outvars)
        eqn = reading(eqn, env)
        eqns.append(eqn if is_left_whole(eqn) else with_inner(eqn, tuple(map(without_repeats, inner_jaxprs(eqn)))))
    if not env and all(map(operator.is_, eqns, jaxpr.eqns)):
        return jaxpr
    return _jax.make_open(jaxpr.invars, substituted(jaxpr.outvars, env), eqns, jaxpr)
