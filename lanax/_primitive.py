"""`batched_call_p`: one JAX primitive that carries a per-example program and runs it over a batch."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lanax import _jax
from lanax._chunks import example_bytes, in_chunks, moved, vmap_in_chunks
from lanax._devices.sharding import alike, on_shards, split_over_devices
from lanax._devices.shares import Shares, cut_apart, for_each, on_one, run_alike, run_placed, run_traced, shares_of
from lanax._devices.spread import shared_out
from lanax._devices.varying import typed_results, untyped
from lanax._jax import Atom, Literal, Primitive, is_key, key_type, mlir, of_words
from lanax._lowering.keys import is_complex
from lanax._lowering.operands import Operand
from lanax._lowering.registry import register_composition
from lanax._pipeline import Axes, Kernel, Stages, stages
from lanax._plan import Plan
from lanax._planning.partition import LANES, UNIFORM, XLA, Part
from lanax._planning.products import summed_products
from lanax._program import Program
from lanax._reports.warning import warn_of
from lanax._rewrite.checks import Check, condensed, run_all, tie
from lanax._runtime.ffi import Loaded, call

batched_call_p = Primitive("lanax_batched_call")
batched_call_p.multiple_results = True

#: A mapped call whose batch several devices share. It has the same parameters, and `where`, which tells JAX of them.
spread_call_p = Primitive("lanax_spread_call")
spread_call_p.multiple_results = True


def bind(args: Sequence[Any], program: Program, in_axes: Axes, out_axes: Axes, axis_size: int,
         plan: Plan) -> list[Any]:
    """Run `program` on every example; results have the batch axis at `out_axes`, uniform ones too. None: a result is
    the sum over the batch."""
    params = {"program": program, "in_axes": in_axes, "out_axes": out_axes, "axis_size": axis_size}
    shares, _ = shared_out(program, in_axes, out_axes, axis_size, plan)
    if shares is None or any(map(_jax.has_explicit_type, args)):
        return batched_call_p.bind(*args, **params, plan=plan if plan.devices is None else for_each(plan, 1))
    return spread_call_p.bind(*args, **params, plan=plan.replace(devices=shares.devices), where=shares.where)


def with_axis(aval: Any, axis: int | None, axis_size: int, mesh_axes: Any = None) -> Any:
    """The type of a batch of values of type `aval`; `mesh_axes`: the explicit mesh axes over which it is split."""
    return _jax.core.unmapped_aval(axis_size, axis, aval, mesh_axes)


@batched_call_p.def_abstract_eval
def _abstract_eval(*avals: Any, program: Program, in_axes: Axes, out_axes: Axes, axis_size: int,
                   plan: Plan) -> list[Any]:
    over = _jax.explicit_axes(avals, in_axes)
    outs = [with_axis(_jax.on_mesh_of(avals, v.aval), axis, axis_size, over)
            for v, axis in zip(program.jaxpr.outvars, out_axes, strict=True)]
    return typed_results(avals, program, outs)


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


def finds_bad_numbers() -> bool:
    """Whether the user has JAX look for NaN or infinity in what each operation gives."""
    settings: Any = jax.config
    return settings.jax_debug_nans or settings.jax_debug_infs


@batched_call_p.def_impl
def _impl(*args: Any, **params: Any) -> list[Any]:
    watcher = _watcher.get()
    if finds_bad_numbers():  # the error is to name the operation
        return run_as_vmap(*args, **params)
    return _apply(*args, **params) if watcher is None else watcher(args, params)


def run_as_vmap(*args: Any, program: Program, in_axes: Axes, out_axes: Axes, axis_size: int,
                plan: Plan) -> list[Any]:
    """The same by `jax.vmap`, or `jax.lax.map`: for platforms that have no backend here."""
    fun = _jax.jaxpr_as_fun(program.jaxpr)
    alive = _examples_alive(program.jaxpr, plan)
    axes = [a or 0 for a in out_axes]
    with untyped(program, args):
        if alive is not None and alive < axis_size:
            return moved(vmap_in_chunks(fun, args, in_axes, axis_size, alive), out_axes)
        outs = _jax.vmap(fun, in_axes=in_axes, out_axes=axes, axis_size=axis_size)(*args)
        return [jnp.sum(x, 0) if a is None else x for x, a in zip(outs, out_axes, strict=True)]


def _examples_alive(jaxpr: Any, plan: Plan) -> int | None:
    """How many examples XLA may run a program for at once; None for all."""
    return 1 if plan.route == "serial" else plan.examples_alive(example_bytes(jaxpr))


def run_parts(*args: Any, program: Program, in_axes: Axes, out_axes: Axes, axis_size: int,
              plan: Plan) -> list[Any]:
    """Kernel, XLA, kernel, ...: the parts of the program, one after another, as JAX operations."""
    if axis_size == 0:
        avals = _abstract_eval(*map(_jax.typeof, args), program=program, in_axes=in_axes, out_axes=out_axes,
                               axis_size=0, plan=plan)
        return [of_words(jnp.zeros(*_jax.words_type(a)), key_type(a)) for a in avals]
    way = stages(program, in_axes, out_axes, plan, axis_size)
    alive = _examples_alive(program.jaxpr, plan)
    if way.is_left_whole and (alive is None or alive >= axis_size):  # in chunks, what is uniform is to run once
        warn_of(program, way.partition)
        return run_as_vmap(*args, program=program, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size, plan=plan)
    count = len(program.jaxpr.outvars)
    # What is traced for the partition is traced while the types under `shard_map` are checked.
    warn_of(program, way.partition)
    with _jax.unchecked_manual_axes():
        outs = _run_in_turns(way, axis_size, args) or Run(way, axis_size)(*args)
        if not way.checks:
            return outs
        return tie(outs[:count], alike(lambda *more: run_all(way.checks, more), *condensed(way.checks, outs[count:])))


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
        outs = run.results([None if axis is None else 0 for axis in out_axes])
        return [x[None] if axis is None else x for x, axis in zip(outs, out_axes, strict=True)]

    out_axes = [*way.out_axes, *[0] * (len(way.expanded.outvars) - len(way.out_axes))]
    outs = in_chunks(batch, values, axes, axis_size, alive)
    return moved(outs, out_axes)


@dataclasses.dataclass(frozen=True)
class _Share:
    """A mapped call of the examples that one device has."""

    program: Program
    in_axes: Axes
    out_axes: Axes
    plan: Plan

    def __call__(self, size: int, *args: Any) -> list[Any]:
        return batched_call_p.bind(*args, **vars(self), axis_size=size)


def _share_and_checks(program: Program, in_axes: Axes, out_axes: Axes, plan: Plan,
                      devices: int) -> tuple[_Share, Sequence[Any], Sequence[Check]]:
    """What each device runs, the constants that come before its arguments, and the checks that are to be run on its
    further results: for the whole batch, since a device that raises alone would leave others waiting."""
    share = _Share(program, in_axes, out_axes, for_each(plan, devices))
    closed, checks = stages(program, in_axes, out_axes, share.plan).without_checks
    if not checks:
        return share, (), ()
    bare = program.replace(_jax.without_consts(closed))
    consts = _jax.consts_of(closed)
    further = sum(check.num_outputs for check in checks)
    return _Share(bare, (*[None] * len(consts), *in_axes), (*out_axes, *[0] * further), share.plan), consts, checks


def _run_spread(*args: Any, program: Program, in_axes: Axes, out_axes: Axes, axis_size: int, plan: Plan,
                where: Any) -> list[Any]:
    shares = shares_of(plan, axis_size)
    share, consts, checks = _share_and_checks(program, in_axes, out_axes, plan, len(shares.devices))
    outs = run_traced(share, shares, share.in_axes, share.out_axes, [*consts, *args])
    if not checks:
        return outs
    count = len(out_axes)
    more = condensed(checks, outs[count:])
    return tie(outs[:count], run_alike(lambda *some: run_all(checks, some), shares.devices, more))


@spread_call_p.def_impl
def _spread_impl(*args: Any, where: Any, **params: Any) -> list[Any]:
    watcher = _watcher.get()
    if finds_bad_numbers():
        return run_as_vmap(*args, **params)
    if watcher is not None:
        return watcher(args, params)
    types = _abstract_eval(*map(_jax.typeof, args), **params)
    shares, share, consts, checks = _shares_of_call(params)
    outs = run_placed(share, shares, share.in_axes, share.out_axes, types, [*consts, *args])
    if not checks:
        return outs
    count = len(params["out_axes"])
    return tie(outs[:count], run_all(checks, on_one(outs[count:], shares)))


def _shares_of_call(params: Mapping[str, Any]) -> tuple[Shares, _Share, Sequence[Any], Sequence[Check]]:
    """The shares of a call that devices share, given the parameters of `bind`; then as `_share_and_checks` has it."""
    shares = shares_of(params["plan"], params["axis_size"])
    fields = {name: params[name] for name in ("program", "in_axes", "out_axes", "plan")}
    return shares, *_share_and_checks(**fields, devices=len(shares.devices))


def shares_apart(args: Sequence[Any], params: Mapping[str, Any]) -> list[tuple[Callable[..., Any], list[Any]]]:
    """What each device of a call that devices share runs, but for checks: a function, and its arguments where they
    lie."""
    shares, share, consts, _ = _shares_of_call(params)
    cuts = cut_apart(shares, share.in_axes, [*consts, *args])
    return [(functools.partial(share, size), cut) for size, cut in zip(shares.sizes, cuts, strict=True)]


@spread_call_p.def_abstract_eval
def _spread_abstract_eval(*avals: Any, where: Any, **params: Any) -> list[Any]:
    return _abstract_eval(*avals, **params)


def run_spread_as_vmap(*args: Any, where: Any, **params: Any) -> list[Any]:
    """The same by `jax.vmap` on one device."""
    return run_as_vmap(*args, **params)


_jax.needs_devices(spread_call_p)
mlir.register_lowering(spread_call_p, mlir.lower_fun(_run_spread, multiple_results=True))
register_composition("lanax_spread_call", run_spread_as_vmap)


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
    """Values of a program's variables on the way through its parts: each an array and where it has the batch axis; and
    the sums over the batch that kernels gave."""

    def __init__(self, way: Stages, axis_size: int):
        self.way = way
        self.axis_size = axis_size
        self.values: dict[Atom, tuple[Any, int | None]] = {}
        self.sums: dict[Atom, Any] = {}

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
        for i, part in enumerate(self.way.partition.parts):
            if part not in parts:
                continue
            if part.route == LANES:
                self._kernel(i, part)
            else:
                self._xla(part.jaxpr, part.route == UNIFORM)

    def results(self, axes: Sequence[int | None]) -> list[Any]:
        """The program's results, each with the batch axis at one of `axes`, or summed over it."""
        return [self._result(v, axis) for v, axis in zip(self.way.expanded.outvars, axes, strict=False)]

    def _result(self, v: Any, axis: int | None) -> Any:
        """A result with the batch axis where it is wanted."""
        if axis is None:
            return self.sums[v] if v in self.sums else jnp.sum(self._result(v, 0), 0)
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
        args, axes = zip(*(self.values[v] for v in jaxpr.invars), strict=True) if jaxpr.invars else ((), ())
        if uniform or all(a is None for a in axes):
            outs = _jax.jaxpr_as_fun(jaxpr)(*args)
            self.values.update((v, (out, None)) for v, out in zip(jaxpr.outvars, outs, strict=True))
            return
        products = summed_products(self.way.uniformity, jaxpr, self.way.summed.intersection(jaxpr.outvars))
        others = [v for v in jaxpr.outvars if v not in products]
        factors = [v for p in products.values() for v in p.product.invars]
        if products:
            jaxpr = _jax.with_results(_jax.make_open(jaxpr.invars, [*others, *factors], jaxpr.eqns, jaxpr),
                                      [True] * (len(others) + len(factors)))
        alive = _examples_alive(jaxpr, self.way.plan)
        outs = vmap_in_chunks(_jax.jaxpr_as_fun(jaxpr), args, axes, self.axis_size, alive)
        self.values.update((v, (out, 0)) for v, out in zip(others, outs, strict=False))
        left, right = outs[len(others)::2], outs[len(others) + 1::2]
        self.sums.update((v, p.total(x, y)) for (v, p), x, y in zip(products.items(), left, right, strict=True))

    def _kernel(self, index: int, part: Part) -> None:
        jaxpr = part.jaxpr
        if not jaxpr.outvars:
            return
        in_axes = tuple(self.values[v][1] for v in jaxpr.invars)
        out_axes = self.way.result_axes(part, in_axes)
        kernel = self.way.kernel(index, in_axes, out_axes, self.axis_size)
        outs = self.run_kernel(kernel, [self.values[v][0] for v in jaxpr.invars])
        for v, out, axis in zip(jaxpr.outvars, outs, out_axes, strict=True):
            if axis is None:
                self.sums[v] = out
            else:
                self.values[v] = out, axis

    def run_kernel(self, kernel: Kernel, args: Sequence[Any]) -> list[Any]:
        """The results of a kernel part."""
        return call_kernel(kernel, args)


