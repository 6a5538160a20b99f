"""Short counted `while` loops, laid out trip by trip: what a trip reads at the place of its counter is known then, such
as its row of a Runge-Kutta tableau. Knows no LLVM."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from lanax import _jax
from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanax._rewrite.surgery import (
    Cond,
    Scan,
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
from lanax._rewrite.trace import FOLDED

#: Trips, and equations in all of them, that a loop is laid out for at most.
_TRIPS, _EQUATIONS = 16, 768
#: Elements of the largest array whose value is looked at.
KNOWN = 64

Known = Mapping[Var, np.ndarray]


def with_short_loops_unrolled(jaxpr: Jaxpr, known: Known) -> Jaxpr:
    """The same program without its short counted loops, at any depth.

    Args:
      jaxpr: an expanded program.
      known: values of some of its inputs, of at most `KNOWN` elements each.
    """
    new = _Pass(known).run(jaxpr)
    return jaxpr if new is jaxpr else without_dead_code(new)


class _Pass:
    """The way through one jaxpr."""

    def __init__(self, known: Known):
        self.known = known
        self.made: dict[Var, JaxprEqn] = {}

    def run(self, jaxpr: Jaxpr) -> Jaxpr:
        eqns: list[JaxprEqn] = []
        env: dict[Var, Atom] = {}
        for eqn in jaxpr.eqns:
            eqn = reading(eqn, env)
            eqn = eqn if is_left_whole(eqn) else self._inside(eqn)
            unrolled = self._unrolled(eqn, eqns) if eqn.primitive.name == "while" else None
            if unrolled is None:
                eqns.append(eqn)
                self.made.update((v, eqn) for v in eqn.outvars)
            else:
                env.update(zip(eqn.outvars, unrolled, strict=True))
        if not env and all(map(operator.is_, eqns, jaxpr.eqns)):
            return jaxpr
        return _jax.make_open(jaxpr.invars, substituted(jaxpr.outvars, env), eqns, jaxpr)

    def _inside(self, eqn: JaxprEqn) -> JaxprEqn:
        """The equation with its inner jaxprs treated; itself where there was nothing to do."""
        if eqn.primitive.name == "while":
            loop = While.of(eqn)
            operands = [loop.cond_consts, loop.body_consts]
        else:
            consts = Scan.of(eqn).consts if eqn.primitive.name == "scan" else Cond.of(eqn).operands
            operands = [consts] * len(inner_jaxprs(eqn))
        inner = zip(inner_jaxprs(eqn), operands, strict=True)
        return with_inner(eqn, [_Pass(self._known_inside(j, given)).run(j) for j, given in inner])

    def _known_inside(self, inner: Jaxpr, operands: Sequence[Atom]) -> Known:
        return {v: self.known[x] for v, x in zip(inner.invars, operands, strict=False)
                if isinstance(x, Var) and x in self.known}

    def _unrolled(self, eqn: JaxprEqn, eqns: list[JaxprEqn]) -> list[Atom] | None:
        """Append the trips of a loop; its results, or None where it is to stay."""
        loop = While.of(eqn)
        counter = self._counter(loop)
        if counter is None or counter.trips * max(1, _count(loop.body)) > _EQUATIONS:
            return None
        known = self._known_inside(loop.body, loop.body_consts)
        state = list(loop.init)
        for i in range(counter.first, counter.end):
            trip = _Trip(loop, known, counter.position, i).jaxpr
            operands = [*loop.body_consts, *state]
            if i < counter.last:
                state = spliced(_perhaps(trip, len(state), counter, i), [loop.init[counter.position], *operands], eqns)
            else:
                state = spliced(trip, operands, eqns)
        return state

    def _counter(self, loop: While) -> _Counter | None:
        """The counter whose end ends the loop, where all tests are of counters."""
        found: list[_Counter] = []
        tests = _tests(loop.cond)
        for v, end in tests or ():
            position = loop.cond.invars.index(v) - len(loop.cond_consts)
            first = self._range(loop.init[position]) if position >= 0 and _counts(loop, position) else None
            if first is None:
                return None
            found.append(_Counter(position, *first, end))
        for counter in found:
            others = (other.end - other.last for other in found if other is not counter)
            if 0 < counter.trips <= _TRIPS and all(trips >= counter.trips for trips in others):
                return counter
        return None

    def _range(self, atom: Atom) -> tuple[int, int] | None:
        """The least and the largest value that an integer may have, where it is one of few literals."""
        if isinstance(atom, Literal):
            return (int(atom.val), int(atom.val)) if np.ndim(atom.val) == 0 else None
        eqn = self.made.get(atom)
        if eqn is None or eqn.primitive.name != "select_n" or atom.aval.shape:
            return None
        cases = [self._range(case) for case in eqn.invars[1:]]
        return None if None in cases else (min(c[0] for c in cases if c), max(c[1] for c in cases if c))


class _Counter(NamedTuple):
    """A carry that grows by one each trip, from a number between `first` and `last`, while it is below `end`."""

    position: int
    first: int
    last: int
    end: int

    @property
    def trips(self) -> int:
        """The most trips."""
        return self.end - self.first


def _count(jaxpr: Jaxpr) -> int:
    return sum(1 + sum(map(_count, inner_jaxprs(e))) for e in jaxpr.eqns)


def _tests(cond: Jaxpr) -> list[tuple[Var, int]] | None:
    """The tests `input < number`, all of which must hold for the loop to go on; None where it tests something else."""
    made = {v: e for e in cond.eqns for v in e.outvars}
    found: list[tuple[Var, int]] = []
    todo: list[Any] = [cond.outvars[0]]
    while todo:
        eqn = None if isinstance(todo[-1], Literal) else made.get(todo[-1])
        todo.pop()
        if eqn is None:
            return None
        name = eqn.primitive.name
        alike = name in ("convert_element_type", "reduce_or", "reduce_and") and not eqn.invars[0].aval.shape
        if name == "and" or alike:
            todo.extend(eqn.invars)
        elif name == "lt" and eqn.invars[0] in cond.invars and (end := _integer(eqn.invars[1])) is not None:
            found.append((eqn.invars[0], end))
        else:
            return None
    return found


def _integer(atom: Atom) -> int | None:
    """The value of a literal integer."""
    if isinstance(atom, Literal) and atom.aval.shape == () and np.issubdtype(atom.aval.dtype, np.integer):
        return int(atom.val)
    return None


def _counts(loop: While, position: int) -> bool:
    """Whether the body adds one to a carry."""
    carry, out = loop.body.invars[len(loop.body_consts) + position], loop.body.outvars[position]
    eqn = next((e for e in loop.body.eqns if out in e.outvars), None)
    return (eqn is not None and eqn.primitive.name == "add" and eqn.invars[0] is carry
            and _integer(eqn.invars[1]) == 1)


def _perhaps(trip: Jaxpr, count: int, counter: _Counter, number: int) -> Jaxpr:
    """A trip for loops that have begun by its number; its first input is where this one began."""
    body = _jax.jaxpr_as_fun(trip)

    def run(start: Any, *operands: Any) -> Any:
        return lax.cond(start <= number, body, lambda *same: list(same[-count:]), *operands)

    avals = [trip.invars[len(trip.invars) - count + counter.position].aval, *(v.aval for v in trip.invars)]
    return _jax.open_and_consts(_jax.trace(run, avals))[0]


def _select(which: Any, *cases: Any) -> Any:
    return cases[int(which)]


#: What is computed at once where all operands are known: integers and bools, and where known arrays are read.
_EVALUATED: Mapping[str, Callable[..., Any]] = {**FOLDED, "add": np.add, "sub": np.subtract, "mul": np.multiply,
                                                "select_n": _select}


class _Trip:
    """One trip of a loop whose counter is known."""

    def __init__(self, loop: While, known: Known, position: int, number: int):
        self.eqns: list[JaxprEqn] = []
        body, consts = loop.body, len(loop.body_consts)
        invars = fresh(body.invars)
        self.values: dict[Atom, np.ndarray] = {new: known[v] for v, new in zip(body.invars, invars, strict=True)
                                               if v in known}
        self.given = {*invars}
        env: dict[Var, Atom] = dict(zip(body.invars, invars, strict=True))
        counter = body.invars[consts + position]
        env[counter] = _jax.literal(number, counter.aval)
        for eqn in body.eqns:
            operands = substituted(eqn.invars, env)
            outvars = fresh(eqn.outvars)
            value = self._value(eqn, operands)
            if value is not None:
                self.values[outvars[0]] = value
            else:
                self.eqns.append(_jax.with_variables(eqn, [*map(self._readable, operands)], outvars))
            env.update(zip(eqn.outvars, outvars, strict=True))
        outs = [self._readable(v) for v in substituted(body.outvars, env)]
        self.jaxpr = _jax.make_open(invars, outs, self.eqns)

    def _value(self, eqn: JaxprEqn, operands: Sequence[Atom]) -> np.ndarray | None:
        """The result of an equation that is known before the program runs."""
        known = [np.asarray(v.val) if isinstance(v, Literal) else self.values.get(v) for v in operands]
        if len(eqn.outvars) != 1 or any(x is None for x in known):
            return None
        name, aval = eqn.primitive.name, eqn.outvars[0].aval
        whole = [x for x in known if x is not None]
        if name == "dynamic_slice":
            x, *start = whole
            sizes = eqn.params["slice_sizes"]
            start = [int(np.clip(s, 0, n - size)) for s, n, size in zip(start, x.shape, sizes, strict=True)]
            return x[tuple(slice(s, s + size) for s, size in zip(start, sizes, strict=True))]
        if name == "squeeze" or (name == "reshape" and eqn.params["dimensions"] is None):
            return whole[0].reshape(aval.shape)
        if aval.shape or aval.dtype.kind not in "bi" or any(x.dtype.kind not in "bi" for x in whole):
            return None
        evaluate = _EVALUATED.get(name)
        return None if evaluate is None else np.asarray(evaluate(*whole)).astype(aval.dtype)

    def _readable(self, atom: Atom) -> Atom:
        """What stands for an atom in an equation: a literal, or an array of them, where it is computed already."""
        if isinstance(atom, Literal) or atom not in self.values or atom in self.given:
            return atom
        value = self.values[atom]
        if value.ndim == 0:
            return _jax.literal(value[()], atom.aval)
        made = _jax.trace(lambda: [lax.reshape(lax.concatenate([lax.full((1,), x) for x in value.flat], 0),
                                               value.shape)], [])
        (whole,) = spliced(_jax.open_and_consts(made)[0], [], self.eqns)
        return whole
