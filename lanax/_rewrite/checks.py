"""Takes run-time checks out of a per-example program, so that they do not keep it off the lanes. No LLVM here.

A check is what `equinox.error_if` stages: a `cond` of which one branch holds callbacks that raise, and the other hands
values on. The program is rewritten to hand the values on always, and to give out as further results whether an example
has failed a check and what the raising branch needs. After the kernel has run, the raising branch is run for one
example that failed, so the error is the one that `jax.vmap` gives.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from lanax._rewrite.surgery import (
    Cond,
    DeadCode,
    Scan,
    While,
    fresh,
    inner_jaxprs,
    is_left_whole,
    kept,
    spliced,
    substituted,
    without_dead_code,
)

#: Modules whose callbacks do nothing but raise, so that what they return is never used. Any other callback in a branch
#: may be there for its result.
RAISING_MODULES = frozenset({"equinox._errors"})

#: A raising branch that needs more operands than this, or others than scalars, is left alone: each operand is carried
#: through every loop around the check.
MAX_OPERANDS = 4


@dataclasses.dataclass(frozen=True)
class Check:
    """One check that was taken out.

    Attributes:
      branch: the raising branch, of the operands that it needs.
      source: the user's line, as `file:line (function)`.
    """

    branch: ClosedJaxpr
    source: str

    @property
    def num_outputs(self) -> int:
        """Further results of the rewritten program that belong to this check: `raised` and the operands."""
        return 1 + len(self.branch.in_avals)

    def run(self, raised: jax.Array, *operands: jax.Array, unless: Any = False) -> jax.Array:
        """Raise if any example has failed this check.

        Args:
          raised: for each example of the batch whether it failed; a scalar if that does not vary.
          operands: what the raising branch needs, for each example or as scalars.
          unless: a scalar; if True, nothing is raised.

        Returns:
          A scalar that is False, computed from what the callback returns. Under `jit` the check runs only if the
          scalar is used, see `tie`.
        """
        raised = jnp.reshape(raised, (-1,))
        if raised.size == 0:
            return jnp.zeros((), bool)

        def fail() -> jax.Array:
            # JAX's vmap of `equinox.branched_error_if` gives the message with the largest index in the batch.
            index = jnp.argmax(_rank(raised, operands))
            chosen = [operand[index] if operand.ndim else operand for operand in map(jnp.asarray, operands)]
            results = _jax.eval_jaxpr(*_jax.open_and_consts(self.branch), *chosen)
            return jnp.any(jnp.stack([jnp.any(result != 0) for result in results]))

        return jax.lax.cond(jnp.any(raised) & ~jnp.asarray(unless), fail, lambda: jnp.zeros((), bool))


def _rank(raised: jax.Array, operands: Sequence[jax.Array]) -> jax.Array:
    """A number for each example that is largest for the one to report."""
    if len(operands) == 1 and jnp.issubdtype(operands[0].dtype, jnp.integer):
        (index,) = operands
        return jnp.where(raised, index, jnp.iinfo(index.dtype).min)
    return raised


def condensed(checks: Sequence[Check], outputs: Sequence[jax.Array]) -> list[jax.Array]:
    """The further results of the program for `run_all`, with one scalar for all examples where that will do: it is sent
    between devices instead."""
    found, start = list(outputs), 0
    for check in checks:
        if check.num_outputs == 1:
            found[start] = jnp.any(found[start])
        start += check.num_outputs
    return found


def run_all(checks: Sequence[Check], outputs: Sequence[jax.Array]) -> jax.Array:
    """Run all checks, in the order of the program, on the further results of the program, batch axis first."""
    token, start = jnp.zeros((), bool), 0
    for check in checks:
        mine = outputs[start : start + check.num_outputs]
        token = token | check.run(*mine, unless=token)
        start += check.num_outputs
    return token


def tie(outputs: Sequence[jax.Array], token: jax.Array) -> list[jax.Array]:
    """The outputs, made to depend on `token`, so that XLA cannot drop the checks that it stands for."""
    plain = [i for i, out in enumerate(outputs) if not jnp.issubdtype(out.dtype, jax.dtypes.extended)]
    tied = list(outputs)
    if plain:
        # One output is enough, and the smallest is cheapest. (XLA's CPU backend drops an optimization barrier.)
        index = min(plain, key=lambda i: outputs[i].size)
        tied[index] = jnp.where(token, jnp.zeros_like(outputs[index]), outputs[index])
    return tied


def extract_checks(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Check]]:
    """Take the checks out of an expanded program.

    Returns:
      The program with further results at the end, and the checks they belong to: for each check, in order, whether the
      example failed it, and the operands of its raising branch. An example that has failed a check goes on with the
      values of the branch that does not raise; later failures of the same example inside the same loop do not count.
    """
    jaxpr, consts = _jax.open_and_consts(closed)
    if not _has_check(jaxpr):
        return closed, []
    lifted, checks = _lifted(jaxpr)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    lean = without_dead_code(_jax.make_open(inputs, lifted.outvars, lifted.eqns))
    lean = _jax.make_open(jaxpr.invars, lean.outvars, lean.eqns, jaxpr)
    return _jax.make_closed(lean, jaxpr.constvars, consts), checks


@dataclasses.dataclass
class _Record:
    """What a check gives out within one jaxpr: whether it raised, and the operands of its branch."""

    check: Check
    values: list[Atom]


def _lifted(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Check]]:
    """A jaxpr without checks, which gives their values as further results."""
    eqns: list[JaxprEqn] = []
    records: list[_Record] = []
    env: dict[Var, Atom] = {}
    for original in jaxpr.eqns:
        eqn = _jax.with_variables(original, substituted(original.invars, env), original.outvars)
        found = _found(eqn)
        if found is not None:
            results, record = _taken_out(eqn, *found, eqns)
            env.update(zip(eqn.outvars, results, strict=True))
            records.append(record)
        elif not is_left_whole(eqn) and any(map(_has_check, inner_jaxprs(eqn))):
            records += {"while": _while, "scan": _scan, "cond": _cond}[eqn.primitive.name](eqn, eqns)
        else:
            eqns.append(eqn)
    outvars = [*substituted(jaxpr.outvars, env), *(value for record in records for value in record.values)]
    return _jax.make_open(jaxpr.invars, outvars, eqns, jaxpr), [record.check for record in records]


def _has_check(jaxpr: Jaxpr) -> bool:
    return any(_found(eqn) is not None or any(map(_has_check, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)


def _found(eqn: JaxprEqn) -> tuple[int, list[bool]] | None:
    """For a check: the index of its raising branch, and which operands that needs."""
    if eqn.primitive.name != "cond" or len(eqn.params["branches"]) != 2 or is_left_whole(eqn):
        return None
    branches = inner_jaxprs(eqn)
    raising = [_raises(branch) for branch in branches]
    if sum(raising) != 1 or _has_callback(branches[raising.index(False)]):
        return None
    index = raising.index(True)
    _, used = DeadCode().jaxpr(branches[index], [True] * len(branches[index].outvars))
    needed = kept(eqn.invars[1:], used)
    small = len(needed) <= MAX_OPERANDS and all(_jax.is_plain_scalar(atom.aval) for atom in needed)
    return (index, used) if small else None


def _raises(branch: Jaxpr) -> bool:
    """True for a branch that holds callbacks, all of which do nothing but raise."""
    callbacks = [eqn for eqn in branch.eqns if "callback" in eqn.primitive.name]
    return bool(callbacks) and all(_callback_module(eqn) in RAISING_MODULES for eqn in callbacks)


def _callback_module(eqn: JaxprEqn) -> str | None:
    callback = eqn.params.get("callback")
    return getattr(getattr(callback, "callback_func", callback), "__module__", None)


def _has_callback(jaxpr: Jaxpr) -> bool:
    return any("callback" in e.primitive.name or any(map(_has_callback, inner_jaxprs(e))) for e in jaxpr.eqns)


def _taken_out(eqn: JaxprEqn, raising: int, used: list[bool], eqns: list[JaxprEqn]) -> tuple[list[Atom], _Record]:
    """Replace a check by its other branch; the results of that, and the record."""
    cond = Cond.of(eqn)
    branch, _ = DeadCode().jaxpr(cond.branches[raising], [True] * len(eqn.outvars))
    results = spliced(cond.branches[1 - raising], cond.operands, eqns)
    (raised,) = _emit(eqns, lambda index: [index >= 1 if raising else index <= 0], [cond.index])
    check = Check(_jax.make_closed(branch), _jax.source_line(eqn))
    return results, _Record(check, [raised, *kept(cond.operands, used)])


def _cond(eqn: JaxprEqn, eqns: list[JaxprEqn]) -> list[_Record]:
    """Give the values of each branch's checks out of a `cond`; the other branches give that nothing was raised."""
    cond = Cond.of(eqn)
    lifted = [_lifted(branch) for branch in cond.branches]
    num_results = len(cond.outvars)
    blanks = [_blanks(branch.outvars[num_results:]) for branch, _ in lifted]
    branches = []
    for position, (branch, _) in enumerate(lifted):
        values = [b for other, bs in enumerate(blanks) if other < position for b in bs]
        values += branch.outvars[num_results:]
        values += [b for other, bs in enumerate(blanks) if other > position for b in bs]
        branches.append(_jax.make_open(branch.invars, [*branch.outvars[:num_results], *values], branch.eqns, branch))
    extra = fresh([b for bs in blanks for b in bs])
    eqns.append(Cond(tuple(branches), cond.index, cond.operands, [*cond.outvars, *extra]).equation(eqn))
    return _records([check for _, checks in lifted for check in checks], extra)


