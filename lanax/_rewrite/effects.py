"""What in a per-example program `jax.vmap` itself must see: effects, and collectives over named axes. The program is
cut there, so that what lies between can be in lanes. Knows nothing of batches or LLVM.

`jax.vmap` says what these mean: in which order examples print, which callbacks it refuses, what a sum over an axis
gives. So their equations are handed to it one by one, and never become part of a mapped call, which has no effects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lanax import _jax
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lanax._planning.partition import REPEAT, UNIFORM, XLA, Miss, divided, repeat_constants
from lanax._program import programs_in
from lanax._rewrite.surgery import inner_jaxprs, is_left_whole
from lanax._rewrite.trace import CALLS, Expander, Scope


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a program that has been cut.

    Attributes:
      jaxpr: its equations.
      misses: the equations that `jax.vmap` must see, and why; of a piece that can be bound as a program, none.
    """

    jaxpr: Jaxpr
    misses: tuple[Miss, ...]


def is_pure(jaxpr: Jaxpr) -> bool:
    """Whether a program has nothing that `jax.vmap` must see. To be asked where the named axes are known."""
    return not jaxpr.effects and not _jax.names_an_axis(jaxpr) and not any(map(_has_batching_rule, jaxpr.eqns))


def _has_batching_rule(eqn: JaxprEqn) -> bool:
    """Whether an equation is, or holds, a call with a rule of the user's for a whole batch."""
    return eqn.primitive.name == "custom_vmap_call" or any(
        _has_batching_rule(e) for jaxpr in _jax.jaxprs_in(eqn) for e in jaxpr.eqns)


def why_seen(eqn: JaxprEqn) -> str | None:
    """The reason why `jax.vmap` must see an equation, or None."""
    if not eqn.effects and not _jax.equation_names_an_axis(eqn) and not _has_batching_rule(eqn):
        return None
    if eqn.primitive.name == "custom_vmap_call":
        return "it has a rule of custom_vmap, which jax.vmap applies to the whole batch, and differentiates"
    for jaxpr in _jax.jaxprs_in(eqn):
        for e in jaxpr.eqns:
            reason = why_seen(e)
            if reason:
                return f"it holds `{e.primitive.name}` ({_jax.source_line(e)}): {reason}"
    axes = _jax.axes_of(eqn)
    if eqn.primitive.name == "axis_index":
        return f"it is the index along the axis {axes}, inside something that is left whole"
    if axes:
        return f"it exchanges values between the examples along the axis {axes}"
    effects = ", ".join(sorted(map(str, eqn.effects)))
    return f"it has a side effect ({effects}), which happens as jax.vmap says, once for each example"


def opened(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program in which calls that hold what `jax.vmap` must see are inlined, and indices along named axes are inputs.

    An index is computed here, in the current trace, and is a constant of the result. Calls with rules for
    differentiation are left whole, and so are loops and branches, but for the indices inside them.
    """
    opener = _Opener()
    inner = opener.inner(closed)
    lean = _jax.with_results(inner.with_consts(), [True] * len(inner.jaxpr.outvars))
    count = len(inner.constvars)
    jaxpr = _jax.make_open(lean.invars[count:], lean.outvars, lean.eqns, inner.jaxpr)
    return _jax.make_closed(jaxpr, lean.invars[:count], inner.consts)


class _Opener(Expander):
    """Inlines no more than it must: the result is still to be differentiated."""

    def __init__(self) -> None:
        super().__init__(lambda *_: True, {}, "")
        self.indices: dict[Any, Any] = {}

    def equation(self, eqn: JaxprEqn, operands: list[Atom], scope: Scope) -> Sequence[Atom]:
        name = eqn.primitive.name
        if name == "axis_index":
            return [self.index(eqn, scope)]
        if name in _INLINED and why_seen(eqn):
            return self.called(eqn, next(eqn.params[key] for key in CALLS[name] if key in eqn.params), operands, scope)
        eqn = eqn.replace(source_info=self.origin(eqn))
        if _holds_index(eqn):
            expand_inner = {"while": self.while_loop, "scan": self.scan, "cond": self.cond}[name]
            return self.within(eqn.source_info, expand_inner, eqn, operands, scope)
        return scope.keep(eqn, operands)

    def index(self, eqn: JaxprEqn, scope: Scope) -> Atom:
        name = eqn.params["axis_name"]
        if name not in self.indices:
            (self.indices[name],) = _jax.jaxpr_as_fun(_jax.make_open([], eqn.outvars, [eqn]))()
        return scope.constant(self.indices[name], eqn.outvars[0].aval)


#: Calls that have no meaning of their own.
_INLINED = frozenset({"jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr"})


def _holds_index(eqn: JaxprEqn) -> bool:
    """Whether an index along a named axis is read inside a loop or a branch, where it can be handed in."""
    if is_left_whole(eqn) or eqn.params.get("branches_platforms") is not None:
        return False
    return any(_reads_index(e) for jaxpr in inner_jaxprs(eqn) for e in jaxpr.eqns)


def _reads_index(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name in _INLINED:
        return any(_reads_index(e) for jaxpr in _jax.jaxprs_in(eqn) for e in jaxpr.eqns)
    return eqn.primitive.name == "axis_index" or _holds_index(eqn)


def pieces(jaxpr: Jaxpr) -> list[Piece]:
    """Cut a program, as `opened` gives it, into as few pieces as its order allows.

    Even stages are for `jax.vmap`, odd ones can be in lanes. An effect comes after the effects and loops before it,
    and before the loops after it: what is printed before a loop that hangs is seen.
    """
    reasons = list(map(why_seen, jaxpr.eqns))
    marks = repeat_constants(jaxpr, [XLA if reason else UNIFORM for reason in reasons])
    order = _Order()
    stages = [None if mark == REPEAT else order.place(eqn, reason is not None)
              for eqn, reason, mark in zip(jaxpr.eqns, reasons, marks, strict=True)]
    misses: dict[int, list[Miss]] = {}
    for eqn, reason, at in zip(jaxpr.eqns, reasons, stages, strict=True):
        if reason and at is not None:
            misses.setdefault(at, []).append(Miss(eqn.primitive.name, _jax.source_line(eqn), reason))
    return [Piece(part, tuple(dict.fromkeys(misses.get(at, ())))) for at, part in divided(jaxpr, stages)]


class _Order:
    """At which stage each equation runs, given one after another."""

    def __init__(self) -> None:
        self.stage: dict[Var, int] = {}
        self.effect = 0
        self.loop = 0

    def place(self, eqn: JaxprEqn, seen: bool) -> int:
        at = max((self.stage.get(v, 0) for v in eqn.invars if not isinstance(v, Literal)), default=0)
        effect, loops = _jax.has_lasting_effects(eqn), _loops(eqn)
        if effect:
            at = max(at, self.effect, self.loop)
        elif loops:
            at = max(at, self.effect)
        at += (at % 2 == 0) != seen
        if effect:
            self.effect = at
        if loops:
            self.loop = max(self.loop, at)
        self.stage.update(dict.fromkeys(eqn.outvars, at))
        return at


def _loops(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in ("while", "scan") or any(_loops(e) for inner in programs_in(eqn) for e in inner.eqns)
