"""Powers of two that bring the larger part of a complex number near one, so that squares neither overflow nor vanish.
They are made from the bits of floats, by integer arithmetic: exact, and without a division."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def _layout(dtype: Any) -> tuple[Any, int, int]:
    """Integer type, bits of the fraction, and bias of the exponent of a float."""
    return (np.int32, 23, 127) if dtype == np.float32 else (np.int64, 52, 1023)


def exponent(x: Any, even: bool = False) -> Any:
    """The bits of the power of two 2^e, 2^e <= x, for x >= 0; e at most one below the largest exponent.

    `even`: e is even, and x < 2^(e + 2). Of zero it is the least exponent, or one that stands for zero.
    """
    kind, fraction, bias = _layout(x.dtype)
    step = 1 << fraction
    bits = lax.bitcast_convert_type(x, kind) & kind((2 * bias + 1) * step)
    if even:
        # A field of an odd number is an even exponent, since the bias is odd.
        bits = (bits & kind(2 * bias * step)) | kind(step)
    return jnp.minimum(bits, kind((2 * bias - 1) * step))


def power(bits: Any, dtype: Any) -> Any:
    """2^e of what `exponent` gives."""
    return lax.bitcast_convert_type(bits, dtype)


def inverse(bits: Any, dtype: Any) -> Any:
    """2^-e of what `exponent` gives."""
    kind, fraction, bias = _layout(dtype)
    return lax.bitcast_convert_type(kind(2 * bias << fraction) - bits, dtype)


def half(bits: Any, dtype: Any) -> Any:
    """The bits of 2^(e/2), for an even e."""
    kind, fraction, bias = _layout(dtype)
    return lax.shift_right_arithmetic(bits - kind(bias << fraction), kind(1)) + kind(bias << fraction)


def number(bits: Any, dtype: Any) -> Any:
    """e of what `exponent` gives, as a float."""
    kind, fraction, bias = _layout(dtype)
    return lax.convert_element_type(lax.shift_right_arithmetic(bits, kind(fraction)) - kind(bias), dtype)


def leading(x: Any) -> Any:
    """The leading half of the bits of a number: its square is exact, and so is its product with what is left."""
    kind, fraction, _ = _layout(x.dtype)
    mask = kind(-1 << (fraction + 2) // 2)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, kind) & mask, x.dtype)
