"""Replaces complex values of an expanded program by their real and imaginary parts. Knows no batches and no LLVM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from lanax import _jax
from lanax._complex.registry import COMPOSED, PARTWISE, Complex, Entry, flattened
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lanax._rewrite.surgery import Cond, Scan, While, fresh, inner_jaxprs, is_left_whole, spliced, without_dead_code

Expand = Callable[[ClosedJaxpr], ClosedJaxpr]

#: How an operand depends on the arguments: not at all, on unmapped ones only, on mapped ones.
_CONSTANT, _UNIFORM, _VARYING = range(3)


def split(closed: ClosedJaxpr, mapped: Sequence[bool], expand: Expand) -> ClosedJaxpr:
    """The program in real arithmetic.

    Args:
      closed: an expanded program.
      mapped: for each input whether it has the batch axis.
      expand: expands what compositions are traced to.

    Returns:
      A program with the same inputs and results. Complex values are left where they are inputs or results (`real`,
      `imag` and `complex` convert), where nothing that varies goes in, and around equations for which nothing is
      registered. One without complex values comes back as it is.
    """
    jaxpr, consts = _jax.open_and_consts(closed)
    if not holds_complex(jaxpr):
        return closed
    invars = [*jaxpr.constvars, *jaxpr.invars]
    levels = [_UNIFORM] * len(jaxpr.constvars) + [_VARYING if m else _UNIFORM for m in mapped]
    scope = _Scope(dict(zip(invars, levels, strict=True)))
    splitter = _Splitter(expand)
    splitter.equations(jaxpr, scope)
    outvars = [scope.whole(atom) for atom in jaxpr.outvars]
    lean = without_dead_code(_jax.make_open(invars, outvars, scope.eqns, jaxpr))
    lean = _jax.make_open(jaxpr.invars, lean.outvars, lean.eqns, jaxpr)
    done = _jax.make_closed(lean, jaxpr.constvars, consts)
    return expand(done) if splitter.calls else done


def holds_complex(jaxpr: Jaxpr) -> bool:
    """Whether any value of a jaxpr is complex, at any depth."""
    if any(map(_is_complex, (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars))):
        return True
    return any(map(_touches_complex, jaxpr.eqns))


def _touches_complex(eqn: JaxprEqn) -> bool:
    return any(map(_is_complex, (*eqn.invars, *eqn.outvars))) or any(map(holds_complex, inner_jaxprs(eqn)))


def _is_complex(atom: Any) -> bool:
    return isinstance(atom.aval, _jax.ShapedArray) and getattr(atom.aval.dtype, "kind", "") == "c"


def _real_aval(aval: Any) -> Any:
    """The type of the parts of a complex value."""
    return aval.update(dtype=np.zeros((), aval.dtype).real.dtype)


def _parts_of(var: Any) -> Complex:
    """New variables for the parts of a complex variable."""
    aval = _real_aval(var.aval)
    return Complex(Var(aval), Var(aval))


class _Scope:
    """The equations of one jaxpr in the making, and what stands for the values of the old one.

    Attributes:
      eqns: the new equations.
      like: the old equation that is being replaced.
    """

    def __init__(self, levels: dict[Var, int] | None = None) -> None:
        self.eqns: list[JaxprEqn] = []
        self.like: Any = None
        self._levels = levels
        self._env: dict[Var, Atom | Complex] = {}
        self._joined: dict[Var, Var] = {}

    def bind(self, var: Var, value: Atom | Complex) -> None:
        self._env[var] = value

    def bind_parts(self, variables: Sequence[Var], values: Sequence[Atom]) -> None:
        """Bind variables to flat values, of which a complex variable takes two."""
        rest = iter(values)
        for v in variables:
            self.bind(v, Complex(next(rest), next(rest)) if _is_complex(v) else next(rest))

    def read(self, atom: Atom) -> Atom | Complex:
        """What stands for a value: its parts where it is complex."""
        if isinstance(atom, Literal):
            return _literal_parts(atom) if _is_complex(atom) else atom
        value = self._env.get(atom, atom)
        if isinstance(value, Var) and _is_complex(value):
            parts = _parts_of(value)
            self._emit(lax.real_p, [value], parts.re)
            self._emit(lax.imag_p, [value], parts.im)
            self._joined[atom] = value
            self._env[atom] = value = parts
        return value

    def parts(self, atoms: Sequence[Atom]) -> list[Atom]:
        """What stands for values, flat."""
        return flattened(list(map(self.read, atoms)))

    def whole(self, atom: Atom) -> Atom:
        """One variable for a value, complex where that is."""
        value = atom if isinstance(atom, Literal) else self._env.get(atom, atom)
        if not isinstance(value, Complex):
            return value
        assert isinstance(atom, Var)
        if atom not in self._joined:
            self._joined[atom] = Var(atom.aval)
            self._emit(lax.complex_p, list(value), self._joined[atom])
        return self._joined[atom]

    def _emit(self, primitive: Any, operands: list[Atom], result: Var) -> None:
        self.eqns.append(self.like.replace(primitive=primitive, invars=operands, outvars=[result], params={},
                                           effects=set()))

    def is_uniform(self, eqn: JaxprEqn) -> bool:
        """Whether an equation depends on arguments, but on unmapped ones only; notes how its results do."""
        levels = self._levels
        if levels is None:
            return False
        level = max((levels.get(v, _CONSTANT) for v in eqn.invars if isinstance(v, Var)), default=_CONSTANT)
        levels.update(dict.fromkeys(eqn.outvars, level))
        return level == _UNIFORM


def _literal_parts(atom: Literal) -> Complex:
    value, aval = complex(atom.val), _real_aval(atom.aval)
    return Complex(*(_jax.literal(aval.dtype.type(part), aval) for part in (value.real, value.imag)))


@dataclasses.dataclass
class _Traced:
    """What a composition is traced to: a jaxpr in real arithmetic whose first inputs are its constants."""

    jaxpr: Jaxpr
    consts: list[Any]


class _Splitter:
    """One pass: what it has split and traced already. What is known by its identity is kept beside the result.

    Attributes:
      calls: whether calls are left, which hold the constants of compositions.
    """

    def __init__(self, expand: Expand) -> None:
        self.expand = expand
        self.calls = False
        self._split: dict[int, tuple[Jaxpr, Jaxpr]] = {}
        self._traced: dict[Any, _Traced | None] = {}

    def inner(self, jaxpr: Jaxpr) -> Jaxpr:
        """A jaxpr that takes and gives two parts for each complex value."""
        if not holds_complex(jaxpr):
            return jaxpr
        if id(jaxpr) not in self._split:
            scope, invars = _Scope(), []
            for v in jaxpr.invars:
                invars.append(_parts_of(v) if _is_complex(v) else v)
                scope.bind(v, invars[-1])
            self.equations(jaxpr, scope)
            outvars = scope.parts(jaxpr.outvars)
            self._split[id(jaxpr)] = jaxpr, _jax.make_open(flattened(invars), outvars, scope.eqns, jaxpr)
        return self._split[id(jaxpr)][1]

    def equations(self, jaxpr: Jaxpr, scope: _Scope) -> None:
        """Split every equation of a jaxpr into `scope`."""
        for eqn in jaxpr.eqns:
            scope.like = eqn
            uniform = scope.is_uniform(eqn)
            if not _touches_complex(eqn) or (uniform and is_left_whole(eqn)):
                _keep(eqn, scope)
            elif is_left_whole(eqn):
                self.equation(eqn, scope)
            else:
                {"while": self.while_loop, "scan": self.scan, "cond": self.cond}[eqn.primitive.name](eqn, scope)

    def equation(self, eqn: JaxprEqn, scope: _Scope) -> None:
        name = eqn.primitive.name
        if name in ("real", "imag"):
            scope.bind(eqn.outvars[0], _part(scope.read(eqn.invars[0]), name))
        elif name == "complex" and all(v.aval.shape == eqn.outvars[0].aval.shape for v in eqn.invars):
            scope.bind(eqn.outvars[0], Complex(*scope.parts(eqn.invars)))
        elif name in PARTWISE:
            _by_part(eqn, scope)
        elif not (name in COMPOSED and self.compose(eqn, COMPOSED[name], scope)):
            _keep(eqn, scope)

    def compose(self, eqn: JaxprEqn, entry: Entry, scope: _Scope) -> bool:
        """Splice in what a composition is traced to; False where it refuses."""
        traced = self.traced(eqn, entry, list(map(scope.read, eqn.invars)))
        if traced is None:
            return False
        args = [v for v in scope.parts(eqn.invars) if isinstance(v, Var)]
        jaxpr, consts = _at_line(traced.jaxpr, eqn.source_info), traced.consts
        heads = jaxpr.invars[: len(consts)]
        if all(_jax.is_plain_scalar(v.aval) for v in heads):
            known = [_jax.literal(c, v.aval) for c, v in zip(consts, heads, strict=True)]
            outs = spliced(jaxpr, [*known, *args], scope.eqns)
        else:
            self.calls = True
            outs = fresh(jaxpr.outvars)
            rest = _jax.make_open(jaxpr.invars[len(consts) :], jaxpr.outvars, jaxpr.eqns, jaxpr)
            scope.eqns.append(eqn.replace(primitive=_jax.core.closed_call_p, invars=args, outvars=outs, effects=set(),
                                          params={"call_jaxpr": _jax.make_closed(rest, heads, consts)}))
        scope.bind_parts(eqn.outvars, outs)
        return True

    def traced(self, eqn: JaxprEqn, entry: Entry, operands: Sequence[Any]) -> _Traced | None:
        try:
            key = eqn.primitive, tuple(eqn.params.items()), tuple(map(_signature, operands))
            hash(key)
        except TypeError:
            return self._trace(eqn, entry, operands)
        if key not in self._traced:
            self._traced[key] = self._trace(eqn, entry, operands)
        return self._traced[key]

    def _trace(self, eqn: JaxprEqn, entry: Entry, operands: Sequence[Any]) -> _Traced | None:
        def flat(*variables: Any) -> list[Any]:
            rest = iter(variables)
            args = [_argument(x, rest, entry.parts) for x in operands]
            results = entry.fun(*args, **eqn.params)
            results = list(results) if eqn.primitive.multiple_results else [results]
            return flattened([x if entry.parts else _as_parts(x) for x in results])

        # Plain types: where an array lies, and over which axes of a mesh it varies, does not matter here.
        avals = [_jax.ShapedArray(*_type(v)) for v in flattened(operands) if isinstance(v, Var)]
        try:
            with eqn.ctx.manager, jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
                closed = self.expand(_jax.trace(flat, avals, eqn.primitive.name))
        except NotImplementedError:
            return None
        opened, consts = _jax.open_and_consts(closed)
        consts = flattened([_as_parts(np.asarray(c)) if _is_complex(v) else c
                            for v, c in zip(opened.constvars, consts, strict=True)])
        jaxpr = self.inner(_jax.make_open([*opened.constvars, *opened.invars], opened.outvars, opened.eqns, opened))
        wanted = flattened([_parts_of(v) if _is_complex(v) else v for v in eqn.outvars])
        return _Traced(jaxpr, consts) if list(map(_type, jaxpr.outvars)) == list(map(_type, wanted)) else None

    def while_loop(self, eqn: JaxprEqn, scope: _Scope) -> None:
        loop = While.of(eqn)
        new = While(self.inner(loop.cond), self.inner(loop.body), scope.parts(loop.cond_consts),
                    scope.parts(loop.body_consts), scope.parts(loop.init), _result_parts(loop.outvars))
        self._finish(new, eqn, scope, new.forward_invariants())

    def scan(self, eqn: JaxprEqn, scope: _Scope) -> None:
        loop = Scan.of(eqn)
        new = Scan(self.inner(loop.body), scope.parts(loop.consts), scope.parts(loop.init), scope.parts(loop.xs),
                   _result_parts(loop.carry_out), _result_parts(loop.ys))
        self._finish(new, eqn, scope, new.forward_invariants())

    def cond(self, eqn: JaxprEqn, scope: _Scope) -> None:
        cond = Cond.of(eqn)
        (index,) = scope.parts([cond.index])
        new = Cond(tuple(map(self.inner, cond.branches)), index, scope.parts(cond.operands),
                   _result_parts(cond.outvars))
        self._finish(new, eqn, scope, new.forwarded())

    @staticmethod
    def _finish(new: While | Scan | Cond, eqn: JaxprEqn, scope: _Scope, results: Sequence[Atom]) -> None:
        scope.eqns.append(new.equation(eqn))
        scope.bind_parts(eqn.outvars, results)


def _keep(eqn: JaxprEqn, scope: _Scope) -> None:
    """An equation as it is, complex operands put together."""
    scope.eqns.append(_jax.with_variables(eqn, list(map(scope.whole, eqn.invars)), eqn.outvars))


def _by_part(eqn: JaxprEqn, scope: _Scope) -> None:
    operands, results = list(map(scope.read, eqn.invars)), list(map(_parts_of, eqn.outvars))
    for name in ("real", "imag"):
        scope.eqns.append(eqn.replace(invars=[_part(x, name) for x in operands],
                                      outvars=[_part(x, name) for x in results]))
    for v, parts in zip(eqn.outvars, results, strict=True):
        scope.bind(v, parts)


def _part(value: Any, name: str) -> Any:
    if not isinstance(value, Complex):
        return value
    return value.re if name == "real" else value.im


def _result_parts(variables: Sequence[Var]) -> list[Any]:
    return flattened([_parts_of(v) if _is_complex(v) else v for v in variables])


def _at_line(jaxpr: Jaxpr, line: Any) -> Jaxpr:
    """A jaxpr all of whose equations come from one line of the user's."""
    eqns = []
    for eqn in jaxpr.eqns:
        if not is_left_whole(eqn):
            name = eqn.primitive.name
            parts: Any = {"while": While, "scan": Scan, "cond": Cond}[name].of(eqn)
            for field in ("cond", "body"):
                if hasattr(parts, field):
                    setattr(parts, field, _at_line(getattr(parts, field), line))
            if name == "cond":
                parts.branches = tuple(_at_line(branch, line) for branch in parts.branches)
            eqn = parts.equation(eqn)
        eqns.append(eqn.replace(source_info=line))
    return _jax.make_open(jaxpr.invars, jaxpr.outvars, eqns, jaxpr)


def _argument(operand: Any, rest: Any, parts: bool) -> Any:
    """An operand as a composition gets it; literals are passed as values."""
    if isinstance(operand, Complex):
        pair = Complex(*(_argument(x, rest, parts) for x in operand))
        return pair if parts else lax.complex(*pair)
    return np.asarray(operand.val, operand.aval.dtype) if isinstance(operand, Literal) else next(rest)


def _as_parts(x: Any) -> Any:
    return Complex(x.real, x.imag) if np.issubdtype(x.dtype, np.complexfloating) else x


def _signature(operand: Any) -> Any:
    """What tracing sees of an operand: the value of a literal, the type of a variable."""
    if isinstance(operand, Complex):
        return tuple(map(_signature, operand))
    return (_type(operand), np.asarray(operand.val).tobytes() if isinstance(operand, Literal) else None)


def _type(atom: Any) -> tuple[tuple[int, ...], Any]:
    return atom.aval.shape, atom.aval.dtype
