"""Equinox's `unvmap_any`, `unvmap_all` and `unvmap_max`: when the reduction over one example will do.

Under `jax.vmap` they reduce over the batch as well. The libraries that use them (Equinox's loops and `error_if`,
Diffrax, Lineax, Optimistix) do so to choose between ways to the same result: whether a loop goes on, which it does
with finished examples frozen; whether a step that only some examples need, but that harms none, is taken; whether
anything is to be raised. There the reduction over one example gives what the function gives for that example alone,
which is what `jax.vmap` promises, and no example waits for another. Where the value only chooses by a `select` or a
branch, the reduction over the active lanes of one step will do as well, since `jax.vmap` of just these examples would
give it; then it is uniform, and so is what it chooses (the first stage of a Runge-Kutta step, say). Where the reduced
value itself can be seen in the results, only the reduction over the batch is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal
from lanax._rewrite.surgery import Cond, Scan, While, inner_jaxprs, is_left_whole

PRIMITIVES = frozenset({"unvmap_all", "unvmap_any", "unvmap_max"})

#: What a callback gives is never batch-wide data: those that get such values raise or print.
_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback"})


def is_used(jaxpr: Jaxpr) -> bool:
    """True where one of the primitives occurs, at any depth."""
    return any(eqn.primitive.name in PRIMITIVES or any(map(is_used, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)


#: What hands a choice on.
_LOGIC = frozenset({"and", "convert_element_type", "not", "or", "reduce_and", "reduce_or"})


def only_choosing(jaxpr: Jaxpr) -> set[int]:
    """Indices of the equations whose reduction does nothing in this jaxpr but choose, by `select_n` or by a branch that
    holds no callback."""
    escaping = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    found: set[int] = set()
    for index, eqn in reversed(list(enumerate(jaxpr.eqns))):
        name = eqn.primitive.name
        quiet = not any(v in escaping for v in eqn.outvars)
        if name in PRIMITIVES and quiet:
            found.add(index)
        if name in _LOGIC and quiet:
            continue
        chooses = name == "select_n" or (name == "cond" and not any(map(_calls_back, inner_jaxprs(eqn))))
        escaping.update(v for v in eqn.invars[int(chooses):] if not isinstance(v, Literal))
    return found


def _calls_back(jaxpr: Jaxpr) -> bool:
    return any(e.primitive.name in _CALLBACKS or any(map(_calls_back, inner_jaxprs(e))) for e in jaxpr.eqns)


def reaches_output(jaxpr: Jaxpr) -> bool:
    """True where a result is computed from a batch-wide reduction, other than by choosing a branch with it."""
    return any(_reached(jaxpr, [False] * len(jaxpr.invars)))


def _reached(jaxpr: Jaxpr, inputs: Sequence[bool]) -> list[bool]:
    """Which results carry batch-wide data, given which inputs do."""
    carrying = {var for var, b in zip(jaxpr.invars, inputs, strict=True) if b}

    def reads(atoms: Sequence[Atom]) -> list[bool]:
        return [not isinstance(atom, Literal) and atom in carrying for atom in atoms]

    for eqn in jaxpr.eqns:
        carrying.update(v for v, b in zip(eqn.outvars, _outputs(eqn, reads(eqn.invars)), strict=True) if b)
    return reads(jaxpr.outvars)


def _outputs(eqn: JaxprEqn, inputs: list[bool]) -> list[bool]:
    name, everything = eqn.primitive.name, [True] * len(eqn.outvars)
    if name in PRIMITIVES:
        return everything
    if name in _CALLBACKS:
        return [False] * len(eqn.outvars)
    if name == "select_n":
        return [any(inputs[1:])]
    if is_left_whole(eqn):
        return everything if any(inputs) else [False] * len(eqn.outvars)
    if name == "cond":
        return [any(bs) for bs in zip(*(_reached(b, inputs[1:]) for b in Cond.of(eqn).branches), strict=True)]
    loop = While.of(eqn) if name == "while" else Scan.of(eqn)
    skipped = len(loop.cond_consts) if isinstance(loop, While) else 0
    num_consts = len(loop.body_consts if isinstance(loop, While) else loop.consts)
    return _loop(loop.body, inputs[skipped:], num_consts, len(loop.init))


def _loop(body: Jaxpr, inputs: list[bool], num_consts: int, num_carry: int) -> list[bool]:
    end = num_consts + num_carry
    while True:
        outputs = _reached(body, inputs)
        carry = [a or b for a, b in zip(inputs[num_consts:end], outputs[:num_carry], strict=True)]
        if carry == inputs[num_consts:end]:
            return [*carry, *outputs[num_carry:]]
        inputs = [*inputs[:num_consts], *carry, *inputs[end:]]
