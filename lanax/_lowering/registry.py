"""Which primitive is lowered by which rule. Registering a primitive twice is an error that names both rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lanax._errors import RegistrationError
from lanax._lowering.context import Rule

R = TypeVar("R", bound=Rule)

#: `supports(avals_in, avals_out, params)` gives the reason why an equation is not in lanes, or None.
Supports = Callable[[tuple[Any, ...], tuple[Any, ...], Mapping[str, Any]], "str | None"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A primitive's rule and when it applies.

    Attributes:
      rule: `rule(ctx, *arrays, **params)` -> an array or a list of arrays.
      supports: the reason why an equation cannot be in lanes, or None; None where the rule takes every equation.
      keys: the rule takes key arrays as they are; else it is applied to each word of the keys.
      cost: rough number of vector instructions for one element.
    """

    rule: Rule
    supports: Supports | None = None
    keys: bool = False
    cost: float = 1.0


RULES: dict[str, Entry] = {}
COMPOSITIONS: dict[str, Callable[..., Any]] = {}


def _refuse_second(name: str, old: Callable[..., Any] | None, new: Callable[..., Any]) -> None:
    if old is not None:
        raise RegistrationError(
            f"primitive `{name}` has a rule already: {old.__module__}.{old.__qualname__}; the second one is "
            f"{new.__module__}.{new.__qualname__}. Remove one of them.")


def register(name: str, *, supports: Supports | None = None, keys: bool = False,
             cost: float = 1.0) -> Callable[[R], R]:
    """Decorator: the lowering rule of the primitive called `name`."""

    def add(rule: R) -> R:
        _refuse_second(name, RULES[name].rule if name in RULES else None, rule)
        RULES[name] = Entry(rule, supports, keys, cost)
        return rule

    return add


def register_composition(name: str, fun: Callable[..., Any]) -> None:
    """Lower the primitive called `name` as the JAX function `fun(*args, **params)`, where no rule takes it.

    `fun` raises NotImplementedError for what it does not take.
    """
    _refuse_second(name, COMPOSITIONS.get(name), fun)
    COMPOSITIONS[name] = fun
