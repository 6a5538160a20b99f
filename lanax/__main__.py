"""The command line. Parses arguments; the commands are in `_commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lanax._commands import arguments, bench, cache, demo, explain, info, primitives, profile, tune
from lanax._suite.programs import PROGRAMS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lanax", description="Runs whole programs in SIMD lanes, for JAX.")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("info", help="the processor, its native lanes, the JAX devices")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(run=lambda args: info.run(args.json))

    command = commands.add_parser("primitives", help="what each primitive of JAX becomes in a kernel")
    command.add_argument("--markdown", action="store_true", help="as the page docs/primitives.md")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(run=lambda args: primitives.run(args.markdown, args.json))

    command = commands.add_parser("cache", help="the compiled kernels on disk: list, size or clear")
    command.add_argument("action", nargs="?", choices=list(cache.ACTIONS), default="list",
                         help="; ".join(f"{name}: {what}" for name, what in cache.ACTIONS.items()))
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(run=lambda args: cache.run(args.action, args.json))

    command = commands.add_parser("tune", help="times a handful of plans of a function of yours")
    _add_program_or_case(command)
    command.add_argument("--seconds", type=float, default=20.0, help="about how long it may take, default %(default)s")
    command.add_argument("--store", action="store_true", help="keep the best plan on disk, for later calls")
    command.set_defaults(run=lambda args: tune.run(args.function, args.arg, args.in_axes, args.case, args.json,
                                                   seconds=args.seconds, store=args.store))

    command = commands.add_parser("explain", help="how a function would run over a batch, and why; runs nothing")
    _add_program_or_case(command)
    command.set_defaults(run=lambda args: explain.run(args.function, args.arg, args.in_axes, args.case, args.json))

    command = commands.add_parser("profile", help="runs a function over a random batch: loops, branches, threads")
    _add_program_or_case(command)
    command.add_argument("--html", type=Path, metavar="FILE", help="write it as a page too")
    command.set_defaults(run=lambda args: profile.run(args.function, args.arg, args.in_axes, args.case, args.json,
                                                      args.html))

    command = commands.add_parser("demo", help="jax.vmap against lanax.vmap on five programs; under two minutes")
    command.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where to save the pictures")
    command.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    command.set_defaults(run=lambda args: demo.run(args.output, args.quick))

    command = commands.add_parser("bench", help="times the benchmark suite, writes JSON")
    names = ", ".join(program.name for program in PROGRAMS)
    command.add_argument("names", nargs="*", help=f"programs to time, default all: {names}")
    file = Path("lanax-bench.json")
    command.add_argument("--json", type=Path, nargs="?", default=file, const=file, metavar="FILE",
                         help="where to write the figures, default %(default)s")
    command.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    command.add_argument("--plan-check", action="store_true",
                         help="the automatic plan against jax.vmap, jax.lax.map and every route instead")
    command.add_argument("--scale", action="store_true",
                         help="1, 2, 4, 8 devices and 1, 2, 4 processes instead, of one thread each; by default of "
                              f"{', '.join(bench.SCALED)}")
    command.set_defaults(run=lambda args: bench.run(args.names, args.json, args.quick, args.plan_check, args.scale))
    return parser


def _add_program_or_case(command: argparse.ArgumentParser) -> None:
    arguments.add_program(command, optional=True)
    command.add_argument("--case", metavar="NAME", help="a program of the benchmark suite instead of a function")
    command.add_argument("--json", action="store_true", help="as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command of the arguments. Returns the exit status."""
    args = _parser().parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
