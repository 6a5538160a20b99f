"""Programs and their arguments as the command line writes them: `module:function`, `float32[100000,3]`."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

#: Help for `--arg`.
ARGUMENT_HELP = ("an argument of the whole batch, once for each: a type and a shape, such as float32[100000,3] (filled "
                 "with numbers from 0 to 1, ints from 0 to 99, or key[100000] for random keys), a number, or "
                 "module:name of a value or of a function that makes it")


def add_program(command: argparse.ArgumentParser, optional: bool = False) -> None:
    """What every command on a program of the user's takes; `optional`: the function may be left out."""
    command.add_argument("function", type=named, metavar="MODULE:FUNCTION", nargs="?" if optional else None,
                         help="a function of one example, or what lanax.vmap gave")
    command.add_argument("--arg", type=argument, action="append", default=[], metavar="ARG", help=ARGUMENT_HELP)
    command.add_argument("--in-axes", type=axes, default=0, metavar="AXES",
                         help="where each argument has the batch axis, such as 0,none,1; default %(default)s")


def named(text: str) -> Any:
    """What `module:name` names; the module is found from the current folder too."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise argparse.ArgumentTypeError(f"expected module:name, such as mypackage.models:step; got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    return found


def axes(text: str) -> Any:
    """`in_axes`: an int, or one of them or `none` for each argument."""
    try:
        found = [None if part.strip().lower() == "none" else int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected ints and none, such as 0,none,1; got {text!r}") from None
    return found[0] if len(found) == 1 else tuple(found)


def argument(text: str) -> Any:
    """The value of one `--arg`."""
    shaped = re.fullmatch(r"(\w+)\[([\d, ]*)\]", text.strip())
    if shaped:
        return _filled(shaped[1], tuple(int(part) for part in shaped[2].split(",") if part.strip()))
    if ":" in text:
        found = named(text)
        return found() if isinstance(found, Callable) else found
    try:
        return float(text) if re.search(r"[.einf]", text.lower()) else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a type and a shape such as float32[100000,3], a number or "
                                         f"module:name; got {text!r}") from None


def _filled(kind: str, shape: tuple[int, ...]) -> Any:
    """An array of some numbers, the same ones each time."""
    if kind == "key":
        return jax.random.split(jax.random.key(0), shape)
    try:
        dtype = jax.dtypes.canonicalize_dtype(np.dtype(kind))
    except TypeError:
        raise argparse.ArgumentTypeError(f"there is no dtype {kind!r}") from None
    rng = np.random.default_rng(0)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    return rng.random(shape).astype(dtype)
