"""What lanes gain over XLA's code for a whole batch, as it was measured: equation by equation, and for a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in
from lanax._planning.uniformity import Uniformity
from lanax._planning.work import UNROLL, Cost, array_bytes
from lanax._rewrite.surgery import inner_jaxprs

#: Matrices and the like of up to this many elements are better in lanes, where they are unrolled.
_SMALL = UNROLL
#: Programs that only compute elementwise gain nothing on arrays of more elements: XLA's vectors lie along them.
#: (Measured for `relu`, `gelu`, `clip` and the like: of 8 to 32 elements 1.05 to 8 times as fast in lanes, of 40 to
#: 4000 elements 0.7 to 1.4 times.)
_LONG = 32
#: Products of mapped operands and results of up to this many elements. (Measured: matrices, vectors, and both, with
#: either operand transposed, up to 24 x 24 elements 0.9 to 100 times as fast, above 0.6 to 1.8 times.)
_PRODUCT = 576
#: A sum beside what XLA does gains, but only where not much is written.
_SUMMED = 4
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
#: Sorted by a comparison that is called for each pair. (Measured for 100 to 1000 elements: 4 to 57 times as slow.)
_SORTS = frozenset({"sort", "top_k"})
#: What XLA computes element by element along the axis. (Measured for 100 to 1000 elements: 3 to 7 times as slow.)
_IN_ORDER = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "argmax", "argmin"})
#: What costs in `jax.vmap` and not in lanes, where arrays are small.
_GAINING = _IN_ORDER | {"gather", "scatter", "scatter-add", "scatter_add", "dot_general", "dynamic_slice",
                        "dynamic_update_slice", "threefry2x32", "rem"}
#: What XLA does not fuse with what reads it, beside reductions.
_NOT_FUSED = _IN_ORDER | {"concatenate", "conv_general_dilated", "dot_general", "gather", "scatter", "scatter-add",
                          "scatter_add", "sort"}
#: Longer arrays lie so far apart that a step on a handful of them waits for memory.
_STRIDE = 4096
#: Moves elements from where all examples have them.
_COPIES = frozenset({"broadcast_in_dim", "concatenate", "copy", "expand_dims", "pad", "reshape", "rev", "slice",
                     "split", "squeeze", "transpose"})
#: Trips of loops that divide or call functions for each element are worth lanes up to this many elements.
_LONG_SWEEP = 512
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
#: So many elements that an example reads and writes may come on each that one product hands on to another. (Measured
#: for perceptrons of two to four products by unmapped matrices: up to 7, 1.05 to 3 times as fast in lanes; from 8 on,
#: 0.7 to 1 times.)
_TRANSPOSED = 7
#: From so many elements of a matrix on, tiles of the product need more than 16 registers. (Measured with 16: up to 3
#: times as fast below, 0.7 to 1.1 times above.)
_WIDE_MATRIX = 4096

BESIDE_XLA = "what is left beside the parts for XLA is elementwise, which XLA fuses with them"


def why_no_gain(found: Uniformity, lanes: Sequence[JaxprEqn], beside: bool, cost: Cost, fresh: bool,
                transforms: bool) -> str | None:
    """Why nothing would be gained by lanes, or None.

    Args:
      found: the program.
      lanes: its equations that may be in lanes.
      beside: whether there are others, for XLA.
      fresh: whether a result lies in memory that nobody has written before.
      transforms: whether it was written with Fourier transforms, which are composed of many equations. (Measured for
        lengths from 8 to 128, of real and complex numbers: 0.95 to 8 times as fast.)

    Kernels have fresh memory in large pages, for which XLA does not ask: that is a gain. (Measured for 16 M sums of two
    numbers: 3 times as fast.)
    """
    jaxpr = found.jaxpr
    only_moves = _only_moves(lanes, found)
    if not only_moves and (any(_gains(e, all(found.of(e.invars))) for e in lanes) or _gain_in_order(lanes, cost)):
        return None
    if transforms and not beside:
        return None
    if any(e.primitive.name == "scan" for e in lanes):  # it gains nothing: see `is_one_sweep`
        return "each trip of its loop is elementwise on arrays too large for registers: one sweep in XLA"
    read, written = (_bytes_of(vs, found) for vs in (jaxpr.invars, jaxpr.outvars))
    reducing = [e for e in lanes if _reduces(e) and all(found.of(e.invars))]
    stored = [v for v in (*jaxpr.invars, *jaxpr.outvars) if found.of([v])[0]]
    stored += [v for e in lanes if e.primitive.name == "dot_general" for v in (*e.invars, *e.outvars)]
    if reducing and _largest(stored) <= _STRIDE and (not beside or (
            _SUMMED * written <= read and any(e.outvars[0].aval.size == 1 for e in reducing))):
        return None
    work = sum(map(cost, lanes))
    if lanes and (only_moves or work <= _STREAMING * (read + written)):
        if fresh and not beside:
            return None
        return "a few instructions for each number read: memory decides, and XLA streams it as well"
    if beside and lanes:
        return BESIDE_XLA
    largest = _largest([v for e in lanes for v in (*e.invars, *e.outvars)])
    if largest > _LONG and times_computed(jaxpr, lanes, cost) < _REPEATED_WORK:
        return "no loop, branch or small matrix, and arrays too large for registers: XLA streams them as well"
    return None


def is_chain(found: Uniformity, registers: int) -> bool:
    """Whether products by unmapped matrices hand on so much to each other, from lane to lane, that it is worth more
    than what lanes have to transpose. XLA writes and reads the whole batch of it, and does not fuse it with what
    lies between.

    Args:
      found: a program, all of which may be in lanes.
      registers: those of the target.
    """
    jaxpr = found.jaxpr
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general" and any(found.of(e.outvars))]
    matrices = [v.aval.size for e in products for v in e.invars if not found.of([v])[0]]
    if len(matrices) < len(products) or (registers < 32 and max(matrices, default=0) >= _WIDE_MATRIX):
        return False
    moved = sum(v.aval.size for v in (*jaxpr.invars, *jaxpr.outvars) if found.of([v])[0])
    return 0 < moved <= _TRANSPOSED * _handed_on(jaxpr, products)


def _handed_on(jaxpr: Jaxpr, products: Sequence[JaxprEqn]) -> int:
    """Elements of those products that another one depends on."""
    among = {id(e) for e in products}
    needed: set[Var] = set()
    elements = 0
    for eqn in reversed(jaxpr.eqns):
        is_needed = not needed.isdisjoint(eqn.outvars)
        if id(eqn) in among and is_needed:
            elements += eqn.outvars[0].aval.size
        if id(eqn) in among or is_needed:
            needed |= _variables(eqn)
    return elements


def _largest(variables: Sequence[Atom]) -> int:
    """Elements of the largest of these arrays."""
    return max((v.aval.size for v in variables if hasattr(v.aval, "size")), default=0)


def _bytes_of(variables: Sequence[Atom], found: Uniformity) -> int:
    """Bytes of those that vary, for one example."""
    return sum(array_bytes(v.aval) for v in variables if found.of([v])[0])


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
    return eqn.primitive.name in _NOT_FUSED or _reduces(eqn)


def _variables(eqn: JaxprEqn) -> set[Var]:
    return {v for v in eqn.invars if not isinstance(v, Literal)}


def _work(eqn: JaxprEqn, cost: Cost) -> float:
    """An equation's cost; that of a reduction for each element that it reads."""
    if not eqn.primitive.name.startswith("reduce_"):
        return cost(eqn)
    read, made = (sum(getattr(v.aval, "size", 1) for v in vs) for vs in (eqn.invars, eqn.outvars))
    return cost(eqn) * max(1.0, read / max(1, made))


