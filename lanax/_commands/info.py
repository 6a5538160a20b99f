"""`python -m lanax info`: the machine as lanax sees it. Compiles nothing."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import jax
import llvmlite.binding as llvm
from rich.table import Table

from lanax._commands.console import console
from lanax._suite.report import machine
from lanax._target import Target, host

#: Types of one width share a row; the half-width floats are computed in float32.
TYPES = (("bool, float32, float16, bfloat16", 32), ("float64", 64), ("int8, uint8", 8), ("int16, uint16", 16),
         ("int32, uint32", 32), ("int64, uint64", 64))


def run(as_json: bool = False) -> int:
    """Prints the machine, the native lanes and JAX's devices."""
    target = host()
    if as_json:
        sys.stdout.write(json.dumps(_facts(target), indent=2) + "\n")
        return 0
    console().print(_machine(target), "", _lanes(target), "", _devices())
    return 0


def _facts(target: Target) -> dict[str, Any]:
    """The same as JSON takes it."""
    lanes = {name: target.native_lanes(bits) for names, bits in TYPES for name in names.split(", ")}
    devices = [{"device": str(d), "kind": d.device_kind, "platform": d.platform} for d in jax.devices()]
    return {**machine(), "processor": _processor_name(), "registers": target.registers, "native_lanes": lanes,
            "devices": devices}


def _machine(target: Target) -> Table:
    facts = machine()
    rows = {
        "processor": f"{_processor_name()} ({target.cpu})",
        "instruction set": f"{target.instruction_set}, {target.registers} registers of {target.register_bits} bits",
        "cores": str(target.cores),
        "versions": f"lanax {facts['lanax']}, jax {facts['jax']}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}, "
        f"Python {facts['python']}",
    }
    shown = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        shown.add_row(f"[bold]{name}[/]", value)
    return shown


def _processor_name() -> str:
    """The name that the maker gave the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _lanes(target: Target) -> Table:
    shown = Table(title="Native lanes: examples in one register", title_justify="left")
    shown.add_column("type")
    shown.add_column("lanes", justify="right")
    for names, bits in TYPES:
        shown.add_row(names, str(target.native_lanes(bits)))
    return shown


def _devices() -> Table:
    shown = Table(title="JAX devices", title_justify="left")
    for heading in ("device", "kind", "platform"):
        shown.add_column(heading)
    for device in jax.devices():
        shown.add_row(str(device), device.device_kind, device.platform)
    return shown
