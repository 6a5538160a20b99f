"""A profile as one page of HTML that needs no other file, and as a notebook shows it. Runs and compiles nothing."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from lanax._reports.bounds import duration
from lanax._reports.hints import hint
from lanax._reports.html import block, escape, table
from lanax._reports.report import Report
from lanax._reports.usage import BranchUse, ChunkRun, KernelUse, LoopUse

#: Size of a picture, and the space at its left and below for the axes.
_WIDTH, _LEFT, _BELOW = 760, 52, 34
#: Chunks of a picture; more of them are drawn as one.
_DRAWN = 1500
#: Lines of source around those that did something, and of machine code at most.
_AROUND, _MOST_CODE = 2, 400

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2330; --dim: #667085; --line: #e3e7ee; --soft: #f5f7fa;
  --mark: #2563eb; --warm: #b45309; }
@media (prefers-color-scheme: dark) { :root { --back: #14181f; --text: #e4e8ef; --dim: #94a0b3; --line: #2b323d;
  --soft: #1b2029; --mark: #6ea8fe; --warm: #f0b429; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--back); color: var(--text);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; } p { margin: .3rem 0; } .dim { color: var(--dim); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.4rem, 1fr)); gap: .75rem; margin: 1.2rem 0; }
.facts div { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.facts b { display: block; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.facts span { color: var(--dim); font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); }
td:first-child { overflow-wrap: normal; white-space: nowrap; }
th { color: var(--dim); font-weight: 500; font-size: .85rem; } th, .number { white-space: nowrap; }
.number { text-align: right; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; } svg text { fill: var(--dim); font-size: 11px; }
svg .bar { fill: var(--mark); } svg .axis { stroke: var(--line); } svg .mean { stroke: var(--warm);
  stroke-dasharray: 4 3; }
code, pre, .source { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; overflow: auto;
  max-height: 30rem; margin: .4rem 0; }
.source td { border: 0; padding: 0 .8rem 0 0; white-space: pre; overflow-wrap: normal; }
.source td:first-child { color: var(--dim); text-align: right; user-select: none; }
.source .note { color: var(--warm); white-space: pre-wrap; } .source .part { min-width: 5.5rem; }
.source .part i { display: inline-block; height: .6em; background: var(--mark); margin-right: .4em; }
.source tr.hot td { background: var(--soft); } summary { cursor: pointer; }
"""


def page(report: Report, seconds: float, kernels: Sequence[KernelUse], assembly: Sequence[str]) -> str:
    """The page of a profile; `assembly`: of each kernel, from which its hottest loop is shown."""
    title = escape(report.name)
    parts = [f"<h1>{title}</h1><p class=dim>{report.axis_size:,} examples on {escape(report.target)}</p>",
             _facts(report, seconds, kernels)]
    parts += [_kernel(i, kernel) for i, kernel in enumerate(kernels)]
    parts.append(_misses(report))
    parts.append(_sources(kernels))
    for i, text in enumerate(assembly):
        heading = f"Machine code of the hottest loop{f' of kernel {i}' if len(assembly) > 1 else ''}"
        parts.append(f"<h2>{heading}</h2><pre>{escape(hot_loop(text))}</pre>")
    parts.append(f"<h2>Plan</h2><details><summary>The report of lanax.explain</summary><pre>{escape(str(report))}"
                 "</pre></details>")
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: profile</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
            f"<body>{''.join(parts)}</body></html>\n")


def fragment(report: Report, seconds: float, kernels: Sequence[KernelUse]) -> str:
    """A profile as a notebook shows it."""
    parts = [table(["", ""], [("time", duration(seconds)), ("in kernels", duration(sum(k.seconds for k in kernels)))])]
    for i, kernel in enumerate(kernels):
        parts += [f"<div>kernel {i}, {kernel.lanes} lanes</div>", table(["", ""], _figures(kernel)), _sites(kernel),
                  _lane_use(kernel)]
    style = "<style>.lanax svg text{fill:currentColor;font-size:11px}.lanax svg .bar{fill:#3b82f6}" \
            ".lanax svg .axis{stroke:#8884}.lanax svg .mean{stroke:#b45309}</style>"
    return block(f"{report.name} over {report.axis_size:,} examples on {report.target}", style, *parts)


