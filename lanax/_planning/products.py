"""Products of which only the sum over the batch is wanted, as in the gradient of a matrix: one matrix product over the
batch. No LLVM here."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jax import lax

from lanax._jax import Atom, Jaxpr, JaxprEqn, Literal
from lanax._planning.uniformity import Uniformity


@dataclasses.dataclass(frozen=True)
class SummedProduct:
    """A product of one example, and what turns it until it is a result.

    Attributes:
      product: a `dot_general`.
      turns: transposes, in their order.
    """

    product: JaxprEqn
    turns: tuple[JaxprEqn, ...]

    @property
    def equations(self) -> tuple[JaxprEqn, ...]:
        return (self.product, *self.turns)

    def total(self, lhs: Any, rhs: Any) -> Any:
        """The sum over the batch; its axis is the first one of both operands."""
        params = self.product.params
        (left, right), (left_batch, right_batch) = params["dimension_numbers"]
        contracted = ((0, *_behind(left)), (0, *_behind(right)))
        out = lax.dot_general(lhs, rhs, (contracted, (_behind(left_batch), _behind(right_batch))),
                              precision=params["precision"], preferred_element_type=params["preferred_element_type"])
        for turn in self.turns:
            out = lax.transpose(out, turn.params["permutation"])
        return out


def _behind(dims: Sequence[int]) -> tuple[int, ...]:
    """Axes of one example's array as those of the batch."""
    return tuple(d + 1 for d in dims)


def summed_products(found: Uniformity, jaxpr: Jaxpr, summed: Collection[Atom]) -> Mapping[Atom, SummedProduct]:
    """By result, the products of varying operands among those results of which only the sum is wanted.

    Args:
      found: what varies in a program.
      jaxpr: that program, or a part of it.
      summed: some of its results.
    """
    made: dict[Atom, JaxprEqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    readers = Counter(v for e in jaxpr.eqns for v in e.invars if not isinstance(v, Literal))
    others = {v for v in jaxpr.outvars if not isinstance(v, Literal)} - {*summed}
    products: dict[Atom, SummedProduct] = {}
    for result in summed:
        turns: list[JaxprEqn] = []
        eqn, readers_known = made.get(result), 0
        while eqn is not None and readers[eqn.outvars[0]] == readers_known and eqn.outvars[0] not in others:
            if eqn.primitive.name == "dot_general" and all(found.of(eqn.invars)):
                products[result] = SummedProduct(eqn, tuple(reversed(turns)))
            if eqn.primitive.name != "transpose":
                break
            turns.append(eqn)
            eqn, readers_known = made.get(eqn.invars[0]), 1
    return products
