"""`python -m lanax explain`, `profile` and `info`: what they print, and what they say of a bad command line."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

import lanax
from lanax.__main__ import main


def grown(x: Any, rate: Any) -> Any:
    return lax.while_loop(lambda v: v < 9, lambda v: v + rate, jnp.abs(x))


mapped = lanax.vmap(grown, (0, None))
NAME = f"{__name__}:grown"
number = 3


def run(*argv: str) -> int:
    return main(argv)


@pytest.mark.parametrize("name", [NAME, f"{__name__}:mapped"])
def test_explain(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explain", name, "--arg", "float32[300]", "--arg", "float32[]", "--in-axes", "0,None"]
    assert run(*argv) == 0
    text = capsys.readouterr().out
    assert text.startswith("grown over 300 examples")
    assert "varying: runs while any lane is active" in text
    assert run(*argv, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["name"], data["axis_size"]) == ("grown", 300)


def test_profile(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    argv = ["profile", NAME, "--arg", "float32[300]", "--arg", "0.5", "--in-axes", "0,none", "--html", str(page)]
    assert run(*argv) == 0
    text = capsys.readouterr().out
    assert "trips an example" in text
    assert f"wrote {page}" in text
    assert page.read_text().startswith("<!doctype html>")
    assert run(*argv, "--json") == 0
    assert json.loads(capsys.readouterr().out)["report"]["axis_size"] == 300


def test_a_program_of_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "--case", "mandelbrot", "--json") == 0
    assert json.loads(capsys.readouterr().out)["axis_size"] == 1024**2


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info") == 0
    assert "Native lanes" in capsys.readouterr().out
    assert run("info", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["native_lanes"]["float32"] == 2 * data["native_lanes"]["float64"] == data["register_bits"] // 32


@pytest.mark.parametrize(("argv", "said"), [
    (["nowhere:f", "--arg", "float32[3]"], "No module named 'nowhere'"),
    ([f"{__name__}:nothing", "--arg", "float32[3]"], "nothing"),
    ([NAME, "--arg", "float32(3)"], "a type and a shape"),
    ([NAME, "--arg", "float33[3]"], "float33"),
    ([NAME, "--arg", "float32[3]", "--in-axes", "a"], "0,none"),
])
@pytest.mark.parametrize("command", ["explain", "profile"])
def test_what_cannot_be_read(command: str, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(command, *argv)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "status", "said"), [
    ([], 2, "name a function"),
    ([NAME], 2, "its arguments"),
    ([f"{__name__}:number", "--arg", "float32[3]"], 2, "no function but int"),
    (["--case", "nothing"], 2, "no benchmark program nothing"),
    ([NAME, "--case", "kepler"], 2, "leave out the others"),
    ([NAME, "--arg", "float32[3]", "--arg", "float32[4]"], 1, "inconsistent sizes"),
])
@pytest.mark.parametrize("command", ["explain", "profile"])
def test_what_cannot_be_used(command: str, argv: list[str], status: int, said: str,
                             capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, *argv) == status
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out
