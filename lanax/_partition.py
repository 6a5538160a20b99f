"""Which equations of a program run in lanes, which are uniform and run once, and which XLA runs. No LLVM here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, make_open, source_line
from lanax._surgery import inner_jaxprs
from lanax._uniformity import Uniformity

#: Vector instructions of an equation for one step, roughly.
Cost = Callable[[JaxprEqn], float]
#: Gives the reason why an equation cannot be in lanes, or None.
WhyNot = Callable[[JaxprEqn], "str | None"]

UNIFORM, LANES, XLA = "uniform", "lanes", "xla"

#: Per-example arrays up to this many elements are unrolled; programs without loops on larger ones gain nothing.
_SMALL = 64
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


def partition(found: Uniformity, why_not: WhyNot, route: str, cost: Cost = lambda _: 1.0) -> Partition:
    """Divide a program. `route` is the plan's: `auto`, `lanes`, `serial` or `xla`."""
    jaxpr = found.jaxpr
    varying = [any(found.of(e.outvars)) or any(found.of(e.invars)) for e in jaxpr.eqns]
    if route == "xla":
        return Partition(_parts(jaxpr, [XLA if v else UNIFORM for v in varying]), ())
    reasons = [why_not(e) if v else None for e, v in zip(jaxpr.eqns, varying, strict=True)]
    if route == "auto":
        reasons = [r or (_better_in_xla(e, found) if v else None)
                   for e, v, r in zip(jaxpr.eqns, varying, reasons, strict=True)]
    misses = tuple(Miss(e.primitive.name, source_line(e), r)
                   for e, r in zip(jaxpr.eqns, reasons, strict=True) if r)
    routes = [UNIFORM if not v else XLA if r else LANES for v, r in zip(varying, reasons, strict=True)]
    if route == "auto":
        whole = _whole_to_xla(found, routes, cost)
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


def _whole_to_xla(found: Uniformity, routes: Sequence[str], cost: Cost) -> str | None:
    """Why nothing would be gained by lanes, or None."""
    jaxpr = found.jaxpr
    lanes = [e for e, r in zip(jaxpr.eqns, routes, strict=True) if r == LANES]
    if any(_gains(e) for e in lanes):
        return None
    moved = sum(v.aval.size * v.aval.dtype.itemsize for v in (*jaxpr.invars, *jaxpr.outvars)
                if found.of([v])[0] and hasattr(v.aval, "size"))
    if lanes and sum(map(cost, lanes)) <= _STREAMING * moved:
        return "a few instructions for each number read: memory decides, and XLA streams it as well"
    if XLA in routes and lanes:
        return "what is left beside the parts for XLA is elementwise, which XLA fuses with them"
    if any(v.aval.size > _SMALL for e in lanes for v in (*e.invars, *e.outvars) if hasattr(v.aval, "shape")):
        return "no loop, branch or small matrix, and arrays too large for registers: XLA streams them as well"
    return None


#: Up to this many vector instructions for each byte that an example reads and writes, memory is the limit.
_STREAMING = 0.2

#: What costs in `jax.vmap` and not in lanes.
_GAINING = frozenset({"while", "scan", "cond", "gather", "scatter", "scatter-add", "scatter_add", "sort", "dot_general",
                      "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "dynamic_slice", "dynamic_update_slice",
                      "threefry2x32", "argmax", "argmin", "rem"})
#: Of what size they are in lanes, the rules say; LAPACK is called for each example.
_MATRICES = frozenset({"lu", "cholesky", "qr", "geqrf", "householder_product", "ormqr", "eigh", "triangular_solve",
                       "tridiagonal_solve", "lu_pivots_to_permutation"})


def _gains(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name in ("while", "scan", "cond") or eqn.primitive.name in _MATRICES:
        return True
    sizes = [v.aval.size for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "size")]
    return eqn.primitive.name in _GAINING and max(sizes, default=0) <= _SMALL


#: Constants that are cheaper to make again in each part than to read from memory.
_REPEATED = frozenset({"broadcast_in_dim", "iota", "convert_element_type", "reshape", "squeeze", "expand_dims"})
REPEAT = "repeat"


def _repeat_constants(jaxpr: Jaxpr, routes: Sequence[str]) -> list[str]:
    """The routes, with `repeat` for equations that make constants of nothing; a result of the program is none."""
    out = list(routes)
    results = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    constants: set[Var] = set()
    for i, eqn in enumerate(jaxpr.eqns):
        of_nothing = all(isinstance(v, Literal) or v in constants for v in eqn.invars)
        if out[i] == UNIFORM and eqn.primitive.name in _REPEATED and of_nothing and not results & {*eqn.outvars}:
            out[i] = REPEAT
            constants.update(eqn.outvars)
    return out


def _parts(jaxpr: Jaxpr, routes: Sequence[str]) -> tuple[Part, ...]:
    """Group equations by route into as few parts as their order allows.

    Stage 0 is uniform; then kernels (odd stages) and XLA (even stages) take turns: an equation goes to the first stage
    of its route at or after those of its operands.
    """
    stage: dict[Var, int] = {}
    members: dict[int, list[JaxprEqn]] = {}
    constants: dict[Var, JaxprEqn] = {}
    for eqn, route in zip(jaxpr.eqns, _repeat_constants(jaxpr, routes), strict=True):
        if route == REPEAT:
            constants.update(dict.fromkeys(eqn.outvars, eqn))
            continue
        at = max((stage.get(v, 0) for v in eqn.invars if not isinstance(v, Literal)), default=0)
        if route != UNIFORM:
            at = max(at, 1)
            at += (at % 2 == 1) != (route == LANES)
        members.setdefault(at, []).append(eqn)
        stage.update(dict.fromkeys(eqn.outvars, at))
    parts = []
    order = sorted(members)
    for k, at in enumerate(order):
        later = [e for other in order[k + 1:] for e in members[other]]
        route = UNIFORM if at == 0 else LANES if at % 2 else XLA
        parts.append(Part(route, _cut(jaxpr, [*_needed(members[at], constants), *members[at]], later)))
    return tuple(parts)


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


def miss_reason(eqn: JaxprEqn, of_primitive: WhyNot, limit: int) -> str | None:
    """The reason why an equation, with all that is inside it, cannot be in lanes; `limit`: bytes of one array."""
    inner = inner_jaxprs(eqn)
    reason = None if inner else of_primitive(eqn)
    if reason:
        return reason
    for v in (*eqn.invars, *eqn.outvars):
        size = math.prod(getattr(v.aval, "shape", ())) * getattr(getattr(v.aval, "dtype", None), "itemsize", 8)
        if size > limit:
            return f"an array of {size} bytes for each example is too large for the memory of a lane"
    for jaxpr in inner:
        for e in jaxpr.eqns:
            reason = miss_reason(e, of_primitive, limit)
            if reason:
                return f"it holds `{e.primitive.name}` ({source_line(e)}): {reason}"
    return None


def count_equations(jaxpr: Any) -> int:
    """Equations of a jaxpr, inner ones included."""
    return sum(1 + sum(map(count_equations, inner_jaxprs(e))) for e in jaxpr.eqns)
