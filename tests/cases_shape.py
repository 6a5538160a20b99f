"""Rows for the primitives that move elements about, reduce them and multiply matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from case import Case
from jax import lax
from jax._src.lax import lax as _lax

F32, F64, I32, I8, U8, U32, BOOL = np.float32, np.float64, np.int32, np.int8, np.uint8, np.uint32, np.bool_
BF16, F16 = ml_dtypes.bfloat16, np.float16
#: Shapes that are unrolled, and shapes that are not.
SMALL, LARGE = (3, 4), (7, 23)


def special(shape: tuple[int, ...], dtype: Any, share: float = 0.1) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Floats with NaN, infinities and many equal values among them."""

    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        x = np.round(rng.normal(size=(batch, *shape)) * 2)
        where = rng.random(x.shape)
        x = np.where(where < share / 3, np.nan, np.where(where < share / 2, np.inf, x))
        return np.where((where > share / 2) & (where < share), -np.inf, x).astype(dtype)

    return make


def both(primitive: str, name: str, fun: Callable[..., Any], dtype: Any = F32, **options: Any) -> list[Case]:
    """One row for a small array and one for a large one."""
    return [Case(primitive, f"{name}-{np.dtype(dtype)}-{size}", fun, ((shape, dtype),), **options)
            for size, shape in (("small", SMALL), ("large", LARGE))]


def _moves() -> list[Case]:
    def mixed(x: Any) -> Any:
        return lax.pad(x, jnp.ones((), x.dtype), [(1, -1, 2), (-1, 3, 0)])

    def cut(x: Any, *config: tuple[int, int, int]) -> Any:
        return lax.pad(x, np.float32(0.5), config)

    rows: list[Case] = []
    for dtype in (I32, BOOL, BF16):
        rows += [Case("transpose", f"2d-{np.dtype(dtype)}", lambda x: x.T, ((LARGE, dtype),), exact=True),
                 Case("concatenate", f"bits-{np.dtype(dtype)}", lambda x: lax.concatenate([x, x[:, :2], x], 1),
                      ((LARGE, dtype),), exact=True),
                 Case("pad", f"mixed-{np.dtype(dtype)}", mixed, ((LARGE, dtype),), exact=True)]
    for primitive, name, fun in (
        ("transpose", "2d", lambda x: x.T),
        ("transpose", "of a sum", lambda x: (x + x).T * 2),
        ("reshape", "flat", lambda x: x.reshape(-1)),
        ("concatenate", "axis 1", lambda x: lax.concatenate([x, x[:, :2], x], 1)),
        ("concatenate", "computed", lambda x: lax.concatenate([x + 1, x * x], 0)),
        ("rev", "axis 0", lambda x: lax.rev(x, (0,))),
        ("rev", "both", lambda x: lax.rev(x, (0, 1))),
        ("slice", "plain", lambda x: lax.slice(x, (1, 1), (3, 4))),
        ("slice", "strided", lambda x: x[::2, 1::3]),
        ("slice", "rows", lambda x: x[1:]),
        ("broadcast_in_dim", "middle", lambda x: lax.broadcast_in_dim(x, (x.shape[0], 5, x.shape[1]), (0, 2))),
        ("broadcast_in_dim", "stretch", lambda x: lax.broadcast_in_dim(x[:1], x.shape, (0, 1))),
        ("broadcast_in_dim", "computed", lambda x: lax.broadcast_in_dim(x * 3 - 1, (5, *x.shape), (1, 2))),
        ("squeeze", "ends", lambda x: jnp.squeeze(x[None, :, :, None], (0, 3))),
        ("tile", "2x3", lambda x: jnp.tile(x, (2, 3))),
        ("tile", "longer", lambda x: jnp.tile(x, (2, 1, 2))),
        ("split", "axis 0", lambda x: lax.split(x, (1, 0, x.shape[0] - 1), 0)),
        ("split", "axis 1", lambda x: lax.split(x, (2, x.shape[1] - 2), 1)),
        ("stack", "axis 1", lambda x: jnp.stack([x, x + 1, -x], 1)),
        ("unstack", "axis 0", lambda x: jnp.unstack(x, axis=0)),
        ("copy", "", lambda x: jnp.copy(x)),
        ("pad", "mixed", mixed),
        ("pad", "negative", lambda x: cut(x, (-1, 0, 0), (0, -2, 0))),
        ("pad", "interior", lambda x: cut(x, (0, 0, 1), (-3, 2, 2))),
        ("pad", "cut", lambda x: cut(x, (-2, -1, 3), (0, 0, 0))),
        ("pad", "nothing left", lambda x: cut(x, (9, -8 - x.shape[0], 0), (0, 0, 0))),
    ):
        rows += both(primitive, name, fun)
    return rows


