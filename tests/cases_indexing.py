"""Rows for slices at run-time indices, gathers, scatters, `sort` and `top_k`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from case import Case
from jax import lax

F32, F64, I32, I8, U8, U32, I64, BOOL = (np.float32, np.float64, np.int32, np.int8, np.uint8, np.uint32, np.int64,
                                         np.bool_)
BF16, F16 = ml_dtypes.bfloat16, np.float16
Maker = Callable[[np.random.Generator, int], np.ndarray]

#: Lengths that are unrolled and updated by selects, unrolled and updated in memory, and not unrolled.
LENGTHS = (5, 40, 150)
MODES = ("clip", "fill", "promise_in_bounds")


def indices(shape: tuple[int, ...], low: int, high: int, dtype: Any = I32) -> Maker:
    """Integers in [low, high]."""
    return lambda rng, batch: rng.integers(low, high, (batch, *shape), dtype=dtype, endpoint=True)


def ties(shape: tuple[int, ...], dtype: Any) -> Maker:
    """Floats with many equal values, zeros of both signs, infinities and NaN of both signs."""
    values = np.array([-np.inf, -1.5, -1.0, -0.0, -0.0, 0.0, 0.0, 1.0, 2.5, np.inf, np.nan, -np.nan])
    return lambda rng, batch: rng.choice(values, (batch, *shape)).astype(dtype)


def with_signs(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The float results of `fun` and, apart, their sign bits, but for those of NaN."""

    def both(*args: Any) -> list[Any]:
        out = fun(*args)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        return out + [jnp.signbit(x) & (x == x) for x in out if jnp.issubdtype(x.dtype, jnp.floating)]

    return both


def _slices() -> list[Case]:
    rows: list[Case] = []
    for n in LENGTHS:
        x, i = ((n,), F32), indices((), -3, n + 3)
        rows += [
            Case("dynamic_slice", f"vector-{n}", lambda x, i: lax.dynamic_slice(x, (i,), (3,)), (x, i), exact=True),
            Case("dynamic_update_slice", f"vector-{n}", lambda x, i, u: lax.dynamic_update_slice(x, u, (i,)),
                 (x, i, ((3,), F32)), exact=True),
            Case("dynamic_slice", f"known-{n}", lambda x: lax.dynamic_slice(x, (2,), (3,)), (x,), exact=True),
            Case("dynamic_update_slice", f"known-{n}", lambda x, u: lax.dynamic_update_slice(x, u, (1,)),
                 (x, ((3,), F32)), exact=True),
        ]
    for dtype in (I8, U8, U32, I64):
        low, high = (-100, 100) if np.dtype(dtype).kind == "i" else (0, 200)
        rows.append(Case("dynamic_slice", f"index-{np.dtype(dtype)}", lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
                         (((150,), F32), indices((), low, high, dtype)), exact=True))
    for dtype in (BOOL, BF16, F64):
        rows.append(Case("dynamic_update_slice", f"{np.dtype(dtype)}", lambda x, u, i: lax.dynamic_update_slice(
            x, u, (i, i + 1)), (((9, 9), dtype), ((2, 3), dtype), indices((), -2, 9)), exact=True))
    for shape, sizes in (((4, 5), (2, 3)), ((9, 11), (4, 6)), ((12, 13), (9, 10))):
        args = ((shape, F32), indices((), -2, 14), indices((), -2, 14))
        update = (sizes, F32)
        name = "x".join(map(str, shape))
        rows += [
            Case("dynamic_slice", name, lambda x, i, j, s=sizes: lax.dynamic_slice(x, (i, j), s), args, exact=True),
            Case("dynamic_update_slice", name, lambda x, i, j, u: lax.dynamic_update_slice(x, u, (i, j)),
                 (*args, update), exact=True),
            Case("dynamic_update_slice", f"itself-{name}", lambda x, i, j, u, s=sizes: lax.dynamic_update_slice(
                x, lax.dynamic_slice(x, (j, i), s) + u, (i, j)), (*args, update), exact=True),
        ]
    return rows


