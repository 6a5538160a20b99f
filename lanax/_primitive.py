"""`batched_call_p`: one JAX primitive that carries a per-example program and runs it over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._checks import run_all, tie
from lanax._jax import Atom, Literal, Primitive, Var, mlir
from lanax._lowering.keys import is_key
from lanax._lowering.registry import register_composition
from lanax._partition import LANES, UNIFORM
from lanax._pipeline import Axes, Kernel, Stages, stages
from lanax._plan import Plan
from lanax._program import Program

batched_call_p = Primitive("lanax_batched_call")
batched_call_p.multiple_results = True


def bind(args: Sequence[Any], program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
         plan: Plan) -> list[Any]:
    """Run `program` on every example; results have the batch axis at `out_axes`, uniform ones too."""
    return batched_call_p.bind(*args, program=program, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size,
                               plan=plan)


def with_axis(aval: Any, axis: int | None, axis_size: int) -> Any:
    """The type of a batch of values of type `aval`."""
    return _jax.core.unmapped_aval(axis_size, axis, aval)


@batched_call_p.def_abstract_eval
def _abstract_eval(*_: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
                   plan: Plan) -> list[Any]:
    return [with_axis(v.aval, axis, axis_size) for v, axis in zip(program.jaxpr.outvars, out_axes, strict=True)]


batched_call_p.def_impl(_jax.apply_primitive(batched_call_p))


def run_as_vmap(*args: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
                plan: Plan) -> list[Any]:
    """The same by `jax.vmap`: for platforms that have no backend here."""
    del plan
    fun = jax.vmap(_jax.jaxpr_as_fun(program.jaxpr), in_axes=in_axes, out_axes=list(out_axes), axis_size=axis_size)
    return list(fun(*args))


def run_parts(*args: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
              plan: Plan) -> list[Any]:
    """Kernel, XLA, kernel, ...: the parts of the program, one after another, as JAX operations."""
    if axis_size == 0:
        return [jnp.zeros(a.shape, a.dtype) if not is_key(a) else jax.random.wrap_key_data(
            jnp.zeros((*a.shape, *a.dtype._impl.key_shape), jnp.uint32), impl=a.dtype._impl)
            for a in _abstract_eval(program=program, in_axes=in_axes, out_axes=out_axes, axis_size=0, plan=plan)]
    way = stages(program, in_axes, out_axes, plan)
    count = len(program.jaxpr.outvars)
    with _jax.unchecked_manual_axes():
        outs = _Run(way, axis_size)(*args)
        return tie(outs[:count], run_all(way.checks, outs[count:])) if way.checks else outs


# Inside another program a mapped call is part of that program.
register_composition("lanax_batched_call", run_as_vmap)
mlir.register_lowering(batched_call_p, mlir.lower_fun(run_as_vmap, multiple_results=True))
mlir.register_lowering(batched_call_p, mlir.lower_fun(run_parts, multiple_results=True), platform="cpu")


class _Run:
    """Values of a program's variables on the way through its parts: each an array and where it has the batch axis."""

    def __init__(self, way: Stages, axis_size: int):
        self.way = way
        self.axis_size = axis_size
        self.values: dict[Var, tuple[Any, int | None]] = {}

    def __call__(self, *args: Any) -> list[Any]:
        jaxpr = self.way.expanded
        axes = [*[None] * len(self.way.consts), *self.way.in_axes]
        self.values.update(zip(jaxpr.invars, zip([*self.way.consts, *args], axes, strict=True), strict=True))
        wanted = self.way.wanted_axes
        for i, part in enumerate(self.way.partition.parts):
            if part.route == LANES:
                self._kernel(i, part.jaxpr, wanted)
            else:
                self._xla(part.jaxpr, part.route == UNIFORM)
        outs = []
        for v, axis in zip(jaxpr.outvars, [*self.way.out_axes, *[0] * len(jaxpr.outvars)], strict=False):
            outs.append(self._result(v, axis))
        return outs

    def _result(self, v: Any, axis: int) -> Any:
        """A result with the batch axis where it is wanted."""
        if isinstance(v, Literal):
            value, have = jnp.asarray(v.val, v.aval.dtype), None
        else:
            value, have = self.values[v]
        if have is None:
            shape = (*v.aval.shape[:axis], self.axis_size, *v.aval.shape[axis:])
            return jnp.broadcast_to(jnp.expand_dims(value, axis), shape)
        return value if have == axis else jnp.moveaxis(value, have, axis)

    def _xla(self, jaxpr: Any, uniform: bool) -> None:
        """Run a part by XLA: uniform ones once, others under `jax.vmap`."""
        fun = _jax.jaxpr_as_fun(jaxpr)
        args, axes = zip(*(self.values[v] for v in jaxpr.invars), strict=True) if jaxpr.invars else ((), ())
        if not uniform and any(a is not None for a in axes):
            outs = jax.vmap(fun, in_axes=axes, axis_size=self.axis_size)(*args)
            self.values.update((v, (out, 0)) for v, out in zip(jaxpr.outvars, outs, strict=True))
            return
        self.values.update((v, (out, None)) for v, out in zip(jaxpr.outvars, fun(*args), strict=True))

    def _kernel(self, index: int, jaxpr: Any, wanted: dict[Atom, int]) -> None:
        if not jaxpr.outvars:
            return
        in_axes = tuple(self.values[v][1] for v in jaxpr.invars)
        out_axes = tuple(wanted.get(v, 0) for v in jaxpr.outvars)
        kernel = self.way.kernel(index, in_axes, out_axes, self.axis_size)
        outs = call_kernel(kernel, [self.values[v][0] for v in jaxpr.invars], self.axis_size)
        self.values.update((v, (out, axis)) for v, out, axis in zip(jaxpr.outvars, outs, out_axes, strict=True))


def call_kernel(kernel: Kernel, args: Sequence[Any], axis_size: int) -> list[Any]:
    """XLA's custom call of a kernel; keys go in and come out as their words."""
    words = [jax.random.key_data(a) if is_key(v.aval) else a for v, a in zip(kernel.jaxpr.invars, args, strict=True)]
    _, outputs = kernel.operands()
    shapes = [jax.ShapeDtypeStruct((*op.shape[:op.axis], axis_size, *op.shape[op.axis:]), op.dtype) for op in outputs]
    outs = jax.ffi.ffi_call(kernel.target_name, shapes)(*words)
    return [jax.random.wrap_key_data(out, impl=v.aval.dtype._impl) if is_key(v.aval) else out
            for v, out in zip(kernel.jaxpr.outvars, outs, strict=True)]
