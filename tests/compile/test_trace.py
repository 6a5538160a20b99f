"""The expanded program computes what the program computes, and holds nothing that could have been expanded."""

import functools

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.scipy.optimize
import lineax
import numpy as np
import optimistix
import pytest
from jax.ad_checkpoint import checkpoint_name

from lanax import _jax
from lanax._rewrite.surgery import inner_jaxprs
from lanax._rewrite.trace import CALLS, IDENTITIES, expand

CONSTANT = np.arange(3.0, dtype=np.float32)
VECTOR = jnp.array([0.5, 1.5, -1.0])


def nothing(primitive, params):
    return False


def expanded(fun, *args, has_rule=nothing, compositions=None):
    closed = expand(jax.make_jaxpr(fun)(*args), has_rule, compositions or {})
    _jax.core.check_jaxpr(_jax.open_and_consts(closed)[0])
    return closed


def run(fun, *args):
    """Run under `jit`, with little time spent on compiling."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.tree.leaves(jax.jit(fun).lower(*args).compile(options)(*args))


def evaluate(closed, *args):
    jaxpr, consts = _jax.open_and_consts(closed)
    return run(functools.partial(_jax.core.eval_jaxpr, jaxpr, consts), *jax.tree.leaves(args))


def equations(closed):
    for eqn in _jax.open_and_consts(closed)[0].eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)


def primitives(closed):
    return {eqn.primitive.name for eqn in equations(closed)}


def lorenz(t, y, args):
    return jnp.stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])


def diffrax_solve(solver, max_steps, y0):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lorenz), solver, 0.0, 0.5, 0.01, y0, max_steps=max_steps,
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
        adjoint=diffrax.ForwardMode() if max_steps is None else diffrax.RecursiveCheckpointAdjoint(),
    ).ys  # fmt: skip


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


sine.defjvp(lambda primals, tangents: (sine(*primals), tangents[0]))


@jax.custom_vjp
def cosine(x):
    return jnp.cos(x)


cosine.defvjp(lambda x: (cosine(x), None), lambda _, ct: (ct,))


def nested_calls(x):
    y = jax.jit(lambda x: jax.jit(lambda x: x * CONSTANT)(x) + 1)(x)
    y = jax.named_call(jax.checkpoint(lambda y: jnp.sin(y) * CONSTANT), name="inner")(cosine(sine(y)))
    return jax.lax.stop_gradient(checkpoint_name(jax.lax.optimization_barrier(y), "y"))


def control_flow(x):
    y = jax.lax.cond(x[0] > 0, lambda y: y * CONSTANT, lambda y: y, x)
    y = jax.lax.while_loop(lambda y: jnp.sum(y) < 30, lambda y: jax.jit(lambda y: y + CONSTANT + 1)(y), y)
    y, ys = jax.lax.scan(lambda c, a: (c * 0.5 + CONSTANT * a, sine(c)), y, jnp.arange(4.0))
    return jax.lax.switch(jnp.int32(x[1]), [lambda y: y, lambda y: y + CONSTANT, lambda y: -y], y), ys


def minimum(x):
    return jax.scipy.optimize.minimize(lambda v: jnp.sum((v - x) ** 2) + jnp.sum(v**4), x, method="BFGS").x


def newton(x):
    solver = optimistix.Newton(rtol=1e-5, atol=1e-5)
    return optimistix.root_find(lambda y, a: y**3 + y - a, solver, jnp.ones(3), x, throw=False).value


def levenberg(x):
    solver = optimistix.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
    return optimistix.least_squares(lambda y, a: y**2 + y - a, solver, jnp.ones(3), x, throw=False).value


def linear(x):
    matrix = jnp.eye(3) * 4 + jnp.outer(x, CONSTANT)
    return lineax.linear_solve(lineax.MatrixLinearOperator(matrix), x).value


def equinox_loops(x):
    def body(carry):
        i, v, buffer = carry
        return i + 1, v * 1.5, buffer.at[i].set(jnp.sum(v))

    init = (jnp.array(0), x, jnp.zeros(8))
    loop = functools.partial(
        eqxi.while_loop, lambda c: jnp.sum(c[1] ** 2) < 50, body, init, max_steps=8, buffers=lambda c: c[2]
    )
    return loop(kind="lax")[1:], loop(kind="bounded")[1:], loop(kind="checkpointed")[1:]


PROGRAMS = {
    "calls": nested_calls,
    "control flow": control_flow,
    "jnp.linalg.solve": lambda x: jnp.linalg.solve(jnp.eye(3) * 4 + jnp.outer(x, x), x),
    "jax.scipy.optimize": minimum,
    "gradient": jax.grad(lambda x: jnp.sum(nested_calls(x) ** 2 + jnp.logaddexp(x, 1.0))),
    "gradient of a loop": jax.grad(lambda x: jnp.sum(jax.lax.scan(lambda c, _: (sine(c) * x, None), x, length=3)[0])),
    "Tsit5": functools.partial(diffrax_solve, diffrax.Tsit5(), 4096),
    "Tsit5, no bound": functools.partial(diffrax_solve, diffrax.Tsit5(), None),
    "Kvaerno5": functools.partial(diffrax_solve, diffrax.Kvaerno5(), 4096),
    "gradient through Tsit5": jax.grad(lambda x: jnp.sum(diffrax_solve(diffrax.Tsit5(), 64, x))),
    "Newton": newton,
    "Levenberg-Marquardt": levenberg,
    "lineax": linear,
    "Equinox's loops": equinox_loops,
    "noinline": lambda x: eqxi.noinline(lambda x: x * 2)(x),
}


#: XLA takes over five seconds to compile each of these; what they hold is in others as well.
SLOW_IN_XLA = {"gradient through Tsit5", "Kvaerno5"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_program(name):
    """Nothing is left to expand, and the meaning is the same."""
    original = jax.make_jaxpr(PROGRAMS[name])(VECTOR)
    closed = expand(original, nothing, {})
    _jax.core.check_jaxpr(_jax.open_and_consts(closed)[0])
    found = primitives(closed)
    assert not found & (set(CALLS) | IDENTITIES | {"custom_linear_solve"})
    of_libraries = {"linear_solve", "maybe_set", "nonbatchable", "noinline", "nontraceable", "select_if_vmap"}
    assert not found & (of_libraries | {"nondifferentiable_backward"})
    if name not in SLOW_IN_XLA:
        for got, want in zip(evaluate(closed, VECTOR), evaluate(original, VECTOR), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_constants_are_hoisted_out_of_loops():
    closed = expanded(control_flow, VECTOR)
    assert len(_jax.open_and_consts(closed)[1]) == 1
    for eqn in equations(closed):
        for value in eqn.params.values():
            for jaxpr in value if isinstance(value, tuple) else (value,):
                assert not getattr(jaxpr, "consts", ())


def test_scalar_constants_become_literals():
    scale = np.array(3.0, np.float32)
    closed = expanded(lambda x: jax.lax.while_loop(lambda y: y < 10, lambda y: y * scale, x), 1.0)
    assert not _jax.open_and_consts(closed)[1]


def test_dead_code_goes_with_dead_carries_and_inputs():
    def fun(x, unused):
        def body(carry):
            i, v, dead = carry
            return i + 1, v * 2, jnp.sin(dead) + v

        _, v, _ = jax.lax.while_loop(lambda c: c[0] < 5, body, (0, x, x))
        w, _ = jax.lax.scan(lambda c, _: ((c[0] + 1, jnp.cos(c[1])), jnp.tan(c[0])), (v, v), length=2)
        return w[0]

    closed = expanded(fun, 1.0, 2.0)
    jaxpr, _ = _jax.open_and_consts(closed)
    assert len(jaxpr.invars) == 2
    assert not primitives(closed) & {"sin", "cos", "tan"}
    assert [len(eqn.outvars) for eqn in jaxpr.eqns if eqn.primitive.name in ("while", "scan")] == [2, 1]
    np.testing.assert_allclose(evaluate(closed, 1.0, 2.0), [fun(1.0, 2.0)])


def test_carries_that_never_change_become_constants():
    def fun(x, y):
        return jax.lax.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1]), (x, y))

    closed = expanded(fun, 1.0, 3.5)
    jaxpr, _ = _jax.open_and_consts(closed)
    assert len(jaxpr.eqns[0].outvars) == 1
    np.testing.assert_allclose(evaluate(closed, 1.0, 3.5), fun(1.0, 3.5))


def test_effects_keep_equations():
    def fun(x):
        jax.debug.callback(lambda x: None, x)
        return 1.0

    assert "debug_callback" in str(expanded(fun, 1.0))


def test_rules_come_before_compositions():
    def has_rule(primitive, params):
        return primitive.name == "tanh"

    compositions = {"tanh": lambda x, **params: x, "logistic": lambda x, **params: 1 / (1 + jnp.exp(-x))}
    closed = expanded(lambda x: jnp.tanh(x) + jax.nn.sigmoid(x), 1.0, has_rule=has_rule, compositions=compositions)
    assert primitives(closed) == {"tanh", "neg", "exp", "add", "div"}
    np.testing.assert_allclose(evaluate(closed, 1.0), [np.tanh(1.0) + jax.nn.sigmoid(1.0)], rtol=1e-6)


def test_a_composition_may_refuse():
    def refuse(x, **params):
        raise NotImplementedError

    assert primitives(expanded(jnp.tanh, 1.0, compositions={"tanh": refuse})) == {"tanh"}


def test_an_error_in_a_composition_is_shown():
    def wrong(x, **params):
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        expanded(jnp.tanh, 1.0, compositions={"tanh": wrong})


def test_custom_vmap_is_left_to_its_own_rule():
    @jax.custom_batching.custom_vmap
    def fun(x):
        return x

    fun.def_vmap(lambda size, batched, x: (x + 1, True))
    assert "custom_vmap_call" in str(expanded(lambda x: fun(x) * 2, 1.0))


def test_platform_is_chosen():
    def fun(x):
        return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)

    assert primitives(expanded(fun, 1.0)) == {"add"}


def test_known_branch_is_taken():
    assert primitives(expanded(lambda x: jax.lax.switch(1, [jnp.sin, jnp.cos], x), 1.0)) == {"cos"}
    assert primitives(expanded(lambda x: jax.lax.cond(jnp.array(0) > 1, jnp.sin, jnp.cos, x), 1.0)) == {"cos"}


def test_mutable_arrays_are_left_alone():
    def fun(x):
        ref = jax.new_ref(jnp.zeros(3))

        def body(i, c):
            ref[i] = c
            return c * 2

        jax.lax.fori_loop(0, 3, body, x)
        return ref[...]

    closed = expanded(fun, 1.0)
    np.testing.assert_allclose(evaluate(closed, 1.0), [[1.0, 2.0, 4.0]])


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: eqxi.unvmap_any(x > 0),
        lambda x: x * eqxi.unvmap_max(jnp.int32(x)),
        lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + eqxi.unvmap_max(jnp.int32(x)), 0),
    ],
)
def test_a_visible_reduction_over_the_batch_stays(fun):
    assert primitives(expanded(fun, 1.0)) & {"unvmap_any", "unvmap_max"}


def test_a_choice_by_a_reduction_over_the_batch_is_left_to_the_step():
    def fun(x):
        return jax.lax.cond(eqxi.unvmap_any(x > 0), lambda: x + 1, lambda: x)

    assert primitives(expanded(fun, 1.0)) & {"unvmap_any"}


def test_a_loop_that_goes_on_by_a_reduction_over_the_batch_goes_on_per_example():
    def fun(x):
        return jax.lax.while_loop(lambda c: eqxi.unvmap_any(c < 9), lambda c: c * 2, x)

    assert not primitives(expanded(fun, 1.0)) & {"unvmap_any"}


def test_an_equation_keeps_the_users_line():
    def inner(x):
        return jnp.linalg.solve(jnp.eye(2) * x, jnp.ones(2))  # solve

    def fun(x):
        y = jax.lax.fori_loop(0, 2, lambda _, c: c + inner(x), jnp.zeros(2))
        return eqx.error_if(y, x < 0, "negative")  # error

    lines = {}
    with open(__file__) as file:
        for number, line in enumerate(file, 1):
            lines[number] = line
    for eqn in equations(expanded(fun, 1.0)):
        source = _jax.source_line(eqn)
        assert source.startswith(__file__)
        text = lines[int(source.split(":")[1].split(" ")[0])]
        if eqn.primitive.name in ("lu", "triangular_solve", "gather"):
            assert "# solve" in text
        if "callback" in eqn.primitive.name:
            assert "# error" in text
