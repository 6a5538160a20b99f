"""Which equations of a program run in lanes, which are uniform and run once, and which XLA runs. No LLVM here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, ShapedArray, Var, make_open, source_line
from lanax._planning.gains import is_chain, why_no_gain
from lanax._planning.products import summed_products
from lanax._planning.uniformity import Uniformity
from lanax._planning.work import UNROLL, Cost, array_bytes
from lanax._rewrite.surgery import inner_jaxprs

#: Gives the reason why an equation cannot be in lanes, or None.
WhyNot = Callable[[JaxprEqn], "str | None"]

UNIFORM, LANES, XLA = "uniform", "lanes", "xla"

#: A matrix product with an unmapped operand of this many elements is left to XLA.
_LARGE_OPERAND = 1024


@dataclasses.dataclass(frozen=True)
class Miss:
    """An equation that is not in lanes.

    Attributes:
      primitive, source: what it is, and the user's line.
      reason: why.
    """

    primitive: str
    source: str
    reason: str

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"`{self.primitive}`{where}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of equations that take one route: `uniform`, `lanes` or `xla`."""

    route: str
    jaxpr: Jaxpr


@dataclasses.dataclass(frozen=True)
class Partition:
    """The parts of a program in the order in which they run, and what is not in lanes."""

    parts: tuple[Part, ...]
    misses: tuple[Miss, ...]

    @property
    def routes(self) -> tuple[str, ...]:
        """The routes taken, uniform parts left out."""
        return tuple(p.route for p in self.parts if p.route != UNIFORM)


def partition(found: Uniformity, why_not: WhyNot, limit: int, route: str, cost: Cost = lambda _: 1.0,
              summed: Collection[Atom] = (), fresh: bool = False, registers: int = 16,
              transforms: bool = False) -> Partition:
    """Divide a program. `limit`: see `miss_reason`. `route` is the plan's: `auto`, `lanes`, `serial` or `xla`.
    `summed`: the results of which only the sum over the batch is wanted. `fresh`: a result lies in memory that nobody
    has written before. `registers`: those of the target. `transforms`: see `why_no_gain`."""
    jaxpr = found.jaxpr
    varying = [any(found.of(e.outvars)) or any(found.of(e.invars)) for e in jaxpr.eqns]
    if route == "xla":
        return Partition(_parts(jaxpr, [XLA if v else UNIFORM for v in varying]), ())
    reasons = [miss_reason(found, i, why_not, limit) if v else None for i, v in enumerate(varying)]
    large = _large_sums(found, summed)
    chain = route == "auto" and not any(reasons) and not large and is_chain(found, registers)
    if route == "auto" and not chain:
        reasons = [r or (_better_in_xla(e, found) if v else None)
                   for e, v, r in zip(jaxpr.eqns, varying, reasons, strict=True)]
        reasons = [r or (_SUMMED_PRODUCT if id(e) in large else None) for e, r in zip(jaxpr.eqns, reasons, strict=True)]
    misses = tuple(Miss(e.primitive.name, source_line(e), r)
                   for e, r in zip(jaxpr.eqns, reasons, strict=True) if r)
    routes = [UNIFORM if not v else XLA if r else LANES for v, r in zip(varying, reasons, strict=True)]
    if route in ("auto", "serial") and not chain:
        lanes = [e for e, r in zip(jaxpr.eqns, routes, strict=True) if r == LANES]
        whole = (why_no_gain(found, lanes, XLA in routes, cost, fresh, transforms) if route == "auto"
                 else _whole_to_map(routes))
        if whole:
            return Partition(_parts(jaxpr, [XLA if v else UNIFORM for v in varying]),
                             (*misses, Miss("program", "", whole)))
    return Partition(_parts(jaxpr, routes), misses)


def _better_in_xla(eqn: JaxprEqn, found: Uniformity) -> str | None:
    """Whether XLA's code for the whole batch is the better one, and why."""
    if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
        fixed = [v.aval.size for v, varies in zip(eqn.invars, found.of(eqn.invars), strict=True) if not varies]
        if fixed and max(fixed) >= _LARGE_OPERAND:
            return "a large product with an unmapped operand is one matrix product over the batch in XLA"
    return None


#: What reads an operand where it lies.
_LOOKING_UP = frozenset({"dynamic_slice", "gather", "slice"})
_HOLDING = _LOOKING_UP | {"dynamic_update_slice"}
#: How much larger an array may be that is only held.
_HELD = 4

_SUMMED_PRODUCT = "a large product of which only the sum is wanted is one matrix product over the batch in XLA"


def _large_sums(found: Uniformity, summed: Collection[Atom]) -> set[int]:
    """The equations, by identity, of large products of which only the sum over the batch is wanted."""
    return {id(e) for each in summed_products(found, found.jaxpr, summed).values() for e in each.equations
            if each.product.outvars[0].aval.size >= _LARGE_OPERAND}


def _whole_to_map(routes: Sequence[str]) -> str | None:
    """Why a program is not run in one kernel, one example after another, or None. Parts in turns would keep what goes
    from one to the next for the whole batch."""
    return "a part of it has no kernel, so that jax.lax.map runs all of it" if XLA in routes else None


#: Constants that are cheaper to make again in each part than to read from memory.
_REPEATED = frozenset({"broadcast_in_dim", "iota", "convert_element_type", "reshape", "squeeze", "expand_dims"})
#: Such as are so only for small arrays, which the compiler then knows element by element: an identity matrix, a mask.
_REPEATED_SMALL = frozenset({"add", "sub", "mul", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not",
                             "select_n", "transpose", "slice", "rev"})
