"""Turns a per-example jaxpr into one of primitives that have a rule, control flow, and what nothing is known about.

The result is for compilation only: calls that carry rules for differentiation (`custom_jvp_call`, ...) are gone, so
differentiate the original. Knows nothing of batches, lanes or LLVM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lanax import _jax
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from lanax._rewrite import unvmap
from lanax._rewrite.surgery import Cond, DeadCode, Scan, While, fresh, is_left_whole, kept, substituted

HasRule = Callable[[Primitive, Mapping[str, Any]], bool]
Compositions = Mapping[str, Callable[..., Any]]

#: Calls, and the parameter that holds the called jaxpr: the first of these names that is there.
CALLS: Mapping[str, tuple[str, ...]] = {
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "core_call": ("call_jaxpr",),
    "call": ("call_jaxpr",),
    "eval_jaxpr": ("call_jaxpr", "jaxpr"),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr",),
    "custom_vjp_call_jaxpr": ("fun_jaxpr", "call_jaxpr"),
    "remat2": ("jaxpr",),
    "checkpoint": ("jaxpr",),
    "remat_opt": ("fwd_jaxpr",),
    "linear_call": ("callee",),
    "composite": ("call_jaxpr", "jaxpr"),
    "xla_metadata_call": ("jaxpr",),
}

#: Primitives that give their operands back: they steer XLA or differentiation, and have no meaning in a kernel.
IDENTITIES = frozenset({
    "copy", "copy_p", "name", "optimization_barrier", "pcast", "pvary", "random_clone", "reduced_vary_cast",
    "reduced_vary_cast_p", "stop_gradient", "xla_metadata_value",
})  # fmt: skip

#: What is computed at once where all operands are literal integers or bools: it decides which branch is taken.
FOLDED: Mapping[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "convert_element_type": np.asarray,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
    "not": np.invert,
    "or": np.bitwise_or,
}


def expand(closed: ClosedJaxpr, has_rule: HasRule, compositions: Compositions, platform: str = "cpu") -> ClosedJaxpr:
    """Inline, compose and clean up `closed`.

    Args:
      closed: a per-example program.
      has_rule: tells for a primitive and its parameters whether a lowering rule takes it as it is.
      compositions: for the name of a primitive a function of its operands and parameters, in JAX; one that raises
        `NotImplementedError` leaves the primitive to what comes next.
      platform: where the program is to run; decides `jax.lax.platform_dependent`.

    Returns:
      A jaxpr with the same inputs and outputs, without dead code, whose inner jaxprs have no constants of their own.
      An equation keeps its own line of the user's source; one that comes of a composition or of a primitive's own
      `impl` has the line of the equation it replaces.
    """
    expanded = Expander(has_rule, compositions, platform).whole(closed)
    if unvmap.is_used(expanded.jaxpr) and not unvmap.reaches_output(expanded.jaxpr):
        expanded = Expander(has_rule, compositions, platform, reduce=True).whole(expanded)
    return expanded


@dataclasses.dataclass
class _Inner:
    """An expanded jaxpr whose constants have become variables that the equation around it must pass in."""

    jaxpr: Jaxpr
    constvars: list[Var]
    consts: list[Any]

    def with_leading(self, invars: Sequence[Var]) -> Jaxpr:
        jaxpr = self.jaxpr
        return _jax.make_open([*invars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr)

    def with_consts(self) -> Jaxpr:
        return self.with_leading(self.constvars)


class Scope:
    """The equations of one jaxpr in the making, and the constants that they use."""

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.constants: dict[int, tuple[Var, Any]] = {}

    def constant(self, value: Any, aval: Any) -> Atom:
        if not isinstance(value, _jax.Tracer) and _jax.is_plain_scalar(aval):
            return _jax.literal(value, aval)
        return self.constants.setdefault(id(value), (Var(aval), value))[0]

    def constants_of(self, inner: _Inner) -> list[Atom]:
        return [self.constant(value, var.aval) for var, value in zip(inner.constvars, inner.consts, strict=True)]

    def keep(self, eqn: JaxprEqn, operands: list[Atom]) -> list[Var]:
        outvars = fresh(eqn.outvars)
        self.eqns.append(_jax.with_variables(eqn, operands, outvars))
        return outvars


class Expander:
    """One expansion: what it was asked for, and what it has expanded already."""

    def __init__(
        self, has_rule: HasRule, compositions: Compositions, platform: str, reduce: bool = False
    ) -> None:
        self.has_rule = has_rule
        self.compositions = compositions
        self.platform = platform
        #: Whether reductions over the batch are replaced by reductions over one example or one step.
        self.reduce = reduce
        #: Where equations without a line of the user's come from: the call or the loop around them.
        self.caller: Any = None
        #: Where all equations come from, while expanding what a primitive was replaced by.
        self.line: Any = None
        # What is known by its identity is kept beside the result.
        self.expanded: dict[Any, tuple[Any, _Inner]] = {}
        self.traced: dict[Any, ClosedJaxpr | None] = {}

    def whole(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Expand the outermost jaxpr and remove its dead code; its inputs all stay."""
        inner = self.inner(closed)
        full, count = inner.with_consts(), len(inner.constvars)
        keep = [*[False] * count, *[True] * (len(full.invars) - count)]
        lean, used = DeadCode().jaxpr(full, [True] * len(full.outvars), keep)
        constvars, consts = kept(inner.constvars, used[:count]), kept(inner.consts, used[:count])
        lean = _jax.make_open(lean.invars[len(constvars) :], lean.outvars, lean.eqns, inner.jaxpr)
        return _jax.make_closed(lean, constvars, consts)

    def inner(self, jaxpr: Any) -> _Inner:
        """Expand a jaxpr that stays one of its own."""
        holds = jaxpr, self.line, self.caller
        key = tuple(map(id, holds))
        if key not in self.expanded:
            opened, consts = _jax.open_and_consts(jaxpr)
            scope, invars = Scope(), fresh(opened.invars)
            outvars = self.splice(opened, consts, invars, scope)
            expanded = _jax.make_open(invars, outvars, scope.eqns, opened)
            constants = list(scope.constants.values())
            self.expanded[key] = holds, _Inner(expanded, [v for v, _ in constants], [c for _, c in constants])
        return self.expanded[key][1]

    def splice(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Atom], scope: Scope) -> list[Atom]:
        """Expand a jaxpr into `scope`, with `args` for its inputs; what it returns."""
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, args, strict=True))
        env.update((v, scope.constant(c, v.aval)) for v, c in zip(jaxpr.constvars, consts, strict=True))
        choosing = unvmap.only_choosing(jaxpr) if self.reduce else ()
        for index, eqn in enumerate(jaxpr.eqns):
            operands = substituted(eqn.invars, env)
            results = scope.keep(eqn, operands) if index in choosing else self.equation(eqn, operands, scope)
            env.update(zip(eqn.outvars, results, strict=True))
        return substituted(jaxpr.outvars, env)

    def equation(self, eqn: JaxprEqn, operands: list[Atom], scope: Scope) -> Sequence[Atom]:
        name = eqn.primitive.name
        if _is_identity(eqn, operands):
            return operands
        folded = _folded(eqn, operands)
        if folded is not None:
            return [folded]
        if name in CALLS:
            called = next(eqn.params[key] for key in CALLS[name] if key in eqn.params)
            return self.called(eqn, called, operands, scope)
        if name == "custom_linear_solve":
            return self.called(eqn, *_solve_call(eqn, operands), scope)
        eqn = eqn.replace(source_info=self.origin(eqn))
        composed = _has_array_predicate(eqn)
        if not is_left_whole(eqn) and not composed:
            expand_inner = {"while": self.while_loop, "scan": self.scan, "cond": self.cond}[name]
            return self.within(eqn.source_info, expand_inner, eqn, operands, scope)
        if composed or name in unvmap.PRIMITIVES or not self.has_rule(eqn.primitive, eqn.params):
            replacement = self.replacement(eqn, operands)
            if replacement is not None:
                return self.replaced(eqn, operands, replacement, scope)
        return scope.keep(eqn, operands)

    def origin(self, eqn: JaxprEqn) -> Any:
        """The source info that an equation is to have."""
        own = eqn.source_info
        if self.line is not None:
            return self.line
        return own if self.caller is None or _jax.has_users_line(own) else self.caller

    def within(self, caller: Any, expand_more: Callable[..., Sequence[Atom]], *args: Any) -> Sequence[Atom]:
        outer = self.caller
        self.caller = caller
        try:
            return expand_more(*args)
        finally:
            self.caller = outer

    def called(self, eqn: JaxprEqn, jaxpr: Any, operands: list[Atom], scope: Scope) -> Sequence[Atom]:
        opened, consts = _jax.open_and_consts(jaxpr)
        return self.within(self.origin(eqn), self.splice, opened, consts, operands, scope)

    def replaced(self, eqn: JaxprEqn, operands: list[Atom], by: ClosedJaxpr, scope: Scope) -> Sequence[Atom]:
        outer, self.line = self.line, eqn.source_info
        variables = [atom for atom in operands if not isinstance(atom, Literal)]
        results = self.splice(*_jax.open_and_consts(by), variables, scope)
        self.line = outer
        return results

    def replacement(self, eqn: JaxprEqn, operands: list[Atom]) -> ClosedJaxpr | None:
        """A jaxpr of the operands that are variables: from a composition, or else from the primitive's own `impl`."""
        name = eqn.primitive.name
        fun = self.compositions.get(name)
        own = fun is None and (self.reduce or name not in unvmap.PRIMITIVES)
        fun = _jax.impl_of(eqn.primitive) if own else fun
        if fun is None:
            return None
        refusals = (Exception,) if own else (NotImplementedError,)
        try:
            key = eqn.primitive, tuple(eqn.params.items()), tuple(map(_signature, operands))
            hash(key)
        except TypeError:
            return _traced(fun, eqn, operands, refusals)
        if key not in self.traced:
            self.traced[key] = _traced(fun, eqn, operands, refusals)
        return self.traced[key]

    def while_loop(self, eqn: JaxprEqn, operands: list[Atom], scope: Scope) -> Sequence[Atom]:
        cond, body = self.inner(eqn.params["cond_jaxpr"]), self.inner(eqn.params["body_jaxpr"])
        first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        loop = While(
            cond.with_consts(),
            body.with_consts(),
            [*scope.constants_of(cond), *operands[:first]],
            [*scope.constants_of(body), *operands[first : first + second]],
            operands[first + second :],
            fresh(eqn.outvars),
        )
        results = loop.forward_invariants()
        scope.eqns.append(loop.equation(eqn))
        return results

    def scan(self, eqn: JaxprEqn, operands: list[Atom], scope: Scope) -> Sequence[Atom]:
        body = self.inner(eqn.params["jaxpr"])
        num_consts, num_carry = _jax.scan_counts(eqn.params)
        start, outvars = num_consts + num_carry, fresh(eqn.outvars)
        loop = Scan(
            body.with_consts(),
            [*scope.constants_of(body), *operands[:num_consts]],
            operands[num_consts:start],
            operands[start:],
            outvars[:num_carry],
            outvars[num_carry:],
        )
        results = loop.forward_invariants()
        scope.eqns.append(loop.equation(eqn))
        return results

    def cond(self, eqn: JaxprEqn, operands: list[Atom], scope: Scope) -> Sequence[Atom]:
        index, *operands = operands
        known = _known_branch(eqn, index, self.platform)
        if known is not None:
            return self.splice(*_jax.open_and_consts(eqn.params["branches"][known]), operands, scope)
        inners = [self.inner(branch) for branch in eqn.params["branches"]]
        values = {id(c): (v.aval, c) for inner in inners for v, c in zip(inner.constvars, inner.consts, strict=True)}
        branches = []
        for inner in inners:
            own = {id(c): v for v, c in zip(inner.constvars, inner.consts, strict=True)}
            branches.append(inner.with_leading([own.get(key) or Var(aval) for key, (aval, _) in values.items()]))
        constants = [scope.constant(value, aval) for aval, value in values.values()]
        cond = Cond(tuple(branches), index, [*constants, *operands], fresh(eqn.outvars))
        results = cond.forwarded()
        scope.eqns.append(cond.equation(eqn))
        return results


