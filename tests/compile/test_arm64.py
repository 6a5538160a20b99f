"""Machine code for 64-bit ARM, made on any machine: kernels and the handler compile to NEON's instructions, and call
nothing but what every process has. Nothing of it runs here."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
import pytest
from helpers import expand, mask_bits_of

from lanax import _jax
from lanax._lowering.kernel import build_kernel
from lanax._planning import uniformity
from lanax._reports.page import hot_loop
from lanax._runtime import ffi
from lanax._runtime.jit import assembly, compile_object
from lanax._target import Target, host

X, N = jax.core.ShapedArray((), np.float32), jax.core.ShapedArray((), np.int32)


@pytest.fixture(params=["aarch64-unknown-linux-gnu", "arm64-apple-darwin24.0.0"])
def arm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """What `host` gives where LLVM says so of the machine; on Apple's it lists no features."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    linux = "linux" in request.param
    features = {"neon": True, "fp-armv8": True, "sve": False} if linux else {}
    monkeypatch.setattr(llvm, "get_process_triple", lambda: request.param)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "neoverse-n1" if linux else "apple-m1")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    return host.__wrapped__()


def kernel_text(target: Target, fun: Callable[..., object], *avals: jax.core.ShapedArray) -> str:
    """The LLVM text of the kernel of a per-example function, with 8 lanes."""
    jaxpr, _ = _jax.open_and_consts(expand(_jax.trace(lambda *a: jax.tree.leaves(fun(*a)), avals)))
    found = uniformity.analyse(jaxpr, [True] * len(avals))
    axes = [0] * len(avals), [0] * len(jaxpr.outvars)
    return build_kernel(found, *axes, target, 8, mask_bits_of(jaxpr)).text


def called(code: str) -> set[str]:
    """What some machine code calls and does not hold, without the underscore that Apple puts before names."""
    names = [set(re.findall(form, code, re.MULTILINE)) for form in (r"^\s+bl?\s+(\w+)$", r"^(\w+):")]
    return {name.removeprefix("_") for name in names[0] - names[1]}


def escape_count(cx, cy):
    def step(state):
        x, y, n = state
        return x * x - y * y + cx, 2.0 * x * y + cy, n + 1

    return jax.lax.while_loop(lambda s: (s[0] * s[0] + s[1] * s[1] <= 4.0) & (s[2] < 256), step, (cx, cy, 0))[2]


def many_kinds(x, n):
    """What some processor leaves to a library: division of integers, rounding, 16-bit floats, wide products."""
    half, brain = x.astype(jnp.float16) * 3, x.astype(jnp.bfloat16) * 3
    whole = jnp.round(x).astype(jnp.int32) // n + jax.lax.population_count(n)
    seed = jax.random.bits(jax.random.wrap_key_data(jnp.stack([n, n]).astype(jnp.uint32)))
    return half, brain, whole, jnp.floor(x), jnp.fmod(x, 3.0), jnp.maximum(x, 1.0), jnp.sin(x) ** 1.5, seed


def test_the_target(arm: Target) -> None:
    assert (arm.is_arm, arm.instruction_set, arm.mask_registers) == (True, "NEON", False)
    assert (arm.registers, arm.register_bits, arm.native_lanes(32), arm.native_lanes(64)) == (32, 128, 4, 2)


def test_a_kernel(arm: Target) -> None:
    """In registers of four float32, with FMAs, in position-independent code."""
    text = kernel_text(arm, escape_count, X, X)
    loop = hot_loop(assembly(text, arm))
    assert len(re.findall(r"\bfml[as]\S*\s+v\d+", loop)) == 6, "three for each of two registers"
    assert loop.split()[-1] == loop.partition(":")[0], "it ends with the jump back"
    assert ", #31" in loop, "a number is no comment"
    assert compile_object(text, arm)[0].count("kernel") == 1


def test_what_kernels_call(arm: Target) -> None:
    assert called(assembly(kernel_text(arm, many_kinds, X, N), arm)) <= {"body", "memcpy", "memset"}


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_the_handler(arm: Target, system: str) -> None:
    """It sets the bit of FPCR that makes subnormals zero, in the thread that XLA called and in those of its pool."""
    text = ffi._handler_text("aarch64" if system == "linux" else "arm64", system)
    code = assembly(text, arm)
    assert len(re.findall(r"mrs\s+x\d+, FPCR", code, re.IGNORECASE)) == 2
    assert len(re.findall(r"msr\s+FPCR, x\d+", code, re.IGNORECASE)) == 4, "and the mode that was, after both"
    assert re.search(r"orr\s+[wx]\d+, [wx]\d+, #0x1000000", code)
    assert "yield" in code
    assert called(code) == {"malloc", "free", "sched_yield", *({"madvise"} if system == "linux" else ())}
    assert {"lanax_execute", "lanax_instantiate"} <= {*compile_object(text, arm)[0]}
