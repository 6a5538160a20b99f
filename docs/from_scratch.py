"""The whole idea of lanax in one small file: from a JAX function of one example to a native loop with one example in
each SIMD lane. It needs jax, numpy and llvmlite, and nothing of lanax.

    python docs/from_scratch.py

The function takes and gives float32 and int32 scalars, and may use arithmetic, comparisons, selections, `while_loop`
and `cond`. Where lanax does more, a comment says so.
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

# ---- 1. Values. One value of the program, for LANES examples at once, is one LLVM vector. --------------------------
# (lanax keeps what is the same for all examples as a scalar, and an array of one example as a list of such vectors.)

LANES = 16
I1, I32, I64, F32, PTR = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.PointerType()


def vector(dtype):
    return ir.VectorType({"bool": I1, "int32": I32, "float32": F32}[np.dtype(dtype).name], LANES)


def splat(value, dtype):
    """A constant in every lane."""
    kind = vector(dtype)
    return ir.Constant(kind, [ir.Constant(kind.element, np.dtype(dtype).type(value).item())] * LANES)


def any_lane(b, mask):
    """Whether any lane of a mask is on: its bits as one integer. (lanax: full-width masks, twice as fast on AVX2.)"""
    return b.icmp_unsigned("!=", b.bitcast(mask, ir.IntType(LANES)), ir.Constant(ir.IntType(LANES), 0))


# ---- 2. One rule for each primitive: rule(builder, mask, equation, *lane values) -> lane value, or a list of them. -
# The mask says which lanes count. Elementwise rules ignore it: what the other lanes compute is thrown away.


def binary(of_floats, of_ints):
    return lambda b, mask, eqn, x, y: getattr(b, of_floats if x.type.element == F32 else of_ints)(x, y)


def intrinsic(name):
    def rule(b, mask, eqn, *args):
        full = f"llvm.{name}.v{LANES}f32"
        function = b.module.globals.get(full) or ir.Function(
            b.module, ir.FunctionType(args[0].type, [a.type for a in args]), full)
        return b.call(function, args)

    return rule


def comparison(op):
    def rule(b, mask, eqn, x, y):
        if x.type.element == F32:
            return b.fcmp_unordered(op, x, y) if op == "!=" else b.fcmp_ordered(op, x, y)
        return b.icmp_signed(op, x, y)

    return rule


def convert(b, mask, eqn, x):
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if old == new:
        return x
    if new.kind == "b":
        return comparison("!=")(b, mask, eqn, x, splat(0, old))
    name = {"bi": "zext", "bf": "uitofp", "if": "sitofp", "fi": "fptosi"}[old.kind + new.kind]
    return getattr(b, name)(x, vector(new))


def loop(b, mask, eqn, *args):
    """`while`: runs while any lane is active. A lane that is done keeps what it has, by a select."""
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, carry = args[:first], args[first : first + second], args[first + second :]
    test, inside, after = (b.append_basic_block(name) for name in ("test", "inside", "after"))
    before = b.block
    b.branch(test)
    b.position_at_end(test)
    phis = [b.phi(v.type) for v in (*carry, mask)]
    *old, active = phis
    (on,) = lower(b, active, eqn.params["cond_jaxpr"], *cond_consts, *old)
    active = b.and_(active, on)  # so a lane that an outer loop has switched off never keeps this one running
    b.cbranch(any_lane(b, active), inside, after)
    b.position_at_end(inside)
    new = lower(b, active, eqn.params["body_jaxpr"], *body_consts, *old)
    new = [b.select(active, y, x) for x, y in zip(old, new, strict=True)]
    b.branch(test)
    for phi, start, again in zip(phis, (*carry, mask), (*new, active), strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(again, b.block)
    b.position_at_end(after)
    return old


def branch(b, mask, eqn, index, *args):
    """`cond`: each side in turn for the lanes that take it; a side that no lane takes is jumped over."""
    results = [splat(0, v.aval.dtype) for v in eqn.outvars]
    for k, side in enumerate(eqn.params["branches"]):
        taken = b.and_(mask, b.icmp_signed("==", index, splat(k, "int32")))
        before, inside, after = b.block, b.append_basic_block("side"), b.append_basic_block("join")
        b.cbranch(any_lane(b, taken), inside, after)
        b.position_at_end(inside)
        new = [b.select(taken, y, x) for x, y in zip(results, lower(b, taken, side, *args), strict=True)]
        end = b.block
        b.branch(after)
        b.position_at_end(after)
        phis = [b.phi(v.type) for v in results]
        for phi, x, y in zip(phis, results, new, strict=True):
            phi.add_incoming(x, before)
            phi.add_incoming(y, end)
        results = phis
    return results


RULES = {
    "add": binary("fadd", "add"), "sub": binary("fsub", "sub"), "mul": binary("fmul", "mul"),
    "div": lambda b, mask, eqn, x, y: b.fdiv(x, y),
    "neg": lambda b, mask, eqn, x: b.fneg(x) if x.type.element == F32 else b.neg(x),
    "square": lambda b, mask, eqn, x: RULES["mul"](b, mask, eqn, x, x),
    "sqrt": intrinsic("sqrt"), "abs": intrinsic("fabs"), "max": intrinsic("maximum"), "min": intrinsic("minimum"),
    "and": binary("", "and_"), "or": binary("", "or_"), "not": lambda b, mask, eqn, x: b.not_(x),
    "eq": comparison("=="), "ne": comparison("!="), "lt": comparison("<"), "le": comparison("<="),
    "gt": comparison(">"), "ge": comparison(">="),
    "select_n": lambda b, mask, eqn, which, no, yes: b.select(which, yes, no),
    "convert_element_type": convert, "while": loop, "cond": branch,
    "jit": lambda b, mask, eqn, *args: lower(b, mask, eqn.params["jaxpr"], *args),
}  # fmt: skip


# ---- 3. One loop lowers a jaxpr: read the operands, find the rule, call it, write the results. ---------------------
# (lanax looks first which values vary, and leaves equations that have no rule to XLA.)


def lower(b, mask, closed, *args):
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = [splat(c, np.asarray(c).dtype) for c in closed.consts]
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom):
        return splat(atom.val, atom.aval.dtype) if hasattr(atom, "val") else env[atom]

    for eqn in jaxpr.eqns:
        if eqn.primitive.name not in RULES:
            raise NotImplementedError(f"no rule for {eqn.primitive.name}")
        out = RULES[eqn.primitive.name](b, mask, eqn, *map(read, eqn.invars))
        env.update(zip(eqn.outvars, out if isinstance(out, list) else [out], strict=True))
    return [read(v) for v in jaxpr.outvars]


# ---- 4. The kernel: void kernel(ptr buffers, i64 begin, i64 end), steps of LANES examples from `begin` to `end`. ---


def kernel_ir(closed):
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [PTR, I64, I64]), "kernel")
    buffers, begin, end = function.args
    entry, test, step, done = (function.append_basic_block(name) for name in ("entry", "test", "step", "done"))
    b = ir.IRBuilder(entry)
    count = len(closed.in_avals) + len(closed.out_avals)
    pointers = [b.load(b.gep(buffers, [I64(i)], source_etype=PTR), typ=PTR) for i in range(count)]
    b.branch(test)
    b.position_at_end(test)
    i = b.phi(I64)
    b.cbranch(b.icmp_signed("<", i, end), step, done)
    b.position_at_end(step)

    def place(pointer, aval):
        return b.gep(pointer, [b.mul(i, I64(LANES * aval.dtype.itemsize))], source_etype=ir.IntType(8))

    args = [b.load(place(p, a), typ=vector(a.dtype), align=4) for p, a in zip(pointers, closed.in_avals, strict=False)]
    results = lower(b, splat(True, "bool"), closed, *args)
    for value, p, a in zip(results, pointers[len(args) :], closed.out_avals, strict=True):
        b.store(value, place(p, a), align=4)
    i.add_incoming(begin, entry)
    i.add_incoming(b.add(i, I64(1)), b.block)
    b.branch(test)
    b.position_at_end(done)
    b.ret_void()
    return str(module)


def compile_ir(text):
    """The engine, which keeps the machine code, and the address of `kernel`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(llvm.get_host_cpu_name(), features, opt=2)
    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine, engine.get_function_address("kernel")


