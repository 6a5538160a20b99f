"""What several tests share: run one kernel without XLA, loop over examples, compare."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lanax
from lanax import _jax
from lanax._complex import split
from lanax._lowering.coverage import has_rule
from lanax._lowering.kernel import KERNEL, build_kernel
from lanax._lowering.keys import is_complex
from lanax._lowering.operands import Operand
from lanax._lowering.registry import COMPOSITIONS
from lanax._planning import uniformity
from lanax._planning.refill import around_loop
from lanax._rewrite import trace
from lanax._runtime.jit import compile_module
from lanax._target import host

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def mask_bits_of(jaxpr: Any) -> int:
    """64 where a float64 is computed with, else 32."""
    wide = any(getattr(v.aval, "dtype", None) == np.float64 for e in jaxpr.eqns for v in (*e.invars, *e.outvars))
    return 64 if wide else 32


def expand(closed: Any) -> Any:
    """A program with calls inlined and compositions replaced."""
    return trace.expand(closed, has_rule, COMPOSITIONS)


def run_kernel(fun: Callable[..., Any], args: Sequence[Any], in_axes: Any = 0, lanes: int = 8,
               refill: int = 0, few: bool = False) -> list[np.ndarray]:
    """Run the kernel of the per-example `fun` on whole batches; gives its flat results, batch axis first.

    Uniform results are splat. `in_axes` is an int for all arguments or one int or None for each. `refill`: where the
    program is of that form, lanes are refilled when they have waited so many trips. `few`: see `build_kernel`.
    """
    args = [np.asarray(a) for a in args]
    axes = [in_axes] * len(args) if isinstance(in_axes, int) else list(in_axes)
    avals = [jax.core.ShapedArray(a.shape if ax is None else np.delete(a.shape, ax), a.dtype)
             for a, ax in zip(args, axes, strict=True)]
    closed = _jax.trace(lambda *a: jax.tree.leaves(fun(*a)), avals)
    expanded = split(expand(closed), [True] * len(axes), expand)  # in the kernel nothing may stay complex
    jaxpr, consts = _jax.open_and_consts(expanded)
    if consts:
        jaxpr = _jax.make_open([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr)
        args, axes = [*map(np.asarray, consts), *args], [*[None] * len(consts), *axes]
    found = uniformity.analyse(jaxpr, [ax is not None for ax in axes])
    source = build_kernel(found, axes, [0] * len(jaxpr.outvars), host(), lanes, mask_bits_of(jaxpr),
                          around_loop(found) if refill else None, refill, few=few)
    compiled = compile_module(source.text, host())
    kernel = _SIGNATURE(compiled.address(KERNEL))
    size = next(a.shape[ax] for a, ax in zip(args, axes, strict=True) if ax is not None)
    buffers = [np.ascontiguousarray(a) for a in args]
    operands = [Operand.of(v.aval, 0) for v in jaxpr.outvars]
    outputs = [np.zeros((size, *op.shape), op.dtype) for op in operands]
    pointers = (ctypes.c_void_p * (len(buffers) + len(outputs)))(*[a.ctypes.data for a in [*buffers, *outputs]])
    scratch = np.zeros(source.scratch_bytes + 64, np.uint8)
    kernel(ctypes.addressof(pointers), 0, size, size, -(-scratch.ctypes.data // 64) * 64)
    return [x.view(v.aval.dtype)[..., 0] if is_complex(v.aval) else x
            for x, v in zip(outputs, jaxpr.outvars, strict=True)]


def loop(fun: Callable[..., Any], args: Sequence[Any], in_axes: Any = 0) -> list[np.ndarray]:
    """The truth: `fun` on each example in a Python loop; flat results, batch axis first."""
    axes = [in_axes] * len(args) if isinstance(in_axes, int) else list(in_axes)
    size = next(np.shape(a)[ax] for a, ax in zip(args, axes, strict=True) if ax is not None)
    one = jax.jit(lambda *a: jax.tree.leaves(fun(*a)))
    rows = [one(*(a if ax is None else np.take(a, i, ax) for a, ax in zip(args, axes, strict=True)))
            for i in range(size)]
    return [np.stack([np.asarray(row[k]) for row in rows]) for k in range(len(rows[0]))]


def same_under_both(with_mapper: Callable[[Callable[..., Any]], Any], rtol: float = 2e-5) -> None:
    """`with_mapper(lanax.vmap)` gives what `with_mapper(jax.vmap)` gives: types (weak ones too) and values."""
    got, want = (jax.tree.leaves_with_path(with_mapper(mapper)) for mapper in (lanax.vmap, jax.vmap))
    for (path, x), (where, y) in zip(got, want, strict=True):
        assert (path, x.shape, x.dtype, getattr(x, "weak_type", 0)) == (where, y.shape, y.dtype,
                                                                        getattr(y, "weak_type", 0))
        if y.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def in_threads(work: Callable[[int], None], count: int) -> None:
    """`work(k)` for each k below `count`, all at the same time."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def assert_same(got: Any, want: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """The same types and structure; the same bits too, or values that are close."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype, getattr(x, "weak_type", 0)) == (y.shape, y.dtype, getattr(y, "weak_type", 0))
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if rtol or atol:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
