"""Long scans cut into chunks whose steps reverse mode computes again, so that it keeps the carries between chunks, and
of the steps those of one chunk. Knows no batch and no LLVM."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from lanax import _jax
from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal
from lanax._rewrite.surgery import Scan, is_left_whole

#: Calls whose program may stand in their place.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}


def kept_by_scans(jaxpr: Jaxpr) -> int:
    """Bytes of all that scans stack up for what comes after them, calls included."""
    return sum(sum(_bytes(v.aval) for v in Scan.of(e).ys) if e.primitive.name == "scan" else
               sum(map(kept_by_scans, _jax.jaxprs_in(e))) if e.primitive.name in _CALLS else 0 for e in jaxpr.eqns)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def recomputing(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """An open jaxpr as a function whose scans are in chunks, of about the square root of their length."""

    def run(*args: Any) -> list[Any]:
        values: dict[Atom, Any] = dict(zip(jaxpr.invars, args, strict=True))

        def read(atoms: Sequence[Atom]) -> list[Any]:
            return [v.val if isinstance(v, Literal) else values[v] for v in atoms]

        for eqn in jaxpr.eqns:
            values.update(zip(eqn.outvars, _equation(eqn)(*read(eqn.invars)), strict=True))
        return read(jaxpr.outvars)

    return run


def _equation(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    name = eqn.primitive.name
    if name == "scan" and not is_left_whole(eqn) and eqn.params["length"] >= 4:
        return lambda *args: _in_chunks(eqn, args)
    if name in _CALLS:
        closed = eqn.params[_CALLS[name]]
        return lambda *args: recomputing(_jax.without_consts(closed))(*_jax.consts_of(closed), *args)
    inputs = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    fun = _jax.jaxpr_as_fun(_jax.make_open(inputs, eqn.outvars, [eqn]))

    def run(*args: Any) -> list[Any]:
        given = {v: x for v, x in zip(eqn.invars, args, strict=True) if not isinstance(v, Literal)}
        return fun(*(given[v] for v in inputs))

    return run


def _in_chunks(eqn: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """A scan as a scan of chunks; what is left of its length runs after them."""
    scan = Scan.of(eqn)
    body = _jax.jaxpr_as_fun(scan.body)
    consts, count = args[:len(scan.consts)], len(scan.init)
    carry, xs = args[len(consts):len(consts) + count], args[len(consts) + count:]
    length, backwards = eqn.params["length"], eqn.params["reverse"]
    chunk = math.isqrt(length)
    chunks, rest = divmod(length, chunk)

    def step(carry: Sequence[Any], x: Sequence[Any]) -> Any:
        outs = body(*consts, *carry, *x)
        return outs[:count], outs[count:]

    def steps(carry: Sequence[Any], xs: Sequence[Any], length: int) -> Any:
        return lax.scan(step, list(carry), list(xs), length=length, reverse=backwards)

    def again(carry: Sequence[Any], xs: Sequence[Any]) -> Any:
        return jax.checkpoint(lambda carry, xs: steps(carry, xs, chunk), prevent_cse=False)(carry, xs)

    def part(x: Any, whole: bool) -> Any:
        """The chunks of an array along the length, or what is left of it: the steps that come last."""
        first, end = (rest, length) if backwards else (0, length - rest)
        if whole:
            return lax.slice_in_dim(x, first, end).reshape((chunks, chunk, *x.shape[1:]))
        return lax.slice_in_dim(x, 0, rest) if backwards else lax.slice_in_dim(x, end, length)

    carry, ys = lax.scan(again, list(carry), [part(x, True) for x in xs], length=chunks, reverse=backwards)
    ys = [y.reshape((chunks * chunk, *y.shape[2:])) for y in ys]
    if rest:
        carry, more = steps(carry, [part(x, False) for x in xs], rest)
        ys = [lax.concatenate([z, y] if backwards else [y, z], 0) for y, z in zip(ys, more, strict=True)]
    return [*carry, *ys]
