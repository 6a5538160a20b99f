"""Optimises an LLVM module, compiles it and links it into this process. Knows nothing of XLA or of what kernels do."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Iterable

import llvmlite.binding as llvm

from lanax._errors import CompileError
from lanax._target import Target, host

# llvmlite locks each of its calls; a compilation is many of them.
_lock = threading.RLock()
_library_numbers = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A module's machine code in this process; it stays valid for as long as this object lives.

    Attributes:
      optimised: the module's LLVM text after the passes.
      object_code: the object file, and `symbols`, the names that it exports: what `link` takes, in another process too.
      target: what it was compiled for.
    """

    optimised: str
    object_code: bytes
    symbols: tuple[str, ...]
    target: Target
    _library: llvm.ResourceTracker = dataclasses.field(repr=False)

    def address(self, name: str) -> int:
        """The address of a function or global variable that the module exports."""
        if name not in self.symbols:
            raise KeyError(f"the module exports no `{name}`, only {', '.join(self.symbols)}")
        return self._library[name]

    @functools.cached_property
    def asm(self) -> str:
        """The assembly text."""
        with _lock:
            return self.target.machine().emit_assembly(_parse(self.optimised, self.target))


def compile_module(ir_text: str, target: Target) -> Compiled:
    """Parses, verifies, optimises, compiles and links LLVM text; raises CompileError where LLVM refuses it."""
    with _lock:
        module = _parse(ir_text, target)
        machine = target.machine()
        _optimise(module, machine)
        optimised = str(module)  # before code generation, which changes the module
        globals_ = [*module.functions, *module.global_variables]
        symbols = [g.name for g in globals_ if not g.is_declaration and g.linkage == llvm.Linkage.external]
        return link(machine.emit_object(module), symbols, target, optimised)


def link(object_code: bytes, symbols: Iterable[str], target: Target, optimised: str = "") -> Compiled:
    """Links an object file that `compile_module` made into this process.

    Each call gives a copy with its own global variables. Raises CompileError where it calls what this process lacks.
    """
    builder = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process()
    for symbol in symbols:
        builder.export_symbol(symbol)
    with _lock:
        try:
            library = builder.link(_linker(), f"lanax{next(_library_numbers)}")
        except RuntimeError as error:
            raise CompileError(f"LLVM could not link a kernel to this process: {error}") from error
    return Compiled(optimised, object_code, tuple(symbols), target, library)


@functools.cache
def _linker() -> llvm.LLJIT:
    """The process's linker. JITLink puts the code and constants of a module into one block, so that they reach each
    other whatever else lies in the address space; the older linker places them apart and does not check."""
    return llvm.create_lljit_compiler(host().machine(), use_jit_link=True, suppress_errors=True)


def _parse(ir_text: str, target: Target) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(ir_text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refused a module; please report this as a bug of lanax: {error}") from error
    module.triple = target.triple
    module.data_layout = _data_layout(target)
    return module


@functools.cache
def _data_layout(target: Target) -> str:
    return str(target.machine().target_data)


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """LLVM's function simplification pipeline at level 1, after inlining where there is anything to inline.

    It keeps masks as integers, rotates loops to one block and costs a fifth of code generation. Level 2 and the
    module pipelines cost two to four times as much for kernels that ran no faster.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    passes = llvm.create_pass_builder(machine, options)
    if sum(not function.is_declaration for function in module.functions) > 1:
        inline = llvm.create_new_module_pass_manager()
        inline.add_always_inliner_pass()
        inline.add_global_dead_code_eliminate_pass()
        inline.run(module, passes)
    simplify = passes.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            simplify.run(function, passes)