def _reshapes() -> list[Case]:
    def row(name: str, old: tuple[int, ...], new: tuple[int, ...]) -> Case:
        return Case("reshape", name, lambda x: lax.reshape(x, new), ((old, F32),), exact=True)

    return [
        row("split and merge", (6, 2, 10), (2, 3, 20)), row("runs", (4, 6, 5, 3), (2, 12, 15)),
        row("ones", (1, 9, 1, 8), (9, 1, 1, 8, 1)), row("mixed", (8, 9), (6, 12)), row("to scalar", (1, 1), ()),
        row("from scalar", (), (1, 1, 1)), row("empty", (0, 5), (5, 0, 2)),
        Case("reshape", "permuted", lambda x: lax.reshape(x, (60,), (2, 0, 1)), (((3, 4, 5), F32),), exact=True),
        Case("reshape", "of computed", lambda x: lax.reshape(x * 2, (20, 6)) + 1, (((4, 30), F32),)),
        Case("transpose", "3d", lambda x: lax.transpose(x, (2, 0, 1)), (((3, 4, 7), I32),), exact=True),
    ]


def _iotas() -> list[Case]:
    def fun(shape: tuple[int, ...], dtype: Any) -> Callable[..., Any]:
        return lambda x: lax.broadcasted_iota(dtype, shape, 1) + x.astype(dtype)

    return [Case("iota", f"{np.dtype(dtype)}-{name}", fun(shape, dtype), (((), I8),), exact=True)
            for dtype in (F32, F64, I32, U8, BF16, F16) for name, shape in (("small", (3, 5)), ("large", (3, 300)))]


def _empties() -> list[Case]:
    space = jax.typeof(jnp.zeros(())).memory_space
    return [Case("empty", "small", lambda x: lax.empty((3,), F32).at[1].set(x), (((), F32),)),
            Case("empty", "large", lambda x: lax.empty((70,), I32) + x, (((), I32),)),
            Case("empty2", "", lambda x: _lax.empty2(np.dtype(F32), memory_space=space) * x, (((), F32),))]


_REDUCTIONS = {"sum": lax.reduce_sum, "prod": lax.reduce_prod, "max": lax.reduce_max, "min": lax.reduce_min}
_BITWISE = {"and": lax.reduce_and, "or": lax.reduce_or, "xor": lax.reduce_xor}


def _reductions() -> list[Case]:
    rows: list[Case] = []
    for name, fun in _REDUCTIONS.items():
        primitive = f"reduce_{name}"
        for axes in ((0,), (1,), (0, 1)):
            rows += both(primitive, f"{axes}", lambda x, f=fun, axes=axes: f(x, axes))
        for dtype in (F64, I32, BF16, F16, U32):
            # XLA rounds the partial sums of 16-bit floats, in an order of its own.
            tolerance = {"rtol": 0.02, "atol": 0.3} if dtype in (BF16, F16) else {"rtol": 1e-13}
            rows += both(primitive, "rows", lambda x, f=fun: f(x, (1,)), dtype, **tolerance)
        rows += [Case(primitive, "of nothing", lambda x, f=fun: f(x, (1,)), (((3, 0), F32),), exact=True),
                 Case(primitive, "no axes", lambda x, f=fun: f(x, ()), ((SMALL, F32),), exact=True),
                 Case(primitive, "one element", lambda x, f=fun: f(x, (1,)), (((90, 1), F32),), exact=True)]
    for name, fun in _BITWISE.items():
        for dtype in (BOOL, I32, U8):
            rows += both(f"reduce_{name}", "rows", lambda x, f=fun: f(x, (1,)), dtype)
            rows.append(Case(f"reduce_{name}", f"all-{np.dtype(dtype)}", lambda x, f=fun: f(x, (0, 1)),
                             ((LARGE, dtype),)))
    for name in ("max", "min"):
        fun = _REDUCTIONS[name]
        # Of a large array jax 0.12.0.1 loses NaNs in whole batches: run/test_rules_shape.py has that row.
        rows += [Case(f"reduce_{name}", f"special-{np.dtype(dtype)}", lambda x, f=fun: f(x, (1,)),
                      (special(SMALL, dtype, 0.05),)) for dtype in (F32, F64, BF16)]
        rows += both(f"reduce_{name}", "bools", lambda x, f=fun: f(x, (0,)), BOOL)
    return rows


