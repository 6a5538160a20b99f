"""`dot_general` and its kin, as sums of products of one example's arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lanax._jax import dot_dtypes, ragged_dot, scaled_dot
from lanax._lowering.arrays import Array
from lanax._lowering.context import Context
from lanax._lowering.emitter import Emitter
from lanax._lowering.lanewise.conversion import convert
from lanax._lowering.product import LARGEST_PRODUCT, multiplied, product_sizes
from lanax._lowering.registry import register, register_composition


def _supports(avals_in: tuple[Any, ...], avals_out: tuple[Any, ...], params: Mapping[str, Any]) -> str | None:
    """Up to 64 x 64 x 64 multiply-adds for each example."""
    lhs, rhs = avals_in
    work = math.prod(itertools.chain(*product_sizes(lhs, rhs, params["dimension_numbers"])))
    if work > LARGEST_PRODUCT:
        return f"a product of {work} multiply-adds per example is better served by XLA's matrix products"
    if dot_dtypes(params.get("precision"), lhs.dtype, rhs.dtype, avals_out[0].dtype) is None:
        return f"a product by the algorithm {params['precision']}"
    return None


@register("dot_general", supports=_supports, cost=8.0)
def _dot_general_rule(ctx: Context, lhs: Array, rhs: Array, *, dimension_numbers: Any, precision: Any = None,
                      **_: Any) -> Array:
    b, out = ctx.b, np.dtype(ctx.avals_out[0].dtype)
    dtypes = dot_dtypes(precision, lhs.dtype, rhs.dtype, out)
    assert dtypes is not None
    left, right, total = dtypes
    return _as(b, multiplied(b, _as(b, lhs, left), _as(b, rhs, right), dimension_numbers, total), out)


def _as(b: Emitter, x: Array, dtype: np.dtype) -> Array:
    """The array in another dtype."""
    return x if x.dtype == dtype else b.map(lambda v: convert(b, v, x.dtype, dtype), dtype, x)


register_composition("ragged_dot_general", ragged_dot)
register_composition("scaled_dot", scaled_dot)
