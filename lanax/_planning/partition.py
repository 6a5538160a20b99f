"""Which equations of a program run in lanes, which are uniform and run once, and which XLA runs. No LLVM here."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, ShapedArray, Var, jaxprs_in, make_open, source_line
from lanax._planning.products import summed_products
from lanax._planning.uniformity import Uniformity
from lanax._planning.work import UNROLL, Cost
from lanax._rewrite.surgery import inner_jaxprs

#: Gives the reason why an equation cannot be in lanes, or None.
WhyNot = Callable[[JaxprEqn], "str | None"]

UNIFORM, LANES, XLA = "uniform", "lanes", "xla"

#: Matrices and the like of up to this many elements are better in lanes, where they are unrolled.
_SMALL = UNROLL
#: Other programs without loops gain nothing on arrays of more elements: XLA's vectors lie along them. (Measured:
#: softmax and norms of 32 elements were 0.8 to 2.5 times as fast in lanes, those of 48 elements 0.6 times.)
_LONG = 32
#: Nor do programs that only compute elementwise, little for each byte that has to be transposed, on arrays from this
#: many elements on. (Measured: `exp` or `gelu` of 8 to 64 elements 0.4 to 0.8 times as fast; of 3, two to three times.)
_ROW = 8
_TRANSPOSING = 6.0
#: An inner product of two mapped vectors was 1.5 to 4 times as fast in lanes, but only where not much is written.
_SUMMED = 4
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
              summed: Collection[Atom] = (), fresh: bool = False) -> Partition:
    """Divide a program. `limit`: see `miss_reason`. `route` is the plan's: `auto`, `lanes`, `serial` or `xla`.
    `summed`: the results of which only the sum over the batch is wanted. `fresh`: a result lies in memory that nobody
    has written before."""
    jaxpr = found.jaxpr
    varying = [any(found.of(e.outvars)) or any(found.of(e.invars)) for e in jaxpr.eqns]
    if route == "xla":
        return Partition(_parts(jaxpr, [XLA if v else UNIFORM for v in varying]), ())
    reasons = [miss_reason(found, i, why_not, limit) if v else None for i, v in enumerate(varying)]
    if route == "auto":
        reasons = [r or (_better_in_xla(e, found) if v else None)
                   for e, v, r in zip(jaxpr.eqns, varying, reasons, strict=True)]
        large = _large_sums(found, summed)
        reasons = [r or (_SUMMED_PRODUCT if id(e) in large else None) for e, r in zip(jaxpr.eqns, reasons, strict=True)]
    misses = tuple(Miss(e.primitive.name, source_line(e), r)
                   for e, r in zip(jaxpr.eqns, reasons, strict=True) if r)
    routes = [UNIFORM if not v else XLA if r else LANES for v, r in zip(varying, reasons, strict=True)]
    if route in ("auto", "serial"):
        whole = _whole_to_xla(found, routes, cost, fresh) if route == "auto" else _whole_to_map(routes)
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

BESIDE_XLA = "what is left beside the parts for XLA is elementwise, which XLA fuses with them"
_SUMMED_PRODUCT = "a large product of which only the sum is wanted is one matrix product over the batch in XLA"


def _large_sums(found: Uniformity, summed: Collection[Atom]) -> set[int]:
    """The equations, by identity, of large products of which only the sum over the batch is wanted."""
    return {id(e) for each in summed_products(found, found.jaxpr, summed).values() for e in each.equations
            if each.product.outvars[0].aval.size >= _LARGE_OPERAND}


def _whole_to_xla(found: Uniformity, routes: Sequence[str], cost: Cost, fresh: bool) -> str | None:
    """Why nothing would be gained by lanes, or None. Kernels have fresh memory in large pages, for which XLA does not
    ask: that is a gain. (Measured for 16 M sums of two numbers: 3 times as fast.)"""
    jaxpr = found.jaxpr
    lanes = [e for e, r in zip(jaxpr.eqns, routes, strict=True) if r == LANES]
    if any(_gains(e) for e in lanes) or _gain_in_order(lanes, cost):
        return None
    if any(e.primitive.name == "scan" for e in lanes):  # it gains nothing: see `is_one_sweep`
        return "each trip of its loop is elementwise on arrays too large for registers: one sweep in XLA"
    read, written = (_bytes_of(vs, found) for vs in (jaxpr.invars, jaxpr.outvars))
    if any(_is_sum_of_all(e, found) for e in lanes) and _SUMMED * written <= read:
        return None
    work = sum(map(cost, lanes))
    if lanes and work <= _STREAMING * (read + written):
        if fresh and XLA not in routes:
            return None
        return "a few instructions for each number read: memory decides, and XLA streams it as well"
    if XLA in routes and lanes:
        return BESIDE_XLA
    sizes = [v.aval.size for e in lanes for v in (*e.invars, *e.outvars) if hasattr(v.aval, "shape")]
    large = max(sizes, default=0) > _LONG
    moving = max(sizes, default=0) >= _ROW and work <= _TRANSPOSING * (read + written) and not any(map(_joins, lanes))
    if (large or moving) and times_computed(jaxpr, lanes, cost) < _REPEATED_WORK:
        return ("no loop, branch or small matrix, and arrays too large for registers: XLA streams them as well" if large
                else "a few functions of each element: XLA's vectors lie along the arrays as they are")
    return None


def _bytes_of(variables: Sequence[Atom], found: Uniformity) -> int:
    """Bytes of those that vary, for one example."""
    return sum(v.aval.size * v.aval.dtype.itemsize for v in variables if found.of([v])[0] and hasattr(v.aval, "size"))


def times_computed(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], cost: Cost) -> float:
    """How often XLA computes the average equation, by its cost: once in each of its fusions that needs the value.

    A fusion ends in a result of the program, a reduction, a product or the like, or in a function such as `exp` that
    more than one equation reads, which XLA stores; what lies between is computed in each fusion anew. In a kernel it
    is computed once.
    """
    if len(eqns) > _MOST_EQUATIONS:
        return 1.0
    made = {v: e for e in eqns for v in e.outvars}
    results = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    readers = Counter(v for e in eqns for v in _variables(e))

    def is_stored(eqn: JaxprEqn) -> bool:
        return _joins(eqn) or (eqn.primitive.name in _EXPENSIVE and any(readers[v] > 1 for v in eqn.outvars))

    def fused(root: JaxprEqn) -> float:
        """The work of the fusion that ends in an equation."""
        seen: dict[int, JaxprEqn] = {}
        waiting = [root]
        while waiting:
            eqn = waiting.pop()
            if id(eqn) not in seen:
                seen[id(eqn)] = eqn
                waiting += [made[v] for v in _variables(eqn) if v in made and not is_stored(made[v])]
        return sum(_work(e, cost) for e in seen.values())

    roots = [e for e in eqns if is_stored(e) or not results.isdisjoint(e.outvars)]
    return sum(map(fused, roots)) / max(1.0, sum(_work(e, cost) for e in eqns))


def _joins(eqn: JaxprEqn) -> bool:
    """Whether XLA does not fuse it with what reads it."""
    return eqn.primitive.name in _NOT_FUSED or eqn.primitive.name.startswith("reduce_")


def _variables(eqn: JaxprEqn) -> set[Var]:
    return {v for v in eqn.invars if not isinstance(v, Literal)}


def _work(eqn: JaxprEqn, cost: Cost) -> float:
    """An equation's cost; that of a reduction for each element that it reads."""
    if not eqn.primitive.name.startswith("reduce_"):
        return cost(eqn)
    read, made = (sum(getattr(v.aval, "size", 1) for v in vs) for vs in (eqn.invars, eqn.outvars))
    return cost(eqn) * max(1.0, read / max(1, made))


