"""How much one example is: operations, bytes, and the longest chain of them. No LLVM here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lanax._jax import Jaxpr, JaxprEqn, Literal, source_line
from lanax._rewrite.surgery import inner_jaxprs

#: Vector instructions of an equation, were the example alone in a lane.
Cost = Callable[[JaxprEqn], float]
#: How many trips one example makes in a loop whose end is not in the program; by the identity of its equation.
Trips = Mapping[int, float]

#: Arrays of up to this many elements are unrolled into lane values.
UNROLL = 64
#: Trips that a loop with an unknown end is taken to make.
ASSUMED_TRIPS = 16

#: Divisions and square roots of one element; they have a unit of their own in the processor.
_DIVIDES = {"div": 1, "sqrt": 1, "rsqrt": 2, "rem": 1, "logistic": 1, "tanh": 1, "tan": 1, "erf_inv": 1}
#: Moves values, and computes none.
MOVES = frozenset({
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "concatenate", "slice", "pad", "rev", "iota",
    "split", "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "select_n", "convert_element_type", "copy",
    "bitcast_convert_type", "random_wrap", "random_unwrap",
})
#: Latency of an instruction, in those of a fused multiply-add.
_DIVIDE_LATENCY, _OTHER_LATENCY = 3.0, 1.0
#: The part of a function's instructions that wait for each other.
_DEPENDENT = 0.5


@dataclasses.dataclass(frozen=True)
class Work:
    """What one example asks of the machine.

    Attributes:
      flops: floating-point operations: additions, products, comparisons and the like, those inside functions such as
        `exp` included; a fused multiply-add counts as two.
      instructions: vector instructions, were the example alone in a lane.
      divides: divisions and square roots.
      chain: the longest chain of operations that wait for each other, in latencies of a fused multiply-add.
    """

    flops: float = 0.0
    instructions: float = 0.0
    divides: float = 0.0
    chain: float = 0.0

    def __add__(self, other: Work) -> Work:
        """One after the other; the chain is that of the first, to be set apart."""
        return Work(self.flops + other.flops, self.instructions + other.instructions, self.divides + other.divides,
                    self.chain)

    def __mul__(self, times: float) -> Work:
        return Work(*(times * x for x in dataclasses.astuple(self)))


def equations_of(jaxpr: Jaxpr, trips: Trips | None = None, times: float = 1.0) -> Iterator[tuple[JaxprEqn, float]]:
    """Every equation at any depth, and how often it runs for one example that takes all sides of branches."""
    for eqn in jaxpr.eqns:
        yield eqn, times
        for inner in inner_jaxprs(eqn):
            yield from equations_of(inner, trips, times * _trips_of(eqn, trips))


def _trips_of(eqn: JaxprEqn, trips: Trips | None) -> float:
    if eqn.primitive.name == "while":
        return (trips or {}).get(id(eqn), ASSUMED_TRIPS)
    return eqn.params["length"] if eqn.primitive.name == "scan" else 1


def work_of(jaxpr: Jaxpr, cost: Cost, trips: Trips | None = None) -> Work:
    """The work of one example in a jaxpr. Of a branch, the most expensive side counts."""
    total = Work()
    ready: dict[Any, float] = {}
    last = 0.0
    products: set[Any] = set()
    for eqn in jaxpr.eqns:
        one = _work_of_equation(eqn, cost, trips)
        if eqn.primitive.name in ("add", "sub") and not products.isdisjoint(_variables(eqn)):
            one = dataclasses.replace(one, instructions=0.0, chain=0.0)  # fused with the product
        elif eqn.primitive.name == "mul":
            products.update(eqn.outvars)
        total += one
        done = one.chain + max((ready.get(v, 0.0) for v in _variables(eqn)), default=0.0)
        ready.update((v, done) for v in eqn.outvars)
        last = max(last, done)
    return dataclasses.replace(total, chain=last)


def _variables(eqn: JaxprEqn) -> list[Any]:
    return [v for v in eqn.invars if not isinstance(v, Literal)]


def _work_of_equation(eqn: JaxprEqn, cost: Cost, trips: Trips | None) -> Work:
    name = eqn.primitive.name
    inner = [work_of(jaxpr, cost, trips) for jaxpr in inner_jaxprs(eqn)]
    if name in ("scan", "while"):
        once = dataclasses.replace(sum(inner, Work()), chain=max(w.chain for w in inner))
        return once * _trips_of(eqn, trips)
    if inner:
        return max(inner, key=lambda w: w.instructions)
    return _work_of_matrix(eqn) if name in _MATRICES else _work_of_primitive(eqn, cost(eqn))


def _work_of_primitive(eqn: JaxprEqn, cost: float) -> Work:
    name = eqn.primitive.name
    sizes = [v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")]
    out, into = max(sizes, default=0), max((v.aval.size for v in eqn.invars if hasattr(v.aval, "size")), default=0)
    each = cost / max(1, out)
    if name in MOVES:
        return Work(instructions=each * out, chain=_OTHER_LATENCY if name == "select_n" else 0.0)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        length = math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
        return Work(2.0 * out * length, float(out * length), 0.0, float(length))
    kinds = {getattr(getattr(v.aval, "dtype", None), "kind", None) for v in eqn.invars}  # that of a key has none
    is_float = not kinds.isdisjoint("fcV")
    count = max(out, into) if name.startswith(("reduce_", "arg", "cum")) else out
    flops = each * count if is_float else 0.0
    divides = float(_DIVIDES.get(name, 0) * count)
    chain = _DIVIDE_LATENCY * (divides > 0) + max(_OTHER_LATENCY, _DEPENDENT * each)
    if count > out > 0:  # a reduction, one element after another
        chain = _OTHER_LATENCY * count / out
    return Work(flops, each * count, divides, chain)


# Operations of the matrix primitives by the usual algorithms of dense linear algebra; complex ones are counted as real.
# Sources: Golub and Van Loan, Matrix Computations; LAPACK Working Note 41.


def _factors(m: int, n: int, k: int) -> float:
    """Of m x n by k reflections, or of their product."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 / 3 * k**3


