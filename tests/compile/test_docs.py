"""The code in the documentation runs."""

from __future__ import annotations

import pathlib
import re
import runpy
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanax.extend import COMPOSITIONS, RULES

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """What a page registers is gone after it."""
    saved = dict(RULES), dict(COMPOSITIONS)
    yield
    for table, before in zip((RULES, COMPOSITIONS), saved, strict=True):
        table.clear()
        table.update(before)


def blocks(page: pathlib.Path) -> str:
    """A page's blocks of Python as one program, each line where it stands in the page."""
    text = page.read_text()
    out: list[str] = []
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        start = text.count("\n", 0, block.start(1))
        out += [""] * (start - len(out)) + block[1].splitlines()
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("page", ["README.md", "docs/adding_a_primitive.md", "docs/how_it_works.md", "docs/settings.md",
                                  "docs/map_and_patch.md", "docs/ecosystem.md", "docs/parallelism.md",
                                  "docs/tuning.md", "docs/distributed.md"])
def test_blocks_of_a_page(page: str) -> None:
    exec(compile(blocks(ROOT / page), str(ROOT / page), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.stem)
def test_links_of_a_page(page: pathlib.Path) -> None:
    """Every link to a file of the project leads to one."""
    links = re.findall(r"\]\(([^):#]+)[^):]*\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_from_scratch() -> None:
    """The file runs, and what its `vmap` gives is what `jax.vmap` gives, with a tail and without."""
    scratch = runpy.run_path(str(ROOT / "docs" / "from_scratch.py"))
    scratch["main"](side=40)

    def nested(x: Any, n: Any) -> Any:
        def outer(s: Any) -> Any:
            i, y = s
            inner = jax.lax.while_loop(lambda t: t[0] < i, lambda t: (t[0] + 1, t[1] * 0.5 + x), (0, y))
            return i + 1, jax.lax.cond(inner[1] > 1, lambda v: v - 1, lambda v: jnp.abs(v) + 0.25, inner[1])

        return jax.lax.while_loop(lambda s: s[0] < n, outer, (0, x))

    for size in (1, 16, 37):
        rng = np.random.default_rng(size)
        x, n = rng.normal(size=size).astype(np.float32), rng.integers(0, 7, size, np.int32)
        for got, want in zip(scratch["vmap"](nested)(x, n), jax.vmap(nested)(x, n), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
