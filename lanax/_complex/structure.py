"""Complex values that are moved, converted, compared, or summed up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._complex.arithmetic import divide, multiply
from lanax._complex.registry import Complex, register_complex, register_partwise

register_partwise((
    "add", "add_any", "broadcast_in_dim", "concatenate", "copy", "copy_p", "cumsum", "dynamic_slice",
    "dynamic_update_slice", "expand_dims", "neg", "pad", "reduce_sum", "reduce_window_sum", "reshape", "rev",
    "select_n", "slice", "split", "squeeze", "stack", "sub", "tile", "transpose", "unstack",
))  # fmt: skip

#: Products over up to this many elements are unrolled.
_UNROLLED = 64


def zeros(x: Any) -> Any:
    """Zeros of the shape and dtype of `x`."""
    return lax.full_like(x, 0)


@register_complex("complex")
def _complex(re: Any, im: Any) -> Complex:
    shape = jnp.broadcast_shapes(jnp.shape(re), jnp.shape(im))
    return Complex(jnp.broadcast_to(re, shape), jnp.broadcast_to(im, shape))


@register_complex("conj")
def _conj(x: Any, **_: Any) -> Complex:
    return Complex(x.re, -x.im) if isinstance(x, Complex) else Complex(x, zeros(x))


@register_complex("convert_element_type")
def _convert_element_type(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    re = x.re if isinstance(x, Complex) else x
    if not np.issubdtype(new_dtype, np.complexfloating):
        return lax.convert_element_type(re, new_dtype)
    part = np.zeros((), new_dtype).real.dtype
    re = lax.convert_element_type(re, part)
    return Complex(re, lax.convert_element_type(x.im, part) if isinstance(x, Complex) else zeros(re))


@register_complex("iota")
def _iota(*, dtype: Any, shape: tuple[int, ...], dimension: int, **_: Any) -> Complex:
    re = lax.broadcasted_iota(np.zeros((), dtype).real.dtype, shape, dimension)
    return Complex(re, zeros(re))


@register_complex("eq")
def _eq(x: Complex, y: Complex) -> Any:
    return (x.re == y.re) & (x.im == y.im)


@register_complex("ne")
def _ne(x: Complex, y: Complex) -> Any:
    return (x.re != y.re) | (x.im != y.im)


def _select(which: Any, x: Complex, y: Complex) -> Complex:
    return Complex(jnp.where(which, x.re, y.re), jnp.where(which, x.im, y.im))


@register_complex("max")
def _max(x: Complex, y: Complex) -> Complex:
    """The one that comes last where real parts are compared first."""
    return _select(jnp.where(x.re == y.re, x.im > y.im, x.re > y.re), x, y)


@register_complex("min")
def _min(x: Complex, y: Complex) -> Complex:
    return _select(jnp.where(x.re == y.re, x.im < y.im, x.re < y.re), x, y)


@register_complex("gather")
def _gather(x: Complex, indices: Any, *, fill_value: Any, **params: Any) -> Complex:
    # JAX fills with NaN where nothing is said, and with that as the real part only.
    fill = complex(np.nan if fill_value is None else fill_value)
    return Complex(*(lax.gather_p.bind(part, indices, fill_value=f, **params)
                     for part, f in ((x.re, fill.real), (x.im, fill.imag))))


def _scatter(fun: Callable[..., Any]) -> Callable[..., Complex]:
    def by_part(x: Complex, indices: Any, updates: Complex, *, update_jaxpr: Any, update_consts: Any,
                dimension_numbers: Any, **params: Any) -> Complex:
        del update_jaxpr, update_consts
        return Complex(*(fun(part, indices, new, dimension_numbers, **params)
                         for part, new in zip(x, updates, strict=True)))

    return by_part


register_complex("scatter")(_scatter(lax.scatter))
register_complex("scatter-add", "scatter_add")(_scatter(lax.scatter_add))
if hasattr(lax, "scatter_sub"):
    register_complex("scatter-sub", "scatter_sub")(_scatter(lax.scatter_sub))


@register_complex("sort")
def _sort(*operands: Any, num_keys: int, **params: Any) -> list[Any]:
    """Real parts are compared before imaginary parts."""
    flat = [part for x in operands for part in (x if isinstance(x, Complex) else (x,))]
    keys = num_keys + sum(isinstance(x, Complex) for x in operands[:num_keys])
    results = iter(lax.sort_p.bind(*flat, num_keys=keys, **params))
    return [Complex(next(results), next(results)) if isinstance(x, Complex) else next(results) for x in operands]


def _bilinear(primitive: Any) -> Callable[..., Complex]:
    """A product of two operands, each complex or real: one real product for each pair of parts."""

    def product(x: Any, y: Any, *, preferred_element_type: Any = None, **params: Any) -> Complex:
        if preferred_element_type is not None:
            preferred_element_type = np.zeros((), preferred_element_type).real.dtype

        def real(a: Any, b: Any) -> Any:
            return primitive.bind(a, b, preferred_element_type=preferred_element_type, **params)

        if not isinstance(x, Complex):
            return Complex(real(x, y.re), real(x, y.im))
        if not isinstance(y, Complex):
            return Complex(real(x.re, y), real(x.im, y))
        return Complex(real(x.re, y.re) - real(x.im, y.im), real(x.re, y.im) + real(x.im, y.re))

    return product


register_complex("dot_general")(_bilinear(lax.dot_general_p))
register_complex("conv_general_dilated")(_bilinear(lax.conv_general_dilated_p))


def _reduced(x: Complex, axes: Sequence[int], combine: Callable[..., Complex]) -> Complex:
    """The elements along some axes combined: as a tree where they are few, else one after the other."""
    shape = x.re.shape
    kept = [i for i in range(len(shape)) if i not in axes]
    count = math.prod(shape[i] for i in axes)
    x = Complex(*(lax.reshape(lax.transpose(part, (*axes, *kept)), (count, *(shape[i] for i in kept)))
                  for part in x))
    if count == 0:
        raise NotImplementedError("a reduction of nothing")
    if count > _UNROLLED:
        return lax.fori_loop(1, count, lambda i, total: combine(total, _at(x, i)), _at(x, 0))
    values = [_at(x, i) for i in range(count)]
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [combine(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


def _register_reduction(name: str, combine: Callable[..., Complex]) -> None:
    register_complex(name)(lambda x, *, axes, **_: _reduced(x, axes, combine))


_register_reduction("reduce_prod", multiply)
_register_reduction("reduce_max", _max)
_register_reduction("reduce_min", _min)


def _one(shape: Sequence[int], dtype: Any) -> Complex:
    return Complex(lax.full(shape, 1, dtype), lax.full(shape, 0, dtype))


def _at(x: Complex, index: Any) -> Complex:
    """One element along the first axis."""
    return Complex(*(lax.index_in_dim(part, index, keepdims=False) if isinstance(index, int)
                     else lax.dynamic_index_in_dim(part, index, keepdims=False) for part in x))


@register_complex("cumprod")
def _cumprod(x: Complex, *, axis: int, reverse: bool) -> Complex:
    x = Complex(*(jnp.moveaxis(part, axis, 0) for part in x))
    if x.re.shape[0] == 0:
        return Complex(*(jnp.moveaxis(part, 0, axis) for part in x))

    def step(total: Complex, factor: Complex) -> tuple[Complex, Complex]:
        total = multiply(total, factor)
        return total, total

    _, out = lax.scan(step, _one(x.re.shape[1:], x.re.dtype), x, reverse=reverse)
    return Complex(*(jnp.moveaxis(part, 0, axis) for part in out))


@register_complex("integer_pow")
def _integer_pow(x: Complex, *, y: int) -> Complex:
    """By squaring, as XLA is told to."""
    total, power, left = None, x, abs(y)
    while left:
        if left & 1:
            total = power if total is None else multiply(total, power)
        left >>= 1
        power = multiply(power, power) if left else power
    one = _one(x.re.shape, x.re.dtype)
    if total is None:
        return one
    return divide(one, total) if y < 0 else total
