"""The named stages from a per-example program to parts that can run, in order. Knows no JAX transformation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lanax import _jax
from lanax._complex import split
from lanax._config import STAGE_NAMES as STAGE_NAMES
from lanax._config import config, logger
from lanax._devices.varying import without_types
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lanax._lowering.coverage import has_rule, why_not
from lanax._lowering.kernel import KERNEL, KernelSource, build_kernel
from lanax._lowering.meter import Meter
from lanax._lowering.operands import Operand
from lanax._lowering.registry import COMPOSITIONS, RULES
from lanax._lowering.summed import row_operand, sum_block
from lanax._once import once
from lanax._plan import MAX_LANES, KernelPlan, Plan
from lanax._planning.gains import is_one_sweep
from lanax._planning.partition import LANES, XLA, Part, Partition, miss_reason, partition
from lanax._planning.planner import FEW, has_narrow_numbers, plan_kernel
from lanax._planning.refill import around_loop
from lanax._planning.uniformity import Uniformity, analyse
from lanax._planning.work import array_bytes
from lanax._program import Program
from lanax._rewrite import unvmap
from lanax._rewrite.checks import Check, extract_checks
from lanax._rewrite.common import without_repeats
from lanax._rewrite.loops import with_tests_shared
from lanax._rewrite.residuals import computing_again
from lanax._rewrite.trace import expand
from lanax._rewrite.unroll import KNOWN, with_short_loops_unrolled
from lanax._runtime.ffi import Descriptor, Loaded, load
from lanax._runtime.jit import Compiled, assembly, compile_module, optimised_text
from lanax._target import FRESH, Target, host

#: Bytes of one array of one example above which it is not kept in lanes.
_ARRAY_LIMIT = 1 << 20

#: Bytes that the scans of one example may keep for each other, where the plan does not bound them.
_KEPT = 4 << 20

#: Chunks of a thread where lanes take the next example: fewer than else, since lanes idle at the end of each.
_REFILLED_PARTS = 8

Axes = tuple["int | None", ...]


@dataclasses.dataclass
class Stages:
    """A program on its way: each stage is made when it is first asked for.

    Attributes:
      program: what the user wrote, traced for one example.
      in_axes: where each input has the batch axis; None: it is unmapped.
      out_axes: where a varying result has the batch axis; None: it is the sum over the batch.
      plan: what the user asked for.
      fresh: whether a result is so large that its memory comes from the system anew for each call.
    """

    program: Program
    in_axes: Axes
    out_axes: Axes
    plan: Plan
    fresh: bool = False

    @once
    def without_checks(self) -> tuple[Any, list[Check]]:
        """The program as a closed jaxpr, expanded and with its checks taken out; and those."""
        # Types under `shard_map` say nothing to a kernel, and are lost in part where equations are replaced.
        bare = without_types(_jax.on_no_mesh(self.program.jaxpr))
        return extract_checks(_expand(_jax.make_closed(bare)))

    @once
    def _expanded(self) -> tuple[Any, list[Check]]:
        program, checks = self.without_checks
        if self.plan.route == "xla":
            return program, checks
        return split(program, [axis is not None for axis in self.in_axes], _expand), checks

    @once
    def expanded(self) -> Jaxpr:
        """Calls inlined, compositions replaced, checks taken out, complex values split into their parts, scans that
        keep much for others cut; its constants are its first inputs."""
        jaxpr, _ = _jax.open_and_consts(self._expanded[0])
        jaxpr = _jax.make_open([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr)
        memory: Any = self.plan.memory  # an int by now
        bound = _KEPT if memory is None else min(_KEPT, memory // MAX_LANES)
        return jaxpr if self.plan.route == "xla" else computing_again(jaxpr, bound, _is_for_lanes, _expand)

    @property
    def consts(self) -> Sequence[Any]:
        """Constants that compositions brought in."""
        return _jax.open_and_consts(self._expanded[0])[1]

    @once
    def _known(self) -> dict[Var, np.ndarray]:
        """The values of small constants."""
        return {v: np.asarray(value) for v, value in zip(self.expanded.invars, self.consts, strict=False)
                if not isinstance(value, _jax.Tracer) and not _jax.is_key(v.aval) and v.aval.size <= KNOWN}

    @property
    def checks(self) -> list[Check]:
        """Run-time checks that are run once after the kernels."""
        return self._expanded[1]

    @once
    def uniformity(self) -> Uniformity:
        """Which values vary over the batch."""
        return analyse(self.expanded, [False] * len(self.consts) + [axis is not None for axis in self.in_axes])

    @once
    def partition(self) -> Partition:
        """Which equation takes which route."""
        seen = unvmap.reaches_output(self.expanded)

        def reason(eqn: JaxprEqn) -> str | None:
            if seen and eqn.primitive.name in unvmap.PRIMITIVES:
                return "it reduces over the whole batch, and its value is seen in the results"
            return why_not(eqn)

        found = partition(self.uniformity, reason, _ARRAY_LIMIT, self.plan.route or "auto", equation_cost, self.summed,
                          self.fresh, host().registers, _jax.holds(self.program.jaxpr, "fft"))
        for miss in found.misses:
            logger.info("%s: not in lanes: %s", self.program.name, miss)
        return found

    @property
    def is_left_whole(self) -> bool:
        """Whether `jax.vmap` of the program as the user wrote it does the same: no part is in lanes, no result is to be
        summed over the batch, and no check waits for the end."""
        return XLA in self.partition.routes and LANES not in self.partition.routes and not (self.summed or self.checks)

    @once
    def summed(self) -> set[Atom]:
        """The results of which only the sum over the batch is wanted."""
        pairs = list(zip(self.expanded.outvars, [*self.out_axes, *[0] * len(self.expanded.outvars)], strict=False))
        sums: set[Atom] = {v for v, axis in pairs if axis is None and not isinstance(v, Literal)}
        return sums - {v for v, axis in pairs if axis is not None and not isinstance(v, Literal)}

    @property
    def wanted_axes(self) -> dict[Atom, int | None]:
        """Where each result that is no constant is to have the batch axis; what the checks need has it first. None:
        only its sum is wanted, and no other part of the program reads it."""
        outvars = self.expanded.outvars
        read = {v for part in self.partition.parts for v in part.jaxpr.invars}
        wanted = {v: axis or 0 for v, axis in zip(outvars, [*self.out_axes, *[0] * len(outvars)], strict=False)
                  if not isinstance(v, Literal)}
        return wanted | dict.fromkeys(self.summed - read)

    def result_axes(self, part: Part, in_axes: Axes) -> Axes:
        """Where the results of a part in lanes get the batch axis, for inputs that have it there; None: its kernel sums
        them. Where lanes may leave a loop to take the next example, it does not."""
        wanted = self.wanted_axes
        axes = tuple(wanted.get(v, 0) for v in part.jaxpr.outvars)
        if None in axes and around_loop(analyse(self._simplified(part), [a is not None for a in in_axes])):
            return tuple(0 if axis is None else axis for axis in axes)
        return axes

    def kernel(self, index: int, in_axes: Axes, out_axes: Axes, axis_size: int) -> Kernel:
        """The kernel of part `index`, for inputs and results that have the batch axis there."""
        few = axis_size < FEW
        # All threads share a batch of no more examples than may be alive.
        plan = self.plan if axis_size > (self.plan.chunk or 0) else self.plan.replace(chunk=None)
        block = sum_block(axis_size) if None in out_axes else 0
        key = (index, in_axes, out_axes, few, plan.chunk, block)
        if key not in self._kernels:
            jaxpr = self._simplified(self.partition.parts[index])
            self._kernels[key] = Kernel(jaxpr, in_axes, out_axes, plan, few, self.program.name, block)
        return self._kernels[key]

    def _simplified(self, part: Part) -> Jaxpr:
        """The program of a part as its kernels have it."""
        key = id(part)  # the partition keeps it alive
        if key not in self._simple:
            unrolled = with_short_loops_unrolled(part.jaxpr, self._known)
            self._simple[key] = with_tests_shared(without_repeats(unrolled))
        return self._simple[key]

    @once
    def _simple(self) -> dict[int, Jaxpr]:
        return {}

    @once
    def _kernels(self) -> dict[Any, Kernel]:
        return {}


@dataclasses.dataclass
class Kernel:
    """One kernel part: plan, LLVM text, machine code.

    Attributes:
      out_axes: where the results have the batch axis; None: they are rows of sums.
      block: of how many examples each row is the sum; 0 where there is no such result.
    """

    jaxpr: Jaxpr
    in_axes: Axes
    out_axes: Axes
    user_plan: Plan
    few: bool
    name: str = "program"
    block: int = 0
    counts: bool = False

    def counting(self) -> Kernel:
        """The same kernel with counters, and one result more: see `counters`."""
        return dataclasses.replace(self, counts=True)

    def counters(self, axis_size: int) -> tuple[int, int] | None:
        """The shape of the rows of counters, one for each step, as uint32; None where the kernel does not count."""
        meter = self.source.meter
        return None if meter is None else (math.ceil(axis_size / self.source.lanes), 2 * meter.columns)

    @once
    def uniformity(self) -> Uniformity:
        return analyse(self.jaxpr, [axis is not None for axis in self.in_axes])

    @once
    def target(self) -> Target:
        """What it is compiled for."""
        return host() if has_narrow_numbers(self.jaxpr) else host().for_words()

    @once
    def plan(self) -> KernelPlan:
        return plan_kernel(self.uniformity, self.user_plan, self.target, equation_cost, self.few)

    @once
    def source(self) -> KernelSource:
        plan = self.plan
        loop = around_loop(self.uniformity) if plan.refill and not self.block else None
        return build_kernel(self.uniformity, self.in_axes, self.out_axes, self.target, plan.lanes, plan.mask_bits, loop,
                            plan.refill, Meter() if self.counts else None, self.block, plan.accuracy == "fast",
                            self.few)

    @property
    def threads(self) -> int:
        """Most threads, so many that their scratch fits the plan's memory; 0 for as many as XLA's pool has."""
        alive = dataclasses.replace(self.user_plan, chunk=None).examples_alive(self.source.scratch_bytes)
        return self.plan.threads if alive is None else min(self.plan.threads or alive, alive)

    @property
    def descriptor(self) -> Descriptor:
        plan = self.plan
        arg, dim = next((i, axis) for i, axis in enumerate(self.in_axes) if axis is not None)
        return Descriptor(args=len(self.in_axes), rets=len(self.out_axes) + self.counts, axis_arg=arg, axis_dim=dim,
                          lanes=max(plan.lanes, self.block), scratch=self.source.scratch_bytes, chunk=plan.chunk,
                          threads=self.threads, grain=plan.grain, parts=_REFILLED_PARTS if plan.refill else 32)

    @once
    def loaded(self) -> Loaded:
        """Compile the kernel, unless an equal one is in this process or on disk."""
        text = self.source.text
        identity = hashlib.sha256(f"{text}{self.target}".encode()).hexdigest()
        with _lock:
            code = _code.get(identity)
            if code is None:
                code = _code[identity] = compile_module(text, self.target, self.name)
                dump(self, identity[:12])
            return load(identity, KERNEL, code, self.descriptor)

    def stage(self, name: str) -> str:
        """One of `STAGE_NAMES` as text."""
        pick: dict[str, Callable[[], Any]] = {
            "jaxpr": lambda: self.jaxpr, "uniformity": self.uniformity.text, "plan": lambda: self.plan,
            "llvm": lambda: self.source.text, "optimised": lambda: optimised_text(self.source.text, self.target),
            "asm": lambda: assembly(self.source.text, self.target)}
        return str(pick[name]())

    def operands(self) -> tuple[list[Operand], list[Operand]]:
        """Inputs and outputs as they lie in memory."""
        return ([Operand.of(v.aval, a) for v, a in zip(self.jaxpr.invars, self.in_axes, strict=True)],
                [row_operand(v.aval) if a is None else Operand.of(v.aval, a)
                 for v, a in zip(self.jaxpr.outvars, self.out_axes, strict=True)])

    def rows(self, axis_size: int) -> int:
        """How many rows of sums it gives for a batch."""
        return math.ceil(axis_size / self.block)


def _is_for_lanes(eqn: JaxprEqn) -> bool:
    """Whether a scan has lane code, whatever it keeps, and gains by it."""
    inputs = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    found = analyse(_jax.make_open(inputs, eqn.outvars, [eqn]), [True] * len(inputs))
    return miss_reason(found, 0, why_not, sys.maxsize) is None and not is_one_sweep(eqn)


def _expand(closed: ClosedJaxpr) -> ClosedJaxpr:
    return expand(closed, has_rule, COMPOSITIONS)


_lock = threading.RLock()
_code: weakref.WeakValueDictionary[str, Compiled] = weakref.WeakValueDictionary()


def dump(kernel: Kernel, identity: str) -> None:
    """Write the stages that `config.dump` names to files, each called by the function and what the kernel is."""
    for stage in config.dump:
        folder = Path(config.dump_to)
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "_", kernel.name)
        suffix = {"llvm": "ll", "optimised": "optimised.ll", "asm": "s"}.get(stage, f"{stage}.txt")
        (folder / f"{name}-{identity}.{suffix}").write_text(kernel.stage(stage) + "\n")


def stages(program: Program, in_axes: Axes, out_axes: Axes, plan: Plan, axis_size: int = 0) -> Stages:
    """The stages of a program; the same object for an equal program, of the latest ones. `axis_size`: of the batch; it
    may decide a route, but not which values vary."""
    largest = max((array_bytes(v.aval) for v in program.jaxpr.outvars), default=0)
    return _stages(program, in_axes, out_axes, plan, axis_size * largest >= FRESH)


@functools.lru_cache(maxsize=256)
def _stages(program: Program, in_axes: Axes, out_axes: Axes, plan: Plan, fresh: bool) -> Stages:
    return Stages(program, in_axes, out_axes, plan, fresh)


def equation_cost(eqn: JaxprEqn) -> float:
    """Vector instructions of an equation for one step, roughly."""
    entry = RULES.get(eqn.primitive.name)
    size = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=1)
    return (entry.cost if entry else 1.0) * size