def _facts(report: Report, seconds: float, kernels: Sequence[KernelUse]) -> str:
    inside = min(seconds, sum(kernel.seconds for kernel in kernels))  # they were timed by themselves
    times = [("whole call", seconds), ("in kernels", inside), ("in XLA", seconds - inside)]
    facts = [*((name, duration(t)) for name, t in times), ("route", " → ".join(report.routes) or "uniform")]
    if kernels:
        slowest = max(kernels, key=lambda kernel: kernel.seconds)
        facts += [("lanes", str(slowest.lanes)), ("threads", str(slowest.threads)),
                  ("lane use", f"{slowest.lane_use:.0%}")]
    return f'<div class=facts>{"".join(f"<div><span>{n}</span><b>{escape(v)}</b></div>" for n, v in facts)}</div>'


def _figures(kernel: KernelUse) -> list[tuple[str, str]]:
    """The lines of the text, as pairs."""
    count = 3
    return [(line.partition(": ")[0], line.partition(": ")[2]) for line in list(kernel.lines())[:count]]


def _kernel(index: int, kernel: KernelUse) -> str:
    return (f"<h2>Kernel {index}</h2><div class=wide>{table(['', ''], _figures(kernel))}</div>"
            "<h3>What the machine allows</h3><p class=dim>The time that each limit alone would make it take, "
            f"beside the time measured.</p>{_bounds(kernel)}"
            f"<h3>Lane use over the batch</h3>{_lane_use(kernel)}<h3>Threads over time</h3>"
            "<p class=dim>One bar for each chunk; the stronger its colour, the more lanes were used. Counting slows "
            "this run.</p>"
            f"{_timeline(kernel)}<h3>Loops and branches</h3><div class=wide>{_sites(kernel)}</div>")


def _sites(kernel: KernelUse) -> str:
    rows = [("\u2003" * site.depth + (site.kind if isinstance(site, LoopUse) else "cond"), site.source, _did(site),
             f"{site.lane_use:.0%}") for site in kernel.sites]
    return table(["", "line", "what it did", "lane use"], rows) or "<p class=dim>None.</p>"


def _did(site: LoopUse | BranchUse) -> str:
    text = str(site).partition(f" at {site.source}: ")[2] if site.source else str(site).partition(": ")[2]
    return text.partition("; lane use")[0]


def _misses(report: Report) -> str:
    rows = [(miss.primitive, miss.source, miss.reason, hint(miss)) for miss in report.misses]
    shown = table(["", "line", "reason", "hint"], rows)
    return f"<h2>Not in lanes</h2><div class=wide>{shown}</div>" if rows else ""


# ---- pictures --------------------------------------------------------------------------------------------------------


def _picture(height: int, title: str, parts: Iterable[str]) -> str:
    return (f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
            f'preserveAspectRatio="xMinYMin meet">{"".join(parts)}</svg></div>')


def _bounds(kernel: KernelUse) -> str:
    rows = [("measured", kernel.seconds), *kernel.bounds.items()]
    most, left = max(seconds for _, seconds in rows), 160
    parts = []
    for i, (name, seconds) in enumerate(rows):
        width = (_WIDTH - left - 80) * seconds / most
        parts.append(f'<text x="{left - 8}" y="{22 * i + 15}" text-anchor="end">{name}</text>'
                     f'<rect class="bar" x="{left}" y="{22 * i + 4}" width="{max(width, 0.5):.1f}" height="14" rx="2" '
                     f'opacity="{1 if i == 0 else 0.55}"/>'
                     f'<text x="{left + width + 6:.1f}" y="{22 * i + 15}">{duration(seconds)}</text>')
    return _picture(22 * len(rows) + 6, "time by each limit", parts)