def _whole_to_map(routes: Sequence[str]) -> str | None:
    """Why a program is not run in one kernel, one example after another, or None. Parts in turns would keep what goes
    from one to the next for the whole batch."""
    return "a part of it has no kernel, so that jax.lax.map runs all of it" if XLA in routes else None


#: Up to this many vector instructions for each byte that an example reads and writes, memory is the limit.
_STREAMING = 0.2

#: How often XLA computes the same, on average, where a kernel gains though its arrays are large. (Measured: 2.7 to 4.8
#: for gradients and Hessians of likelihoods, which were 2 to 7 times faster in lanes; at most 1.3 for norms, softmax
#: and the like, which were not.)
_REPEATED_WORK = 2.0
_MOST_EQUATIONS = 2000
#: What XLA stores where more than one equation reads it.
_EXPENSIVE = frozenset({"exp", "exp2", "log", "log1p", "expm1", "div", "rem", "tanh", "logistic", "pow", "sqrt",
                        "rsqrt", "cbrt", "erf", "erf_inv", "sin", "cos", "tan", "atan2"})
#: What XLA does not fuse with what reads it, beside reductions.
_NOT_FUSED = frozenset({"concatenate", "conv_general_dilated", "dot_general", "gather", "scatter", "scatter-add",
                        "scatter_add", "sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "argmax",
                        "argmin"})

