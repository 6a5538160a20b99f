"""Chooses lanes, threads and grain for a kernel: from the target, the dtypes and the costs of its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lanax._jax import Jaxpr, JaxprEqn
from lanax._plan import KernelPlan, Plan
from lanax._planning.refill import around_loop, obstacle
from lanax._planning.uniformity import Uniformity
from lanax._planning.work import ASSUMED_TRIPS, UNROLL, Cost, cost_of, equations_of, work_of
from lanax._rewrite.surgery import indexed_carries, inner_jaxprs
from lanax._target import Target

#: Cycles of work that make it worth waking another thread.
_THREAD_CYCLES = 100_000

#: Batches shorter than this are spread over the threads in smaller steps.
FEW = 2048
#: Elements that are emitted of an array that is not unrolled.
_LOOPED = 16
#: Longer programs take one vector in flight: a second one would double the time to compile them.
_LONG = 4000
#: Vector instructions of a trip of all lanes from which on lanes may be refilled.
_LONG_TRIP = 100
#: Instructions of an example that can run side by side, of which two vectors keep the processor busy, or one does.
_ENOUGH, _MANY = 5.0, 15.0
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
        vectors, reason = _vectors_in_flight(found, target, cost, few)
        length = _length(found.jaxpr, cost)
        if vectors > 1 and length > _LONG:
            vectors, reason = 1, f"{reason}; a program of about {length} instructions has enough that do not wait"
        lanes = native * vectors
    refill, uneven = _refill(found, lanes, native, cost)
    # `work_of` alone counts all that products of matrices sum, `cost_of` all sides of branches.
    work = max(work_of(found.jaxpr, cost).instructions, cost_of(found.jaxpr, cost)) / (native if lanes > 1 else 1)
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
    trip = cost_of(loop.cond.jaxpr, cost) + cost_of(loop.body.jaxpr, cost)
    if trip * lanes / native < _LONG_TRIP:
        return 0, f"a trip is short, about {trip * lanes / native:.0f} vector instructions"
    moved = sum(v.aval.size for v in (*found.jaxpr.invars, *found.jaxpr.outvars) if found.of([v])[0])
    around = cost_of(loop.before.jaxpr, cost) + cost_of(loop.after.jaxpr, cost)
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


def _vectors_in_flight(found: Uniformity, target: Target, cost: Cost, few: bool) -> tuple[int, str]:
    """Registers in flight for one value: as many as hide the latency of a dependent chain while the values of the
    innermost loop still fit the registers, and as few as the program's own parallelism leaves to hide. (Four were worth
    1.1 to 1.4 times as much as two where they fit and are needed, and down to 0.7 times where they are not; two, 1.4 to
    2 times as much as one.)"""
    live = _values_in_innermost_loop(found)
    where, most = "the innermost loop", 3 * target.registers
    if live is None:
        where, most = "straight-line code", target.registers
        live = sum(found.of([v])[0] * min(v.aval.size, UNROLL) for v in (*found.jaxpr.invars, *found.jaxpr.outvars))
    vectors = 4 if 4 * live <= most else 2 if live <= 4 * target.registers else 1
    reason = f"{live} values live in {where}, {target.registers} registers"
    for limit, why in _limits(found, cost, few):
        if vectors > limit:
            vectors, reason = limit, f"{reason}; {why}"
    return vectors, reason


def _limits(found: Uniformity, cost: Cost, few: bool) -> Iterator[tuple[int, str]]:
    """Vectors in flight that are enough, and why."""
    if few:
        yield 2, f"fewer than {FEW} examples"
    if any(eqn.primitive.name == "while" and weight > 1 and inside[0].varying_out[0]
           for eqn, _, inside, weight in _walk(found)):
        yield 2, "lanes wait for each other in a loop within a loop"
    varying = {id(eqn) for eqn, around, *_ in _walk(found) if any(around.of(eqn.outvars))}
    work = work_of(found.jaxpr, lambda eqn: cost(eqn) if id(eqn) in varying else 0.0)
    if work.instructions < 2 / 3 * work_of(found.jaxpr, cost).instructions:
        return  # what is done once for all lanes of a step is worth more of them
    side_by_side = work.instructions / max(1.0, work.chain)
    if side_by_side >= _ENOUGH:
        why = f"{side_by_side:.0f} instructions of an example do not wait for each other"
        yield (1 if side_by_side >= _MANY else 2), why


def _values_in_innermost_loop(found: Uniformity) -> int | None:
    """Varying scalars that enter each trip of the deepest loop; None where there is no loop."""
    deepest, values = 0.0, None
    for eqn, _, inside, weight in _walk(found):
        if eqn.primitive.name not in ("while", "scan"):
            continue
        body = inside[-1]
        inputs = body.jaxpr.invars
        in_memory = indexed_carries(body.jaxpr, 0, len(inputs))
        count = sum(min(v.aval.size, UNROLL) for v, away in zip(inputs, in_memory, strict=True)
                    if body.varying[v] and not away)
        if weight > deepest or (weight == deepest and count > (values or 0)):
            deepest, values = weight, count
    return values


def _length(jaxpr: Jaxpr, cost: Cost) -> int:
    """Vector instructions in the kernel's text, roughly: each loop once."""
    return round(sum(_emitted(e) * cost(e) for e, _ in equations_of(jaxpr) if not inner_jaxprs(e)))


def _emitted(eqn: JaxprEqn) -> float:
    """The part of an equation's instructions that is in the text: what goes over large arrays is a loop."""
    size = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=1)
    return _LOOPED / size if size > UNROLL else 1.0
