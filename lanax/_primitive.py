"""`batched_call_p`: one JAX primitive that carries a per-example program and runs it over a batch."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._checks import run_all, tie
from lanax._chunks import example_bytes, in_chunks, moved, vmap_in_chunks
from lanax._jax import Atom, Literal, Primitive, Var, mlir
from lanax._lowering.keys import is_key
from lanax._lowering.registry import register_composition
from lanax._partition import LANES, UNIFORM, XLA, Part
from lanax._pipeline import Axes, Kernel, Stages, stages
from lanax._plan import Plan
from lanax._program import Program
from lanax._runtime.ffi import Loaded, call
from lanax._sharding import on_shards, split_over_devices
from lanax._warning import warn_of

batched_call_p = Primitive("lanax_batched_call")
batched_call_p.multiple_results = True


def bind(args: Sequence[Any], program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
         plan: Plan) -> list[Any]:
    """Run `program` on every example; results have the batch axis at `out_axes`, uniform ones too."""
    return batched_call_p.bind(*args, program=program, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size,
                               plan=plan)


def with_axis(aval: Any, axis: int | None, axis_size: int, mesh_axes: Any = None) -> Any:
    """The type of a batch of values of type `aval`; `mesh_axes`: the explicit mesh axes over which it is split."""
    return _jax.core.unmapped_aval(axis_size, axis, aval, mesh_axes)


@batched_call_p.def_abstract_eval
def _abstract_eval(*avals: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
                   plan: Plan) -> list[Any]:
    over = _jax.explicit_axes(avals, in_axes)
    return [with_axis(v.aval, axis, axis_size, over) for v, axis in zip(program.jaxpr.outvars, out_axes, strict=True)]


_jax.needs_devices(batched_call_p)


#: Runs a mapped call in the place of XLA: takes its operands and parameters, gives its results.
Watcher = Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]
_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("lanax_watcher", default=None)


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """While it lasts, `watcher` runs the mapped calls that are made outside of a trace."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


_apply = _jax.apply_primitive(batched_call_p)


@batched_call_p.def_impl
def _impl(*args: Any, **params: Any) -> list[Any]:
    watcher = _watcher.get()
    return _apply(*args, **params) if watcher is None else watcher(args, params)


def run_as_vmap(*args: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
                plan: Plan) -> list[Any]:
    """The same by `jax.vmap`, or `jax.lax.map`: for platforms that have no backend here."""
    fun = _jax.jaxpr_as_fun(program.jaxpr)
    alive = _examples_alive(program.jaxpr, plan)
    if alive is not None and alive < axis_size:
        return moved(vmap_in_chunks(fun, args, in_axes, axis_size, alive), out_axes)
    return list(_jax.vmap(fun, in_axes=in_axes, out_axes=list(out_axes), axis_size=axis_size)(*args))


def _examples_alive(jaxpr: Any, plan: Plan) -> int | None:
    """How many examples XLA may run a program for at once; None for all."""
    return 1 if plan.route == "serial" else plan.examples_alive(example_bytes(jaxpr))


def run_parts(*args: Any, program: Program, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int,
              plan: Plan) -> list[Any]:
    """Kernel, XLA, kernel, ...: the parts of the program, one after another, as JAX operations."""
    if axis_size == 0:
        avals = _abstract_eval(*map(_jax.typeof, args), program=program, in_axes=in_axes, out_axes=out_axes,
                               axis_size=0, plan=plan)
        return [jnp.zeros(a.shape, a.dtype) if not is_key(a) else jax.random.wrap_key_data(
            jnp.zeros((*a.shape, *a.dtype._impl.key_shape), jnp.uint32), impl=a.dtype._impl) for a in avals]
    way = stages(program, in_axes, out_axes, plan)
    count = len(program.jaxpr.outvars)
    # What is traced for the partition is traced while the types under `shard_map` are checked.
    warn_of(program.name, way.partition)
    with _jax.unchecked_manual_axes():
        outs = _run_in_turns(way, axis_size, args) or Run(way, axis_size)(*args)
        return tie(outs[:count], run_all(way.checks, outs[count:])) if way.checks else outs


def _run_in_turns(way: Stages, axis_size: int, args: Sequence[Any]) -> list[Any]:
    """Where kernels and XLA take turns, and not all examples may be alive at once: all parts for one chunk before the
    next, since what goes from one part to another is alive too. Uniform parts run once. Else an empty list."""
    parts = way.partition.parts
    alive = _examples_alive(way.expanded, way.plan)
    if alive is None or alive >= axis_size or not {LANES, XLA} <= {*way.partition.routes}:
        return []
    whole = Run(way, axis_size)
    whole.begin(args)
    whole.run([p for p in parts if p.route == UNIFORM])
    known = list(whole.values)
    values, axes = zip(*whole.values.values(), strict=True)

    def batch(size: int, *some: Any) -> list[Any]:
        run = Run(way, size)
        run.values.update(zip(known, zip(some, axes, strict=True), strict=True))
        run.run([p for p in parts if p.route != UNIFORM])
        return run.results([0] * len(way.expanded.outvars))

    outs = in_chunks(batch, values, axes, axis_size, alive)
    return moved(outs, [*way.out_axes, *[0] * (len(outs) - len(way.out_axes))])


_kernels: contextvars.ContextVar[list[Loaded]] = contextvars.ContextVar("lanax_kernels")