#: What costs in `jax.vmap` and not in lanes.
_GAINING = frozenset({"while", "scan", "cond", "gather", "scatter", "scatter-add", "scatter_add", "sort", "dot_general",
                      "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "dynamic_slice", "dynamic_update_slice",
                      "threefry2x32", "argmax", "argmin", "rem"})
#: Sorted by a comparison that is called for each pair. (Measured for 100 to 1000 elements: 4 to 57 times as slow.)
_SORTS = frozenset({"sort", "top_k"})
#: What XLA computes element by element along the axis. (Measured for 100 to 1000 elements: 3 to 7 times as slow.)
_IN_ORDER = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "argmax", "argmin"})
#: Longer arrays lie so far apart that a step on a handful of them waits for memory.
_STRIDE = 4096
#: So many vector instructions for each element beside it, on arrays that are too large for registers, may cost as much.
_MOST_BESIDE = 60
#: Of what size they are in lanes, the rules say; LAPACK is called for each example.
_MATRICES = frozenset({"lu", "cholesky", "qr", "geqrf", "householder_product", "ormqr", "eigh", "svd", "geqp3",
                       "hessenberg", "lu_pivots_to_permutation", "schur", "triangular_solve", "tridiagonal",
                       "tridiagonal_solve"})


#: What XLA fuses into one sweep, and computes by vectors.
_SWEPT = frozenset({"abs", "add", "and", "broadcast_in_dim", "clamp", "convert_element_type", "div", "eq", "exp",
                    "expm1", "floor", "ge", "gt", "integer_pow", "le", "log", "log1p", "logistic", "lt", "max", "min",
                    "mul", "ne", "neg", "not", "or", "round", "rsqrt", "select_n", "sign", "sqrt", "square", "sub",
                    "tanh", "xor"})

#: XLA calls the C library for each element, or runs a loop over the whole batch. (Measured: 3 to 44 times as slow.)
_SLOW_IN_XLA = frozenset({"sin", "cos", "tan", "asin", "acos", "atan", "atan2", "cbrt", "pow", "lgamma", "digamma",
                          "igamma", "igammac", "regularized_incomplete_beta"})


def _is_sum_of_all(eqn: JaxprEqn, found: Uniformity) -> bool:
    """Whether one number is the sum of a large array, or of a product: XLA adds one element after another. (Measured
    for sums, means, norms, variances and the like of 100 to 4000 elements: 1.4 to 6 times as slow.)"""
    name = eqn.primitive.name
    if eqn.outvars[0].aval.size != 1 or not all(found.of(eqn.invars)):
        return False
    return name == "dot_general" or (name in ("reduce_sum", "reduce_prod") and
                                     _SMALL < eqn.invars[0].aval.size <= _STRIDE)


