"""Takes jaxprs with control flow apart and puts them together again. Knows nothing of batches or rules."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from lanax import _jax
from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

CONTROL_FLOW = frozenset({"while", "scan", "cond"})


def inner_jaxprs(eqn: JaxprEqn) -> tuple[Jaxpr, ...]:
    """The open jaxprs of a control-flow equation: `(cond, body)`, `(body,)` or the branches; empty for others."""
    name, params = eqn.primitive.name, eqn.params
    if name == "while":
        closed = params["cond_jaxpr"], params["body_jaxpr"]
    elif name == "scan":
        closed = (params["jaxpr"],)
    elif name == "cond":
        closed = params["branches"]
    else:
        closed = ()
    return tuple(_jax.open_and_consts(jaxpr)[0] for jaxpr in closed)


def with_inner(eqn: JaxprEqn, inner: Sequence[Jaxpr]) -> JaxprEqn:
    """The equation with other jaxprs, of the same inputs and results, for those that `inner_jaxprs` gives; itself where
    they are the same."""
    if all(map(operator.is_, inner, inner_jaxprs(eqn))):
        return eqn
    parts: While | Scan | Cond
    if eqn.primitive.name == "while":
        parts = While.of(eqn)
        parts.cond, parts.body = inner
    elif eqn.primitive.name == "scan":
        parts = Scan.of(eqn)
        (parts.body,) = inner
    else:
        parts = Cond.of(eqn)
        parts.branches = tuple(inner)
    return parts.equation(eqn)


@dataclasses.dataclass
class While:
    """A `while` equation in parts."""

    cond: Jaxpr
    body: Jaxpr
    cond_consts: list[Atom]
    body_consts: list[Atom]
    init: list[Atom]
    outvars: list[Var]

    @classmethod
    def of(cls, eqn: JaxprEqn) -> While:
        cond, body = inner_jaxprs(eqn)
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        consts, init = list(eqn.invars[: first + second]), list(eqn.invars[first + second :])
        return cls(cond, body, consts[:first], consts[first:], init, list(eqn.outvars))

    def equation(self, like: JaxprEqn) -> JaxprEqn:
        params = dict(
            like.params,
            cond_jaxpr=_jax.make_closed(self.cond),
            body_jaxpr=_jax.make_closed(self.body),
            cond_nconsts=len(self.cond_consts),
            body_nconsts=len(self.body_consts),
        )
        invars = [*self.cond_consts, *self.body_consts, *self.init]
        return rebuilt(like, invars, self.outvars, params, (self.cond, self.body))

    def forward_invariants(self) -> list[Atom]:
        """Make constants of the carries that the body hands on unchanged; the results of the loop as it was."""
        count = len(self.body_consts)
        still = _passed_through(self.body, count, len(self.init))
        results: list[Atom] = [i if s else v for i, v, s in zip(self.init, self.outvars, still, strict=True)]
        if any(still):
            move = [not s for s in still]
            self.cond = _carries_first(self.cond, len(self.cond_consts), still)
            self.body = _carries_first(self.body, count, still, drop_results=True)
            self.cond_consts = [*kept(self.init, still), *self.cond_consts]
            self.body_consts = [*kept(self.init, still), *self.body_consts]
            self.init, self.outvars = kept(self.init, move), kept(self.outvars, move)
        return results


@dataclasses.dataclass
class Scan:
    """A `scan` equation in parts; `carry_out` and `ys` are its results."""

    body: Jaxpr
    consts: list[Atom]
    init: list[Atom]
    xs: list[Atom]
    carry_out: list[Var]
    ys: list[Var]

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Scan:
        (body,) = inner_jaxprs(eqn)
        num_consts, num_carry = _jax.scan_counts(eqn.params)
        start = num_consts + num_carry
        invars, outvars = list(eqn.invars), list(eqn.outvars)
        consts, init, xs = invars[:num_consts], invars[num_consts:start], invars[start:]
        return cls(body, consts, init, xs, outvars[:num_carry], outvars[num_carry:])

    def equation(self, like: JaxprEqn) -> JaxprEqn:
        closed = _jax.make_closed(self.body)
        params = _jax.scan_params(like.params, closed, len(self.consts), len(self.init))
        invars = [*self.consts, *self.init, *self.xs]
        return rebuilt(like, invars, [*self.carry_out, *self.ys], params, (self.body,))

    def forward_invariants(self) -> list[Atom]:
        """Make constants of the carries that the body hands on unchanged; the results of the loop as it was."""
        still = _passed_through(self.body, len(self.consts), len(self.init))
        results: list[Atom] = [i if s else v for i, v, s in zip(self.init, self.carry_out, still, strict=True)]
        if any(still):
            move = [not s for s in still]
            self.body = _carries_first(self.body, len(self.consts), still, drop_results=True)
            self.consts = [*kept(self.init, still), *self.consts]
            self.init, self.carry_out = kept(self.init, move), kept(self.carry_out, move)
        return [*results, *self.ys]


@dataclasses.dataclass
class Cond:
    """A `cond` equation in parts."""

    branches: tuple[Jaxpr, ...]
    index: Atom
    operands: list[Atom]
    outvars: list[Var]

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Cond:
        return cls(inner_jaxprs(eqn), eqn.invars[0], list(eqn.invars[1:]), list(eqn.outvars))

    def equation(self, like: JaxprEqn) -> JaxprEqn:
        params = dict(like.params, branches=tuple(map(_jax.make_closed, self.branches)))
        return rebuilt(like, [self.index, *self.operands], self.outvars, params, self.branches)

    def forwarded(self) -> list[Atom]:
        """The results; where every branch gives the same operand back, that operand."""
        results: list[Atom] = []
        for position, outvar in enumerate(self.outvars):
            given = {_given(branch, position) for branch in self.branches}
            only = given.pop() if len(given) == 1 else None
            results.append(outvar if only is None else self.operands[only])
        return results


def rebuilt(
    like: JaxprEqn, invars: Sequence[Atom], outvars: Sequence[Var], params: dict[str, Any], inner: Sequence[Jaxpr]
) -> JaxprEqn:
    """`like` with other operands, results and parameters, and the effects of its inner jaxprs."""
    effects = set().union(*(jaxpr.effects for jaxpr in inner))
    return like.replace(invars=list(invars), outvars=list(outvars), params=params, effects=effects)


def _passed_through(body: Jaxpr, num_consts: int, num_carry: int) -> list[bool]:
    """Which carries the body of a loop gives back as they are."""
    carries = body.invars[num_consts : num_consts + num_carry]
    return [out is carry for carry, out in zip(carries, body.outvars, strict=False)]


def _carries_first(jaxpr: Jaxpr, num_consts: int, moved: Sequence[bool], drop_results: bool = False) -> Jaxpr:
    """Move some carries in front of the constants of a loop's jaxpr."""
    consts, rest = jaxpr.invars[:num_consts], jaxpr.invars[num_consts:]
    carries, xs = rest[: len(moved)], rest[len(moved) :]
    stay = [not m for m in moved]
    outvars = jaxpr.outvars
    if drop_results:
        outvars = [*kept(outvars[: len(moved)], stay), *outvars[len(moved) :]]
    return _jax.make_open([*kept(carries, moved), *consts, *kept(carries, stay), *xs], outvars, jaxpr.eqns, jaxpr)


