"""Per-example programs that compare by what they compute, so that a program traced anew finds what was compiled."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import re
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from lanax._jax import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in, open_and_consts, words_of

#: Parameters that say how to differentiate, not what to compute; made anew by each trace.
_DERIVATIVE_RULES = frozenset({"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "fwd", "bwd", "jvp", "transpose",
                               "fwd_in_tree", "bwd_in_tree", "prevent_cse", "policy", "ctx_mesh", "debug_info"})


class Program:
    """A per-example jaxpr without constants. Equal and of one hash where the same is computed.

    Attributes:
      jaxpr: the jaxpr as it was traced: differentiable, calls not inlined.
      name: the user's function, for messages.
      code: what tells that function from others, for messages; see `code_of`.
      axis_name: what the user calls the axis that it is mapped over, where a rule for a derivative inside it may name
        that axis; else None.
    """

    def __init__(self, jaxpr: Jaxpr, name: str, code: types.CodeType | type, axis_name: Hashable | None = None):
        self.jaxpr = jaxpr
        self.name = name
        self.code = code
        self.axis_name = axis_name
        self._key = jaxpr_key(jaxpr)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._hash == other._hash and self._key == other._key

    def replace(self, jaxpr: Jaxpr, name: str | None = None) -> Program:
        """Another program over the same axis."""
        return Program(jaxpr, name or self.name, self.code, self.axis_name)

    def __repr__(self) -> str:
        return f"Program({self.name}: {len(self.jaxpr.eqns)} equations)"


def code_of(fun: Callable[..., Any]) -> types.CodeType | type:
    """The code of a function under its wrappers, the same however often its definition is run; of an object that can be
    called, that of `__call__`, or its class where this has none in Python."""
    fun = inspect.unwrap(fun)
    while isinstance(fun, functools.partial):
        fun = inspect.unwrap(fun.func)
    found = getattr(fun, "__code__", getattr(type(fun).__call__, "__code__", None))
    return found if isinstance(found, types.CodeType) else type(fun)


class _Same:
    """Compares by identity, and keeps its object alive."""

    def __init__(self, obj: object):
        self.obj = obj

    def __hash__(self) -> int:
        return id(self.obj)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.obj is other.obj


class _Key:
    """The key of an inner jaxpr, hashed once."""

    def __init__(self, parts: tuple[Hashable, ...]):
        self.parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Key) and self._hash == other._hash and self.parts == other.parts)


_known: dict[int, tuple[weakref.ref[Any], _Key]] = {}


def has_rules(jaxpr: Jaxpr) -> bool:
    """Whether a function with a rule for its derivative is called, at any depth."""
    return any(e.primitive.name.startswith("custom_") or any(map(has_rules, programs_in(e))) for e in jaxpr.eqns)


def programs_in(eqn: JaxprEqn) -> list[Jaxpr]:
    """The open jaxprs among an equation's parameters, also of a mapped call."""
    program = eqn.params.get("program")
    return [*jaxprs_in(eqn), *([program.jaxpr] if isinstance(program, Program) else [])]


def jaxpr_key(jaxpr: Any) -> _Key:
    """What a jaxpr computes, as a value that can be compared; variables by the order in which they are bound."""
    found = _known.get(id(jaxpr))
    if found is not None and found[0]() is jaxpr:
        return found[1]
    key = _Key(_parts(jaxpr))
    with contextlib.suppress(TypeError):  # not every version lets jaxprs be referred to weakly
        number = id(jaxpr)
        _known[number] = (weakref.ref(jaxpr, lambda _: _known.pop(number, None)), key)
    return key


def _parts(jaxpr: Any) -> tuple[Hashable, ...]:
    inner, consts = open_and_consts(jaxpr)
    numbers: dict[Var, int] = {}

    def bind(v: Var) -> Hashable:
        if isinstance(v, DropVar):
            return _aval_key(v.aval)
        numbers[v] = len(numbers)
        return _aval_key(v.aval)

    def read(v: Any) -> Hashable:
        return literal_key(v) if isinstance(v, Literal) else numbers[v]

    head = tuple(bind(v) for v in (*inner.constvars, *inner.invars))
    body = tuple((equation_key(e), tuple(map(read, e.invars)), tuple(map(bind, e.outvars))) for e in inner.eqns)
    return (head, body, tuple(map(read, inner.outvars)), tuple(_const_key(c) for c in consts))