def _gathers() -> list[Case]:
    rows: list[Case] = []
    for n in LENGTHS:
        for mode in MODES:
            rows.append(Case("gather", f"{mode}-{n}", lambda x, i, m=mode: x.at[i].get(mode=m),
                             (((n,), F32), indices((6,), -n - 3, n + 3)), exact=True))
        rows.append(Case("gather", f"long-{n}", lambda x, i: x[i] + 1, (((n,), F32), indices((100,), -n, n))))
        rows.append(Case("gather", f"computed-{n}", lambda x, i: (x * 2)[i + 1],
                         (((n,), F32), indices((100,), -n, n)), exact=True))
    for dtype in (I32, U8, BOOL, F16, F64):
        rows.append(Case("gather", f"fill-{np.dtype(dtype)}", lambda x, i: x.at[i].get(mode="fill"),
                         (((7,), dtype), indices((5,), -9, 9)), exact=True))
    matrix, large = ((5, 6), F32), ((30, 20), F32)
    rows += [
        Case("gather", "rows", lambda x, i: x[i], (matrix, indices((4,), -6, 6)), exact=True),
        Case("gather", "rows-large", lambda x, i: x[i], (large, indices((9,), -31, 31)), exact=True),
        Case("gather", "row-large", lambda x, i: jnp.sum(x[i]), (large, indices((), -31, 31)), rtol=1e-5),
        Case("gather", "columns-large", lambda x, i: x[:, i], (large, indices((3, 2), -21, 21)), exact=True),
        Case("gather", "points", lambda x, i, j: x[i, j], (matrix, indices((3,), -6, 6), indices((3,), -7, 7)),
             exact=True),
        Case("gather", "along-axis", lambda x, i: jnp.take_along_axis(x, i, axis=1),
             (matrix, indices((5, 3), -6, 5)), exact=True),
        Case("gather", "along-axis-large", lambda x, i: jnp.take_along_axis(x, i, axis=0, mode="fill"),
             (large, indices((7, 20), -40, 40)), exact=True),
        Case("gather", "window", lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers(
            offset_dims=(0, 2), collapsed_slice_dims=(), start_index_map=(1, 0)), (2, 3), mode="clip"),
             (matrix, indices((4, 2), -2, 7)), exact=True),
        Case("gather", "window-fill-large", lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers(
            offset_dims=(1,), collapsed_slice_dims=(1,), start_index_map=(1, 0)), (12, 1), mode="fill", fill_value=7),
             (large, indices((9, 2), -2, 25)), exact=True),
        Case("gather", "computed-index-from-int64", lambda x, i: x.at[i].get(mode="fill"),
             (((7,), F32), lambda rng, n: rng.choice([3, -1, 2**32 + 3, 2**40, -(2**35) + 2], (n, 5))), exact=True),
    ]
    return rows


_OPERATIONS = ("set", "add", "subtract", "multiply", "min", "max")
_NAMES = {"set": "scatter", "add": "scatter-add", "subtract": "scatter-sub", "multiply": "scatter-mul",
          "min": "scatter-min", "max": "scatter-max"}


def _update(op: str, mode: str | None = None) -> Callable[..., Any]:
    return lambda x, i, u: getattr(x.at[i], op)(u, mode=mode)


