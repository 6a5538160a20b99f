"""Kernels written by hand in LLVM IR, run through XLA: the handler, its threads, its memory, and the JIT."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import os
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanax
from lanax import _jax, _primitive
from lanax._errors import CompileError, UnsupportedJaxError
from lanax._pipeline import _stages as stages
from lanax._runtime import ffi, jit
from lanax._runtime.ffi import Descriptor
from lanax._target import host

LANES = 16
BATCHES = [0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES + 3, 1_000_003]

# Stores an i32 or float for each example. `{value}` computes %v; it may use %p (address of the example's argument),
# %i, %begin, %n and %scratch; `{setup}` runs once for each chunk.
KERNEL = """
declare i64 @pthread_self()
declare i32 @usleep(i32)
declare ptr @memset(ptr, i32, i64)

define void @kernel(ptr %buffers, i64 %begin, i64 %end, i64 %n, ptr %scratch) {{
entry:
  %x = load ptr, ptr %buffers
  %y_at = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %y_at
  {setup}
  br label %test
test:
  %i = phi i64 [ %begin, %entry ], [ %next, %step ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %step, label %done
step:
  %p = getelementptr float, ptr %x, i64 %i
  %q = getelementptr float, ptr %y, i64 %i
  {value}
  store {type} %v, ptr %q
  %next = add i64 %i, 1
  br label %test
done:
  ret void
}}
"""
TWICE = {"value": "%f = load float, ptr %p\n  %v = fadd float %f, %f"}
TIMES_1_5 = {"value": "%f = load float, ptr %p\n  %v = fmul float %f, 1.5"}
THREAD = {
    "type": "i32",
    "setup": "%slept = call i32 @usleep(i32 300)\n  %thread = call i64 @pthread_self()",
    "value": "%high = lshr i64 %thread, 8\n  %v = trunc i64 %high to i32",
}
CHUNK = {"type": "i32", "value": "%v = trunc i64 %begin to i32"}
SCRATCH = {  # what a thread left there for the chunk, if no other thread shares it; -1 where it is not aligned
    "type": "i32",
    "setup": """%filled = call ptr @memset(ptr %scratch, i32 7, i64 4096)
  store i64 %begin, ptr %scratch
  %slept = call i32 @usleep(i32 300)
  %address = ptrtoint ptr %scratch to i64
  %past = and i64 %address, 63
  %aligned = icmp eq i64 %past, 0""",
    "value": """%kept = load i64, ptr %scratch
  %kept32 = trunc i64 %kept to i32
  %v = select i1 %aligned, i32 %kept32, i32 -1""",
}
_names = itertools.count()


def kernel(ir: dict[str, str], **descriptor):
    """A JAX function that runs `ir` as a custom call on a vector of float32."""
    compiled = jit.compile_module(KERNEL.format(**{"setup": "", "type": "float"} | ir), host())
    given = {"args": 1, "rets": 1, "axis_arg": 0, "axis_dim": 0, "lanes": LANES} | descriptor
    loaded = ffi.load(f"test {next(_names)}", "kernel", compiled, Descriptor(**given))
    dtype = jnp.int32 if ir.get("type") == "i32" else jnp.float32
    return lambda x: ffi.call(loaded, [jax.ShapeDtypeStruct(x.shape, dtype)], [x])[0]


def batch(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


# ---- the handler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("threads", [0, 1, 7])
@pytest.mark.parametrize("n", BATCHES)
def test_every_example_is_run(n, threads, transform):
    f = transform(kernel(TWICE, threads=threads))
    np.testing.assert_array_equal(f(jnp.asarray(batch(n))), 2 * batch(n))


@pytest.mark.parametrize("n", BATCHES[1:])
@pytest.mark.parametrize("chunk", [0, 1, LANES, 5 * LANES, 1 << 40])
def test_chunks_are_whole_steps(n, chunk):
    begins = np.asarray(jax.jit(kernel(CHUNK, chunk=chunk))(batch(n)))
    starts = np.unique(begins)
    assert (starts % LANES == 0).all()
    np.testing.assert_array_equal(begins[starts], starts)
    np.testing.assert_array_equal(np.sort(begins), begins)


def test_chunks_have_the_size_that_was_asked_for():
    starts = np.unique(jax.jit(kernel(CHUNK, chunk=3 * LANES - 1, threads=2))(batch(1000)))
    np.testing.assert_array_equal(starts, np.arange(0, 1000, 3 * LANES) if ffi.pool_threads() > 1 else [0])


def test_a_small_batch_is_not_shared():
    assert len(np.unique(jax.jit(kernel(CHUNK, grain=1000))(batch(1000)))) == 1


@pytest.mark.parametrize("cap", [1, 2, 0])
def test_no_more_threads_than_the_cap(cap):
    f = jax.jit(kernel(THREAD, threads=cap, chunk=LANES))
    for _ in range(5):
        assert 1 <= len(np.unique(f(batch(64 * LANES)))) <= (cap or ffi.pool_threads())


def test_kernels_with_different_caps_side_by_side():
    calls = {cap: jax.jit(kernel(THREAD, threads=cap, chunk=LANES)) for cap in (1, 2)}

    def work(cap: int) -> bool:
        return all(len(np.unique(calls[cap](batch(64 * LANES)))) <= cap for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [1, 2, 1, 2]))


def test_the_pool_helps():
    if ffi.pool_threads() < 2:
        pytest.skip("one thread only")
    f = jax.jit(kernel(THREAD, chunk=LANES))
    assert max(len(np.unique(f(batch(64 * LANES)))) for _ in range(20)) > 1


def test_many_python_threads_at_once():
    f = jax.jit(kernel(TWICE, scratch=4096))

    def work(seed: int) -> bool:
        x = batch(2000 + seed)
        return all((np.asarray(f(x)) == 2 * x).all() for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_in_a_scan():
    f = kernel(TWICE)
    last, _ = jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=10))(batch(1000))
    np.testing.assert_array_equal(last, 1024 * batch(1000))


def test_many_calls_in_one_program_do_not_wait_for_each_other():
    slow = kernel(THREAD, chunk=LANES)
    program = jax.jit(lambda xs: sum(slow(x) * 0 + i for i, x in enumerate(xs)))
    xs = [batch(8 * LANES) + i for i in range(24)]
    assert (np.asarray(program(xs)) == sum(range(24))).all()


def test_scratch_is_aligned_and_a_threads_own():
    got = jax.jit(kernel(SCRATCH, scratch=4096, chunk=LANES))(batch(64 * LANES))
    np.testing.assert_array_equal(got, np.arange(64 * LANES) // LANES * LANES)


def test_lack_of_memory_is_an_error_and_does_no_harm():
    x = batch(1000)
    greedy, modest = jax.jit(kernel(TWICE, scratch=1 << 60)), jax.jit(kernel(TWICE))
    for _ in range(3):
        with pytest.raises(Exception, match=r"RESOURCE_EXHAUSTED.*lanax: out of memory"):
            jax.block_until_ready(greedy(x))
        np.testing.assert_array_equal(modest(x), 2 * x)


def test_a_wrong_number_of_arguments_is_an_error():
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*lanax: a kernel was called with a wrong number"):
        jax.block_until_ready(jax.jit(kernel(TWICE, args=2))(batch(3)))


@pytest.mark.skipif(not ("x86" in host().triple or host().is_arm), reason="the mode is set on x86 and arm64 only")
def test_subnormals_are_zero_in_every_thread():
    tiny = np.full(1000, 1e-40, np.float32)
    assert not np.asarray(jax.jit(kernel(TIMES_1_5, chunk=LANES))(tiny)).any()
    assert (tiny * np.float32(1.5)).all(), "the caller's mode is as before"


# ---- how long a kernel stays -----------------------------------------------------------------------------------------


def live() -> int:
    """Kernels that are in this process."""
    gc.collect()
    return ffi.free_dropped() + len(ffi._loaded)


def test_a_kernel_goes_with_the_last_executable_that_calls_it():
    before = live()
    f, g = jax.jit(kernel(TWICE)), jax.jit(kernel(TIMES_1_5))
    x = batch(100)
    compiled = f.lower(x).compile()
    np.testing.assert_array_equal(g(x), 1.5 * x)
    assert live() == before + 2
    del f
    assert live() == before + 2, "the executable has it"
    np.testing.assert_array_equal(compiled(x), 2 * x)
    del compiled, g
    assert live() == before


def test_a_kernel_stays_while_it_runs_though_nobody_can_call_it_any_more():
    """Calls are dispatched in threads of XLA's, and each sleeps for some milliseconds."""
    before, x = live(), jnp.asarray(batch(64 * LANES))
    results = []
    for _ in range(20):
        f = jax.jit(kernel(THREAD, chunk=LANES, threads=2))
        results.append(f(x))
        del f
        ffi.free_dropped()
    assert all(len(np.unique(y)) <= 2 for y in results)
    del results
    assert live() == before


def test_a_dropped_kernel_that_is_asked_for_again_is_another():
    compiled = jit.compile_module(KERNEL.format(setup="", type="float", **TWICE), host())
    descriptor = Descriptor(1, 1, 0, 0, LANES)
    first = ffi.load("test again", "kernel", compiled, descriptor)
    assert ffi.load("test again", "kernel", compiled, descriptor) is first
    shapes = [jax.ShapeDtypeStruct((100,), jnp.float32)]
    f, number = jax.jit(functools.partial(lambda loaded, x: ffi.call(loaded, shapes, [x])[0], first)), first.number
    np.testing.assert_array_equal(f(batch(100)), 2 * batch(100))
    del f, first
    second = ffi.load("test again", "kernel", compiled, descriptor)
    assert second.number == number
    np.testing.assert_array_equal(jax.jit(lambda x: ffi.call(second, shapes, [x])[0])(batch(100)), 2 * batch(100))


def test_a_mapped_function_that_is_gone_leaves_no_kernel():
    stages.cache_clear()
    before = live()
    for i in range(10):
        f = jax.jit(lanax.vmap(lambda x, i=i: jax.lax.while_loop(lambda v: v < 99, lambda v: v * 2 + i + 1.5, x)))
        want = np.asarray(f(batch(5)))
        assert live() > before
    stages.cache_clear()
    assert live() == before + 1, "the last one is there"
    np.testing.assert_array_equal(f(batch(5)), want)
    del f
    assert live() == before


def growing(i):
    return lanax.vmap(lambda x: jax.lax.while_loop(lambda v: v < 99, lambda v: v * 2 + i + 0.25, x))


def test_calls_outside_of_a_trace_keep_few_kernels(monkeypatch):
    monkeypatch.setattr(_primitive, "_apply", _jax.apply_primitive(_primitive.batched_call_p, kept=4))
    stages.cache_clear()
    before = live()
    for i in range(12):
        np.testing.assert_array_equal(growing(i)(batch(5)), jax.vmap(lambda x, i=i: growing(i)(x[None])[0])(batch(5)))
    stages.cache_clear()
    gc.collect()
    assert live() <= before + 5


def test_functions_that_are_dropped_leave_memory_as_it_is():
    """Executables are some megabytes for each two; those of the latest functions may still be there."""
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no file that says how much memory is resident")

    def resident():
        gc.collect()
        return int(status.read_text().partition("VmRSS:")[2].split()[0]) / 1024

    for i in range(60):
        jax.block_until_ready(jax.jit(growing(100 + i))(batch(5)))
        if i == 19:
            before = resident()
    assert resident() - before < 25  # of 40 functions; they would be 65 if they stayed


def test_a_kernel_that_is_not_there_is_an_error():
    shape = jax.ShapeDtypeStruct((100,), jnp.float32)
    jax.block_until_ready(jax.jit(kernel(TWICE))(batch(3)))  # the handler is there
    lowered = jax.jit(lambda x: jax.ffi.ffi_call(ffi.TARGET, shape)(x, kernel=np.int64(17))).lower(batch(100))
    with pytest.raises(Exception, match=r"NOT_FOUND.*lanax: a program calls a kernel that this process has not"):
        lowered.compile()


def test_unloading_gives_memory_back():
    """Pages that are mapped for machine code."""

    def mapped() -> int:
        with open("/proc/self/maps") as lines:
            return sum("r-xp" in line for line in lines)

    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no list of pages")
    symbols, code = jit.compile_object(COUNTER, host())
    before = mapped()
    kept = [jit.link(code, symbols, host()) for _ in range(50)]
    assert mapped() >= before + 40
    kept.clear()
    gc.collect()
    assert mapped() <= before + 5


@pytest.mark.parametrize("field", ["lanes", "grain", "chunk", "scratch", "axis_arg"])
def test_a_descriptor_checks_its_fields(field):
    given = {"args": 1, "rets": 1, "axis_arg": 0, "axis_dim": 0, "lanes": 8}
    with pytest.raises(ValueError, match=f"`{field}` of a kernel must be"):
        Descriptor(**given | {field: -1})


def test_a_call_costs_what_a_call_costs():
    """A bound that only a hang or a wait for the pool breaks; benchmarks measure the rest."""
    f = jax.jit(kernel(TWICE, grain=1 << 20))
    x = jnp.asarray(batch(64))
    jax.block_until_ready(f(x))
    start = time.perf_counter()
    for _ in range(200):
        jax.block_until_ready(f(x))
    assert time.perf_counter() - start < 1


# ---- versions and threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n", "version 1.0"),
        ("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 2\n", "version 0.2"),
        (None, "no version"),
    ],
)
def test_an_unknown_ffi_version_is_refused(tmp_path, header, found):
    if header is not None:
        (tmp_path / "xla" / "ffi" / "api").mkdir(parents=True)
        (tmp_path / "xla" / "ffi" / "api" / "c_api.h").write_text(header)
    with pytest.raises(UnsupportedJaxError, match=found):
        ffi._check_version(str(tmp_path))