def _kept(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule whose kernels live at least as long as what is lowered: XLA's executables keep them only once
    they are built."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        kernels: list[Loaded] = []
        token = _kernels.set(kernels)
        try:
            outs = rule(ctx, *args, **params)
        finally:
            _kernels.reset(token)
        for kernel in kernels:
            ctx.module_context.add_keepalive(kernel)
        return outs

    return lower


# Inside another program a mapped call is part of that program.
register_composition("lanax_batched_call", run_as_vmap)
mlir.register_lowering(batched_call_p, mlir.lower_fun(run_as_vmap, multiple_results=True))
mlir.register_lowering(batched_call_p, _kept(split_over_devices(_jax.unless_exported(run_parts, run_as_vmap))),
                       platform="cpu")


class Run:
    """Values of a program's variables on the way through its parts: each an array and where it has the batch axis."""

    def __init__(self, way: Stages, axis_size: int):
        self.way = way
        self.axis_size = axis_size
        self.values: dict[Var, tuple[Any, int | None]] = {}

    def __call__(self, *args: Any) -> list[Any]:
        self.begin(args)
        self.run(self.way.partition.parts)
        return self.results([*self.way.out_axes, *[0] * len(self.way.expanded.outvars)])

    def begin(self, args: Sequence[Any]) -> None:
        """Take the program's arguments."""
        axes = [*[None] * len(self.way.consts), *self.way.in_axes]
        values = zip([*self.way.consts, *args], axes, strict=True)
        self.values.update(zip(self.way.expanded.invars, values, strict=True))

    def run(self, parts: Sequence[Part]) -> None:
        """Run some parts of the program."""
        wanted = self.way.wanted_axes
        for i, part in enumerate(self.way.partition.parts):
            if part not in parts:
                continue
            if part.route == LANES:
                self._kernel(i, part.jaxpr, wanted)
            else:
                self._xla(part.jaxpr, part.route == UNIFORM)

    def results(self, axes: Sequence[int]) -> list[Any]:
        """The program's results, each with the batch axis at one of `axes`."""
        return [self._result(v, axis) for v, axis in zip(self.way.expanded.outvars, axes, strict=False)]

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
        """Run a part by XLA: uniform ones once, others under `jax.vmap`, for as many examples at once as may be."""
        fun = _jax.jaxpr_as_fun(jaxpr)
        args, axes = zip(*(self.values[v] for v in jaxpr.invars), strict=True) if jaxpr.invars else ((), ())
        if not uniform and any(a is not None for a in axes):
            alive = _examples_alive(jaxpr, self.way.plan)
            outs = vmap_in_chunks(fun, args, axes, self.axis_size, alive)
            self.values.update((v, (out, 0)) for v, out in zip(jaxpr.outvars, outs, strict=True))
            return
        self.values.update((v, (out, None)) for v, out in zip(jaxpr.outvars, fun(*args), strict=True))

    def _kernel(self, index: int, jaxpr: Any, wanted: dict[Atom, int]) -> None:
        if not jaxpr.outvars:
            return
        in_axes = tuple(self.values[v][1] for v in jaxpr.invars)
        out_axes = tuple(wanted.get(v, 0) for v in jaxpr.outvars)
        kernel = self.way.kernel(index, in_axes, out_axes, self.axis_size)
        outs = self.run_kernel(kernel, [self.values[v][0] for v in jaxpr.invars])
        self.values.update((v, (out, axis)) for v, out, axis in zip(jaxpr.outvars, outs, out_axes, strict=True))

    def run_kernel(self, kernel: Kernel, args: Sequence[Any]) -> list[Any]:
        """The results of a kernel part."""
        return call_kernel(kernel, args)


def call_kernel(kernel: Kernel, args: Sequence[Any]) -> list[Any]:
    """XLA's custom call of a kernel; keys go in and come out as their words, complex numbers as they are. A kernel that
    counts gives its rows of counters too, each i64 as two uint32."""
    words = [jax.random.key_data(a) if is_key(v.aval) else a for v, a in zip(kernel.jaxpr.invars, args, strict=True)]
    kinds = [(op.shape, op.dtype) if is_key(v.aval) else (v.aval.shape, v.aval.dtype)
             for v, op in zip(kernel.jaxpr.outvars, kernel.operands()[1], strict=True)]
    mapped = next(i for i, axis in enumerate(kernel.in_axes) if axis is not None)

    def run(*words: Any) -> Sequence[Any]:
        size = words[mapped].shape[kernel.in_axes[mapped]]
        shapes = [jax.ShapeDtypeStruct((*shape[:axis], size, *shape[axis:]), dtype)
                  for (shape, dtype), axis in zip(kinds, kernel.out_axes, strict=True)]
        rows = kernel.counters(size)
        return call(kernel.loaded, shapes if rows is None else [*shapes, jax.ShapeDtypeStruct(rows, jnp.uint32)], words)

    _kernels.get([]).append(kernel.loaded)
    outs = on_shards(run, kernel.in_axes, words, kernel.out_axes, [len(shape) + 1 for shape, _ in kinds])
    results = [jax.random.wrap_key_data(out, impl=v.aval.dtype._impl) if is_key(v.aval) else out
               for v, out in zip(kernel.jaxpr.outvars, outs, strict=False)]
    return [*results, *outs[len(results):]]