def call_kernel(kernel: Kernel, args: Sequence[Any]) -> list[Any]:
    """XLA's custom call of a kernel; keys go in and come out as their words, complex numbers as they are. Rows of sums
    are added up. A kernel that counts gives its rows of counters too, each i64 as two uint32."""
    words = [jax.random.key_data(a) if is_key(v.aval) else a for v, a in zip(kernel.jaxpr.invars, args, strict=True)]
    kinds = [_kind_in_memory(v.aval, op) for v, op in zip(kernel.jaxpr.outvars, kernel.operands()[1], strict=True)]
    mapped = next(i for i, axis in enumerate(kernel.in_axes) if axis is not None)

    def run(*words: Any) -> Sequence[Any]:
        size = words[mapped].shape[kernel.in_axes[mapped]]
        shapes = [jax.ShapeDtypeStruct((kernel.rows(size), *shape) if axis is None else
                                       (*shape[:axis], size, *shape[axis:]), dtype)
                  for (shape, dtype), axis in zip(kinds, kernel.out_axes, strict=True)]
        rows = kernel.counters(size)
        outs = call(kernel.loaded, shapes if rows is None else [*shapes, jax.ShapeDtypeStruct(rows, jnp.uint32)], words)
        sums = [jnp.sum(out, 0) if axis is None else out for out, axis in zip(outs, kernel.out_axes, strict=False)]
        return [*sums, *outs[len(sums):]]

    _kernels.get([]).append(kernel.loaded)
    ranks = [len(shape) + (axis is not None) for (shape, _), axis in zip(kinds, kernel.out_axes, strict=True)]
    outs = on_shards(run, kernel.in_axes, words, kernel.out_axes, ranks)
    results = [out.astype(v.aval.dtype) if axis is None else of_words(out, key_type(v.aval))
               for v, out, axis in zip(kernel.jaxpr.outvars, outs, kernel.out_axes, strict=False)]
    return [*results, *outs[len(results):]]


def _kind_in_memory(aval: Any, op: Operand) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of one example's array of a type, or of a row of sums, as it lies in memory."""
    if is_key(aval):
        return op.shape, op.dtype
    return aval.shape, aval.dtype if is_complex(aval) else op.dtype
