"""What becomes of each primitive of complex values. Holds the tables; the modules beside it fill them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from lanax._errors import RegistrationError

F = TypeVar("F", bound=Callable[..., Any])


class Complex(NamedTuple):
    """A complex value as its two real parts, of the same shape and dtype."""

    re: Any
    im: Any


@dataclasses.dataclass(frozen=True)
class Entry:
    """A composition.

    Attributes:
      fun: computes the results from the operands and the parameters of the equation.
      parts: its complex operands and results are `Complex`; else they are ordinary complex arrays, and the equations
        that it is traced to are split in turn.
    """

    fun: Callable[..., Any]
    parts: bool = True


#: Compositions by the name of the primitive.
COMPOSED: dict[str, Entry] = {}
#: Primitives that do the same to the real and to the imaginary part; real operands (indices, predicates) serve both.
PARTWISE: set[str] = set()


def _refuse_second(name: str) -> None:
    if name in COMPOSED or name in PARTWISE:
        raise RegistrationError(f"primitive `{name}` has a form for complex values already. Remove one of them.")


def register_complex(*names: str, parts: bool = True) -> Callable[[F], F]:
    """Decorator: `fun(*operands, **params)`, in JAX, computes what these primitives do to complex values.

    Args:
      names: the primitives.
      parts: complex operands are given as `Complex(re, im)`, and results are given back so (several in a list);
        False: as ordinary complex arrays.

    `fun` raises NotImplementedError for what it does not take; the equation then stays complex, and XLA runs it.
    """

    def add(fun: F) -> F:
        for name in names:
            _refuse_second(name)
            COMPOSED[name] = Entry(fun, parts)
        return fun

    return add


def register_partwise(names: Iterable[str]) -> None:
    """Primitives that move elements about, or are linear with real coefficients: one equation for each part."""
    for name in names:
        _refuse_second(name)
        PARTWISE.add(name)


def flattened(values: Sequence[Any]) -> list[Any]:
    """The values with the two parts of a `Complex` one after the other."""
    return [part for value in values for part in (value if isinstance(value, Complex) else (value,))]