def _is_identity(eqn: JaxprEqn, operands: list[Atom]) -> bool:
    name = eqn.primitive.name
    if name == "convert_element_type":
        old: Any = operands[0].aval
        new: Any = eqn.outvars[0].aval
        return old.dtype == new.dtype and old.weak_type == new.weak_type
    if name == "device_put":
        return all(device is None for device in eqn.params["devices"])
    return name in IDENTITIES


def _folded(eqn: JaxprEqn, operands: list[Atom]) -> Literal | None:
    fun = FOLDED.get(eqn.primitive.name)
    values = [np.asarray(atom.val) for atom in operands if isinstance(atom, Literal)]
    if fun is None or len(values) < len(operands):
        return None
    aval: Any = eqn.outvars[0].aval
    if not _jax.is_plain_scalar(aval) or any(x.dtype.kind not in "biu" for x in (aval, *values)):
        return None
    return _jax.literal(fun(*values).astype(aval.dtype), aval)


def _has_array_predicate(eqn: JaxprEqn) -> bool:
    """True for a `while` that runs while any element of its predicate is true, as `jax.vmap` makes them."""
    if eqn.primitive.name != "while":
        return False
    predicate: Any = _jax.open_and_consts(eqn.params["cond_jaxpr"])[0].outvars[0].aval
    return predicate.shape != ()