def _lane_use(kernel: KernelUse) -> str:
    high, top = 120, 8
    wide = _WIDTH - _LEFT - 12

    def x(example: float) -> float:
        return _LEFT + wide * example / kernel.axis_size

    def y(use: float) -> float:
        return top + high * (1 - use)

    path = "".join(f"V{y(use):.1f}H{x(end):.1f}" for end, use in _joined(kernel.chunks))
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{y(use)}" y2="{y(use)}"/>'
             f'<text x="{_LEFT - 8}" y="{y(use) + 4}" text-anchor="end">{use:.0%}</text>' for use in (0.0, 0.5, 1.0)]
    parts.append(f'<path class="bar" opacity="0.75" d="M{_LEFT},{y(0)}{path}V{y(0)}Z"/>')
    parts.append(f'<line class="mean" x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{y(kernel.lane_use):.1f}" '
                 f'y2="{y(kernel.lane_use):.1f}"/>')
    parts += _ticks(kernel.axis_size, x, top + high, "", lambda n: f"{n:,.0f}")
    return _picture(top + high + _BELOW, "lane use over the batch", parts)


def _joined(chunks: Sequence[ChunkRun]) -> Iterator[tuple[int, float]]:
    """The end and the lane use of each chunk, or of several together where there are many."""
    size = math.ceil(len(chunks) / _DRAWN)
    for i in range(0, len(chunks), size):
        some = chunks[i:i + size]
        yield some[-1].end, sum(c.lane_use for c in some) / len(some)


def _timeline(kernel: KernelUse) -> str:
    row, top = 24, 4
    end = max(chunk.stop for chunk in kernel.chunks) or 1e-9
    wide = _WIDTH - _LEFT - 12

    def x(seconds: float) -> float:
        return _LEFT + wide * seconds / end

    parts = [f'<text x="{_LEFT - 8}" y="{top + row * k + 15}" text-anchor="end">{k}</text>' for k in
             range(kernel.threads)]
    for c in kernel.chunks[::math.ceil(len(kernel.chunks) / _DRAWN)]:
        parts.append(f'<rect class="bar" x="{x(c.start):.2f}" y="{top + row * c.thread}" height="{row - 4}" '
                     f'width="{max(x(c.stop) - x(c.start) - 0.5, 0.3):.2f}" opacity="{0.2 + 0.8 * c.lane_use:.2f}">'
                     f"<title>examples {c.begin:,} to {c.end:,}, {duration(c.stop - c.start)}, "
                     f"lane use {c.lane_use:.0%}</title></rect>")
    bottom = top + row * kernel.threads
    parts += _ticks(1e3 * end, lambda v: x(v / 1e3), bottom, "ms", lambda v: f"{v:.4g}")
    return _picture(bottom + _BELOW, "threads over time", parts)


def _ticks(most: float, x: Callable[[float], float], bottom: float, unit: str,
           text: Callable[[float], str]) -> Iterator[str]:
    """Marks at round numbers from 0 up to `most`."""
    rough = most / 6
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= rough)
    for k in range(int(most / step) + 1):
        label = text(k * step) + (f" {unit}" if k == 0 and unit else "")
        anchor = "start" if k == 0 else "end" if k * step > 0.97 * most else "middle"  # inside the picture
        yield (f'<line class="axis" x1="{x(k * step):.1f}" x2="{x(k * step):.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
               f'<text x="{x(k * step):.1f}" y="{bottom + 18}" text-anchor="{anchor}">{label}</text>')


# ---- source lines ----------------------------------------------------------------------------------------------------


def _sources(kernels: Sequence[KernelUse]) -> str:
    parts, notes = _by_file([(line, part * kernel.seconds) for kernel in kernels
                             for line, part in kernel.source_lines.items()]), _notes(kernels)
    total = sum(part for lines in parts.values() for part in lines.values()) or 1.0
    shown = [_file(name, parts.get(name, {}), notes.get(name, {}), total) for name in {**parts, **notes}]
    text = "".join(filter(None, shown))
    return ("<h2>Source lines</h2><p class=dim>Beside each line its part of the instructions, by estimate, and what "
            f"its loops and branches did.</p>{text}" if text else "")


