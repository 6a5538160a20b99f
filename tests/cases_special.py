"""Rows for the Bessel and zeta functions and the incomplete gamma and beta functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from case import Arg, Case
from jax import lax

#: Dtypes, and what JAX's own functions are right to.
FLOATS = ((np.float32, 1e-4), (np.float64, 1e-11), (np.float16, 4e-3), (ml_dtypes.bfloat16, 3e-2))


def within(low: float, high: float, dtype: Any, shape: tuple[int, ...] = ()) -> Arg:
    """Uniform numbers of an interval."""
    return lambda rng, batch: rng.uniform(low, high, (batch, *shape)).astype(dtype)


def orders(dtype: Any) -> Arg:
    """Whole numbers from 0 to 4, as floats."""
    return lambda rng, batch: rng.integers(0, 5, batch).astype(dtype)


#: Function, intervals of its arguments.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[float, float], ...]]] = {
    "bessel_i0e": (lax.bessel_i0e, ((-20, 20),)),
    "bessel_i1e": (lax.bessel_i1e, ((-20, 20),)),
    "zeta": (lax.zeta, ((1.2, 9), (0.2, 9))),
    "igamma": (lax.igamma, ((0.2, 9), (0.2, 15))),
    "igammac": (lax.igammac, ((0.2, 9), (0.2, 15))),
    "igamma_grad_a": (lax.igamma_grad_a, ((0.2, 9), (0.2, 9))),
    "regularized_incomplete_beta": (lax.betainc, ((0.2, 9), (0.2, 9), (0.02, 0.98))),
}


def _row(name: str, dtype: Any, rtol: float, shape: tuple[int, ...] = ()) -> Case:
    fun, intervals = _FUNCTIONS[name]
    args = tuple(within(low, high, dtype, shape) for low, high in intervals)
    return Case(name, np.dtype(dtype).name + "-array" * bool(shape), fun, args, rtol=rtol, atol=rtol / 100)


def _rows() -> list[Case]:
    out = [_row(name, dtype, rtol) for name in _FUNCTIONS for dtype, rtol in FLOATS[:2]]
    out += [_row(name, dtype, rtol) for name in ("bessel_i1e", "igamma") for dtype, rtol in FLOATS[2:]]
    out += [_row(name, np.float32, 1e-4, (3,)) for name in ("bessel_i0e", "zeta", "igammac")]
    for dtype, rtol in FLOATS:
        name = np.dtype(dtype).name
        out.append(Case("polygamma", name, lax.polygamma, (orders(dtype), within(0.4, 9, dtype)), rtol=rtol, atol=rtol))
    out.append(Case("polygamma", "trigamma", lambda x: lax.polygamma(lax.full_like(x, 1), x),
                    (within(0.2, 9, np.float32),), rtol=1e-5))
    return out


CASES = _rows()