# ---- 5. Running it. ctypes lets go of Python's lock, so threads can share the batch. -------------------------------
# (lanax is called by XLA, runs in XLA's thread pool, and pads nothing but the last step.)


def vmap(fun):
    """As `jax.vmap(fun)`, for a function that takes and gives scalars."""
    compiled = {}

    def mapped(*args):
        args = [np.asarray(x) for x in args]
        dtypes = tuple(x.dtype for x in args)
        if dtypes not in compiled:
            closed = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct((), d) for d in dtypes))
            engine, address = compile_ir(kernel_ir(closed))
            signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
            compiled[dtypes] = closed.out_avals, signature(address), engine
        avals, kernel, _ = compiled[dtypes]
        size = len(args[0])
        steps = -(-size // LANES)
        buffers = [np.pad(x, (0, steps * LANES - size), mode="edge") for x in args]
        outs = [np.empty(steps * LANES, a.dtype) for a in avals]
        pointers = (ctypes.c_void_p * (len(args) + len(outs)))(*(x.ctypes.data for x in (*buffers, *outs)))
        chunk = max(1, steps // 64)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda k: kernel(pointers, k, min(k + chunk, steps)), range(0, steps, chunk)))
        results = [out[:size] for out in outs]
        return results[0] if len(results) == 1 else tuple(results)

    return mapped


# ---- 6. The same answer as jax.vmap, sooner. -----------------------------------------------------------------------


def escape_count(cx, cy):
    def inside(state):
        x, y, n = state
        return (x * x + y * y <= 4.0) & (n < 256)

    def step(state):
        x, y, n = state
        return x * x - y * y + cx, 2.0 * x * y + cy, n + 1

    return jax.lax.while_loop(inside, step, (0.0 * cx, 0.0 * cy, jnp.int32(0)))[2]


def timed(name, mapped, points):
    jax.block_until_ready(mapped(*points))  # compiles
    start = time.perf_counter()
    counts = np.asarray(mapped(*points))
    print(f"{name:12} {1e3 * (time.perf_counter() - start):7.1f} ms for {counts.size} examples")
    return counts


def main(side=400):
    cx, cy = np.meshgrid(np.linspace(-2, 0.5, side), np.linspace(-1.25, 1.25, side))
    points = cx.ravel().astype(np.float32), cy.ravel().astype(np.float32)
    want = timed("jax.vmap", jax.jit(jax.vmap(escape_count)), points)
    got = timed("from scratch", vmap(escape_count), points)
    assert np.mean(got != want) < 0.01  # XLA fuses products and sums where it sees fit: points on the rim may differ


if __name__ == "__main__":
    main()