def _given(branch: Jaxpr, position: int) -> int | None:
    """The index of the operand that a branch gives as its result at `position`, if it does."""
    result = branch.outvars[position]
    return next((i for i, v in enumerate(branch.invars) if v is result), None)


def fresh(atoms: Sequence[Any]) -> list[Var]:
    """New variables of the same types."""
    return [Var(atom.aval) for atom in atoms]


def substituted(atoms: Sequence[Atom], env: Mapping[Var, Atom]) -> list[Atom]:
    """The atoms that `env` gives for variables; literals and unknown variables stay."""
    return [atom if isinstance(atom, Literal) else env.get(atom, atom) for atom in atoms]


def spliced(jaxpr: Jaxpr, args: Sequence[Atom], eqns: list[JaxprEqn]) -> list[Atom]:
    """Append a copy of a jaxpr's equations to `eqns`, with `args` for its constants and inputs; what it returns."""
    env: dict[Var, Atom] = dict(zip((*jaxpr.constvars, *jaxpr.invars), args, strict=True))
    for eqn in jaxpr.eqns:
        outvars = fresh(eqn.outvars)
        eqns.append(_jax.with_variables(eqn, substituted(eqn.invars, env), outvars))
        env.update(zip(eqn.outvars, outvars, strict=True))
    return substituted(jaxpr.outvars, env)


