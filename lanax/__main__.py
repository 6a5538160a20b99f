"""The command line. Parses arguments; the commands are in `_commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lanax._commands import bench, demo, info, primitives
from lanax._suite.programs import PROGRAMS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lanax", description="Runs whole programs in SIMD lanes, for JAX.")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("info", help="the processor, its native lanes, the JAX devices")
    command.set_defaults(run=lambda _: info.run())

    command = commands.add_parser("primitives", help="what each primitive of JAX becomes in a kernel")
    command.add_argument("--markdown", action="store_true", help="as the page docs/primitives.md")
    command.set_defaults(run=lambda args: primitives.run(args.markdown))

    command = commands.add_parser("demo", help="jax.vmap against lanax.vmap on five programs; under two minutes")
    command.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where to save the pictures")
    command.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    command.set_defaults(run=lambda args: demo.run(args.output, args.quick))

    command = commands.add_parser("bench", help="times the benchmark suite, writes JSON")
    names = ", ".join(program.name for program in PROGRAMS)
    command.add_argument("names", nargs="*", help=f"programs to time, default all: {names}")
    command.add_argument("--json", type=Path, default=Path("lanax-bench.json"), metavar="FILE",
                         help="where to write the figures, default %(default)s")
    command.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    command.set_defaults(run=lambda args: bench.run(args.names, args.json, args.quick))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command of the arguments. Returns the exit status."""
    args = _parser().parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