def _sums() -> list[Case]:
    return [
        Case("reduce_sum", "bfloat16 in float32", lambda x: jnp.sum(x, 1), ((LARGE, BF16),)),
        Case("reduce_sum", "many results", lambda x: jnp.sum(x, 1), (((70, 6), F32),)),
        Case("reduce_sum", "first axis, many results", lambda x: jnp.sum(x, 0), (((50, 70), F32),), atol=1e-5),
        Case("reduce_sum", "middle axis", lambda x: jnp.sum(x, 1), (((5, 19, 7), F32),)),
        Case("reduce_sum", "outer axes", lambda x: jnp.sum(x, (0, 2)), (((5, 4, 27), F32),), atol=1e-5),
        Case("reduce_sum", "long", jnp.sum, (((1001,), F32),), atol=1e-4),
        Case("reduce_sum", "products", lambda x, y: jnp.sum(x * y, 1), ((LARGE, F32), (LARGE, F32)), atol=1e-5),
        Case("reduce_sum", "few products", lambda x, y: jnp.sum(x * y), ((SMALL, F32), (SMALL, F32))),
        Case("reduce_sum", "products with a scalar", lambda x, y: jnp.sum(x * y, 0), ((LARGE, F32), ((), F32)),
             atol=1e-5),
        Case("reduce_sum", "squares", lambda x: jnp.sum(jnp.square(x + 1)), ((LARGE, F64),), rtol=1e-12),
        Case("reduce_sum", "then broadcast", lambda x: x / jnp.sum(jnp.abs(x), 1, keepdims=True), (((70, 9), F32),)),
        Case("reduce_max", "softmax", lambda x: jnp.exp(x - jnp.max(x, 0)), (((9, 70), F32),)),
    ]


def _extreme_positions() -> list[Case]:
    rows = []
    for name, fun in (("argmax", lax.argmax), ("argmin", lax.argmin)):
        def along(axis: int, index: Any = I32, f: Callable[..., Any] = fun) -> Callable[..., Any]:
            return lambda x: f(x, axis, index)

        for size, shape in (("small", SMALL), ("large", LARGE), ("many", (70, 9)), ("long", (3, 100))):
            rows += [Case(name, f"{size}-{axis}", along(axis), (special(shape, F32, 0.03 * axis),)) for axis in (0, 1)]
            rows += [Case(name, f"{size}-{np.dtype(dtype)}", along(1, U8), (special(shape, dtype, 0.03),))
                     for dtype in (F64, BF16)]
        for dtype in (I32, U8, BOOL):
            rows += both(name, "rows", along(1), dtype)
        rows.append(Case(name, "all infinite", lambda x, f=fun: f(x * np.inf, 0, I32), (((5,), F32),)))
    return rows


def _cumulatives() -> list[Case]:
    rows = []
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        fun: Callable[..., Any] = getattr(lax, name)

        def along(axis: int, reverse: bool, f: Callable[..., Any] = fun) -> Callable[..., Any]:
            return lambda x: f(x, axis, reverse)

        for size, shape in (("small", SMALL), ("large", LARGE), ("lines", (40, 20)), ("long", (120, 1))):
            rows += [Case(name, f"{axis}-{size}", along(axis, axis == 1), ((shape, F32),), atol=1e-5)
                     for axis in (0, 1)]
        for dtype in (F64, BF16) if name == "cumlogsumexp" else (F64, I32, BF16):
            # XLA rounds the partial sums of 16-bit floats, in an order of its own.
            tolerance = {"rtol": 0.03, "atol": 0.03} if dtype == BF16 else {"rtol": 1e-12, "atol": 1e-13}
            rows.append(Case(name, str(np.dtype(dtype)), along(0, False), ((LARGE, dtype),), **tolerance))
    for name in ("cummax", "cummin", "cumlogsumexp"):
        fun = getattr(lax, name)
        rows.append(Case(name, "special", lambda x, f=fun: f(x, 0), (special((13, 9), F32, 0.05),)))
    return rows


def _own_reductions() -> list[Case]:
    def pair(x: Any, y: Any) -> Any:
        def smaller(a: Any, b: Any) -> Any:
            take = a[0] <= b[0]
            return jnp.where(take, a[0], b[0]), jnp.where(take, a[1], b[1])

        return lax.reduce((x, y), (np.float32(9), np.int32(-1)), smaller, (1,))

    return [
        *both("reduce", "function", lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * 0.5 + b, (0,))),
        *both("reduce", "all", lambda x: lax.reduce(x, np.float32(0), jnp.logaddexp, (0, 1))),
        Case("reduce", "two arrays", pair, ((LARGE, F32), (LARGE, I32))),
    ]


