"""Rows for products beside the plain ones: precisions, mixed dtypes, ragged and scaled products, derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from case import Case
from jax import lax

F32, F64, I8, I16, I32, U8, BF16, F16 = (
    np.float32, np.float64, np.int8, np.int16, np.int32, np.uint8, ml_dtypes.bfloat16, np.float16)
MATRIX = (((1,), (0,)), ((), ()))
SIZES = {"small": ((3, 4), (4, 2)), "large": ((9, 20), (20, 11))}


def _precisions() -> list[Case]:
    def by(precision: Any, result: Any = None) -> Any:
        return lambda x, y: lax.dot_general(x, y, MATRIX, precision=precision, preferred_element_type=result)

    rows = []
    for size, (left, right) in SIZES.items():
        for name in ("F32_F32_F32", "BF16_BF16_F32", "BF16_BF16_F32_X3"):
            rows.append(Case("dot_general", f"{name}-{size}", by(lax.DotAlgorithmPreset[name]),
                             ((left, F32), (right, F32)), atol=1e-5))
        rows += [
            Case("dot_general", f"F16_F16_F16-{size}", by(lax.DotAlgorithmPreset.F16_F16_F16),
                 ((left, F32), (right, F32)), rtol=0.01, atol=0.03),
            Case("dot_general", f"F64_F64_F64-{size}", by(lax.DotAlgorithmPreset.F64_F64_F64),
                 ((left, F32), (right, F32)), atol=1e-5),
            Case("dot_general", f"highest-{size}", by("highest"), ((left, F32), (right, F32)), atol=1e-5),
        ]
    for x, y, result in ((F32, F64, None), (I16, I32, None), (I8, F32, None), (BF16, F32, None), (U8, I8, I32),
                         (F16, F32, F32)):
        rows.append(Case("dot_general", f"{np.dtype(x)} by {np.dtype(y)}", by(None, result),
                         (((9, 20), x), ((20, 3), y)), atol=1e-5 if x != I8 else 1e-3))
    return rows


def _derivatives() -> list[Case]:
    def gradient(x: Any, y: Any) -> Any:
        return jax.grad(lambda x, y: jnp.sum(jnp.sin(x @ y)), (0, 1))(x, y)

    def second(x: Any, y: Any) -> Any:
        return jax.jvp(jax.grad(lambda x: jnp.sum(jnp.tanh(x @ y) ** 2)), (x,), (x * 0.5,))[1]

    rows = []
    for size, (left, right) in SIZES.items():
        rows += [Case("dot_general", f"gradient-{size}", gradient, ((left, F32), (right, F32)), rtol=1e-4, atol=1e-4),
                 Case("dot_general", f"second derivative-{size}", second, ((left, F64), (right, F64)), rtol=1e-9)]
    return rows


def _group_sizes(rng: np.random.Generator, batch: int) -> np.ndarray:
    return rng.multinomial(7, [0.3, 0.5, 0.2], batch).astype(I32)


def _kin() -> list[Case]:
    def ragged(x: Any, y: Any, sizes: Any) -> Any:
        return lax.ragged_dot(x, y, sizes)

    def ragged_gradient(x: Any, y: Any, sizes: Any) -> Any:
        return jax.grad(lambda x, y: jnp.sum(lax.ragged_dot(x, y, sizes) ** 2), (0, 1))(x, y)

    def scaled(x: Any, y: Any, s: Any, t: Any) -> Any:
        x, y, s, t = (v.astype(BF16) for v in (x, y, s, t))
        return jax.lax.scaled_dot(x, y, lhs_scale=s, rhs_scale=t, preferred_element_type=F32)

    args = ((7, 4), F32), ((3, 4, 5), F32), _group_sizes
    return [
        Case("ragged_dot_general", "rows", ragged, args, atol=1e-5),
        Case("ragged_dot_general", "gradient", ragged_gradient, args, rtol=1e-4, atol=1e-4),
        Case("scaled_dot", "bfloat16", scaled, (((5, 6), F32), ((6, 4), F32), ((5, 2), F32), ((2, 4), F32)), rtol=0.02,
             atol=0.1),  # XLA keeps some products in float32
    ]


CASES: list[Case] = [*_precisions(), *_derivatives(), *_kin()]
