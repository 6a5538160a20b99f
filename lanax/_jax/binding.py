"""Our own primitives as JAX meets them: dead code, `checkify`, lowering, and calls outside of a trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax._src import checkify, config, dispatch, util
from jax._src.core import Primitive
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as _partial_eval

from lanax._jax.tracing import trace, typeof


def register_dead_code_rule(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """`rule(wanted results, equation)` gives which operands are used and a new equation, or None for no equation."""
    _partial_eval.dce_rules[primitive] = lambda wanted, *more: rule(wanted, more[-1])  # 0.12 asks about refs between


def register_checks(primitive: Primitive, portable: Callable[..., Any]) -> None:
    """Where `checkify` looks for NaN, division by zero or bad indices, it is to look into `portable`, which gives the
    results of the primitive from the same arguments."""

    def rule(*args: Any, **params: Any) -> tuple[Any, Any]:
        before = args[: 0 if isinstance(args[0], checkify.Error) else 1]  # from 0.12 on there is a context
        error, enabled, *values = args[len(before):]
        if not enabled & checkify.automatic_checks:
            return error, primitive.bind(*values, **params)
        closed = trace(lambda *given: portable(*given, **params), [typeof(x) for x in values])
        return checkify.checkify_jaxpr(*before, closed, enabled, error, *values)

    checkify.error_checks[primitive] = rule


def unless_exported(fun: Callable[..., Any], portable: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering by `fun`, but by `portable` for `jax.export`, whose programs run in processes that know no kernels."""
    here, anywhere = (mlir.lower_fun(f, multiple_results=True) for f in (fun, portable))

    def rule(ctx: Any, *args: Any, **params: Any) -> Any:
        return (anywhere if ctx.module_context.lowering_parameters.for_export else here)(ctx, *args, **params)

    return rule


def needs_devices(primitive: Primitive) -> None:
    """Have JAX know the devices of a program with this primitive when it is lowered."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


class JitKey:
    """A value by which JAX keeps what it has traced and compiled apart; None at first."""

    def __init__(self):
        self._context: Any = jax.make_user_context(None)

    def set_global(self, value: Any) -> None:
        """For every thread that has no value of its own."""
        self._context.set_global(value)

    def set_local(self, value: Any) -> None:
        """For this thread."""
        self._context._obj.set_local(value)


def apply_primitive(primitive: Primitive, kept: int = 256) -> Callable[..., Any]:
    """JAX's own way to run a primitive outside of a trace. JAX keeps what it compiled so for its latest 4096 different
    calls, a megabyte or more each; this keeps fewer."""
    whole: Any = {"num_shards": 1} if "num_shards" in inspect.signature(util.cache).parameters else {}  # from 0.11 on
    callable_: Any = dispatch.xla_primitive_callable
    compiled = util.cache(max_size=kept, **whole)(callable_.__wrapped__)

    def apply(*args: Any, **params: Any) -> Any:
        run = compiled(primitive, **params)
        before = config.disable_jit.swap_local(False)
        try:
            return run(*args)
        finally:
            config.disable_jit.set_local(before)

    return apply
