"""Jaxprs and what they are made of, with the types that lanax relies on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jax._src.core import Primitive

if TYPE_CHECKING:
    # What lanax relies on of these classes; JAX declares the types of variables too wide to be read.
    class Var:
        aval: Any

        def __init__(self, aval: Any) -> None: ...

    class DropVar(Var): ...

    class Literal:
        aval: Any
        val: Any

        def __init__(self, val: Any, aval: Any) -> None: ...

    class JaxprEqn:
        primitive: Primitive
        params: dict[str, Any]
        invars: list[Var | Literal]
        outvars: list[Var]
        effects: Any
        source_info: Any
        ctx: Any

        def replace(self, **changes: Any) -> JaxprEqn: ...

    class Jaxpr:
        constvars: list[Var]
        invars: list[Var]
        outvars: list[Var | Literal]
        eqns: list[JaxprEqn]
        effects: Any
        debug_info: Any

        def __init__(self, constvars: Sequence[Var], invars: Sequence[Var], outvars: Sequence[Var | Literal],
                     eqns: Sequence[JaxprEqn], effects: Any, debug_info: Any) -> None: ...

    class ClosedJaxpr:
        jaxpr: Jaxpr
        consts: list[Any]
        in_avals: list[Any]
        out_avals: list[Any]

        def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> None: ...
else:
    from jax._src.core import DropVar as DropVar
    from jax._src.core import Jaxpr as Jaxpr
    from jax._src.core import JaxprEqn as JaxprEqn
    from jax._src.core import Literal as Literal
    from jax._src.core import Var as Var
    from jax.extend.core import ClosedJaxpr as ClosedJaxpr  # the same class as Jaxpr from 0.12 on

Atom = Var | Literal