def kept(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """The items whose mask is True."""
    return [item for item, keep in zip(items, mask, strict=True) if keep]


class DeadCode:
    """Removes equations, operands, carries and results that nobody reads, through loops and branches.

    JAX's own pass keeps unread carries of `while` before 0.12.
    """

    def __init__(self) -> None:
        # Jaxprs are kept beside their results, since the key is their identity.
        self._memo: dict[tuple[int, tuple[bool, ...]], tuple[Jaxpr, Jaxpr, list[bool]]] = {}

    def jaxpr(self, jaxpr: Jaxpr, used: Sequence[bool], keep_inputs: Sequence[bool] | None = None) -> tuple[Any, Any]:
        """The jaxpr with the used results only, and which inputs it has kept."""
        key = id(jaxpr), tuple(used)
        if key not in self._memo:
            self._memo[key] = (jaxpr, *self._run(jaxpr, used))
        _, lean, used_in = self._memo[key]
        if keep_inputs is None:
            return _with_invars(lean, kept(jaxpr.invars, used_in)), used_in
        both = [a or b for a, b in zip(used_in, keep_inputs, strict=True)]
        return _with_invars(lean, kept(jaxpr.invars, both)), both

    def _run(self, jaxpr: Jaxpr, used: Sequence[bool]) -> tuple[Jaxpr, list[bool]]:
        outvars = kept(jaxpr.outvars, used)
        live = {atom for atom in outvars if not isinstance(atom, Literal)}
        eqns = []
        for eqn in reversed(jaxpr.eqns):
            lean = self._equation(eqn, [v in live for v in eqn.outvars])
            if lean is not None:
                eqns.append(lean)
                live.update(atom for atom in lean.invars if not isinstance(atom, Literal))
        lean_jaxpr = _jax.make_open(jaxpr.invars, outvars, eqns[::-1], jaxpr)
        return lean_jaxpr, [v in live for v in jaxpr.invars]

    def _equation(self, eqn: JaxprEqn, used: list[bool]) -> JaxprEqn | None:
        if not any(used) and not _jax.has_lasting_effects(eqn):
            return None
        if is_left_whole(eqn):
            return eqn
        return {"while": self._while, "scan": self._scan, "cond": self._cond}[eqn.primitive.name](eqn, used)

    def _while(self, eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
        loop = While.of(eqn)
        num_cond, num_body = len(loop.cond_consts), len(loop.body_consts)
        cond, cond_in = self.jaxpr(loop.cond, [True])
        live = [a or b for a, b in zip(used, cond_in[num_cond:], strict=True)]
        while True:
            _, body_in = self.jaxpr(loop.body, live)
            grown = [a or b for a, b in zip(live, body_in[num_body:], strict=True)]
            if grown == live:
                break
            live = grown
        cond, _ = self.jaxpr(loop.cond, [True], [False] * num_cond + live)
        body, _ = self.jaxpr(loop.body, live, [False] * num_body + live)
        return While(
            cond,
            body,
            kept(loop.cond_consts, cond_in[:num_cond]),
            kept(loop.body_consts, body_in[:num_body]),
            kept(loop.init, live),
            kept(loop.outvars, live),
        ).equation(eqn)

    def _scan(self, eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
        loop = Scan.of(eqn)
        num_consts, num_carry = len(loop.consts), len(loop.init)
        live, ys = used[:num_carry], used[num_carry:]
        while True:
            _, body_in = self.jaxpr(loop.body, [*live, *ys])
            grown = [a or b for a, b in zip(live, body_in[num_consts : num_consts + num_carry], strict=True)]
            if grown == live:
                break
            live = grown
        keep = [*[False] * num_consts, *live, *[False] * len(loop.xs)]
        body, _ = self.jaxpr(loop.body, [*live, *ys], keep)
        return Scan(
            body,
            kept(loop.consts, body_in[:num_consts]),
            kept(loop.init, live),
            kept(loop.xs, body_in[num_consts + num_carry :]),
            kept(loop.carry_out, live),
            kept(loop.ys, ys),
        ).equation(eqn)

    def _cond(self, eqn: JaxprEqn, used: list[bool]) -> JaxprEqn:
        cond = Cond.of(eqn)
        live = [False] * len(cond.operands)
        for branch in cond.branches:
            live = [a or b for a, b in zip(live, self.jaxpr(branch, used)[1], strict=True)]
        branches = tuple(self.jaxpr(branch, used, live)[0] for branch in cond.branches)
        return Cond(branches, cond.index, kept(cond.operands, live), kept(cond.outvars, used)).equation(eqn)


def without_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without what nobody reads; its inputs and results are the same."""
    return DeadCode().jaxpr(jaxpr, [True] * len(jaxpr.outvars), [True] * len(jaxpr.invars))[0]


def reading(eqn: JaxprEqn, env: Mapping[Var, Atom]) -> JaxprEqn:
    """The equation with the operands that `env` gives; itself where it gives none."""
    invars = substituted(eqn.invars, env)
    if all(map(operator.is_, invars, eqn.invars)):
        return eqn
    return _jax.with_variables(eqn, invars, eqn.outvars)


def is_left_whole(eqn: JaxprEqn) -> bool:
    """True for an equation that surgery does not open: no control flow, or control flow over mutable arrays."""
    if eqn.primitive.name not in CONTROL_FLOW:
        return True
    return any(not isinstance(atom.aval, _jax.ShapedArray) for atom in (*eqn.invars, *eqn.outvars))


def _with_invars(jaxpr: Jaxpr, invars: Sequence[Var]) -> Jaxpr:
    return _jax.make_open(invars, jaxpr.outvars, jaxpr.eqns, jaxpr)


#: Shorter arrays are updated by selects in registers.
_INDEXED = 8


def indexed_carries(jaxpr: Any, first: int, count: int) -> list[bool]:
    """Which carries of a loop body, that begin at input `first`, it updates at an index known only at run time."""
    updated = set()
    for e in jaxpr.eqns:
        scatters = e.primitive.name.startswith("scatter")
        if scatters or e.primitive.name == "dynamic_update_slice":
            where = e.invars[1:2] if scatters else e.invars[2:]
            if not all(isinstance(v, Literal) for v in where):
                updated.add(e.invars[0])
    return [v in updated and v.aval.size > _INDEXED for v in jaxpr.invars[first:first + count]]


def read_whole(jaxpr: Jaxpr) -> list[bool]:
    """Which inputs it reads from end to end, not only a few of their elements."""
    read: set[Var] = set()
    for e in jaxpr.eqns:
        operands = kept(e.invars, _operands_read(e)) if inner_jaxprs(e) else e.invars[_reads_little(e):]
        read.update(v for v in operands if isinstance(v, Var))
    return [v in read for v in jaxpr.invars]


def _reads_little(eqn: JaxprEqn) -> bool:
    """Whether it reads less than half of its first operand."""
    return (eqn.primitive.name in ("gather", "dynamic_slice", "slice")
            and 2 * eqn.outvars[0].aval.size < eqn.invars[0].aval.size)


def _operands_read(eqn: JaxprEqn) -> list[bool]:
    """Which operands of control flow are read from end to end."""
    inner = [read_whole(body) for body in inner_jaxprs(eqn)]
    if eqn.primitive.name == "while":
        tested, changed = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = len(eqn.invars) - tested - changed
        return [*inner[0][:tested], *inner[1][:changed], *[True] * carried]
    if eqn.primitive.name == "cond":  # what only one branch reads is left to it: it may hardly ever be taken
        return [True, *map(all, zip(*inner, strict=True))]
    return inner[0]
