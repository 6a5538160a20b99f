"""Plans are checked and compare as data; reports and stages say what is chosen, why, and what is not in lanes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lanax
from lanax import Plan
from lanax._plan import FIELDS
from lanax._planning.gains import times_computed
from lanax._suite.loops import escape_count
from lanax._target import host

NATIVE = host().native_lanes(32)
X = jax.ShapeDtypeStruct((1003,), np.float32)


def loop(x: Any) -> Any:
    return lax.while_loop(lambda v: v < 9, lambda v: v * 2 + 1, x)


def away(x: Any) -> Any:
    """What no kernel will ever do."""
    return jax.pure_callback(np.sin, x, x, vmap_method="expand_dims")


def explained(fun: Any, *args: Any, in_axes: Any = 0, **plan: Any) -> lanax.Report:
    return lanax.explain(lanax.vmap(fun, in_axes, plan=Plan(**plan)), *(args or (X,)))


# ---- plans -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fields", "message"), [
    ({"route": "gpu"}, "`route` of a Plan must be one of 'auto', 'lanes', 'xla', 'serial'; got 'gpu'."),
    ({"route": 3}, "`route` of a Plan must be one of 'auto', 'lanes', 'xla', 'serial'; got 3."),
    ({"lanes": 0}, f"`lanes` of a Plan must be a power of two from 1 to 64 (this machine's registers hold {NATIVE} "
                   "float32); got 0."),
    ({"lanes": 12}, "float32); got 12."),
    ({"lanes": 128}, "float32); got 128."),
    ({"lanes": 8.0}, "float32); got 8.0."),
    ({"lanes": True}, "float32); got True."),
    ({"lanes": "8"}, "float32); got '8'."),
    ({"threads": 0}, f"`threads` of a Plan is the number of threads that may work on one kernel: an int of 1 or more "
                     f"(this process may use {host().cores} cores); got 0."),
    ({"threads": 1.5}, "cores); got 1.5."),
    ({"chunk": -1}, "`chunk` of a Plan is the number of examples that are alive at once: an int of 1 or more; got -1."),
    ({"memory": "2GB"}, "`memory` of a Plan is a number of bytes: an int of 1 or more, or text such as '512MiB' or "
                        "'2GiB'; got '2GB'."),
    ({"memory": 0}, "got 0."),
    ({"memory": 1.5}, "got 1.5."),
    ({"devices": 0}, "`jax.sharding.Mesh` with one axis; got int: 0."),
    ({"devices": "2"}, "`devices` of a Plan is an int of 1 or more, a list of devices such as `jax.devices()[:2]`, "
                       "or a `jax.sharding.Mesh` with one axis; got str: '2'."),
    ({"devices": []}, "`devices` of a Plan got no device: it needs one at least."),
    ({"devices": [0]}, "`devices` of a Plan takes devices, such as those of `jax.devices()`; at position 0 it got int: "
                       "0."),
    ({"devices": jax.devices()[:1] * 2}, "`devices` of a Plan got cpu:0 more than once: name each device once."),
    ({"parallelism": 0}, "`parallelism` of a Plan is the number of threads that may work on one call, on all its "
                         f"devices: an int of 1 or more (this process may use {host().cores} cores); got 0."),
    ({"route": "serial", "lanes": 8}, "route='serial' runs one example at a time: `lanes` must be 1 or left out; "
                                      "got 8."),
], ids=lambda v: "-".join(f"{k}={x}" for k, x in v.items()) if isinstance(v, dict) else "")
def test_bad_values_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(lanax.PlanError, match=re.escape(message) + "$") as caught:
        Plan(**fields)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, lanax.LanaxError)


def test_unknown_fields_are_rejected() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lane'"):
        Plan(lane=8)  # pyright: ignore[reportCallIssue]


def test_plans_compare_hash_and_print_as_data() -> None:
    plan = Plan(route="lanes", lanes=8, chunk=64)
    assert repr(plan) == "Plan(route='lanes', lanes=8, chunk=64)"
    assert eval(repr(plan)) == plan
    assert repr(Plan()) == "Plan()"
    assert repr(Plan(memory=3 << 20, devices=1)) == "Plan(memory='3MiB', devices=1)"
    assert eval(repr(Plan(memory=3 << 20))) == Plan(memory="3 MiB") == Plan(memory="3072KiB")
    assert repr(Plan(memory=1000)) == "Plan(memory=1000)"
    assert {plan, Plan(route="lanes", lanes=8, chunk=64), Plan()} == {plan, Plan()}
    assert plan != dataclasses.replace(plan, threads=1) == plan.replace(threads=1)
    assert plan.replace(lanes=None) == Plan(route="lanes", chunk=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.lanes = 4  # type: ignore[misc]


# ---- reports ---------------------------------------------------------------------------------------------------------
def test_lanes_are_native_lanes_times_vectors() -> None:
    kernel = explained(loop).kernels[0]
    assert (kernel.native_lanes, kernel.ruling) == (NATIVE, "float32")
    assert kernel.lanes == kernel.native_lanes * kernel.vectors
    assert kernel.reason in str(explained(loop))
    double = explained(loop, jax.ShapeDtypeStruct((8,), np.float32), lanes=2 * NATIVE).kernels[0]
    assert (double.lanes, double.vectors, double.reason) == (2 * NATIVE, 2, "given by the plan")


def test_the_ruling_dtype_is_that_of_the_work() -> None:
    with jax.enable_x64(True):
        wide = explained(loop, jax.ShapeDtypeStruct((100,), np.float64)).kernels[0]
        assert (wide.ruling, wide.native_lanes) == ("float64", host().native_lanes(64))
    halve = lambda n: lax.while_loop(lambda c: c > 1, lambda c: c // 2, n)  # noqa: E731
    ints = explained(halve, jax.ShapeDtypeStruct((9,), np.int32))
    assert ints.kernels[0].ruling == "int32"


@pytest.mark.parametrize("size", [0, 1, NATIVE - 1, NATIVE, 3 * NATIVE + 2])
def test_steps_and_tail(size: int) -> None:
    kernel = explained(loop, jax.ShapeDtypeStruct((size,), np.float32), lanes=NATIVE).kernels[0]
    assert (kernel.steps, kernel.tail) == divmod(size, NATIVE)
    assert f"steps: {size // NATIVE} whole, tail of {size % NATIVE}" in str(kernel.lines())


def test_threads_and_chunk() -> None:
    large = jax.ShapeDtypeStruct((10_000_000,), np.float32)
    one = explained(loop, large, threads=1, chunk=128)
    assert (one.kernels[0].threads, one.kernels[0].chunk) == (1, 128)
    assert "threads: at most 1; chunk: 128 examples" in str(one)
    assert explained(loop, large).kernels[0].threads >= host().cores
    assert "chunk: chosen from batch and threads at run time" in str(explained(loop, large))
    assert explained(loop, jax.ShapeDtypeStruct((3,), np.float32)).kernels[0].threads == 1


def test_the_text_of_a_report() -> None:
    report = explained(escape_count, X, X, lanes=NATIVE)
    first, route, plan, *rest = str(report).splitlines()
    assert first == f"escape_count over 1003 examples on {host().cpu}, {host().instruction_set}"
    assert route == "  route: lanes"
    rest_of_plan = ", ".join(field for field in FIELDS if field != "lanes")
    assert plan == f"  asked for: lanes={NATIVE} (the call); automatic: {rest_of_plan}"
    assert rest[0] == f"  kernel 0: {report.kernels[0].equations} equations"
    assert rest[1] == f"    lanes: {NATIVE} = {NATIVE} native float32 x 1 in flight (given by the plan)"
    assert rest[-1] == "  not in lanes: nothing"
    assert report.plan_line == (f"route lanes, {NATIVE} lanes ({NATIVE} x 1), {report.kernels[0].threads} threads")


def test_routes() -> None:
    assert explained(loop).routes == ("lanes",)
    left = explained(loop, route="xla")
    assert (left.routes, left.plan_line) == (("xla",), "route xla")
    assert str(left).endswith("  not in lanes: all of it, as the plan asks")
    serial = explained(loop, route="serial")
    assert (serial.routes, serial.kernels[0].lanes) == (("serial",), 1)
    assert f"lanes: 1 of {NATIVE} native float32 (route='serial': one example at a time)" in str(serial)
    assert serial.plan_line == f"route serial, 1 lanes (1 x 1), {serial.kernels[0].threads} threads"
    assert explained(lambda x: away(loop(x)) + loop(x)).routes == ("lanes", "xla", "lanes")


def test_a_miss_names_primitive_line_and_reason() -> None:
    def fun(x: Any) -> Any:
        y = loop(x)
        z = jax.pure_callback(np.sin, y, y, vmap_method="expand_dims")  # the miss
        return loop(z)

    report = explained(fun)
    (miss,) = report.misses
    line = fun.__code__.co_firstlineno + 2
    assert (miss.primitive, miss.reason) == ("pure_callback", "no lowering rule")
    assert miss.source.endswith(f"test_plan.py:{line} (test_a_miss_names_primitive_line_and_reason.<locals>.fun)")
    assert f"`pure_callback` at {miss.source}: no lowering rule" in str(report)


def test_a_miss_in_a_loop_names_the_line_inside_it() -> None:
    def body(v: Any) -> Any:
        return jax.pure_callback(np.sin, v, v, vmap_method="expand_dims") + 1

    report = explained(lambda x: lax.while_loop(lambda v: v < 5, body, x))
    assert report.routes == ("xla",)
    assert report.misses[0].primitive == "while"
    line = body.__code__.co_firstlineno + 1
    assert re.search(rf"it holds `pure_callback` \(.*test_plan.py:{line} \(.*body\)\): no lowering rule", str(report))


def test_what_gains_nothing_goes_to_xla() -> None:
    report = explained(lambda v: jnp.exp(v) * 2, jax.ShapeDtypeStruct((10, 5000), np.float32))
    assert report.routes == ("xla",)
    assert report.misses[-1].primitive == "program"
    assert "no loop, branch or small matrix" in report.misses[-1].reason


def layer_norm(x: Any) -> Any:
    return (x - x.mean()) * lax.rsqrt(x.var() + 1e-5)


def newton(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, v: 0.5 * (v + x / v), x)


def logistic_map(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, v: 3.6 * v * (1 - v), x)


def distances(x: Any) -> Any:
    return jnp.sum((x[:, None] - x) ** 2, 2)


def energy(x: Any) -> Any:
    return jnp.sum(lax.rsqrt(distances(x) + 1))


def attention(x: Any) -> Any:
    return jax.nn.softmax(x @ x.T) @ x


def diffusion(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, v: 0.5 * v + 0.25 * (jnp.roll(v, 1) + jnp.roll(v, -1)), x)


def likelihood(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.logaddexp(p[0] * x - p[1], p[2] * x + p[3]))


def cosine(x: Any, y: Any) -> Any:
    return x @ y / jnp.sqrt((x @ x) * (y @ y))


def perceptron(*sizes: int) -> Any:
    """Layers whose weights all examples share."""
    def fun(x: Any) -> Any:
        for rows, columns in itertools.pairwise(sizes):
            x = jnp.tanh(x @ jnp.full((rows, columns), 0.1))
        return x

    return fun


#: Whether products by large matrices have the registers that they need.
WIDE = host().registers >= 32

#: Name, function of one example, shapes of its arguments, whether it gains by lanes. (As it was measured.)
GAINS: list[tuple[str, Any, tuple[tuple[int, ...], ...], bool]] = [
    *((f"{name} of {n}", fun, ((n,),), n <= 4096)
      for name, fun in (("softmax", jax.nn.softmax), ("layer norm", layer_norm)) for n in (4, 32, 64, 1024, 4097)),
    *((f"gelu of {n}", jax.nn.gelu, ((n,),), n <= 32) for n in (3, 8, 32, 64, 1024)),
    *((f"distances of {n} x 3", distances, ((n, 3),), n <= 32) for n in (4, 32, 100)),
    *((f"forces of {n} points", jax.grad(energy), ((n, 3),), True) for n in (4, 100)),
    *((f"attention of {n} words", attention, ((n, 8),), n <= 64) for n in (8, 64, 100)),
    *((f"spectrum of {n}", lambda x: jnp.abs(jnp.fft.rfft(x)), ((n,),), n <= 128) for n in (16, 64, 100, 128, 256)),
    *((f"means of {n} x 20", lambda x: x.mean(0), ((n, 20),), n <= 200) for n in (4, 200, 300)),
    *((f"perceptron of {'-'.join(map(str, sizes))}", perceptron(*sizes), (sizes[:1],), gains) for sizes, gains in (
        ((8, 16, 16, 2), True), ((2, 20, 20, 1), True), ((64, 64), False), ((64, 64, 10), WIDE), ((784, 128, 10), WIDE),
        ((1024, 64, 10), False), ((100, 10, 100), False), ((784, 512, 10), False))),
    ("a perceptron of 20 for each of two vectors", perceptron(20, 20, 20), ((2, 20),), True),
    ("its derivative", lambda x: jax.jvp(perceptron(20, 20, 20), (x,), (x,)), ((20,),), True),
    *((f"sine of {n}", jnp.sin, ((n,),), True) for n in (1, 64, 1024)),
    *((f"Newton's method of {n}", newton, ((n,),), n <= 512) for n in (4, 64, 65, 512, 4096)),
    *((f"logistic map of {n}", logistic_map, ((n,),), n <= 64) for n in (4, 64, 65, 4096)),
    *((f"each second of {n}", lambda x: x[np.arange(0, x.size, 2)], ((n,),), False) for n in (4, 50)),
    ("an element of 50", lambda x, i: x[i.astype(np.int32)], ((50,), ()), True),
    *((f"diffusion of {n}", diffusion, ((n,),), True) for n in (64, 4096)),
    *((f"smoothing of {n}", lambda x: jnp.convolve(x, jnp.ones(3), "same"), ((n,),), True) for n in (64, 1024)),
    *((f"cosine of {n}", cosine, ((n,), (n,)), True) for n in (64, 1024)),
    ("a vector times its product", lambda x, y: (x @ y) * x, ((256,), (256,)), True),
    ("a product with a shared vector", lambda x: jnp.tanh(x @ jnp.ones(256)), ((256,),), False),
    ("a product with a small matrix", lambda m, x: m @ x, ((24, 24), (24,)), True),
    ("a product with a larger one", lambda m, x: m @ x, ((25, 25), (25,)), False),
    ("a product with a shared matrix", lambda x: x @ jnp.ones((8, 8)), ((8,),), False),
    ("a product of matrices", lambda a, b: a @ b, ((24, 24), (24, 24)), True),
    ("a product that XLA blocks", lambda a, b: a @ b, ((25, 25), (25, 25)), False),
    ("a likelihood", likelihood, ((4,), (256,)), True),
    *((f"{name} of {n}", fun, ((n,),), n <= 4096)
      for name, fun in (("variance", jnp.var), ("sum", jnp.sum), ("running sum", jnp.cumsum), ("argmax", jnp.argmax))
      for n in (100, 4096, 4097)),
    *((f"{name} of {n}", fun, ((n,),), True)
      for name, fun in (("sort", jnp.sort), ("median", jnp.median), ("top_k", lambda x: lax.top_k(x, 5)))
      for n in (100, 1000)),
    ("a running sum among functions", lambda x: jnp.cumsum(jnp.tanh(jnp.exp(jnp.tanh(jnp.exp(x))))), ((1000,),), False),
    ("its gradient", jax.grad(likelihood), ((4,), (256,)), True),
    ("its Hessian", jax.hessian(likelihood), ((4,), (256,)), True),
]


@pytest.mark.parametrize(("fun", "shapes", "gains"), [row[1:] for row in GAINS], ids=[row[0] for row in GAINS])
def test_what_gains_by_lanes(fun: Any, shapes: Any, gains: bool) -> None:
    report = explained(fun, *(jax.ShapeDtypeStruct((20_000, *shape), np.float32) for shape in shapes))
    assert report.routes == (("lanes",) if gains else ("xla",))
    assert gains or report.misses[-1].primitive == "program"


def test_how_often_xla_computes_the_same() -> None:
    """In both sums `x * 2 + 1` is computed, `exp` once."""
    def shared(x: Any) -> Any:
        y = x * 2 + 1
        return y.sum(), (y * y).sum()

    def stored(x: Any) -> Any:
        y = jnp.exp(x)
        return y.sum(), (y * y).sum()

    def times(fun: Any) -> float:
        jaxpr = jax.make_jaxpr(fun)(np.ones(8, np.float32)).jaxpr
        return times_computed(jaxpr, jaxpr.eqns, lambda eqn: float(eqn.outvars[0].aval.size))

    assert times(shared) == pytest.approx((2 * (8 + 8 + 8) + 8) / (8 + 8 + 8 + 8 + 8))
    assert times(stored) == 1.0
    assert times(lambda x: x * 2) == 1.0


def test_a_large_product_with_a_shared_matrix_goes_to_xla() -> None:
    matrix = jnp.ones((64, 64))
    report = explained(lambda v: jnp.tanh(matrix @ v), jax.ShapeDtypeStruct((10, 64), np.float32))
    assert report.misses[0].primitive == "dot_general"
    assert "a large product with an unmapped operand is one matrix product over the batch in XLA" in str(report)


def test_checks_are_listed() -> None:
    def fun(x: Any) -> Any:
        return eqx.error_if(x, x < 0, "negative") + loop(x)

    report = explained(fun)
    assert report.routes == ("lanes",)
    assert len(report.checks) == 1
    assert f"test_plan.py:{fun.__code__.co_firstlineno + 1}" in report.checks[0]
    assert "checks, run once after the kernels: " in str(report)


def test_what_is_left_to_jax_vmap_says_why() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return loop(x)

    def looking(x: Any) -> Any:
        return x if x > 0 else loop(x)

    assert "it has a side effect (Debug), which happens as jax.vmap says" in str(explained(printing))
    assert "it cannot be traced: TracerBoolConversionError" in str(explained(looking))
    assert str(explained(looking)).startswith("looking over 1003 examples")
    assert lanax.vmap(printing).lower(X).as_text() == str(explained(printing))
    assert lanax.vmap(printing).lower(X).as_text("asm").startswith("left to jax.vmap: `debug_print` at ")


def test_explain_runs_nothing_and_takes_shapes_arrays_and_keywords() -> None:
    ran: list[int] = []

    def fun(x: Any, *, scale: Any) -> Any:
        return jax.pure_callback(lambda v: ran.append(1) or v, x, x * scale, vmap_method="sequential") + loop(x)

    report = lanax.explain(lanax.vmap(fun), np.ones(5, np.float32), scale=jnp.ones(5))
    assert (report.name, report.axis_size, ran) == ("fun", 5, [])


def test_explain_finds_a_mapped_call_inside() -> None:
    def outer(x: Any) -> Any:
        return lanax.vmap(loop)(x * 2).sum()

    assert lanax.explain(outer, X).name == "loop"
    assert lanax.explain(jax.jit(lanax.vmap(loop)), X).name == "loop"
    with pytest.raises(lanax.LanaxError, match=r"no call of lanax.vmap or lanax.map was found"):
        lanax.explain(jax.vmap(loop), X)


# ---- stages ----------------------------------------------------------------------------------------------------------
#: What each stage of Mandelbrot's kernel says.
STAGES = {
    "jaxpr": ["while[", "mul", "add"],
    "uniformity": ["v a:f32[]", "= while", "return"],
    "plan": ["escape_count over 1003 examples", "route: lanes"],
    "llvm": [f"<{2 * NATIVE} x float>", "@\"kernel\"", "llvm.fma"],
    "optimised": [f"<{2 * NATIVE} x float>", "@kernel", "llvm.fma"],
    "asm": ["kernel:", "ret"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_as_text(stage: str) -> None:
    text = lanax.vmap(escape_count, plan=Plan(lanes=2 * NATIVE)).lower(X, X).as_text(stage)
    for part in STAGES[stage]:
        assert part in text


def test_stages_of_several_kernels_follow_one_another() -> None:
    lowered = lanax.vmap(lambda x: loop(away(loop(x)))).lower(X)
    assert lowered.as_text("llvm").count("ModuleID") == 2
    assert lowered.as_text("asm").count("kernel:") == 2


def test_the_stage_is_checked() -> None:
    with pytest.raises(ValueError, match=r"`stage` must be one of jaxpr, uniformity, plan, llvm, optimised, asm"):
        lanax.vmap(loop).lower(X).as_text("hlo")


def loops_of_one_block(asm: str) -> list[list[str]]:
    """Lines of each loop without a branch inside: from a label to a jump back to it."""
    lines = [line.strip() for line in asm.splitlines()]
    found, start, label = [], 0, ""
    for i, line in enumerate(lines):
        if re.match(r"\S+:", line):
            start, label = i, line.split(":")[0]
        elif label and re.match(rf"(j\w+|b\.?\w+|[ct]bn?z)\b.*\s{re.escape(label)}$", line):
            found.append(lines[start: i + 1])
    return found


#: A full register of the target, and how an instruction on one lane alone looks.
REGISTER = {512: r"%zmm\d", 256: r"%ymm\d", 128: r"%xmm\d|v\d+\.(4s|2d|16b)|\.(4s|2d|16b)\s+v\d"}[host().register_bits]
ONE_LANE = r"v?f?n?m?(mul|add|sub|fmadd\d*|fmsub\d*|fnmadd\d*)ss\b|fmadd\s+s\d"


@pytest.mark.parametrize("vectors", [1, 2])
def test_the_loop_of_mandelbrot_is_full_vectors_without_calls(vectors: int) -> None:
    lowered = lanax.vmap(escape_count, plan=Plan(lanes=vectors * NATIVE)).lower(X, X)
    product = re.compile(r"mulps|mulss|fmadd|fmsub|fnmadd|fnmsub|fmul|fmla|fmls")
    (lines,) = [lines for lines in loops_of_one_block(lowered.as_text("asm")) if any(map(product.search, lines))]
    text = "\n".join(lines)
    assert not re.search(r"^\s*(call\w*|bl|blr)\s", text, re.MULTILINE)
    assert not re.search(ONE_LANE, text)
    products = list(filter(product.search, lines))
    assert len(products) >= 3 * vectors
    assert all(re.search(REGISTER, x) for x in products)
