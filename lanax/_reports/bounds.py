"""The least time that a kernel takes by each limit of the machine alone. Knows no program and no plan."""

from __future__ import annotations

from lanax._runtime.speed import Speed


def bounds(speed: Speed, threads: int, steps: float, bits: float, divided: float, moved: float,
           chain: float) -> dict[str, float]:
    """Seconds for each limit, the longest first.

    Args:
      speed: of one core.
      threads: how many cores work.
      steps: runs of the kernel's code for one step, in which all of its lanes work.
      bits, divided: width of the operands of all arithmetic, and of all divisions and square roots.
      moved: bytes read and written.
      chain: of one step, the latencies that wait for each other, in those of a fused multiply-add.
    """
    register = 32 * speed.lanes
    seconds = {
        "arithmetic": bits / register / speed.fmas / threads,
        "division and square root": divided / register / speed.divides / threads,
        "memory": moved / speed.bandwidth,
        "latency": steps / threads * chain * speed.latency,
    }
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def duration(seconds: float) -> str:
    """A time for people to read."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"