def _lu(p: Params, m: int, n: int, *_: int) -> float:
    k = min(m, n)
    return 2 * (m * n * k - (m + n) * k**2 / 2 + k**3 / 3)


def _qr(p: Params, m: int, n: int, *_: int) -> float:
    k = min(m, n)
    return _factors(m, n, k) + _factors(m, m if p.get("full_matrices") else k, k)


def _svd(p: Params, m: int, n: int, *_: int) -> float:
    m, n = max(m, n), min(m, n)
    if not p.get("compute_uv", True):
        return 4 * m * n**2 - 4 / 3 * n**3
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if p.get("full_matrices") else 14 * m * n**2 + 8 * n**3


Params = Mapping[str, Any]
#: From an equation's parameters, the rows and columns of its first operand, and those of its last one.
_MATRICES: Mapping[str, Callable[..., float]] = {
    "cholesky": lambda p, n, *_: n**3 / 3,
    "eigh": lambda p, n, *_: 9 * n**3,
    "geqp3": lambda p, m, n, *_: _factors(m, n, min(m, n)),
    "geqrf": lambda p, m, n, *_: _factors(m, n, min(m, n)),
    "hessenberg": lambda p, n, *_: 10 / 3 * n**3,
    "householder_product": lambda p, m, n, *_: _factors(m, n, min(m, n)),
    "lu": _lu,
    "ormqr": lambda p, m, k, rows, columns: (4 * m * k - 2 * k**2) * (columns if p.get("left", True) else rows),
    "qr": _qr,
    "schur": lambda p, n, *_: (25 if p.get("compute_schur_vectors", True) else 10) * n**3,
    "svd": _svd,
    "triangular_solve": lambda p, n, _, rows, columns: n**2 * (columns if p.get("left_side", True) else rows),
    "tridiagonal": lambda p, n, *_: 4 / 3 * n**3,
    "tridiagonal_solve": lambda p, rows, columns, *_: (3 + 5 * columns) * rows,
}
#: Those that rotate one pair of rows after another, and how often they pass over all pairs, at least.
_ITERATIVE, _SWEEPS = frozenset({"eigh", "schur", "svd"}), 3.0


def _work_of_matrix(eqn: JaxprEqn) -> Work:
    name = eqn.primitive.name
    *batch, rows, columns = [1, 1, *eqn.invars[-1 if name == "tridiagonal_solve" else 0].aval.shape]
    count, last = math.prod(batch), [1, 1, *eqn.invars[-1].aval.shape][-2:]
    flops = count * max(0.0, _MATRICES[name](eqn.params, rows, columns, *last))
    # One column after another waits for a quotient (or a root), and for the update by the column before it.
    side = min(rows, columns) if name != "tridiagonal_solve" else rows
    steps = _SWEEPS * side**2 / 2 if name in _ITERATIVE else side
    return Work(flops, flops / 2, float(count * side), steps * (_DIVIDE_LATENCY + 2 * _OTHER_LATENCY))


def cost_of(jaxpr: Jaxpr, cost: Cost) -> float:
    """Vector instructions of one example, roughly; of a branch, of all sides."""
    return sum(times * cost(e) for e, times in equations_of(jaxpr) if e.primitive.name not in ("scan", "while"))


def lines_of(jaxpr: Jaxpr, cost: Cost, trips: Trips | None = None) -> dict[str, float]:
    """Vector instructions by the user's line; of a branch, of all sides."""
    found: dict[str, float] = {}
    for eqn, times in equations_of(jaxpr, trips):
        own = 0.0 if inner_jaxprs(eqn) else times * _work_of_equation(eqn, cost, trips).instructions
        line = source_line(eqn)
        found[line] = found.get(line, 0.0) + own
    return found


def bytes_of(jaxpr: Jaxpr, in_axes: tuple[int | None, ...], out_axes: tuple[int | None, ...]) -> tuple[int, int]:
    """Bytes that one example reads and writes in memory; what has no batch axis is not its own."""
    read, written = (sum(array_bytes(v.aval) for v, axis in zip(variables, axes, strict=True) if axis is not None)
                     for variables, axes in ((jaxpr.invars, in_axes), (jaxpr.outvars, out_axes)))
    return read, written


def array_bytes(aval: Any) -> int:
    """Bytes of an array."""
    return getattr(aval, "size", 0) * getattr(getattr(aval, "dtype", None), "itemsize", 8)
