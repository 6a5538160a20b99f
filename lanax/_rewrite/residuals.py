"""Scans that keep much for other scans, as reverse mode makes them: kept are the carries between chunks of steps, and
what reads the steps of a chunk computes them again. Knows no batch and no LLVM."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from lanax import _jax
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lanax._rewrite.surgery import (
    Scan,
    inner_jaxprs,
    is_left_whole,
    reading,
    spliced,
    substituted,
    with_inner,
    without_dead_code,
)

#: Says of a `scan` whether its steps may be computed twice.
May = Callable[[JaxprEqn], bool]
#: Inlines the calls of a program.
Expand = Callable[[ClosedJaxpr], ClosedJaxpr]


def kept_by_scans(jaxpr: Jaxpr) -> int:
    """Bytes of what scans at the top of a program stack up for other scans alone; calls are to be inlined."""
    return sum(_bytes(scan.kept) for scan in _linked(jaxpr, lambda _: True).values())


def computing_again(jaxpr: Jaxpr, bound: int, may: May, expand: Expand) -> Jaxpr:
    """The same program; where its scans, at one depth, keep more than `bound` bytes for other scans alone, they are in
    chunks of about the square root of their length. The same object where they do not.

    Args:
      jaxpr: one without calls, whose inner jaxprs have no constants of their own.
    """
    linked = _linked(jaxpr, may)
    if sum(_bytes(scan.kept) for scan in linked.values()) > bound:
        jaxpr = without_dead_code(_cut(jaxpr, linked, bound, expand))
    eqns = [e if is_left_whole(e) else with_inner(e, [
        computing_again(inner, bound, may, expand) for inner in inner_jaxprs(e)])
            for e in jaxpr.eqns]
    same = all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if same else _jax.make_open(jaxpr.invars, jaxpr.outvars, eqns, jaxpr)


def _bytes(variables: Sequence[Any]) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _variables(atoms: Sequence[Atom]) -> Iterator[Var]:
    return (v for v in atoms if not isinstance(v, Literal))


@dataclasses.dataclass(eq=False)
class _Linked:
    """A scan that keeps something for other scans, or reads what others keep.

    Attributes:
      kept: what it stacks up for other scans of its length alone.
      sources: the scans of which it reads what they keep, and those that these read, first things first.
    """

    eqn: JaxprEqn
    parts: Scan
    kept: list[Var] = dataclasses.field(default_factory=list)
    sources: list[_Linked] = dataclasses.field(default_factory=list)

    @property
    def length(self) -> int:
        return self.eqn.params["length"]

    @property
    def backwards(self) -> bool:
        return self.eqn.params["reverse"]


def _linked(jaxpr: Jaxpr, may: May) -> dict[int, _Linked]:
    """By the index of their equations, the scans that keep something for others, and those that read it."""
    scans = {i: _Linked(e, Scan.of(e)) for i, e in enumerate(jaxpr.eqns)
             if e.primitive.name == "scan" and not is_left_whole(e) and not e.effects and e.params["length"] > 1}
    maker = {v: scan for scan in scans.values() for v in scan.parts.ys}
    if not any(v in maker for scan in scans.values() for v in _variables(scan.parts.xs)):
        return {}
    scans = {i: scan for i, scan in scans.items() if may(scan.eqn)}
    elsewhere = {*_variables(jaxpr.outvars)}
    for i, e in enumerate(jaxpr.eqns):
        if i not in scans:
            elsewhere.update(_variables(e.invars))
            continue
        elsewhere.update(_variables([*scans[i].parts.consts, *scans[i].parts.init]))
        elsewhere.update(v for v in _variables(scans[i].parts.xs)
                         if v in maker and maker[v].length != scans[i].length)
    for scan in scans.values():
        read = {v: maker[v] for v in _variables(scan.parts.xs) if v in maker and v not in elsewhere}
        read = {v: source for v, source in read.items() if source in scans.values()}
        for v, source in read.items():
            source.kept += [v] if v not in source.kept else []
        scan.sources = list(dict.fromkeys(s for source in dict.fromkeys(read.values())
                                          for s in (*source.sources, source)))
    return {i: scan for i, scan in scans.items() if scan.kept or scan.sources}


def _families(scans: Sequence[_Linked]) -> list[list[_Linked]]:
    """The scans, those together that read from each other."""
    families: list[list[_Linked]] = []
    for scan in scans:
        near = [family for family in families if any(source in family for source in scan.sources)]
        families = [family for family in families if family not in near]
        families.append([*(s for family in near for s in family), scan])
    return families


def _chunk(family: Sequence[_Linked], bound: int) -> int:
    """How many steps a chunk has, so that the carries between chunks and the steps of one chunk take least. One where
    a step keeps so much that it is better cut itself."""
    length = family[0].length
    step = max(1, sum(_bytes(scan.kept) for scan in family) // length)
    carries = length * sum(_bytes(scan.parts.carry_out) for scan in family if scan.kept)
    if step > bound and carries + bound < 2 * math.isqrt(carries * step):
        return 1
    best = min(max(1, math.isqrt(carries // step)), length // 2)
    return next((k for k in range(best, best // 2, -1) if length % k == 0), best)


def _cut(jaxpr: Jaxpr, linked: Mapping[int, _Linked], bound: int, expand: Expand) -> Jaxpr:
    """A program whose linked scans are in chunks."""
    chunk = {scan: _chunk(family, bound) for family in _families([*linked.values()]) for scan in family}
    made = _Made(chunk, expand)
    for i, e in enumerate(jaxpr.eqns):
        if i in linked:
            made.scan(linked[i])
        else:
            made.eqns.append(reading(e, made.env))
    return _jax.make_open(jaxpr.invars, substituted(jaxpr.outvars, made.env), made.eqns, jaxpr)


class _Made:
    """A program in the making.

    Attributes:
      env: what stands for results of the scans.
      starts: the carries with which the chunks of a scan start.
      tails: of what is kept, the steps behind the last whole chunk.
    """

    def __init__(self, chunk: Mapping[_Linked, int], expand: Expand):
        self.chunk = chunk
        self.expand = expand
        self.eqns: list[JaxprEqn] = []
        self.env: dict[Var, Atom] = {}
        self.starts: dict[_Linked, list[Var]] = {}
        self.tails: dict[Var, Var] = {}

    def scan(self, scan: _Linked) -> None:
        """Append a scan in chunks."""
        again = _InChunks(scan, self.chunk[scan])
        read = {v: self.env.get(v, v) for v in again.reads()}
        read.update((v, self.tails[v]) for v in again.kept if v in self.tails)
        read.update((v, v) for source in scan.sources for v in self.starts[source])

        def fun(*values: Any) -> list[Any]:
            return again.run(dict(zip(read, values, strict=True)), self.starts)

        avals = [atom.aval for atom in read.values()]
        info = scan.eqn.source_info
        with (_jax.wide_enough([v.aval for v in (*read.values(), *scan.eqn.outvars)]),
              _jax.source_info_util.user_context(info.traceback, name_stack=info.name_stack)):
            closed = self.expand(_jax.trace(fun, avals, "scan in chunks"))
        assert not _jax.consts_of(closed), "the steps of a scan bring no constants"
        results: Any = iter(spliced(_jax.without_consts(closed), [*read.values()], self.eqns))
        self.env.update((v, next(results)) for v in scan.parts.carry_out)
        self.env.update((v, next(results)) for v in scan.parts.ys if v not in scan.kept)
        self.starts[scan] = [next(results) for _ in scan.parts.init if scan.kept]
        self.tails.update(zip(scan.kept, results, strict=False))


class _InChunks:
    """A scan in chunks of `size` steps, as JAX code."""

    def __init__(self, scan: _Linked, size: int):
        self.scan = scan
        self.size = size
        self.chunks, self.rest = divmod(scan.length, size)
        #: What its sources keep, which is computed again.
        self.kept = [v for source in scan.sources for v in source.kept]

    def reads(self) -> Iterator[Var]:
        """What it is computed from, beside what its sources keep and the carries with which their chunks start."""
        for scan in (*self.scan.sources, self.scan):
            yield from (v for v in _variables([*scan.parts.consts, *scan.parts.xs]) if v not in self.kept)
        yield from _variables(self.scan.parts.init)

    def run(self, values: Mapping[Var, Any], starts: Mapping[_Linked, Sequence[Var]]) -> list[Any]:
        """The last carry, what is not kept, the carry with which each chunk starts, and the end of what is kept."""
        scan, parts = self.scan, self.scan.parts
        carry = [_read(v, values) for v in parts.init]
        tails = {v: values[v] for v in self.kept if v in values}
        ends: list[Any] = []
        if self.rest and scan.backwards:
            carry, ends = _steps(scan, values, carry, np.int32(scan.length - self.rest), tails, self.rest)

        def chunk(state: Any, begins: Any) -> Any:
            at, carry = state
            first = lax.mul(at, np.int32(self.size))
            known: dict[Var, Any] = {}
            for source, begin in zip(scan.sources, begins, strict=True):
                _, ys = _steps(source, values, begin, first, known, self.size)
                known.update(zip(source.parts.ys, ys, strict=True))
            new, ys = _steps(scan, values, carry, first, known, self.size)
            own = [y for v, y in zip(parts.ys, ys, strict=True) if v not in scan.kept]
            return (lax.add(at, np.int32(-1 if scan.backwards else 1)), new), (own, carry if scan.kept else [])

        begins = [[values[v] for v in starts[source]] for source in scan.sources]
        state = np.int32(self.chunks - 1 if scan.backwards else 0), carry
        (_, carry), (own, carries) = lax.scan(chunk, state, begins, self.chunks, reverse=scan.backwards)
        own = [lax.reshape(y, (self.chunks * self.size, *y.shape[2:])) for y in own]
        if self.rest and not scan.backwards:
            carry, ends = _steps(scan, values, carry, np.int32(scan.length - self.rest), tails, self.rest)
        if ends:
            own = [lax.concatenate([y, end], 0) for y, end in zip(
                own, [end for v, end in zip(parts.ys, ends, strict=True) if v not in scan.kept], strict=True)]
        return [*carry, *own, *carries, *(ends[parts.ys.index(v)] for v in scan.kept if ends)]


def _read(atom: Atom, values: Mapping[Var, Any]) -> Any:
    return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else values[atom]


def _steps(scan: _Linked, values: Mapping[Var, Any], carry: Sequence[Any], first: Any, known: Mapping[Var, Any],
           count: int) -> tuple[list[Any], list[Any]]:
    """`count` steps of a scan from position `first` on: its carry, and what they stack up. `known`: of some that it
    reads, what is stacked up for these steps alone."""
    parts, back = scan.parts, scan.backwards
    body = _jax.jaxpr_as_fun(parts.body)
    consts = [_read(v, values) for v in parts.consts]
    stacked = [known[v] for v in _variables(parts.xs) if v in known]

    def step(state: Any, given: Sequence[Any]) -> Any:
        at, carry = state
        rest = iter(given)
        xs = [next(rest) if not isinstance(v, Literal) and v in known
              else lax.dynamic_index_in_dim(_read(v, values), at, keepdims=False) for v in parts.xs]
        outs = body(*consts, *carry, *xs)
        return (lax.add(at, np.int32(-1 if back else 1)), outs[:len(carry)]), outs[len(carry):]

    state = lax.add(first, np.int32(count - 1 if back else 0)), list(carry)
    if count == 1:
        (_, carry), ys = step(state, [lax.index_in_dim(x, 0, keepdims=False) for x in stacked])
        return list(carry), [lax.expand_dims(y, (0,)) for y in ys]
    (_, carry), ys = lax.scan(step, state, stacked, count, reverse=back)
    return list(carry), ys
