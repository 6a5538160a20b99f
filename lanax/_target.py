"""What the machine can do: its instruction set and how wide its registers are. Knows nothing of JAX or of kernels."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform

import llvmlite.binding as llvm

#: Width in bits that decides the lanes of a kernel where a program has no 32- or 64-bit values.
DEFAULT_BITS = 32
#: Bytes of a result from which on its memory is taken from the system anew at each call: glibc keeps smaller pieces.
FRESH = 32 << 20


@dataclasses.dataclass(frozen=True)
class Target:
    """One instruction set of one processor, as LLVM names it.

    Attributes:
      triple, cpu, features: LLVM's words for the machine.
      register_bits: width of one SIMD register.
      registers: number of SIMD registers.
      mask_registers: True where comparisons give real mask registers (AVX-512), so that a mask is best kept as
        `<lanes x i1>`; elsewhere masks are full-width integers.
      cores: cores that this process may use.
    """

    triple: str
    cpu: str
    features: str
    register_bits: int
    registers: int
    mask_registers: bool
    cores: int

    @property
    def is_arm(self) -> bool:
        """Whether it is a 64-bit ARM processor."""
        return _is_arm(self.triple)

    @property
    def instruction_set(self) -> str:
        """Short name of the widest SIMD extension in use."""
        if self.is_arm:
            return "NEON"  # every such processor has it; LLVM does not list features on all systems
        has = self.features.split(",")
        for flag, name in (("+avx512f", "AVX-512"), ("+avx2", "AVX2"), ("+avx", "AVX"), ("+sse2", "SSE2")):
            if flag in has:
                return name
        return "scalar"

    def native_lanes(self, bits: int) -> int:
        """Lanes of one register for values of `bits` bits."""
        return max(1, self.register_bits // bits)

    def for_words(self) -> Target:
        """The same processor for programs without numbers of 8 or 16 bits: without AVX-512's instructions for those.

        They come with mask registers of 64 bits, into which LLVM packs the masks of several registers, to take them
        apart at each use: Mandelbrot's loop takes 1.15 times as long with them, and none was seen to gain.
        """
        return dataclasses.replace(self, features=f"{self.features},-avx512bw") if self.mask_registers else self

    def machine(self) -> llvm.TargetMachine:
        """A new LLVM target machine for this target."""
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=self.features, opt=2, reloc="pic", codemodel="default", jit=True
        )


def _is_arm(triple: str) -> bool:
    return triple.startswith(("aarch64", "arm64"))  # Linux's name for it, and Apple's


@functools.cache
def host() -> Target:
    """The target of the processor that this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    flags = llvm.get_host_cpu_features()
    features = ",".join(("+" if on else "-") + name for name, on in sorted(flags.items()))
    wide = flags.get("avx512f", False) and flags.get("avx512vl", False) and flags.get("avx512dq", False)
    bits = 512 if wide else 256 if flags.get("avx2") else 128
    if platform.machine() in ("x86_64", "AMD64") and wide:
        features += ",-prefer-256-bit"
    triple = llvm.get_process_triple()
    return Target(
        triple=triple,
        cpu=llvm.get_host_cpu_name(),
        features=features,
        register_bits=bits,
        registers=32 if wide or _is_arm(triple) else 16,
        mask_registers=wide,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
