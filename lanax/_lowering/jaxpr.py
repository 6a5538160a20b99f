"""Lowers a jaxpr: read operands, find the rule, build the context, call it, write results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from lanax._errors import LoweringError, RuleError
from lanax._jax import Jaxpr, JaxprEqn, Literal, Var, is_key, source_line
from lanax._lowering.arrays import Array, Lazy
from lanax._lowering.context import Context, LowerInner
from lanax._lowering.emitter import Emitter
from lanax._lowering.keys import by_word, is_complex
from lanax._lowering.liveness import Liveness
from lanax._lowering.meter import counts, inside
from lanax._lowering.registry import RULES
from lanax._planning.uniformity import Uniformity


def lower_jaxpr(b: Emitter, jaxpr: Jaxpr, args: Sequence[Array], uniformity: Uniformity,
                mask: ir.Value | None) -> list[Array]:
    """Emit the equations of `jaxpr` (consts first, then inputs, in `args`); gives its results."""
    env: dict[Var, Array] = dict(zip([*jaxpr.constvars, *jaxpr.invars], args, strict=True))
    liveness = Liveness(jaxpr)

    def read(atom: Var | Literal) -> Array:
        if isinstance(atom, Literal):
            return b.full((), atom.val, atom.aval.dtype)
        return env[atom]

    for i, eqn in enumerate(jaxpr.eqns):
        operands = [read(v) for v in eqn.invars]
        ctx = Context(
            b, tuple(v.aval for v in eqn.invars), tuple(v.aval for v in eqn.outvars), mask, liveness.dying(i),
            tuple(env[v] for v in liveness.live_after(i) if v in env), liveness.used(i), uniformity.inner.get(i, ()),
            _inner_lowering(b, eqn, uniformity.inner.get(i, ())), counts(b, eqn),
        )
        for var, value in zip(eqn.outvars, _apply(ctx, eqn, operands), strict=True):
            several = liveness.uses.get(var, 0) > 1
            env[var] = b.stored(value) if several and isinstance(value, Lazy) and not value.view else value
        for var in liveness.dead_after(i):
            env.pop(var, None)
    return [read(v) for v in jaxpr.outvars]


def _apply(ctx: Context, eqn: JaxprEqn, operands: list[Array]) -> list[Array]:
    """Call the equation's rule, and check that what it gives has the equation's types."""
    name = eqn.primitive.name
    entry = RULES.get(name)
    if entry is None:
        raise LoweringError(f"primitive `{name}` ({source_line(eqn)}) has no lowering rule. Register one with "
                            "lanax.extend.register, or let the equation take the `xla` route.")
    params = {key: _plain(value) for key, value in eqn.params.items()}
    if not entry.keys and any(is_key(a) for a in (*ctx.avals_in, *ctx.avals_out)):
        out = by_word(ctx, entry.rule, operands, params)
    else:
        out = entry.rule(ctx, *operands, **params)
    results = [out] if isinstance(out, Array) else list(out)
    given = [f"{value.dtype}{list(value.shape)}" for value in results]
    wanted = [aval.str_short() for aval in ctx.avals_out]
    if len(results) != len(wanted) or not all(map(_has_type, results, ctx.avals_out)):
        raise RuleError(f"the rule of primitive `{name}` gave {', '.join(given) or 'nothing'} for results of type "
                        f"{', '.join(wanted)} ({source_line(eqn)}). This is a bug in the rule: please report it.")
    return results


def _plain(value: Any) -> Any:
    """A parameter with NumPy's integers, which JAX lets through in shapes and positions, as Python's."""
    if isinstance(value, np.integer):
        return int(value)
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _has_type(value: Array, aval: Any) -> bool:
    return is_key(aval) or is_complex(aval) or (value.shape, value.dtype) == (aval.shape, aval.dtype)


def _inner_lowering(b: Emitter, eqn: JaxprEqn, inner: tuple[Uniformity, ...]) -> LowerInner:
    """How the equation's rule lowers one of its inner jaxprs: results leave settled, so they hold in other blocks."""

    def lower(which: int, args: Sequence[Array], mask: ir.Value | None) -> list[Array]:
        found = inner[which]
        with inside(b):
            return [b.settled(x) for x in lower_jaxpr(b, found.jaxpr, args, found, mask)]

    return lower
