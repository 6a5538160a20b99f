"""Rows for what reads windows of an array: pooling, its derivatives, and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from case import Case
from jax import lax
from jax._src.lax import windowed_reductions as _windowed

F32, F64, I32, I8, U8, BOOL = np.float32, np.float64, np.int32, np.int8, np.uint8, np.bool_
BF16, F16 = ml_dtypes.bfloat16, np.float16
#: Images that are unrolled, and images that are not.
SIZES = {"small": (4, 5), "large": (9, 12)}
INFINITY = np.float32(np.inf)

Maker = Callable[[np.random.Generator, int], np.ndarray]


def steps(shape: tuple[int, ...], dtype: Any = F32) -> Maker:
    """Small whole numbers, so that many are equal and sums are exact."""
    return lambda rng, batch: rng.integers(-3, 4, (batch, *shape)).astype(dtype)


def special(shape: tuple[int, ...]) -> Maker:
    """Whole numbers with NaN and infinities among them."""

    def make(rng: np.random.Generator, batch: int) -> np.ndarray:
        x, where = steps(shape)(rng, batch), rng.random((batch, *shape))
        x[where < 0.1], x[where > 0.9], x[(where > 0.1) & (where < 0.15)] = np.nan, -np.inf, np.inf
        return x

    return make


POOLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "sum": (lax.add, np.float32(0)), "max": (lax.max, -INFINITY), "min": (lax.min, INFINITY)}
#: Window, strides, padding and other options of a pool of images.
FORMS: dict[str, tuple[Any, ...]] = {
    "2x2": ((2, 2), (2, 2), "VALID"),
    "3x2 overlapping": ((3, 2), (1, 1), "SAME"),
    "strided, padded": ((3, 3), (2, 3), "SAME"),
    "cut": ((2, 3), (1, 2), ((-1, 2), (3, -2))),
    "dilated": ((2, 2), (2, 1), ((3, 1), (0, 2)), (2, 3), (3, 2)),
}


def pool(kind: str, form: str) -> Callable[[Any], Any]:
    combine, initial = POOLS[kind]
    return lambda x: lax.reduce_window(x, initial.astype(x.dtype), combine, *FORMS[form])


def loss(kind: str, form: str) -> Callable[[Any], Any]:
    """A function whose gradient goes another way through every window."""
    def fun(x: Any) -> Any:
        y = pool(kind, form)(x)
        return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 3 * (1 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))

    return fun


def _pools() -> list[Case]:
    rows: list[Case] = []
    for size, shape in SIZES.items():
        for kind in POOLS:
            primitive = f"reduce_window_{kind}"
            rows += [Case(primitive, f"{form}-{size}", pool(kind, form), (special(shape),), exact=True)
                     for form in FORMS]
            rows.append(Case(primitive, f"gradient-{size}", jax.grad(loss(kind, "strided, padded")), (steps(shape),)))
        rows += [
            Case("reduce_window_sum", f"tangent-{size}", lambda x, t: jax.jvp(pool("sum", "dilated"), (x,), (t,)),
                 (steps(shape), steps(shape))),
            Case("select_and_scatter_add", f"gradient-{size}", jax.grad(loss("max", "3x2 overlapping")),
                 (special(shape),)),
            Case("select_and_scatter_add", f"of base dilation-{size}", jax.grad(lambda x: jnp.sum(
                lax.reduce_window(x, INFINITY, lax.min, (2, 2), (2, 1), ((1, 1), (0, 0)), (2, 3)) ** 2)),
                 (steps(shape),)),
            Case("select_and_gather_add", f"gradient's tangent-{size}",
                 lambda x, t: jax.jvp(jax.grad(loss("max", "2x2")), (x,), (t,)), (steps(shape), steps(shape))),
        ]
        for form in ("strided, padded", "dilated"):
            rows.append(Case("select_and_gather_add", f"tangent, {form}-{size}",
                             lambda x, t, form=form: jax.jvp(pool("min", form), (x,), (t,))[1],
                             (special(shape), steps(shape)), exact=True))
    for dtype in (F64, BF16, F16, I32, I8, U8):
        least = np.array(-np.inf if np.dtype(dtype).kind not in "iu" else np.iinfo(dtype).min, dtype)
        rows += [
            Case("reduce_window_sum", str(np.dtype(dtype)), lambda x: lax.reduce_window(
                x, np.zeros((), x.dtype), lax.add, (3,), (2,), "SAME"), (steps((40,), dtype),), exact=True),
            Case("reduce_window_max", str(np.dtype(dtype)), lambda x, least=least: lax.reduce_window(
                x, least, lax.max, (3,), (2,), "SAME"), (steps((9,), dtype),), exact=True),
        ]
    return [
        *rows,
        Case("reduce_window_max", "bool", lambda x: lax.reduce_window(x, False, lax.max, (3,), (2,), "SAME"),
             (((9,), BOOL),)),
        Case("reduce_window_sum", "no window", lambda x: lax.reduce_window(x, F32(0), lax.add, (3,), (1,), "VALID"),
             (((2,), F32),)),
        Case("reduce_window_sum", "of nothing", lambda x: lax.reduce_window(x, F32(0), lax.add, (3,), (1,), ((2, 2),)),
             (((0,), F32),)),
        Case("reduce_window_sum", "long", lambda x: lax.reduce_window(x, F32(0), lax.add, (40,), (7,), "SAME"),
             (((100,), F32),), atol=1e-5),
        Case("reduce_window_max", "in a loop", lambda n, x: lax.fori_loop(0, n, lambda i, y: y + pool(
            "max", "3x2 overlapping")(y) * 0.5, x), (lambda rng, batch: rng.integers(0, 5, batch).astype(I32),
                                                      ((4, 5), F32))),
    ]


def _own_functions() -> list[Case]:
    def pair(x: Any, y: Any) -> Any:
        return lax.reduce_window((x, y), (np.float32(0), np.float32(1)),
                                 lambda a, b: (a[0] + b[0] * b[1], a[1] * 0.5 + b[1]), (2, 2), (1, 2), "SAME")

    def decaying(x: Any) -> Any:
        return lax.reduce_window(x, np.float32(1), lambda a, b: a * 0.5 + b, (2, 3), (2, 1), ((1, 0), (2, 2)), (1, 2))

    def scattered_add(x: Any, source: Any) -> Any:
        return _windowed._select_and_scatter_add(source, x, lax.le_p, (3, 2), (2, 1), ((1, 1), (0, 0)))

    rows = []
    for size, (n, m) in SIZES.items():
        windows = ((n - 1) // 2 + 1, m - 1)
        rows += [
            Case("reduce_window", f"not commutative-{size}", decaying, (((n, m), F32),)),
            Case("reduce_window", f"two arrays-{size}", pair, (((n, m), F32), ((n, m), F32))),
            Case("reduce_window", f"tangent-{size}", lambda x, t: jax.jvp(decaying, (x,), (t,)),
                 (((n, m), F32), ((n, m), F32))),
            Case("reduce_window", f"not from its identity-{size}", lambda x: lax.reduce_window(
                x, np.float32(10), lax.add, (2, 2), (1, 1), "SAME"), (((n, m), F32),)),
            Case("select_and_scatter_add", f"smallest-{size}", scattered_add, (special((n, m)), (windows, F32))),
        ]
    return [
        *rows,
        Case("reduce_window", "long", lambda x: lax.reduce_window(
            x, np.float32(1), lambda a, b: a * 0.5 + b, (40,), (5,), "SAME"), (((70,), F32),)),
        Case("select_and_scatter_add", "long", jax.grad(lambda x: jnp.sum(lax.reduce_window(
            x, -INFINITY, lax.max, (40,), (9,), "SAME") ** 2)), (steps((70,)),)),
    ]


# -- convolutions ----------------------------------------------------------------------------------------------------
def conv(*args: Any, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda x, kernel: lax.conv_general_dilated(x, kernel, *args, **options)


#: Function, shape of the input for a number of positions, shape of the kernel.
CONVOLUTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[int, ...]], tuple[int, ...]]] = {
    "valid": (conv((1,), "VALID"), lambda n: (1, 2, n), (3, 2, 3)),
    "same": (conv((2,), "SAME"), lambda n: (1, 2, n), (3, 2, 3)),
    "padded": (conv((1,), ((2, 1),)), lambda n: (2, 1, n), (2, 1, 4)),
    "cut": (conv((1,), ((-1, 2),)), lambda n: (1, 2, n), (3, 2, 2)),
    "dilated": (conv((2,), ((2, 3),), (3,), (2,)), lambda n: (1, 2, n), (2, 2, 3)),
    "feature groups": (conv((1,), "SAME", feature_group_count=2), lambda n: (1, 4, n), (6, 2, 2)),
    "depthwise": (conv((1,), "SAME", feature_group_count=3), lambda n: (1, 3, n), (3, 1, 3)),
    "batch groups": (conv((1,), "SAME", batch_group_count=2), lambda n: (4, 2, n), (4, 2, 2)),
    "no axes": (conv((), ()), lambda n: (n, 4), (5, 4)),
    "image": (conv((1, 1), "SAME"), lambda n: (1, 1, n, n - 1), (2, 1, 3, 3)),
    "channels last": (conv((2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), lambda n: (1, n, 3, 2),
                      (3, 2, 2, 3)),
    "mixed axes": (conv((2, 1), "SAME", dimension_numbers=("HNCW", "OWIH", "CWHN")), lambda n: (n, 2, 2, 3),
                   (3, 2, 2, 3)),
    "volume": (conv((1, 1, 1), "VALID"), lambda n: (1, 1, n, 3, 3), (2, 1, 2, 2, 2)),
    "full": (lambda x, k: jnp.convolve(x, k), lambda n: (n,), (4,)),
    "centred": (lambda x, k: jnp.correlate(x, k, "same"), lambda n: (n,), (4,)),
}


def _convolutions() -> list[Case]:
    def gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda x, kernel: jnp.sum(fun(x, kernel) ** 2), (0, 1))

    rows = []
    for name, (fun, shape, kernel) in CONVOLUTIONS.items():
        for size, n in (("small", 4), ("large", 19)):
            args = (shape(n), F32), (kernel, F32)
            rows.append(Case("conv_general_dilated", f"{name}-{size}", fun, args, atol=1e-5))
            if name in ("same", "dilated", "feature groups", "batch groups", "channels last"):
                rows.append(Case("conv_general_dilated", f"gradient, {name}-{size}", gradient(fun), args, rtol=1e-4,
                                 atol=1e-4))
    for dtype in (F64, F16, BF16, I32, I8):
        # XLA sums the 16-bit floats in its own order, and rounds in between.
        tolerance = {"rtol": 0.02, "atol": 0.1} if dtype in (F16, BF16) else {"rtol": 1e-12, "atol": 1e-12}
        for size, n in (("small", 5), ("large", 30)):
            rows.append(Case("conv_general_dilated", f"{np.dtype(dtype)}-{size}", conv((1,), "SAME"),
                             (((1, 2, n), dtype), ((2, 2, 3), dtype)), **tolerance))
    return [
        *rows,
        Case("conv_general_dilated", "int8 to int32", conv((1,), "SAME", preferred_element_type=I32),
             (((1, 2, 9), I8), ((2, 2, 3), I8))),
        Case("conv_general_dilated", "float32 to float64", conv((1,), "SAME", preferred_element_type=F64),
             (((1, 2, 9), F32), ((2, 2, 3), F32)), atol=1e-5),
        Case("conv_general_dilated", "no batch", conv((1,), "VALID"), (((0, 2, 5), F32), ((3, 2, 3), F32))),
        Case("conv_general_dilated", "no features", conv((1,), "VALID"), (((1, 0, 5), F32), ((3, 0, 3), F32))),
        Case("conv_general_dilated", "no positions", conv((1,), "VALID"), (((1, 2, 2), F32), ((3, 2, 3), F32))),
        Case("conv_general_dilated", "of computed", lambda x, k: jnp.tanh(lax.conv(x * 2 - 1, k * k, (1, 1), "SAME")),
             (((1, 1, 9, 9), F32), ((2, 1, 3, 3), F32)), atol=1e-5),
        Case("conv_general_dilated", "infinite kernel, border", conv((1,), "SAME"),
             (((1, 1, 7), F32), lambda rng, batch: np.full((batch, 1, 1, 3), np.inf, F32))),
    ]


CASES: list[Case] = [*_pools(), *_own_functions(), *_convolutions()]
