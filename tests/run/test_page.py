"""A profile as a page, as a picture, as HTML for notebooks and as JSON."""

from __future__ import annotations

import builtins
import html.parser
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax._reports.bounds import duration
from lanax._reports.page import hot_loop

X = np.linspace(0, 20, 2000, dtype=np.float32)


def example(x):
    y = lax.while_loop(lambda v: v < 30, lambda v: v * 1.1 + 1, x)
    return lax.cond(x > 10, lambda v: lax.fori_loop(0, 9, lambda _, u: jnp.sin(u) + v, v), lambda v: v, y)


@pytest.fixture(scope="module")
def made() -> lanax.Profile:
    return lanax.profile(lanax.vmap(example, plan=lanax.Plan(lanes=8, chunk=128)), X)


class Checker(html.parser.HTMLParser):
    """Collects tags, and that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    return checker


def test_the_page_is_whole_and_needs_nothing_else(made: lanax.Profile, tmp_path: pathlib.Path) -> None:
    path = made.to_html(tmp_path / "page.html")
    text = path.read_text()
    found = checked(text)
    assert not found.links
    assert "http" not in text
    assert found.seen.count("svg") == 3 * len(made.kernels)
    assert "prefers-color-scheme: dark" in text
    # one bar for each chunk, in the time line
    assert text.count("<title>examples ") == len(made.kernels[0].chunks)


def test_the_page_has_the_loops_beside_their_source_lines(made: lanax.Profile, tmp_path: pathlib.Path) -> None:
    text = made.to_html(tmp_path / "page.html").read_text()
    rows = re.findall(r"<tr[^>]*><td>(\d*)</td>(.*?)</tr>", text)
    first = example.__code__.co_firstlineno
    numbers = [int(number) for number, _ in rows if number]
    assert {first, first + 1, first + 2} <= {*numbers}
    loop = next(site for site in made.kernels[0].loops if site.kind == "while")
    after = rows[[number for number, _ in rows].index(str(first + 1)) + 1]
    assert after[0] == ""
    assert f"while: {loop.mean:.1f} trips an example" in after[1]


def test_the_page_ends_with_machine_code_and_plan(made: lanax.Profile, tmp_path: pathlib.Path) -> None:
    text = made.to_html(tmp_path / "page.html").read_text()
    code = text.partition("Machine code of the hottest loop</h2><pre>")[2].partition("</pre>")[0]
    assert code.strip()
    assert made.report.name in text.partition("<h2>Plan</h2>")[2]


def test_a_page_of_a_program_with_misses(tmp_path: pathlib.Path) -> None:
    def cut(x):
        y = lax.while_loop(lambda v: v < 9, lambda v: v + 1, x)
        return lax.while_loop(lambda v: v < 99, lambda v: v * 2, jax.pure_callback(np.abs, y, y,
                                                                                  vmap_method="expand_dims"))

    made = lanax.profile(lanax.vmap(cut), X[:50])
    np.testing.assert_allclose(made.results, jax.vmap(cut)(X[:50]), rtol=1e-6)
    text = made.to_html(tmp_path / "page.html").read_text()
    checked(text)
    assert "Not in lanes" in text
    assert "calls Python on the host" in text
    assert text.count("Machine code of the hottest loop of kernel") == len(made.kernels) == 2


def test_a_page_of_a_kernel_without_loops(tmp_path: pathlib.Path) -> None:
    made = lanax.profile(lanax.vmap(lambda x: jnp.sin(x) * jnp.exp(x), plan=lanax.Plan(route="lanes")), X)
    checked(made.to_html(tmp_path / "page.html").read_text())
    checked(made._repr_html_())


def test_html_for_notebooks(made: lanax.Profile) -> None:
    text = made._repr_html_()
    assert checked(text).seen.count("svg") == len(made.kernels)
    assert "trips an example" in text


def test_json(made: lanax.Profile) -> None:
    data = json.loads(json.dumps(made.to_dict()))
    assert data["report"]["name"] == "example"
    (kernel,) = data["kernels"]
    assert [site["kind"] for site in kernel["sites"]] == ["while", "cond", "scan"]
    assert kernel["sites"][0]["mean"] == made.kernels[0].loops[0].mean
    assert sum(side["examples"] for side in kernel["sites"][1]["sides"]) == 2000
    assert sum(kernel["source_lines"].values()) == pytest.approx(1)
    assert len(kernel["chunks"]) == len(made.kernels[0].chunks)


def test_a_picture(made: lanax.Profile) -> None:
    pytest.importorskip("matplotlib")
    drawn = made.plot()
    left, right = drawn.axes
    values, edges, _ = left.patches[0].get_data()
    np.testing.assert_allclose(values, [100 * c.lane_use for c in made.kernels[0].chunks])
    assert (edges[0], edges[-1]) == (0, 2000)
    assert len(right.patches) == len(made.kernels[0].chunks)


def test_a_picture_without_matplotlib(made: lanax.Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    given = builtins.__import__

    def lacking(name: str, *args: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return given(name, *args)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lanax\[plot\]'"):
        made.plot()


ASSEMBLY = """\
kernel:
	movl	%eax, %ebx
.LBB0_1:
	vaddps	%ymm0, %ymm1, %ymm2
.LBB0_2:
	vmulps	%ymm0, %ymm1, %ymm2  # a comment
	vaddps	%ymm0, %ymm1, %ymm2
	jne	.LBB0_2
	jne	.LBB0_1
.LBB0_3:
	addq	$1, %rax
	vaddps	%ymm0, %ymm1, %ymm2
	jb	.LBB0_3
	ret
"""


def test_the_hottest_loop() -> None:
    assert hot_loop(ASSEMBLY).splitlines() == [".LBB0_2:", "\tvmulps\t%ymm0, %ymm1, %ymm2",
                                               "\tvaddps\t%ymm0, %ymm1, %ymm2", "\tjne\t.LBB0_2"]
    assert hot_loop("kernel:\n\tret\n") == "kernel:\n\tret"


def test_times_for_people() -> None:
    assert [duration(s) for s in (0.0, 1.5e-6, 0.0123, 0.9994, 0.9996, 4.0612, 83.0)] == [
        "0 ms", "0.0015 ms", "12.3 ms", "999 ms", "1 s", "4.06 s", "83 s"]
