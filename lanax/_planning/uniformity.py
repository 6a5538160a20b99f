"""Which values of a per-example jaxpr vary over the batch, and which are uniform. Knows nothing of LLVM or of rules.

The jaxpr is one that `lanax._rewrite.trace.expand` gives: its inner jaxprs have no constants of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from lanax import _jax
from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from lanax._rewrite import unvmap
from lanax._rewrite.surgery import Cond, Scan, While, is_left_whole


@dataclasses.dataclass
class Uniformity:
    """What varies in one jaxpr.

    Attributes:
      jaxpr: the jaxpr.
      varying: for each of its variables whether it varies. In the jaxprs of a loop a carry varies if it does at any
        iteration.
      inner: by the index of a control-flow equation what varies in its inner jaxprs: `(cond, body)` of a `while`,
        `(body,)` of a `scan`, one for each branch of a `cond`.
      varying_out: which results vary.
    """

    jaxpr: Jaxpr
    varying: dict[Var, bool] = dataclasses.field(default_factory=dict)
    inner: dict[int, tuple[Uniformity, ...]] = dataclasses.field(default_factory=dict)
    varying_out: list[bool] = dataclasses.field(default_factory=list)

    def of(self, atoms: Sequence[Atom]) -> list[bool]:
        """Whether each of the atoms varies; literals do not."""
        return [not isinstance(atom, Literal) and self.varying[atom] for atom in atoms]

    def predicate_varies(self, index: int) -> bool:
        """Whether lanes part at the `while` or `cond` equation with this index."""
        eqn = self.jaxpr.eqns[index]
        if eqn.primitive.name == "while":
            return self.inner[index][0].varying_out[0]
        return eqn.primitive.name == "cond" and self.of(eqn.invars[:1])[0]

    def text(self) -> str:
        """The jaxpr with `v` (varying) or `u` (uniform) before each variable where it is bound."""
        return "\n".join(_lines(self, _Names(), ""))


def analyse(jaxpr: Jaxpr, varying_in: Sequence[bool], while_active: bool = False) -> Uniformity:
    """Find what varies.

    Args:
      jaxpr: an open jaxpr, or the one of a closed one.
      varying_in: for each constvar and each input whether it varies; constvars may be left out, and are uniform then.
      while_active: in a `while` that lanes leave at different iterations, call a carry uniform inside the loop if it
        is the same for all lanes that are still active (a count of iterations, say), though its result varies.
        Otherwise such a carry varies inside as well.
    """
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    given = [*[False] * (len(inputs) - len(varying_in)), *varying_in]
    result = Uniformity(jaxpr, dict(zip(inputs, map(bool, given), strict=True)))
    for index, eqn in enumerate(jaxpr.eqns):
        operands = result.of(eqn.invars)
        if eqn.primitive.name in unvmap.PRIMITIVES:
            outputs = [False]
        elif is_left_whole(eqn):
            outputs = [any(operands)] * len(eqn.outvars)
        else:
            outputs, result.inner[index] = _RULES[eqn.primitive.name](eqn, operands, while_active)
        result.varying.update(zip(eqn.outvars, outputs, strict=True))
    result.varying_out = result.of(jaxpr.outvars)
    return result


_Result = tuple[list[bool], tuple[Uniformity, ...]]


def _while(eqn: JaxprEqn, operands: list[bool], while_active: bool) -> _Result:
    loop = While.of(eqn)
    num_cond, num_body = len(loop.cond_consts), len(loop.body_consts)
    cond_consts, body_consts = operands[:num_cond], operands[num_cond : num_cond + num_body]
    carry = operands[num_cond + num_body :]
    # A carry that the body hands on as it is has its final value from the start, whenever a lane leaves.
    changed = [v is not out for v, out in zip(loop.body.invars[num_body:], loop.body.outvars, strict=True)]
    while True:
        cond = analyse(loop.cond, [*cond_consts, *carry], while_active)
        body = analyse(loop.body, [*body_consts, *carry], while_active)
        left_apart = [cond.varying_out[0] and c for c in changed]
        grown = _either(carry, body.varying_out)
        if not while_active:
            grown = _either(grown, left_apart)
        if grown == carry:
            return _either(carry, left_apart), (cond, body)
        carry = grown


def _scan(eqn: JaxprEqn, operands: list[bool], while_active: bool) -> _Result:
    loop = Scan.of(eqn)
    num_consts, num_carry = len(loop.consts), len(loop.init)
    consts, carry, xs = operands[:num_consts], operands[num_consts:][:num_carry], operands[num_consts + num_carry :]
    while True:
        body = analyse(loop.body, [*consts, *carry, *xs], while_active)
        grown = _either(carry, body.varying_out[:num_carry])
        if grown == carry:
            return [*carry, *body.varying_out[num_carry:]], (body,)
        carry = grown


def _cond(eqn: JaxprEqn, operands: list[bool], while_active: bool) -> _Result:
    branches = tuple(analyse(branch, operands[1:], while_active) for branch in Cond.of(eqn).branches)
    outputs = [operands[0] or any(vs) for vs in zip(*(branch.varying_out for branch in branches), strict=True)]
    return outputs, branches


_RULES = {"while": _while, "scan": _scan, "cond": _cond}


def _either(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]


class _Names:
    """Short names for variables, in the order in which they are bound."""

    def __init__(self) -> None:
        self.fresh = _short_names()
        self.known: dict[Var, str] = {}

    def bind(self, result: Uniformity, var: Var) -> str:
        if isinstance(var, _jax.DropVar):
            return "_"
        name = self.known.setdefault(var, next(self.fresh))
        return f"{'v' if result.varying[var] else 'u'} {name}:{var.aval.str_short(short_dtypes=True)}"

    def read(self, atom: Atom) -> str:
        return str(np.asarray(atom.val)) if isinstance(atom, Literal) else self.known[atom]


def _short_names() -> Iterator[str]:
    """a, b, ... without the marks u and v."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product("abcdefghijklmnopqrstwxyz", repeat=length))


def _lines(result: Uniformity, names: _Names, indent: str) -> Iterator[str]:
    jaxpr = result.jaxpr
    inputs = ", ".join(names.bind(result, var) for var in (*jaxpr.constvars, *jaxpr.invars))
    yield f"{indent}({inputs}) ->"
    for index, eqn in enumerate(jaxpr.eqns):
        operands = " ".join(map(names.read, eqn.invars))
        outputs = ", ".join(names.bind(result, var) for var in eqn.outvars)
        yield f"{indent}  {outputs} = {eqn.primitive.name} {operands}"
        for inner in result.inner.get(index, ()):
            yield from _lines(inner, names, indent + "    ")
    yield f"{indent}  return {', '.join(map(names.read, jaxpr.outvars))}"