@pytest.mark.parametrize(("nproc", "threads"), [("5", 5), ("", host().cores), ("x", host().cores)])
def test_pool_threads(monkeypatch, nproc, threads):
    monkeypatch.setenv("NPROC", nproc)
    assert ffi.pool_threads() == max(threads, jax.local_device_count("cpu"))


# ---- the JIT ---------------------------------------------------------------------------------------------------------

COUNTER = """
@count = global i64 0
define i64 @next() {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  ret i64 %new
}
"""

# While any lane's value is below 4: double it in the active lanes.
MASKED = """
declare i32 @llvm.vector.reduce.or.v16i32(<16 x i32>)
define <16 x float> @masked(<16 x float> %x0) {
entry:
  br label %head
head:
  %x = phi <16 x float> [ %x0, %entry ], [ %kept, %body ]
  %m = phi <16 x i32> [ splat (i32 -1), %entry ], [ %m1, %body ]
  %small = fcmp olt <16 x float> %x, splat (float 4.0)
  %m1 = select <16 x i1> %small, <16 x i32> %m, <16 x i32> zeroinitializer
  %or = call i32 @llvm.vector.reduce.or.v16i32(<16 x i32> %m1)
  %any = icmp ne i32 %or, 0
  br i1 %any, label %body, label %done
body:
  %twice = fadd <16 x float> %x, %x
  %active = icmp slt <16 x i32> %m1, zeroinitializer
  %kept = select <16 x i1> %active, <16 x float> %twice, <16 x float> %x
  br label %head
done:
  ret <16 x float> %x
}
"""