def _precisions() -> list[Case]:
    def extreme(dtype: Any) -> Callable[[np.random.Generator, int], np.ndarray]:
        def make(rng: np.random.Generator, batch: int) -> np.ndarray:
            x = np.clip(rng.normal(size=(batch, 40)) * 2.0 ** rng.integers(-30, 30, (batch, 40)), -6e4, 6e4)
            x[:, :4] = [np.nan, np.inf, -np.inf, -0.0]
            return x.astype(dtype)

        return make

    return [Case("reduce_precision", f"{np.dtype(dtype)}-{exponent}-{mantissa}",
                 lambda x, e=exponent, m=mantissa: lax.reduce_precision(x, e, m), (extreme(dtype),),
                 exact=dtype in (F32, F64))
            for dtype in (F32, F64, BF16, F16)
            for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (8, 23), (5, 0))]


def _products() -> list[Case]:
    def row(name: str, left: tuple[int, ...], right: tuple[int, ...], numbers: Any, dtype: Any = F32, other: Any = None,
            result: Any = None, **options: Any) -> Case:
        def fun(x: Any, y: Any) -> Any:
            return lax.dot_general(x, y, numbers, preferred_element_type=result)

        options.setdefault("rtol", 1e-12 if dtype == F64 else 1e-5)
        options.setdefault("atol", 1e-12 if dtype == F64 else 1e-5)
        return Case("dot_general", name, fun, ((left, dtype), (right, other or dtype)), **options)

    matrix, outer = (((1,), (0,)), ((), ())), (((), ()), ((), ()))
    rows = []
    for dtype in (F32, F64, I32, I8, BF16, F16, BOOL, U8):
        kind = str(np.dtype(dtype))
        rows += [
            row(f"3x3-{kind}", (3, 3), (3, 3), matrix, dtype), row(f"9x20x11-{kind}", (9, 20), (20, 11), matrix, dtype),
        ]
    return [
        *rows,
        row("vectors", (3,), (3,), (((0,), (0,)), ((), ()))), row("long", (200,), (200,), (((0,), (0,)), ((), ()))),
        row("two long", (2, 65), (65,), (((1,), (0,)), ((), ()))),
        row("8x8", (8, 8), (8, 8), matrix), row("7x9x8", (7, 9), (9, 8), matrix, F64),
        row("matrix vector", (30, 21), (21,), matrix), row("vector matrix", (21,), (21, 90), (((0,), (0,)), ((), ()))),
        row("transposed", (19, 12), (23, 19), (((0,), (1,)), ((), ()))),
        row("batched", (5, 3, 4), (5, 4, 2), (((2,), (1,)), ((0,), (0,)))),
        row("batch axes last", (4, 17, 5), (17, 6, 5), (((1,), (0,)), ((2,), (2,)))),
        row("two contracted", (4, 5, 6), (6, 3, 5), (((1, 2), (2, 0)), ((), ()))),
        row("many contracted", (9, 5, 6), (6, 13, 5), (((1, 2), (2, 0)), ((), ()))),
        row("several free", (3, 5, 4, 7), (7, 2, 9), (((3,), (0,)), ((), ()))),
        row("only batch", (70,), (70,), (((), ()), ((0,), (0,)))),
        row("outer", (4,), (5,), outer), row("large outer", (20,), (17,), outer), row("scalars", (), (), outer),
        row("nothing contracted", (3, 0), (0, 4), matrix), row("no rows", (0, 3), (3, 4), matrix),
        row("40x40x40", (40, 40), (40, 40), matrix),
        row("int8 to int32", (9, 20), (20, 11), matrix, I8, result=I32),
        row("bfloat16 to float32", (9, 20), (20, 11), matrix, BF16, result=F32),
        row("float32 to float64", (3, 4), (4, 5), matrix, F32, result=F64, rtol=1e-6, atol=1e-6),
        Case("dot_general", "of computed", lambda x, y: (x + 1) @ (y * y - 2), (((9, 20), F32), ((20, 11), F32)),
             atol=1e-5),
        Case("dot_general", "computed vector", lambda x, y: (x + 1) @ (y * y - 2), (((9, 20), F32), ((20,), F32)),
             atol=1e-5),
        Case("dot_general", "chained", lambda x: x @ x.T @ x, (((6, 15), F32),), atol=1e-4),
        Case("dot_general", "solve by hand", lambda x, y: jnp.einsum("ij,jk,k->i", x, x, y),
             (((6, 6), F32), ((6,), F32)), atol=1e-5),
    ]


CASES: list[Case] = [
    *_moves(), *_reshapes(), *_iotas(), *_empties(), *_reductions(), *_sums(), *_extreme_positions(),
    *_cumulatives(), *_own_reductions(), *_precisions(), *_products(),
]