def _scatters() -> list[Case]:
    rows: list[Case] = []
    for k, op in enumerate(_OPERATIONS):
        for j, n in enumerate(LENGTHS):
            mode = MODES[(k + j) % 3]
            rows.append(Case(_NAMES[op], f"{mode}-{n}", _update(op, mode),
                             (((n,), F32), indices((7,), -n - 3, n + 3), ((7,), F32)), exact=True))
        for dtype in (I32, U8, BF16):
            rows.append(Case(_NAMES[op], f"{np.dtype(dtype)}", _update(op),
                             (((6,), dtype), indices((9,), -7, 6), ((9,), dtype)), exact=True))
    nan = ties((6,), F32)
    rows += [Case(f"scatter-{op}", "nan", _update(op), (nan, indices((6,), 0, 5), nan), exact=True)
             for op in ("min", "max")]
    rows += [Case(_NAMES[op], "bool", _update(op), (((6,), BOOL), indices((3,), 0, 5), ((3,), BOOL)))
             for op in ("set", "min", "max")]
    large = ((30, 20), F32)
    rows += [
        Case("scatter", "known", lambda x, u: x.at[jnp.array([1, 3, 1])].set(u).at[2].set(0).at[9].set(5),
             (((7,), F32), ((3,), F32)), exact=True),
        Case("scatter", "one", lambda x, i, u: x.at[i].set(u), (large, indices((), -31, 31), ((20,), F32)), exact=True),
        Case("scatter", "rows", lambda x, i, u: x.at[i].set(u), (large, indices((40,), -31, 31), ((40, 20), F32)),
             exact=True),
        Case("scatter-add", "points", lambda x, i, j, u: x.at[i, j].add(u),
             (((5, 6), F32), indices((8,), -6, 6), indices((8,), -7, 7), ((8,), F32)), exact=True),
        Case("scatter-add", "columns", lambda x, i, u: x.at[:, i].add(u, mode="clip"),
             (large, indices((4,), -21, 21), ((30, 4), F32)), exact=True),
        Case("scatter-add", "histogram", lambda i, u: jnp.zeros(100).at[i].add(u),
             (indices((300,), 0, 99), ((300,), F64)), exact=True),
        Case("scatter-mul", "window", lambda x, i, u: lax.scatter_mul(x, i, u, lax.ScatterDimensionNumbers(
            update_window_dims=(0, 2), inserted_window_dims=(), scatter_dims_to_operand_dims=(1, 0))),
             (((5, 6), F32), indices((4, 2), -2, 7), ((2, 4, 3), F32)), exact=True),
        Case("scatter", "batching-dims", lambda x, i, u: lax.scatter(x, i, u, lax.ScatterDimensionNumbers(
            update_window_dims=(), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(1,),
            operand_batching_dims=(0,), scatter_indices_batching_dims=(1,))),
             (large, indices((3, 30, 1), -2, 22), ((3, 30), F32)), exact=True),
        *(Case("scatter", f"apply-{n}", lambda x, i: x.at[i].apply(lambda v: jnp.where(v > 0, v * 2 + 1, -v)),
               (((n,), F32), indices((6,), -n, n)), exact=True) for n in LENGTHS),
        Case("scatter", "itself", lambda x, i: x.at[i].set(x[::-1][:5] * 2), (((90,), F32), indices((5,), 0, 89)),
             exact=True),
    ]
    return rows


def _sorts() -> list[Case]:
    rows: list[Case] = []
    for n in (2, 9, 16, 25, 130):
        rows += [
            Case("sort", f"floats-{n}", with_signs(lax.sort), (ties((n,), F32),), exact=True),
            Case("sort", f"distinct-{n}", lax.sort, (((n,), F32),), exact=True),
            Case("sort", f"argsort-{n}", jnp.argsort, (ties((n,), F32),)),
            Case("sort", f"two-keys-{n}", lambda i, x, y: lax.sort((i, x, y), num_keys=2),
                 (indices((n,), -2, 2), ties((n,), F32), ((n,), I32)), exact=True),
            Case("top_k", f"all-{n}", with_signs(lambda x, n=n: lax.top_k(x, n)), (ties((n,), F32),), exact=True),
        ]
    for dtype in (I32, U8, U32, BOOL, F64, BF16, F16):
        name = str(np.dtype(dtype))
        x = ties((12,), dtype) if name.startswith(("float", "bfloat")) else ((12,), dtype)
        rows += [Case("sort", name, jnp.argsort, (x,)),
                 Case("sort", f"descending-{name}", lambda x: jnp.sort(x, descending=True), (x,), exact=True),
                 Case("top_k", name, lambda x: lax.top_k(x, 4), (x,), exact=True)]
    rows += [
        Case("sort", "unstable", lambda x: lax.sort(x, is_stable=False), (((70,), I32),)),
        Case("sort", "first-axis", lambda x: lax.sort(x, dimension=0), (ties((7, 5), F32),), exact=True),
        Case("sort", "middle-axis-large", lambda x: lax.sort(x, dimension=1), (ties((3, 20, 5), F32),), exact=True),
        Case("sort", "short-columns-large", lambda x: lax.sort(x, dimension=1), (ties((30, 6), F32),), exact=True),
        Case("sort", "searchsorted", lambda x, y: jnp.searchsorted(jnp.sort(x), y), (((40,), F32), ((6,), F32))),
        Case("sort", "median", jnp.median, (((9,), F32),)),
        Case("sort", "unique", lambda x: jnp.unique(x, size=8, fill_value=-1), (indices((12,), 0, 9),)),
        Case("top_k", "few-of-many", lambda x: lax.top_k(x, 3), (ties((300,), F32),), exact=True),
        Case("top_k", "many", lambda x: lax.top_k(x, 20), (ties((40,), F32),), exact=True),
        Case("top_k", "matrix", lambda x: lax.top_k(x, 2), (ties((9, 11), F32),), exact=True),
    ]
    return rows


CASES: list[Case] = [*_slices(), *_gathers(), *_scatters(), *_sorts()]