def literal_key(v: Literal) -> Hashable:
    """What a literal is, as a value that can be compared."""
    value = np.asarray(v.val) if not hasattr(v.val, "dtype") or np.ndim(v.val) == 0 else v.val
    return ("literal", _aval_key(v.aval), value.tobytes() if isinstance(value, np.ndarray) else _Same(value))


def _aval_key(aval: Any) -> Hashable:
    shape = getattr(aval, "shape", None)
    if shape is None:
        return aval
    key = (tuple(shape), str(aval.dtype), bool(getattr(aval, "weak_type", False)))
    sharding, manual = getattr(aval, "sharding", None), getattr(aval, "manual_axis_type", None)
    # Types under `shard_map` or explicit sharding stay in inner jaxprs, which hold nowhere else.
    placed = sharding is not None and (any(sharding.spec) or {*sharding.mesh.axis_types} - {AxisType.Auto})
    return (*key, sharding, manual) if placed or getattr(manual, "varying", None) else key


def _const_key(value: Any) -> Hashable:
    if isinstance(value, np.ndarray) and value.size <= 1024:
        return (value.shape, value.dtype.str, value.tobytes())
    return _Same(value)


def equation_key(eqn: JaxprEqn) -> Hashable:
    """What an equation does to its operands, as a value that can be compared."""
    return (eqn.primitive.name, _Same(eqn.primitive), _params_key(eqn.params), eqn.ctx.threefry_partitionable)


def _params_key(params: Mapping[str, Any]) -> Hashable:
    return tuple((k, _value_key(v)) for k, v in sorted(params.items())
                 if k not in _DERIVATIVE_RULES or isinstance(v, int | float | str | tuple))  # as `transpose` of `ormqr`


def _value_key(value: Any) -> Hashable:
    if isinstance(value, (Jaxpr, ClosedJaxpr)):
        return jaxpr_key(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return tuple(map(_value_key, value))
    if isinstance(value, dict):
        return tuple((k, _value_key(v)) for k, v in value.items())
    if isinstance(value, (np.ndarray, np.generic)):
        return _const_key(np.asarray(value))
    if isinstance(value, float):  # 0.0 is not -0.0, and NaN is NaN
        return ("float", value.hex())
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return (type(value), value)


# ---- the same in every process ---------------------------------------------------------------------------------------


def digest(jaxpr: Any) -> str:
    """What a jaxpr computes, with the values of its constants: text that is the same in every process. Of Python's own
    objects in it, such as what a callback calls, only the names count."""
    found = hashlib.sha256()
    _feed(found, jaxpr_key(jaxpr))
    return found.hexdigest()


def _feed(found: Any, part: Any) -> None:
    if isinstance(part, _Key):
        _feed(found, part.parts)
    elif isinstance(part, _Same):
        _feed_object(found, part.obj)
    elif type(part) is tuple:
        found.update(b"(")
        for inner in part:
            _feed(found, inner)
        found.update(b")")
    elif isinstance(part, (set, frozenset)):
        _feed(found, tuple(sorted(map(_text, part))))
    else:
        found.update(part if isinstance(part, bytes) else _text(part).encode() + b",")


def _feed_object(found: Any, obj: Any) -> None:
    if isinstance(obj, (np.ndarray, np.generic, jax.Array)):
        words = np.ascontiguousarray(words_of(obj))
        found.update(f"{obj.dtype}{obj.shape}".encode())
        found.update(words.view(np.uint8).data if words.size else b"")
    else:
        found.update((getattr(obj, "name", None) or _text(obj)).encode() + b",")


def _text(obj: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", repr(obj))
