"""The named stages from a per-example program to parts that can run, in order. Knows no JAX transformation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lanax import _jax, _unvmap
from lanax._checks import Check, extract_checks
from lanax._complex import split
from lanax._config import STAGE_NAMES as STAGE_NAMES
from lanax._config import config, logger
from lanax._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from lanax._lowering.coverage import has_rule, why_not
from lanax._lowering.kernel import KERNEL, KernelSource, build_kernel
from lanax._lowering.meter import Meter
from lanax._lowering.operands import Operand
from lanax._lowering.registry import COMPOSITIONS, RULES
from lanax._once import once
from lanax._partition import Partition, miss_reason, partition
from lanax._plan import KernelPlan, Plan
from lanax._planner import FEW, plan_kernel
from lanax._program import Program
from lanax._refill import around_loop
from lanax._runtime.ffi import Descriptor, Loaded, load
from lanax._runtime.jit import Compiled, assembly, compile_module, optimised_text
from lanax._target import host
from lanax._trace import expand
from lanax._uniformity import Uniformity, analyse

#: Bytes of one array of one example above which it is not kept in lanes.
_ARRAY_LIMIT = 1 << 20

Axes = tuple["int | None", ...]


@dataclasses.dataclass
class Stages:
    """A program on its way: each stage is made when it is first asked for.

    Attributes:
      program: what the user wrote, traced for one example.
      in_axes: where each input has the batch axis; None: it is unmapped.
      out_axes: where a varying result has the batch axis.
      plan: what the user asked for.
    """

    program: Program
    in_axes: Axes
    out_axes: tuple[int, ...]
    plan: Plan

    @once
    def _expanded(self) -> tuple[Any, list[Check]]:
        closed = _jax.make_closed(self.program.jaxpr)
        program, checks = extract_checks(_expand(closed))
        if self.plan.route == "xla":
            return program, checks
        return split(program, [axis is not None for axis in self.in_axes], _expand), checks

    @once
    def expanded(self) -> Jaxpr:
        """Calls inlined, compositions replaced, checks taken out, complex values split into their parts; its constants
        are its first inputs."""
        jaxpr, _ = _jax.open_and_consts(self._expanded[0])
        return _jax.make_open([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr)

    @property
    def consts(self) -> Sequence[Any]:
        """Constants that compositions brought in."""
        return _jax.open_and_consts(self._expanded[0])[1]

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
        seen = _unvmap.reaches_output(self.expanded)

        def reason(eqn: JaxprEqn) -> str | None:
            if seen and eqn.primitive.name in _unvmap.PRIMITIVES:
                return "it reduces over the whole batch, and its value is seen in the results"
            return why_not(eqn)

        found = partition(self.uniformity, lambda e: miss_reason(e, reason, _ARRAY_LIMIT), self.plan.route or "auto",
                          equation_cost)
        for miss in found.misses:
            logger.info("%s: not in lanes: %s", self.program.name, miss)
        return found

    @property
    def wanted_axes(self) -> dict[Atom, int]:
        """Where each result that is no constant is to have the batch axis; what the checks need has it first."""
        outvars = self.expanded.outvars
        axes = [*self.out_axes, *[0] * len(outvars)]
        return {v: axis for v, axis in zip(outvars, axes, strict=False) if not isinstance(v, Literal)}

    def kernel(self, index: int, in_axes: Axes, out_axes: tuple[int, ...], axis_size: int) -> Kernel:
        """The kernel of part `index`, for inputs and results that have the batch axis there."""
        few = axis_size < FEW
        # All threads share a batch of no more examples than may be alive.
        plan = self.plan if axis_size > (self.plan.chunk or 0) else self.plan.replace(chunk=None)
        key = (index, in_axes, out_axes, few, plan.chunk)
        if key not in self._kernels:
            self._kernels[key] = Kernel(self.partition.parts[index].jaxpr, in_axes, out_axes, plan, few,
                                        self.program.name)
        return self._kernels[key]

    @once
    def _kernels(self) -> dict[Any, Kernel]:
        return {}


@dataclasses.dataclass
class Kernel:
    """One kernel part: plan, LLVM text, machine code."""

    jaxpr: Jaxpr
    in_axes: Axes
    out_axes: tuple[int, ...]
    user_plan: Plan
    few: bool
    name: str = "program"
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
    def plan(self) -> KernelPlan:
        return plan_kernel(self.uniformity, self.user_plan, host(), equation_cost, self.few)

    @once
    def source(self) -> KernelSource:
        plan = self.plan
        loop = around_loop(self.uniformity) if plan.refill else None
        return build_kernel(self.uniformity, self.in_axes, self.out_axes, host(), plan.lanes, plan.mask_bits, loop,
                            plan.refill, Meter() if self.counts else None)

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
                          lanes=plan.lanes, scratch=self.source.scratch_bytes, chunk=plan.chunk, threads=self.threads,
                          grain=plan.grain)

    @once
    def loaded(self) -> Loaded:
        """Compile the kernel, unless an equal one is in this process or on disk."""
        text = self.source.text
        identity = hashlib.sha256(f"{text}{host()}".encode()).hexdigest()
        with _lock:
            code = _code.get(identity)
            if code is None:
                code = _code[identity] = compile_module(text, host(), self.name)
                dump(self, identity[:12])
            return load(identity, KERNEL, code, self.descriptor)

    def stage(self, name: str) -> str:
        """One of `STAGE_NAMES` as text."""
        pick: dict[str, Callable[[], Any]] = {
            "jaxpr": lambda: self.jaxpr, "uniformity": self.uniformity.text, "plan": lambda: self.plan,
            "llvm": lambda: self.source.text, "optimised": lambda: optimised_text(self.source.text, host()),
            "asm": lambda: assembly(self.source.text, host())}
        return str(pick[name]())

    def operands(self) -> tuple[list[Operand], list[Operand]]:
        """Inputs and outputs as they lie in memory."""
        return ([Operand.of(v.aval, a) for v, a in zip(self.jaxpr.invars, self.in_axes, strict=True)],
                [Operand.of(v.aval, a) for v, a in zip(self.jaxpr.outvars, self.out_axes, strict=True)])


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


@functools.lru_cache(maxsize=256)
def stages(program: Program, in_axes: Axes, out_axes: tuple[int, ...], plan: Plan) -> Stages:
    """The stages of a program; the same object for an equal program, of the latest ones."""
    return Stages(program, in_axes, out_axes, plan)


def equation_cost(eqn: JaxprEqn) -> float:
    """Vector instructions of an equation for one step, roughly."""
    entry = RULES.get(eqn.primitive.name)
    size = max((v.aval.size for v in eqn.outvars if hasattr(v.aval, "size")), default=1)
    return (entry.cost if entry else 1.0) * size