def _scan(eqn: JaxprEqn, eqns: list[JaxprEqn]) -> list[_Record]:
    """Carry the values of the body's checks through a `scan`."""
    loop, num_carry = Scan.of(eqn), _jax.scan_counts(eqn.params)[1]
    body, checks = _lifted(loop.body)
    num_results = len(loop.body.outvars)
    now = body.outvars[num_results:]
    before, body_eqns = fresh(now), list(body.eqns)
    after = _first_failure(checks, before, now, body_eqns)
    start = len(loop.consts) + num_carry
    results = body.outvars[:num_results]
    loop.body = _jax.make_open(
        [*body.invars[:start], *before, *body.invars[start:]],
        [*results[:num_carry], *after, *results[num_carry:]],
        body_eqns,
        body,
    )
    extra = fresh(now)
    loop.init, loop.carry_out = [*loop.init, *_blanks(now)], [*loop.carry_out, *extra]
    eqns.append(loop.equation(eqn))
    return _records(checks, extra)


def _while(eqn: JaxprEqn, eqns: list[JaxprEqn]) -> list[_Record]:
    """Carry the values of the checks in the condition and the body through a `while`."""
    loop = While.of(eqn)
    cond, cond_checks = _lifted(loop.cond)
    body, body_checks = _lifted(loop.body)
    checks = [*cond_checks, *body_checks]
    asked = _jax.make_open(cond.invars, cond.outvars[1:], cond.eqns, cond)
    asked, needed = DeadCode().jaxpr(asked, [True] * len(asked.outvars))
    at_start = spliced(asked, kept([*loop.cond_consts, *loop.init], needed), eqns)

    # The condition is asked once before the loop, and after each run of the body about the new carry. It has no
    # results to give values out by, so the part of it that the checks need is computed there again.
    num_carry, num_body = len(loop.init), len(loop.body_consts)
    body_eqns, cond_consts = list(body.eqns), fresh(cond.invars[: len(loop.cond_consts)])
    again = spliced(asked, kept([*cond_consts, *body.outvars[:num_carry]], needed), body_eqns)
    # Within one iteration the body comes first.
    now = [*again, *body.outvars[num_carry:]]
    before = fresh(now)
    after = _first_failure([*body_checks, *cond_checks], _turned(before, again), _turned(now, again), body_eqns)
    after = _turned(after, body.outvars[num_carry:])
    loop.body = _jax.make_open(
        [*cond_consts, *body.invars[:num_body], *body.invars[num_body:], *before],
        [*body.outvars[:num_carry], *after],
        body_eqns,
        body,
    )
    loop.cond = _jax.make_open([*cond.invars, *fresh(now)], cond.outvars[:1], cond.eqns, cond)
    extra = fresh(now)
    loop.body_consts = [*loop.cond_consts, *loop.body_consts]
    loop.init = [*loop.init, *at_start, *_blanks(body.outvars[num_carry:])]
    loop.outvars = [*loop.outvars, *extra]
    eqns.append(loop.equation(eqn))
    return _records(checks, extra)


