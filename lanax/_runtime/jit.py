"""Optimises an LLVM module, compiles it and links it into this process, or links what is on disk. Knows nothing of XLA
or of what kernels do."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
import weakref
from collections.abc import Iterable
from importlib import resources

import llvmlite
import llvmlite.binding as llvm

from lanax._config import logger
from lanax._errors import CompileError
from lanax._runtime import cache
from lanax._target import Target

# llvmlite locks each of its calls; a compilation is many of them.
_lock = threading.RLock()

# LLVM's scheduler looks for dependences between all accesses to memory of a block, up to so many at a time. With its
# own 1000 that takes three quarters of the time for kernels with long blocks, whose code is the same.
llvm.set_option("lanax", "-dag-maps-huge-region=100")


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A module's machine code in this process; it stays valid for as long as this object lives.

    Attributes:
      symbols: the names that it exports.
    """

    symbols: tuple[str, ...]
    _library: llvm.ResourceTracker = dataclasses.field(repr=False)

    def address(self, name: str) -> int:
        """The address of a function or global variable that the module exports."""
        if name not in self.symbols:
            raise KeyError(f"the module exports no `{name}`, only {', '.join(self.symbols)}")
        return self._library[name]


def compile_module(ir_text: str, target: Target, name: str = "") -> Compiled:
    """Machine code of LLVM text in this process: from disk where it is there, else by the compiler.

    Args:
      ir_text: the module.
      target: the processor that it is for.
      name: what it is part of, for the log and the list of what is on disk.

    Raises:
      CompileError: LLVM refuses it, or it calls what this process lacks.
    """
    key = _key(ir_text, target)
    with _lock:
        stored = cache.load(key)
        if stored is not None:
            try:
                found = link(stored[1], stored[0], target)
            except CompileError:
                logger.warning("the stored kernel of %s does not link; it is compiled anew", name)
            else:
                logger.info("%s: found on disk (%s)", name, key[:12])
                return found
        symbols, code = compile_object(ir_text, target)
        logger.info("%s: compiled, %d bytes (%s)", name, len(code), key[:12])
        compiled = link(code, symbols, target)
        cache.store(key, name, symbols, code)
        return compiled


def compile_object(ir_text: str, target: Target) -> tuple[list[str], bytes]:
    """Parses, verifies, optimises and compiles LLVM text: the exported symbols and the object file."""
    with _lock:
        module, machine = _optimised(ir_text, target)
        globals_ = [*module.functions, *module.global_variables]
        symbols = [g.name for g in globals_ if not g.is_declaration and g.linkage == llvm.Linkage.external]
        return symbols, machine.emit_object(module)


def optimised_text(ir_text: str, target: Target) -> str:
    """The LLVM text after the passes."""
    with _lock:
        return str(_optimised(ir_text, target)[0])


def assembly(ir_text: str, target: Target) -> str:
    """The assembly text."""
    with _lock:
        module, machine = _optimised(ir_text, target)
        return machine.emit_assembly(module)


def _key(ir_text: str, target: Target) -> str:
    """What the machine code of a module depends on, as a name for a file."""
    parts = (ir_text, target.triple, target.cpu, target.features, llvmlite.__version__, llvm.llvm_version_info,
             _compiler())
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


@functools.cache
def _compiler() -> str:
    """What says how lanax runs LLVM: these files, which is sharper than lanax's version."""
    package = resources.files("lanax")
    return "".join((package / name).read_text() for name in ("_runtime/jit.py", "_target.py"))


def link(object_code: bytes, symbols: Iterable[str], target: Target) -> Compiled:
    """Links an object file of `compile_object` into this process.

    Each call gives a copy with its own global variables. Raises CompileError where it calls what this process lacks.
    """
    symbols = tuple(symbols)
    builder = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process()
    for symbol in symbols:
        builder.export_symbol(symbol)
    with _lock:
        # A linker for each: a library that is unloaded leaves some kilobytes behind in its linker. JITLink puts the
        # code and constants of a module into one block, so that they reach each other whatever else lies in the
        # address space; the older linker places them apart and does not check.
        linker = llvm.create_lljit_compiler(target.machine(), use_jit_link=True, suppress_errors=True)
        try:
            library = builder.link(linker, "kernel")
        except RuntimeError as error:
            raise CompileError(f"LLVM could not link a kernel to this process: {error}") from error
    compiled = Compiled(symbols, library)
    weakref.finalize(compiled, _unload, library, linker).atexit = False
    return compiled


def _unload(library: llvm.ResourceTracker, linker: llvm.LLJIT) -> None:
    """In this order, which the garbage collector alone would not keep."""
    library.close()
    linker.close()


def _parse(ir_text: str, target: Target) -> llvm.ModuleRef:
    try:
        # What a context holds of a module it keeps for ever: each has its own.
        module = llvm.parse_assembly(ir_text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refused a module; please report this as a bug of lanax: {error}") from error
    module.triple = target.triple
    module.data_layout = _data_layout(target)
    return module


@functools.cache
def _data_layout(target: Target) -> str:
    return str(target.machine().target_data)


def _optimised(ir_text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    module = _parse(ir_text, target)
    _optimise(module, target)
    return module, target.machine()


def _optimise(module: llvm.ModuleRef, target: Target) -> None:
    """LLVM's function simplification pipeline at level 1, after inlining where there is anything to inline.

    It keeps masks as integers, rotates loops to one block and costs a fifth of code generation. Level 2 and the
    module pipelines cost two to four times as much for kernels that ran no faster.
    """
    passes, inline, simplify = _passes(target)
    if sum(not function.is_declaration for function in module.functions) > 1:
        inline.run(module, passes)
    for function in module.functions:
        if not function.is_declaration:
            simplify.run(function, passes)


@functools.cache
def _passes(target: Target) -> tuple[llvm.PassBuilder, llvm.ModulePassManager, llvm.FunctionPassManager]:
    """One of each for all modules: llvmlite does not give all of their memory back."""
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    passes = llvm.create_pass_builder(target.machine(), options)
    inline = llvm.create_new_module_pass_manager()
    inline.add_always_inliner_pass()
    inline.add_global_dead_code_eliminate_pass()
    return passes, inline, passes.getFunctionPassManager()
