"""The cells of the notebooks run, one after another, on small sizes."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    cells = json.loads(path.read_text())["cells"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            source = re.sub(r"^SIDE = \d+", "SIDE = 64", "".join(cell["source"]), flags=re.MULTILINE)
            exec(compile(source, f"{path.name}, cell {number}", "exec"), names)
    names["plt"].close("all")
    assert "trips an example" in capsys.readouterr().out


def test_links_of_notebooks() -> None:
    for path in FOLDER.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert all((FOLDER / link).exists() for link in re.findall(r"\]\(([^):#]+)\)", text))