def _place(source: str) -> tuple[str, int]:
    found = re.match(r"(.*):(\d+)(?: \(.*\))?$", source)
    return (found[1], int(found[2])) if found else ("", 0)


def _by_file(lines: Iterable[tuple[str, float]]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for source, part in lines:
        name, number = _place(source)
        if name:
            found.setdefault(name, {})[number] = found.get(name, {}).get(number, 0.0) + part
    return found


def _notes(kernels: Sequence[KernelUse]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for site in (site for kernel in kernels for site in kernel.sites):
        name, number = _place(site.source)
        if name:
            kind = site.kind if isinstance(site, LoopUse) else "cond"
            before = found.setdefault(name, {}).get(number)
            text = f"{kind}: {_did(site)}; lane use {site.lane_use:.0%}"
            found[name][number] = f"{before}\n{text}" if before else text
    return found


def _file(name: str, parts: dict[int, float], notes: dict[int, str], total: float) -> str:
    """The lines of one file that did something, with those around them and the heads of their functions."""
    numbers = {*parts, *notes}
    near = {n for number in numbers for n in range(number - _AROUND, number + _AROUND + 1)}
    shown = sorted(n for n in near | _heads(name, numbers) if linecache.getline(name, n))
    rows, last = [], 0
    for number in shown:
        if last and number > last + 1:
            rows.append("<tr><td>⋯</td><td></td><td></td></tr>")
        last = number
        rows += _source_rows(number, linecache.getline(name, number).rstrip(), parts.get(number, 0.0) / total,
                             notes.get(number, ""))
    return f'<h3>{escape(name)}</h3><div class="wide"><table class=source>{"".join(rows)}</table></div>' if rows else ""


def _source_rows(number: int, line: str, part: float, notes: str) -> Iterator[str]:
    bar = f'<i style="width:{3 * part:.2f}rem"></i>{part:.0%}' if part >= 0.005 else ""
    yield (f'<tr{" class=hot" if part >= 0.1 else ""}><td>{number}</td><td class=part>{bar}</td>'
           f"<td>{escape(line)}</td></tr>")
    indent = " " * (len(line) - len(line.lstrip()))
    for note in notes.splitlines():
        yield f"<tr><td></td><td></td><td class=note>{indent}↳ {escape(note)}</td></tr>"


def _heads(name: str, numbers: Iterable[int]) -> set[int]:
    """The line of the `def` at the least indentation above the first of some lines."""
    for number in range(min(numbers, default=0), 0, -1):
        if re.match(r"(async )?def |    def .*self", linecache.getline(name, number)):
            return {number}
    return set()


# ---- machine code ----------------------------------------------------------------------------------------------------

_LABEL = re.compile(r"^([\w.$\"@]+):")
_COMMENT = re.compile(r"(//|;|#+ ).*")  # of arm64, of Apple's arm64 and of x86; `#` alone begins a number on arm64
_VECTOR = re.compile(r"%?[xyz]mm\d+|\bv\d+\b")


def hot_loop(assembly: str) -> str:
    """The innermost loop with the most vector instructions, from its label to the jump back; all where there is none.

    A loop is what lies between a label and a later jump to it."""
    lines = [_COMMENT.sub("", line).rstrip() if "\"" not in line else line for line in assembly.splitlines()]
    labels = {found[1]: i for i, line in enumerate(lines) if (found := _LABEL.match(line))}
    loops = []
    for i, line in enumerate(lines):
        words = line.replace(",", " ").split()
        start = labels.get(words[-1]) if len(words) > 1 and not line.lstrip().startswith(".") else None
        if start is not None and start < i:
            loops.append((start, i))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    if not inner:
        return "\n".join(lines[:_MOST_CODE])
    start, end = max(inner, key=lambda loop: sum(bool(_VECTOR.search(line)) for line in lines[loop[0]:loop[1]]))
    code = [line for line in lines[start:end + 1] if line.strip() and not line.lstrip().startswith(".p2align")]
    more = [f"... {len(code) - _MOST_CODE} more lines"] if len(code) > _MOST_CODE else []
    return "\n".join([*code[:_MOST_CODE], *more])
