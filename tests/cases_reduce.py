"""Rows for reductions beside the plain ones: functions of the user's, derivatives, approximate extremes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from case import Case
from jax import lax

F32, F64, I32, I8, U8, BF16 = np.float32, np.float64, np.int32, np.int8, np.uint8, ml_dtypes.bfloat16
SIZES = {"small": (3, 4), "large": (7, 23)}


def _derivatives() -> list[Case]:
    def extremes(x: Any) -> Any:
        return jnp.sum(jnp.max(x, 1) * jnp.min(x, 1)) + jnp.prod(jnp.sum(x, 0) * 0.1 + 1)

    def cumulative(x: Any) -> Any:
        return jnp.sum(jnp.sin(lax.cumsum(x, 1, True)) * lax.cumprod(1 + 0.1 * x, 0) + lax.cummax(x, 0)
                       - lax.cummin(x, 1, True) ** 2 + lax.cumlogsumexp(x, 1))

    def weighted(x: Any) -> Any:
        return jnp.sum(jax.nn.softmax(x, 0) * jax.nn.logsumexp(x, 1, keepdims=True))

    rows = []
    for size, shape in SIZES.items():
        for name, primitive, fun in (("extremes", "reduce_max", extremes), ("cumulative", "cumsum", cumulative),
                                     ("softmax", "reduce_sum", weighted)):
            rows.append(Case(primitive, f"gradient, {name}-{size}", jax.grad(fun), ((shape, F64),), rtol=1e-9,
                             atol=1e-9))
        rows.append(Case("reduce_sum", f"tangent of a gradient-{size}",
                         lambda x, t: jax.jvp(jax.grad(weighted), (x,), (t,))[1], ((shape, F64), (shape, F64)),
                         rtol=1e-9, atol=1e-9))
    return rows


def _own_functions() -> list[Case]:
    def moments(x: Any, y: Any) -> Any:
        def combine(a: Any, b: Any) -> Any:
            return a[0] + b[0], a[1] + b[0] * b[1]

        return lax.reduce((x, y), (np.float32(0), np.float32(1)), combine, (0, 1))

    def decaying(x: Any) -> Any:
        return lax.reduce(x, np.float32(1), lambda a, b: a * 0.5 + b, (1,))

    rows = []
    for size, shape in SIZES.items():
        rows += [
            Case("reduce", f"moments-{size}", moments, ((shape, F32), (shape, F32)), atol=1e-5),
            Case("reduce", f"tangent-{size}", lambda x, t: jax.jvp(decaying, (x,), (t,)), ((shape, F32), (shape, F32))),
            Case("reduce", f"int8-{size}", lambda x: lax.reduce(x, np.int8(0), lambda a, b: a * 2 - b, (1,)),
                 ((shape, I8),)),
        ]
    return [*rows, Case("reduce", "of nothing", lambda x: lax.reduce(x, np.float32(3), jnp.logaddexp, (1,)),
                        (((4, 0), F32),))]


def _positions() -> list[Case]:
    return [
        Case("argmax", "int64", lambda x: lax.argmax(x, 0, np.int64), (((7, 23), F32),)),
        Case("argmin", "int16 of bfloat16", lambda x: lax.argmin(x, 1, np.int16), (((3, 30), BF16),)),
        Case("clamp", "scalar bounds", lambda low, x: lax.clamp(low, x, np.float32(0.5)), (((), F32), ((7, 23), F32))),
        Case("approx_top_k", "largest", lambda x: lax.approx_max_k(x, 3), (((5, 20), F32),)),
        Case("approx_top_k", "smallest", lambda x: lax.approx_min_k(x, 2, reduction_dimension=0), (((20, 5), F32),)),
        Case("approx_top_k", "gradient", jax.grad(lambda x: jnp.sum(lax.approx_max_k(x, 3)[0] ** 2)), (((20,), F32),)),
    ]


CASES: list[Case] = [*_derivatives(), *_own_functions(), *_positions()]