def _turned(values: Sequence[Any], first: Sequence[Any]) -> list[Any]:
    """The values with as many as there are in `first` moved from the front to the back."""
    return [*values[len(first) :], *values[: len(first)]]


def _records(checks: Sequence[Check], values: Sequence[Atom]) -> list[_Record]:
    records, start = [], 0
    for check in checks:
        records.append(_Record(check, list(values[start : start + check.num_outputs])))
        start += check.num_outputs
    return records


def _blanks(atoms: Sequence[Any]) -> list[Atom]:
    """Values that say that nothing was raised. Operands are then never read."""
    return [_jax.zero(atom.aval) for atom in atoms]


def _first_failure(
    checks: Sequence[Check], before: Sequence[Atom], now: Sequence[Atom], eqns: list[JaxprEqn]
) -> list[Atom]:
    """The values after an iteration: those from before once anything was raised, or else those of now."""
    starts = [0]
    for check in checks:
        starts.append(starts[-1] + check.num_outputs)

    def merged(*values: Any) -> list[Any]:
        old, new = list(values[: len(before)]), list(values[len(before) :])
        failed = old[0]
        for start in starts[1:-1]:
            failed = failed | old[start]
        for start, end in itertools.pairwise(starts):
            mine = new[start]
            new[start] = old[start] | (mine & ~failed)
            for i in range(start + 1, end):
                new[i] = jax.lax.select(failed, old[i], new[i])
            failed = failed | mine
        return new

    return _emit(eqns, merged, [*before, *now])


def _emit(eqns: list[JaxprEqn], fun: Callable[..., list[Any]], atoms: Sequence[Atom]) -> list[Atom]:
    """Append the equations of a JAX function of the atoms; its results."""
    traced = _jax.trace(fun, [atom.aval for atom in atoms])
    return spliced(_jax.open_and_consts(traced)[0], atoms, eqns)
