"""Chooses lanes, threads and grain for a kernel: from the target, the dtypes and the costs of its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lanax._jax import Jaxpr, JaxprEqn
from lanax._plan import KernelPlan, Plan
from lanax._planning.refill import around_loop, obstacle
from lanax._planning.uniformity import Uniformity
from lanax._planning.work import ASSUMED_TRIPS, Cost
from lanax._rewrite.surgery import indexed_carries, inner_jaxprs
from lanax._target import Target

#: Cycles of work that make it worth waking another thread.
_THREAD_CYCLES = 100_000

#: Batches shorter than this are spread over the threads in smaller steps.
FEW = 2048
#: Larger arrays are not unrolled into registers.
_UNROLLED = 64
#: Elements of such an array that are emitted all the same.
_LOOPED = 16
#: Longer programs take one vector in flight: a second one would double the time to compile them.
_LONG = 4000
#: Vector instructions of a trip of all lanes from which on lanes may be refilled.
_LONG_TRIP = 100
#: Trips of waiting beyond which a refill costs too much.
_MOST_WAIT = ASSUMED_TRIPS


def plan_kernel(found: Uniformity, plan: Plan, target: Target, cost: Cost, few: bool = False) -> KernelPlan:
    """The choices for one kernel; what the user's `plan` gives is taken as it is. `few`: see `FEW`."""
    ruling = _ruling_dtype(found)
    bits = 8 * ruling.itemsize
    native = target.native_lanes(bits)
    if plan.route == "serial":
        vectors, lanes, reason = 1, 1, "route='serial': one example at a time"
    elif plan.lanes is not None:
        lanes = plan.lanes
        vectors, reason = max(1, lanes // native), "given by the plan"
    else:
        vectors, reason = _vectors_in_flight(found, target, few)
        length = _length(found.jaxpr, cost)
        if vectors > 1 and length > _LONG:
            vectors, reason = 1, f"{reason}; a program of about {length} instructions has enough that do not wait"
        lanes = native * vectors
    refill, uneven = _refill(found, lanes, native, cost)
    work = example_cost(found.jaxpr, cost) / max(1, native if lanes > 1 else 1)
    return KernelPlan(
        lanes=lanes, native_lanes=native, vectors=vectors, ruling=ruling.name, mask_bits=max(32, bits),
        threads=plan.most_threads or 0, chunk=plan.chunk or 0,
        grain=max(lanes, math.ceil(_THREAD_CYCLES / max(work, 0.25))),
        refill=refill, uneven=uneven, accuracy=plan.accuracy or "default", reason=reason)


def _refill(found: Uniformity, lanes: int, native: int, cost: Cost) -> tuple[int, str]:
    """How many trips of waiting cost as much as a refill, or 0 where lanes are never refilled, and why.

    A refill is taken to cost three scalar instructions for each element that it moves, some for its own loop, and a
    lane's share of the prologue and the epilogue where a quarter of the lanes is refilled. Counting the lanes that are
    active costs some instructions in each trip, which short ones are not worth; nor is a refill that costs as much as
    all trips of an example.
    """
    loop = around_loop(found) if lanes > 1 else None
    if loop is None:
        return 0, "one lane" if lanes == 1 else obstacle(found) or "what follows the loop needs what was before it"
    trip = example_cost(loop.cond.jaxpr, cost) + example_cost(loop.body.jaxpr, cost)
    if trip * lanes / native < _LONG_TRIP:
        return 0, f"a trip is short, about {trip * lanes / native:.0f} vector instructions"
    moved = sum(v.aval.size for v in (*found.jaxpr.invars, *found.jaxpr.outvars) if found.of([v])[0])
    around = example_cost(loop.before.jaxpr, cost) + example_cost(loop.after.jaxpr, cost)
    wait = math.ceil((3 * moved + 15 + 4 * around / native) * native / trip)
    return (wait, "") if wait <= _MOST_WAIT else (0, f"taking another example costs as much as {wait} trips")


Visit = tuple[JaxprEqn, Uniformity, tuple[Uniformity, ...], float]


def _walk(found: Uniformity, weight: float = 1.0) -> Iterator[Visit]:
    """Every equation with the analysis around it, those of its inner jaxprs, and how often it runs, roughly."""
    for i, eqn in enumerate(found.jaxpr.eqns):
        inside = found.inner.get(i, ())
        yield eqn, found, inside, weight
        deeper = weight * (ASSUMED_TRIPS if eqn.primitive.name in ("while", "scan") else 1)
        for inner in inside:
            yield from _walk(inner, deeper)


def _ruling_dtype(found: Uniformity) -> np.dtype:
    """The dtype of most varying results, each counted as often as it is computed: floats before integers."""
    weights: dict[np.dtype, float] = {}
    for eqn, around, _, weight in _walk(found):
        for v in eqn.outvars:
            dtype = getattr(v.aval, "dtype", None)
            if around.varying.get(v) and isinstance(dtype, np.dtype) and dtype.itemsize in (4, 8):
                weights[dtype] = weights.get(dtype, 0.0) + weight * v.aval.size
    floats = {d: w for d, w in weights.items() if d.kind == "f"}
    choice = max((floats or weights).items(), key=lambda item: item[1], default=(np.dtype(np.float32), 0.0))[0]
    return choice


def has_narrow_numbers(jaxpr: Jaxpr) -> bool:
    """Whether a program has numbers of less than 32 bits, at any depth."""
    values = (v.aval for e in jaxpr.eqns for v in (*e.invars, *e.outvars))
    inputs = (v.aval for v in jaxpr.invars)
    dtypes = (a.dtype for a in (*values, *inputs) if isinstance(getattr(a, "dtype", None), np.dtype))
    return any(d.itemsize < 4 and d.kind != "b" for d in dtypes) or any(
        has_narrow_numbers(inner) for e in jaxpr.eqns for inner in inner_jaxprs(e))


def _vectors_in_flight(found: Uniformity, target: Target, few: bool) -> tuple[int, str]:
    """Registers in flight for one value: as many as hide the latency of a dependent chain while the values of the
    innermost loop still fit the registers. (Four were worth 1.1 to 1.4 times as much as two where they fit; two, 1.4 to
    2 times as much as one.)"""
    live = _values_in_innermost_loop(found)
    where, most = "the innermost loop", 3 * target.registers
    if live is None:
        where, most = "straight-line code", target.registers
        live = sum(found.of([v])[0] * min(v.aval.size, _UNROLLED) for v in (*found.jaxpr.invars, *found.jaxpr.outvars))
    vectors = 4 if 4 * live <= most else 2 if live <= 4 * target.registers else 1
    reason = f"{live} values live in {where}, {target.registers} registers"
    if few and vectors > 2:
        return 2, f"{reason}; fewer than {FEW} examples"
    return vectors, reason


def _values_in_innermost_loop(found: Uniformity) -> int | None:
    """Varying scalars that enter each trip of the deepest loop; None where there is no loop."""
    deepest, values = 0.0, None
    for eqn, _, inside, weight in _walk(found):
        if eqn.primitive.name not in ("while", "scan"):
            continue
        body = inside[-1]
        inputs = body.jaxpr.invars
        in_memory = indexed_carries(body.jaxpr, 0, len(inputs))
        count = sum(min(v.aval.size, _UNROLLED) for v, away in zip(inputs, in_memory, strict=True)
                    if body.varying[v] and not away)
        if weight > deepest or (weight == deepest and count > (values or 0)):
            deepest, values = weight, count
    return values


def _length(jaxpr: Jaxpr, cost: Cost) -> int:
    """Vector instructions in the kernel's text, roughly: each loop once."""
    total = 0.0
    for eqn in jaxpr.eqns:
        inner = inner_jaxprs(eqn)
        size = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=1)
        looped = _LOOPED / size if size > _UNROLLED else 1.0
        total += sum(_length(j, cost) for j in inner) if inner else cost(eqn) * looped
    return round(total)


def example_cost(jaxpr: Jaxpr, cost: Cost) -> float:
    """Vector instructions for one step, roughly; loops with an unknown end are taken to make 16 trips."""
    total = 0.0
    for eqn in jaxpr.eqns:
        inner = [example_cost(j, cost) for j in inner_jaxprs(eqn)]
        if eqn.primitive.name == "scan":
            total += eqn.params["length"] * sum(inner)
        elif eqn.primitive.name == "while":
            total += ASSUMED_TRIPS * sum(inner)
        else:
            total += sum(inner) + cost(eqn)
    return total
