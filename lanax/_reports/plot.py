"""Pictures of a profile by matplotlib, which is imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanax._reports.usage import KernelUse


def figure(name: str, kernels: Sequence[KernelUse]) -> Any:
    """A `matplotlib.figure.Figure`: for each kernel its lane use over the batch, and its threads over time."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a plot of a profile needs matplotlib: pip install 'lanax[plot]'. "
                                  "Profile.to_html has the same pictures without it.", name=error.name) from error
    drawn = Figure(figsize=(10, 3.2 * max(1, len(kernels))), layout="constrained")
    drawn.suptitle(f"{name}: lanes and threads")
    rows = drawn.subplots(max(1, len(kernels)), 2, squeeze=False)
    for kernel, (left, right) in zip(kernels, rows, strict=False):
        _lane_use(left, kernel)
        _timeline(right, kernel)
    return drawn


def _lane_use(axes: Any, kernel: KernelUse) -> None:
    edges = [kernel.chunks[0].begin, *(c.end for c in kernel.chunks)]
    axes.stairs([100 * c.lane_use for c in kernel.chunks], edges, fill=True, color="#3b82f6", alpha=0.8)
    axes.axhline(100 * kernel.lane_use, color="0.4", linewidth=1, linestyle="--")
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 105), xlabel="example", ylabel="lane use, %",
             title=f"{kernel.lanes} lanes, {kernel.lane_use:.0%} used")


def _timeline(axes: Any, kernel: KernelUse) -> None:
    for c in kernel.chunks:
        axes.barh(c.thread, 1e3 * (c.stop - c.start), left=1e3 * c.start, height=0.7, color="#3b82f6",
                  alpha=0.25 + 0.75 * c.lane_use, edgecolor="white", linewidth=0.2)
    where = f"{kernel.threads} threads" if kernel.threads > 1 else "one thread"
    axes.set(xlabel="ms", yticks=range(kernel.threads), ylabel="thread",
             title=f"{len(kernel.chunks)} chunks on {where}; stronger: more lanes used")