def _solve_call(eqn: JaxprEqn, operands: list[Atom]) -> tuple[Any, list[Atom]]:
    """The jaxpr that solves, and its operands: its own constants and the right-hand side."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    rhs = start + lengths.solve + lengths.transpose_solve
    return jaxprs.solve, [*operands[start : start + lengths.solve], *operands[rhs:]]


def _known_branch(eqn: JaxprEqn, index: Atom, platform: str) -> int | None:
    """The branch that a `cond` takes, where that is known now."""
    platforms = eqn.params.get("branches_platforms")
    if platforms is not None:
        return next((i for i, names in enumerate(platforms) if names is None or platform in names), None)
    if isinstance(index, Literal):
        return min(max(int(index.val), 0), len(eqn.params["branches"]) - 1)
    return None


def _signature(atom: Atom) -> Any:
    """What tracing sees of an operand: the value of a literal, the type of a variable."""
    return (atom.aval, np.asarray(atom.val).tobytes()) if isinstance(atom, Literal) else atom.aval


def _traced(
    fun: Callable[..., Any], eqn: JaxprEqn, operands: list[Atom], refusals: tuple[type[Exception], ...]
) -> ClosedJaxpr | None:
    """The jaxpr of `fun` for an equation's operands and parameters; None where `fun` refuses or gives other types."""

    def flat(*variables: Any) -> list[Any]:
        rest = iter(variables)
        # Literals are passed as values, since some impls look at theirs (Equinox's `noinline` finds its function so).
        args = [np.asarray(a.val, _type(a)[1]) if isinstance(a, Literal) else next(rest) for a in operands]
        results = fun(*args, **eqn.params)
        return list(results) if eqn.primitive.multiple_results else [results]

    avals = [atom.aval for atom in operands if not isinstance(atom, Literal)]
    try:
        with eqn.ctx.manager, _jax.wide_enough([atom.aval for atom in (*operands, *eqn.outvars)]):
            traced = _jax.trace(flat, avals, eqn.primitive.name)
    except refusals:
        return None
    return traced if list(map(_type, traced.jaxpr.outvars)) == list(map(_type, eqn.outvars)) else None


def _type(atom: Any) -> tuple[tuple[int, ...], Any]:
    return atom.aval.shape, atom.aval.dtype