def is_one_sweep(eqn: JaxprEqn) -> bool:
    """Whether each trip of a `scan` is elementwise on large arrays. (Measured for Newton's method and a recurrent
    network without products: XLA is as fast from 64 elements on, and 1.5 to 10 times as fast from 128 on.)"""
    eqns = [e for jaxpr in inner_jaxprs(eqn) for e in jaxpr.eqns]
    sizes = [v.aval.size for e in eqns for v in e.outvars if hasattr(v.aval, "size")]
    return max(sizes, default=0) > _SMALL and all(e.primitive.name in _SWEPT for e in eqns)


def _gains(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name == "scan" and is_one_sweep(eqn):
        return False
    if name in ("while", "scan", "cond") or name in _MATRICES or name in _SLOW_IN_XLA or name in _SORTS:
        return True
    if name == "conv_general_dilated" and eqn.invars[1].aval.size <= _SMALL:
        return True  # measured: 7 to 80 times as fast for three weights along 64 to 1024 elements
    size = max((v.aval.size for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "size")), default=0)
    if name == "dot_general" and size >= _SMALL and _is_fast_in_xla(eqn):
        return False
    return name in _GAINING and size <= _SMALL


def _gain_in_order(eqns: Sequence[JaxprEqn], cost: Cost) -> bool:
    """Whether what XLA computes element by element outweighs what it streams."""
    slow = [e for e in eqns if e.primitive.name in _IN_ORDER and e.invars[0].aval.size <= _STRIDE]
    elements = sum(e.invars[0].aval.size for e in slow)
    return bool(slow) and sum(cost(e) for e in eqns if e.primitive.name in _SWEPT) <= _MOST_BESIDE * elements


def gaining(jaxpr: Jaxpr) -> list[str]:
    """The primitives at the top of a program that cost less in lanes than under `jax.vmap`."""
    return list(dict.fromkeys(e.primitive.name for e in jaxpr.eqns if _gains(e)))


def gains(jaxpr: Jaxpr) -> bool:
    """Whether anything in a program whose calls are not inlined costs less in lanes than under `jax.vmap`."""
    return any(_gains(e) or e.primitive.name.startswith("random_") or any(map(gains, jaxprs_in(e)))
               for e in jaxpr.eqns)


def _is_fast_in_xla(eqn: JaxprEqn) -> bool:
    """Whether a product is one with a vector, which reads each element of the larger operand once, or of at least
    8 x 8 x 8 multiply-adds, for which XLA has other code. (Measured: vectors in lanes 1.1 to 2 times as fast with 7 x 7
    elements, 0.3 to 1.1 times with 8 x 8; matrices 12 times with 7 x 7, 0.9 to 1.7 times with 8 x 8, 0.5 to 1 times
    with 9 x 9.)"""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    products = eqn.outvars[0].aval.size * math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
    return products <= max(v.aval.size for v in eqn.invars) or products >= _FAST_PRODUCT


#: Multiply-adds from which on XLA's products of matrices are fast.
_FAST_PRODUCT = 512

#: Constants that are cheaper to make again in each part than to read from memory.
_REPEATED = frozenset({"broadcast_in_dim", "iota", "convert_element_type", "reshape", "squeeze", "expand_dims"})
#: Such as are so only for small arrays, which the compiler then knows element by element: an identity matrix, a mask.
_REPEATED_SMALL = frozenset({"add", "sub", "mul", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not",
                             "select_n", "transpose", "slice", "rev"})
REPEAT = "repeat"


def _is_repeated(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    return name in _REPEATED or (name in _REPEATED_SMALL and all(
        isinstance(v.aval, ShapedArray) and v.aval.size <= _SMALL for v in eqn.outvars))


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
        size = math.prod(getattr(v.aval, "shape", ())) * getattr(getattr(v.aval, "dtype", None), "itemsize", 8)
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