def _reduces(eqn: JaxprEqn) -> bool:
    """Whether it reduces an array, or multiplies two vectors: XLA adds one element after another, and what it computes
    before and after takes sweeps of their own. (Measured for sums, means, norms, variances, softmax, distances and the
    like of 16 to 4000 elements, along one axis or more: 1.2 to 15 times as slow; energies and forces of 20 to 200
    points, by all their pairs, 1.4 to 80 times.)"""
    name = eqn.primitive.name
    if name == "dot_general":
        return eqn.outvars[0].aval.size == 1
    return name.startswith("reduce_") and name != "reduce_precision"


def is_one_sweep(eqn: JaxprEqn) -> bool:
    """Whether each trip of a `scan` is elementwise on large arrays. (Measured: Newton's method and a recurrent network
    without products, which divide or call functions, were 1.05 to 2.5 times as fast in lanes for 65 to 300 elements,
    0.95 to 1.2 times for 1000; the logistic map 0.4 to 1.1 times.)"""
    eqns = [e for jaxpr in inner_jaxprs(eqn) for e in jaxpr.eqns]
    largest = _largest([v for e in eqns for v in e.outvars])
    costly = any(e.primitive.name in _EXPENSIVE for e in eqns)
    return largest > (_LONG_SWEEP if costly else _SMALL) and all(e.primitive.name in _SWEPT for e in eqns)


def _only_moves(eqns: Sequence[JaxprEqn], found: Uniformity) -> bool:
    """Whether they take elements from where all examples have them, and compute nothing. (Measured for rows of 3 and of
    50 elements: XLA was 1.3 to 1.5 times as fast.)"""
    def moves(eqn: JaxprEqn) -> bool:
        name = eqn.primitive.name
        return name in _COPIES or (name in ("gather", "dynamic_slice") and not any(found.of(eqn.invars[1:])))

    return all(moves(e) for e in eqns if any(found.of(e.outvars)))


def _gains(eqn: JaxprEqn, mapped: bool = True) -> bool:
    """Whether it alone is worth lanes. `mapped`: all its operands are."""
    name = eqn.primitive.name
    if name == "scan" and is_one_sweep(eqn):
        return False
    if name in ("while", "scan", "cond") or name in _MATRICES or name in _SLOW_IN_XLA or name in _SORTS:
        return True
    if name == "conv_general_dilated" and eqn.invars[1].aval.size <= _SMALL:
        return True  # measured: 7 to 80 times as fast for three weights along 64 to 1024 elements
    size = _largest([*eqn.invars, *eqn.outvars])
    if name == "dot_general":
        return size <= _PRODUCT if mapped else size < _SMALL
    return name in _GAINING and size <= _SMALL


def _gain_in_order(eqns: Sequence[JaxprEqn], cost: Cost) -> bool:
    """Whether what XLA computes element by element outweighs what it streams."""
    slow = [e for e in eqns if e.primitive.name in _IN_ORDER and e.invars[0].aval.size <= _STRIDE]
    elements = sum(e.invars[0].aval.size for e in slow)
    return bool(slow) and sum(cost(e) for e in eqns if e.primitive.name in _SWEPT) <= _MOST_BESIDE * elements


def gaining(jaxpr: Jaxpr) -> list[str]:
    """The primitives at the top of a program that cost less in lanes than under `jax.vmap`."""
    return list(dict.fromkeys(e.primitive.name for e in jaxpr.eqns if _gains(e) or _reduces(e)))


def gains(jaxpr: Jaxpr) -> bool:
    """Whether anything in a program whose calls are not inlined costs less in lanes than under `jax.vmap`."""
    return any(_gains(e) or e.primitive.name.startswith("random_") or any(map(gains, jaxprs_in(e)))
               for e in jaxpr.eqns)
