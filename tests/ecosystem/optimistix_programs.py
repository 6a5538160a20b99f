"""Roots, fits, minima and linear systems by optimistix, lineax and `jax.scipy.optimize`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.optimize
import lineax
import numpy as np
import optimistix
from program import Check, Program


def numbers(seed: int, low: float, high: float, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


# ---- optimistix ------------------------------------------------------------------------------------------------------
def coupled(y: Any, args: Any) -> Any:
    a, b = args
    return jnp.tanh(jnp.sum(y)) - a, y[0] - b * jnp.sin(y[1]) - 0.1


def newton(batch: int) -> Any:
    def solve(a: Any, b: Any) -> Any:
        return optimistix.root_find(coupled, optimistix.Newton(rtol=1e-5, atol=1e-5), jnp.zeros(2), (a, b)).value

    return lambda a, b: jax.vmap(solve)(a, b), (numbers(1, -0.8, 0.8, batch), numbers(2, 0.1, 0.6, batch))


def implicit_gradient(batch: int) -> Any:
    """Through the solution, by the implicit function theorem."""
    def loss(a: Any, b: Any) -> Any:
        solver = optimistix.Newton(rtol=1e-5, atol=1e-5)
        return jnp.sum(optimistix.root_find(coupled, solver, jnp.zeros(2), (a, b)).value ** 2)

    def gradients(a: Any, b: Any) -> Any:
        return jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)))(a, b)

    return gradients, (numbers(3, -0.8, 0.8, batch), numbers(4, 0.1, 0.6, batch))


def levenberg_marquardt(batch: int) -> Any:
    times = jnp.linspace(0.0, 2.0, 12)

    def decay(y: Any, samples: Any) -> Any:
        return y[0] * jnp.exp(-y[1] * times) + y[2] - samples

    def fit(samples: Any) -> Any:
        solver = optimistix.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
        return optimistix.least_squares(decay, solver, jnp.array([1.0, 1.0, 0.0]), args=samples).value

    rates = numbers(5, 0.7, 1.5, batch, 1)
    return lambda samples: jax.vmap(fit)(samples), (np.exp(-rates * np.asarray(times)) + 0.2,)


def rosenbrock(y: Any, a: Any) -> Any:
    return (a - y[0]) ** 2 + 10.0 * (y[1] - y[0] ** 2) ** 2


def bfgs(batch: int) -> Any:
    def solve(a: Any) -> Any:
        solver = optimistix.BFGS(rtol=1e-5, atol=1e-5)
        return optimistix.minimise(rosenbrock, solver, jnp.array([-0.5, 1.0]), a).value

    return lambda a: jax.vmap(solve)(a), (numbers(6, 0.5, 1.5, batch),)


def fixed_point(batch: int) -> Any:
    def solve(a: Any) -> Any:
        solver = optimistix.FixedPointIteration(rtol=1e-6, atol=1e-6)
        return optimistix.fixed_point(lambda y, a: jnp.cos(a * y), solver, jnp.float32(0.5), a).value

    return lambda a: jax.vmap(solve)(a), (numbers(7, 0.2, 0.9, batch),)


# ---- lineax ----------------------------------------------------------------------------------------------------------
def systems(seed: int, batch: int, size: int) -> Any:
    return numbers(seed, -1.0, 1.0, batch, size, size) + 3.0 * np.eye(size, dtype=np.float32)


def linear(solver: Any, tags: Any = (), throw: bool = True) -> Any:
    def make(batch: int) -> Any:
        def solve(matrix: Any, vector: Any) -> Any:
            matrix = matrix @ matrix.T if tags else matrix
            return lineax.linear_solve(lineax.MatrixLinearOperator(matrix, tags), vector, solver, throw=throw).value

        return lambda m, v: jax.vmap(solve)(m, v), (systems(8, batch, 4), numbers(9, -1.0, 1.0, batch, 4))

    return make


def least_squares(batch: int) -> Any:
    def solve(matrix: Any, vector: Any) -> Any:
        return lineax.linear_solve(lineax.MatrixLinearOperator(matrix), vector, lineax.QR()).value

    args = numbers(10, -1.0, 1.0, batch, 6, 3), numbers(11, -1.0, 1.0, batch, 6)
    return lambda m, v: jax.vmap(solve)(m, v), args


def tridiagonal(batch: int) -> Any:
    def solve(diagonal: Any, lower: Any, upper: Any, vector: Any) -> Any:
        operator = lineax.TridiagonalLinearOperator(diagonal, lower, upper)
        return lineax.linear_solve(operator, vector, lineax.Tridiagonal()).value

    args = (numbers(12, 3.0, 4.0, batch, 6), numbers(13, -1.0, 1.0, batch, 5), numbers(14, -1.0, 1.0, batch, 5),
            numbers(15, -1.0, 1.0, batch, 6))
    return lambda *a: jax.vmap(solve)(*a), args


def operator_gradient(batch: int) -> Any:
    """A solve with the Jacobian of a function, and its gradient."""
    def loss(x: Any, vector: Any) -> Any:
        operator = lineax.JacobianLinearOperator(lambda y, args: y + 0.3 * jnp.sin(y[::-1]), x)
        return jnp.sum(lineax.linear_solve(operator, vector, lineax.AutoLinearSolver(well_posed=True)).value ** 2)

    def gradients(x: Any, vector: Any) -> Any:
        return jax.vmap(jax.grad(loss))(x, vector)

    return gradients, (numbers(16, -1.0, 1.0, batch, 3), numbers(17, -1.0, 1.0, batch, 3))


# ---- jax.scipy.optimize ----------------------------------------------------------------------------------------------
def minimize(batch: int) -> Any:
    def solve(a: Any) -> Any:
        return jax.scipy.optimize.minimize(rosenbrock, jnp.array([-0.5, 1.0]), (a,), method="BFGS").x

    return lambda a: jax.vmap(solve)(a), (numbers(18, 0.5, 1.5, batch),)


POSITIVE = lineax.positive_semidefinite_tag
PROGRAMS = (
    Program("optimistix", "Newton", newton, Check(1e-4), 20_000),
    Program("optimistix", "implicit gradient of a root", implicit_gradient, Check(1e-3), 20_000),
    Program("optimistix", "Levenberg-Marquardt", levenberg_marquardt, Check(1e-3), 5_000),
    Program("optimistix", "BFGS", bfgs, Check(2e-3), 5_000),
    Program("optimistix", "fixed point", fixed_point, Check(1e-5), 50_000),
    Program("lineax", "LU", linear(lineax.LU()), Check(1e-4), 20_000),
    Program("lineax", "AutoLinearSolver", linear(lineax.AutoLinearSolver(well_posed=True)), Check(1e-4), 20_000),
    Program("lineax", "Cholesky", linear(lineax.Cholesky(), POSITIVE), Check(1e-4), 20_000),
    Program("lineax", "QR, least squares", least_squares, Check(1e-4), 10_000),
    Program("lineax", "SVD", linear(lineax.SVD()), Check(1e-4), 5_000),
    Program("lineax", "CG", linear(lineax.CG(1e-5, 1e-5), POSITIVE), Check(1e-3), 10_000),
    Program("lineax", "GMRES", linear(lineax.GMRES(1e-5, 1e-5)), Check(1e-3), 5_000),
    Program("lineax", "BiCGStab", linear(lineax.BiCGStab(1e-5, 1e-5), throw=False), Check(1e-3), 5_000),
    Program("lineax", "tridiagonal", tridiagonal, Check(1e-4), 20_000),
    Program("lineax", "gradient of a solve with a Jacobian", operator_gradient, Check(1e-3), 10_000),
    Program("jax", "jax.scipy.optimize.minimize", minimize, Check(5e-3, 0.99), 2_000),
)