REPEAT = "repeat"


def _is_repeated(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    return name in _REPEATED or (name in _REPEATED_SMALL and all(
        isinstance(v.aval, ShapedArray) and v.aval.size <= UNROLL for v in eqn.outvars))


def repeat_constants(jaxpr: Jaxpr, routes: Sequence[str]) -> list[str]:
    """The routes, with `repeat` for equations that make constants of nothing; a result of the program is none."""
    out = list(routes)
    results = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    constants: set[Var] = set()
    for i, eqn in enumerate(jaxpr.eqns):
        of_nothing = all(isinstance(v, Literal) or v in constants for v in eqn.invars)
        if out[i] == UNIFORM and _is_repeated(eqn) and of_nothing and not results & {*eqn.outvars}:
            out[i] = REPEAT
            constants.update(eqn.outvars)
    return out


def _parts(jaxpr: Jaxpr, routes: Sequence[str]) -> tuple[Part, ...]:
    """Group equations by route into as few parts as their order allows.

    Stage 0 is uniform; then kernels (odd stages) and XLA (even stages) take turns: an equation goes to the first stage
    of its route at or after those of its operands.
    """
    stage: dict[Var, int] = {}
    stages: list[int | None] = []
    for eqn, route in zip(jaxpr.eqns, repeat_constants(jaxpr, routes), strict=True):
        at = max((stage.get(v, 0) for v in eqn.invars if not isinstance(v, Literal)), default=0)
        if route not in (UNIFORM, REPEAT):
            at = max(at, 1)
            at += (at % 2 == 1) != (route == LANES)
        stages.append(None if route == REPEAT else at)
        stage.update(dict.fromkeys(eqn.outvars, at))
    return tuple(Part(UNIFORM if at == 0 else LANES if at % 2 else XLA, part) for at, part in divided(jaxpr, stages))


def divided(jaxpr: Jaxpr, stages: Sequence[int | None]) -> list[tuple[int, Jaxpr]]:
    """The equations of each stage as a jaxpr, in the order of the stages; those of none are repeated where they are
    read."""
    members: dict[int, list[JaxprEqn]] = {}
    constants: dict[Var, JaxprEqn] = {}
    for eqn, at in zip(jaxpr.eqns, stages, strict=True):
        if at is None:
            constants.update(dict.fromkeys(eqn.outvars, eqn))
        else:
            members.setdefault(at, []).append(eqn)
    order = sorted(members)
    return [(at, _cut(jaxpr, [*_needed(members[at], constants), *members[at]],
                      [e for later in order[k + 1:] for e in members[later]])) for k, at in enumerate(order)]


def _needed(eqns: Sequence[JaxprEqn], constants: dict[Var, JaxprEqn]) -> list[JaxprEqn]:
    """The equations for the constants that `eqns` read, in order."""
    found: dict[int, JaxprEqn] = {}

    def visit(eqn: JaxprEqn) -> None:
        for v in eqn.invars:
            if not isinstance(v, Literal) and v in constants and id(constants[v]) not in found:
                visit(constants[v])
                found[id(constants[v])] = constants[v]

    for eqn in eqns:
        visit(eqn)
    return list(found.values())


def _cut(whole: Jaxpr, eqns: list[JaxprEqn], later: list[JaxprEqn]) -> Jaxpr:
    """Some equations of a program as a jaxpr: inputs are what they read from outside, results what others need."""
    made = dict.fromkeys(v for e in eqns for v in e.outvars)
    read = dict.fromkeys(v for e in eqns for v in e.invars if not isinstance(v, Literal) and v not in made)
    wanted: set[Atom] = {v for e in later for v in e.invars if not isinstance(v, Literal)}
    wanted |= {v for v in whole.outvars if not isinstance(v, Literal)}
    return make_open(list(read), [v for v in made if v in wanted], eqns, None)


def miss_reason(found: Uniformity, index: int, of_primitive: WhyNot, limit: int) -> str | None:
    """The reason why an equation of a program, with all that is inside it, cannot be in lanes.

    `limit`: bytes of one array that is computed with. What loops hold and what is looked up or updated may have
    `_HELD` times as many; what is looked up and the same for all examples lies where it is, and may have any number.
    """
    eqn, inner = found.jaxpr.eqns[index], found.inner.get(index, ())
    reason = None if inner else of_primitive(eqn)
    if reason:
        return reason
    name = eqn.primitive.name
    most = limit * _HELD if inner or name in _HOLDING or name.startswith("scatter") else limit
    looks_up = bool(inner) or name in _LOOKING_UP
    read = [v for v, varies in zip(eqn.invars, found.of(eqn.invars), strict=True) if varies or not looks_up]
    for v in (*read, *eqn.outvars):
        size = array_bytes(v.aval)
        if size > most:
            return f"an array of {size} bytes for each example is too large for the memory of a lane"
    for part in inner:
        for i, e in enumerate(part.jaxpr.eqns):
            reason = miss_reason(part, i, of_primitive, limit)
            if reason:
                return f"it holds `{e.primitive.name}` ({source_line(e)}): {reason}"
    return None


def count_equations(jaxpr: Any) -> int:
    """Equations of a jaxpr, inner ones included."""
    return sum(1 + sum(map(count_equations, inner_jaxprs(e))) for e in jaxpr.eqns)
