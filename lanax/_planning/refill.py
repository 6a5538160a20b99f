"""Programs that are a prologue, one `while` that lanes leave at different times, and an epilogue: a lane that has left
can take the next example. No LLVM here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, make_open
from lanax._planning.uniformity import Uniformity, analyse
from lanax._planning.work import UNROLL
from lanax._rewrite.surgery import CONTROL_FLOW, without_dead_code
from lanax._rewrite.unvmap import is_used


@dataclasses.dataclass(frozen=True)
class Loop:
    """A program around its loop.

    Attributes:
      eqn: the `while`; its operands that are literals stay literals.
      cond, body: what varies in its jaxprs.
      before: inputs -> the operands of the loop that are variables.
      after: inputs, then the loop's results -> the program's results.
      used: for each result of the loop, whether anything reads it.
    """

    eqn: JaxprEqn
    cond: Uniformity
    body: Uniformity
    before: Uniformity
    after: Uniformity
    used: tuple[bool, ...]

    @property
    def variables(self) -> list[Var]:
        """Operands of the loop that are variables, each once."""
        return list(dict.fromkeys(v for v in self.eqn.invars if not isinstance(v, Literal)))


def around_loop(found: Uniformity) -> Loop | None:
    """The program in three parts, or None where it is not of this form."""
    jaxpr = found.jaxpr
    if obstacle(found):
        return None
    (loop,) = _control_flow(jaxpr)
    eqn = jaxpr.eqns[loop]
    others = [e for e in jaxpr.eqns if e is not eqn]
    operands = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    before = _needed(jaxpr.invars, operands, others, found)
    after = _needed([*jaxpr.invars, *eqn.outvars], jaxpr.outvars, others, found)
    if before is None or after is None:
        return None
    read = {v for e in after.jaxpr.eqns for v in e.invars if not isinstance(v, Literal)}
    read |= {v for v in after.jaxpr.outvars if not isinstance(v, Literal)}
    cond, body = found.inner[loop]
    if not all(body.of(body.jaxpr.invars[eqn.params["body_nconsts"]:])):
        return None
    return Loop(eqn, cond, body, before, after, tuple(v in read for v in eqn.outvars))


def obstacle(found: Uniformity) -> str:
    """What about the loops of a program stands against it; empty where nothing does."""
    jaxpr = found.jaxpr
    if not _leaves_apart(found):
        return "no loop that lanes leave at different trips"
    loops = _control_flow(jaxpr)
    varying = [i for i in loops if jaxpr.eqns[i].primitive.name == "while" and found.predicate_varies(i)]
    if not varying:
        return "the uneven loop is inside another loop or a branch"
    if len(loops) > 1:
        return "there are other loops or branches before or behind the uneven loop"
    if any(is_used(part.jaxpr) and _leaves_apart(part) for part in found.inner[loops[0]]):
        # Whether all lanes take a step of another way to the same result depends on the lanes that are new: where an
        # iteration finds that result, such as in an implicit solver, it is not the same to the last bit.
        return "its trips ask what other lanes do, and hold another uneven loop"
    values = [*jaxpr.invars, *(v for e in jaxpr.eqns for v in (*e.invars, *e.outvars))]
    if any(v.aval.size > UNROLL for v in values):  # of what lies in memory, a lane's part could not be exchanged
        return f"there are arrays of more than {UNROLL} elements"
    return ""


def _control_flow(jaxpr: Jaxpr) -> list[int]:
    return [i for i, e in enumerate(jaxpr.eqns) if e.primitive.name in CONTROL_FLOW]


def _leaves_apart(found: Uniformity) -> bool:
    """Whether lanes leave a loop at different trips, at any depth."""
    return any((e.primitive.name == "while" and found.predicate_varies(i))
               or any(map(_leaves_apart, found.inner.get(i, ()))) for i, e in enumerate(found.jaxpr.eqns))


def _needed(inputs: Sequence[Var], outputs: Sequence[Atom], eqns: Sequence[JaxprEqn],
            found: Uniformity) -> Uniformity | None:
    """The equations that compute `outputs` of `inputs`; None where they need something else."""
    known = {*inputs}
    usable = []
    for e in eqns:
        if all(isinstance(v, Literal) or v in known for v in e.invars):
            usable.append(e)
            known.update(e.outvars)
    if any(not isinstance(v, Literal) and v not in known for v in outputs):
        return None
    lean = without_dead_code(make_open(list(inputs), list(outputs), usable))
    return analyse(lean, found.of(inputs))