def call_next(compiled: jit.Compiled) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(compiled.address("next"))()


def test_an_object_file_is_linked_as_often_as_asked():
    symbols, code = jit.compile_object(COUNTER, host())
    first, second = (jit.link(code, symbols, host()) for _ in range(2))
    assert [call_next(first), call_next(first), call_next(second)] == [1, 2, 1]
    assert ctypes.c_int64.from_address(first.address("count")).value == 2


def test_text_of_a_compiled_module():
    assert "define" in jit.optimised_text(COUNTER, host())
    assert "next:" in jit.assembly(COUNTER, host())


def test_helpers_are_inlined():
    inner = COUNTER.replace("define i64 @next() {", "define internal i64 @inner() alwaysinline {")
    outer = "define i64 @next() {\n %r = call i64 @inner()\n ret i64 %r\n}"
    assert "@inner" not in jit.optimised_text(inner + outer, host())


def test_masks_stay_integers_and_loops_are_one_block():
    optimised = jit.optimised_text(MASKED, host())
    assert "phi <16 x i1>" not in optimised
    if not host().is_arm:  # where LLVM thinks the reduction too dear to rotate this loop; kernels' loops are rotated
        assert any("label %body" in line for line in optimised.split("body:")[1].splitlines() if "br i1" in line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("define", "LLVM refused a module"),
        ("define i32 @f() {\n ret i64 0\n}", "LLVM refused a module"),
        ("declare void @nowhere()\ndefine void @f() {\n call void @nowhere()\n ret void\n}", "could not link"),
    ],
)
def test_bad_modules_are_compile_errors(text, message):
    with pytest.raises(CompileError, match=message):
        jit.compile_module(text, host())


def test_unknown_symbols_are_key_errors():
    with pytest.raises(KeyError, match="exports no `nothing`, only next, count"):
        jit.compile_module(COUNTER, host()).address("nothing")


def test_compiling_in_many_threads():
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: call_next(jit.compile_module(COUNTER, host())), range(24)))
    assert results == [1] * 24
    assert threading.active_count() < 100
