"""The pass that splits complex values: what it leaves, where it converts, which lines its equations have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import expand, run_kernel
from jax import lax
from jax.extend.core import Primitive

import lanax
from lanax import _jax
from lanax._complex import register_complex, register_partwise, registry, split
from lanax._rewrite.surgery import inner_jaxprs

C64 = np.complex64
SCALAR = jax.core.ShapedArray((), np.dtype(C64))
VECTOR = jax.core.ShapedArray((3,), np.dtype(C64))


def splitted(fun: Any, *avals: Any, mapped: Any = None) -> Any:
    closed = expand(_jax.trace(lambda *a: jax.tree.leaves(fun(*a)), avals))
    after = split(closed, [True] * len(avals) if mapped is None else mapped, expand)
    _jax.core.check_jaxpr(_jax.open_and_consts(after)[0])
    return closed, after


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in _jax.open_and_consts(jaxpr)[0].eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)


def names(jaxpr: Any) -> list[str]:
    return [eqn.primitive.name for eqn in equations(jaxpr)]


def complex_values(jaxpr: Any) -> list[str]:
    """Primitives with complex operands or results."""
    return [e.primitive.name for e in equations(jaxpr)
            if any(getattr(v.aval, "dtype", np.dtype(bool)).kind == "c" for v in (*e.invars, *e.outvars))]


def test_a_real_program_is_left_as_it_is() -> None:
    before, after = splitted(lambda x: lax.fori_loop(0, 3, lambda _, y: y * x, x), jax.core.ShapedArray((), np.float32))
    assert after is before


def test_only_inputs_and_results_stay_complex() -> None:
    _, after = splitted(lambda z: lax.while_loop(lambda s: jnp.abs(s) < 2, lambda s: s * s + z, z), SCALAR)
    assert sorted(complex_values(after)) == ["complex", "imag", "real"]
    jaxpr = _jax.open_and_consts(after)[0]
    assert [v.aval.dtype for v in (*jaxpr.invars, *jaxpr.outvars)] == [C64, C64]


def test_parts_that_nobody_reads_go() -> None:
    _, after = splitted(lambda z: (jnp.exp(z) + 1j).real, SCALAR)
    assert "sin" not in names(after)
    _, after = splitted(lambda z: lax.fori_loop(0, 3, lambda _, s: lax.complex(s.real + 1, s.imag), z).real, SCALAR)
    (loop,) = [e for e in equations(after) if e.primitive.name in ("scan", "while")]
    assert "imag" not in names(after)
    assert all(v.aval.shape == () for v in loop.outvars)


def test_a_carry_of_which_one_part_is_still_becomes_a_constant() -> None:
    _, after = splitted(lambda z: lax.fori_loop(0, 3, lambda _, s: lax.complex(s.real + s.imag, s.imag), z), SCALAR)
    (loop,) = [e for e in equations(after) if e.primitive.name in ("scan", "while")]
    assert sum(v.aval.dtype == np.float32 for v in loop.outvars) == 1


def test_lines_are_the_users() -> None:
    def program(z: Any) -> Any:
        z = z * z
        return lax.fori_loop(0, 3, lambda _, s: s / z, jnp.linalg.inv(z))

    _, after = splitted(program, jax.core.ShapedArray((2, 2), np.dtype(C64)))
    lines = {_jax.source_line(e) for e in equations(after)}
    assert all("test_split.py" in line for line in lines), lines
    assert {line.rsplit("(")[1].rstrip(")").split(".")[-1] for line in lines} >= {"program"}
    assert len(lines) > 2


def test_what_is_the_same_for_all_examples_stays_whole() -> None:
    _, after = splitted(lambda z, w: z * (w @ w), SCALAR, VECTOR, mapped=[True, False])
    assert complex_values(after).count("dot_general") == 1
    assert "mul" not in complex_values(after)


def test_an_unknown_equation_stays_complex() -> None:
    aval = jax.core.ShapedArray((67,), np.dtype(C64))  # a prime for which there is no transform in lanes
    _, after = splitted(lambda z: jnp.sin(jnp.fft.fft(z * z)), aval)
    assert sorted(complex_values(after)) == sorted(["real", "imag", "complex", "fft", "real", "imag", "complex"])
    _, after = splitted(jnp.fft.fft, aval)
    assert complex_values(after) == ["fft"]


def test_a_chain_of_unknown_equations_is_not_taken_apart() -> None:
    p = Primitive("left_alone")
    p.def_abstract_eval(lambda x: x)
    _, after = splitted(lambda z: p.bind(p.bind(z)), SCALAR)
    assert names(after) == ["left_alone", "left_alone"]


def test_a_composition_may_refuse() -> None:
    aval = jax.core.ShapedArray((17, 17), np.dtype(C64))
    _, after = splitted(lambda z: lax.linalg.lu(z)[0], aval)
    assert names(after) == ["lu"]


@pytest.fixture
def primitive() -> Iterator[Primitive]:
    p = Primitive("complex_test")
    p.def_abstract_eval(lambda x: x)
    yield p
    registry.COMPOSED.pop(p.name, None)
    registry.PARTWISE.discard(p.name)


def test_registering(primitive: Primitive) -> None:
    @register_complex(primitive.name)
    def _twist(x: Any) -> Any:
        return registry.Complex(x.im * 2, x.re * np.arange(3, dtype=np.float32))

    z = np.array([[1 + 2j, 3, 4j]], C64)
    (out,) = run_kernel(lambda z: lax.fori_loop(0, 2, lambda _, s: primitive.bind(s), z), [z])
    want = z
    for _ in range(2):
        want = want.imag * 2 + 1j * want.real * np.arange(3)
    np.testing.assert_array_equal(out, want)
    with pytest.raises(lanax.RegistrationError, match="`complex_test` has a form"):
        register_complex(primitive.name)(_twist)


def test_registering_in_complex_code(primitive: Primitive) -> None:
    register_complex(primitive.name, parts=False)(lambda z: jnp.exp(z) * np.array([1j, 2, 3], C64))
    z = np.array([[1 + 2j, 3, 4j]], C64)
    (out,) = run_kernel(primitive.bind, [z])
    np.testing.assert_allclose(out, np.exp(z) * np.array([1j, 2, 3]), rtol=1e-6)


def test_registering_by_part(primitive: Primitive) -> None:
    register_partwise([primitive.name])
    _, after = splitted(primitive.bind, VECTOR)
    assert names(after).count(primitive.name) == 2


def test_a_composition_of_another_type_is_not_used(primitive: Primitive) -> None:
    register_complex(primitive.name)(lambda x: x.re)
    _, after = splitted(primitive.bind, VECTOR)
    assert names(after) == [primitive.name]


def test_equal_equations_are_traced_once(primitive: Primitive) -> None:
    calls = []

    @register_complex(primitive.name)
    def _same(x: Any) -> Any:
        calls.append(x)
        return x

    splitted(lambda z: primitive.bind(primitive.bind(z)), VECTOR)
    assert len(calls) == 1
