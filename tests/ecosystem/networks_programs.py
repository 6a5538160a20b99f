"""Networks by equinox and flax, and per-example gradients by optax, as their documentation writes them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import nnx
from program import Check, Program


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# ---- equinox ---------------------------------------------------------------------------------------------------------
def eqx_mlp(batch: int) -> Any:
    model = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(1))
    return lambda x: eqx.filter_vmap(model)(x), (numbers(2, batch, 2),)


def eqx_gradients(batch: int) -> Any:
    """`filter_vmap` of `filter_grad`: one gradient for each example, by one model."""
    model = eqx.nn.MLP(2, "scalar", 8, 1, activation=jnp.tanh, key=jax.random.key(3))

    def loss(model: Any, x: Any, y: Any) -> Any:
        return (model(x) - y) ** 2

    def gradients(x: Any, y: Any) -> Any:
        found = eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0, 0))(model, x, y)
        return jax.tree.leaves(found)

    return gradients, (numbers(4, batch, 2), numbers(5, batch))


class Recurrent(eqx.Module):
    """As in equinox's example of a recurrent network."""

    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear

    def __call__(self, xs: Any) -> Any:
        state, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), jnp.zeros(self.cell.hidden_size), xs)
        return jax.nn.sigmoid(self.linear(state))


def eqx_rnn(batch: int) -> Any:
    cell, linear = jax.random.split(jax.random.key(6))
    model = Recurrent(eqx.nn.GRUCell(2, 8, key=cell), eqx.nn.Linear(8, 1, key=linear))
    return lambda xs: jax.vmap(model)(xs), (numbers(7, batch, 16, 2),)


def eqx_ensemble(batch: int) -> Any:
    """As many models as examples, made and evaluated by `filter_vmap`."""
    @eqx.filter_jit
    def evaluate(keys: Any, x: Any) -> Any:
        models = eqx.filter_vmap(lambda key: eqx.nn.MLP(2, 1, 8, 1, key=key))(keys)
        return eqx.filter_vmap(lambda model, x: model(x), in_axes=(eqx.if_array(0), None))(models, x)

    return evaluate, (jax.random.split(jax.random.key(8), batch), numbers(9, 2))


def eqx_batch_norm(batch: int) -> Any:
    """Batch normalisation exchanges means over the named batch axis."""
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")

    def normed(x: Any) -> Any:
        y, new = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x * x, state)
        return y, [leaf for leaf in jax.tree.leaves(new) if eqx.is_inexact_array(leaf)]

    return normed, (numbers(10, batch, 3),)


# ---- flax ------------------------------------------------------------------------------------------------------------
class Classifier(nn.Module):
    """Dense layers with layer normalisation."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm()(nn.gelu(nn.Dense(8)(x)))
        return nn.log_softmax(nn.Dense(3)(x))


def flax_apply(batch: int) -> Any:
    model = Classifier()
    params = model.init(jax.random.key(11), jnp.zeros(4))
    return lambda x: jax.vmap(model.apply, in_axes=(None, 0))(params, x), (numbers(12, batch, 4),)


def flax_lifted(batch: int) -> Any:
    """`flax.linen.vmap`: a module for each example, with parameters of its own."""
    model = nn.vmap(Classifier, variable_axes={"params": 0}, split_rngs={"params": True})()
    params = model.init(jax.random.key(13), jnp.zeros((batch, 4)))
    return model.apply, (params, numbers(14, batch, 4))


def flax_recurrent(batch: int) -> Any:
    model = nn.RNN(nn.LSTMCell(8))
    params = model.init(jax.random.key(15), jnp.zeros((1, 16, 2)))
    return lambda xs: jax.vmap(lambda x: model.apply(params, x[None])[0])(xs), (numbers(16, batch, 16, 2),)


def flax_nnx(batch: int) -> Any:
    graph, state = nnx.split(nnx.Linear(3, 5, rngs=nnx.Rngs(17)))

    def mapped(state: Any, x: Any) -> Any:
        return nnx.vmap(lambda model, x: jnp.tanh(model(x)), in_axes=(None, 0))(nnx.merge(graph, state), x)

    return mapped, (state, numbers(18, batch, 3))


# ---- optax -----------------------------------------------------------------------------------------------------------
def classifier_loss(params: Any, x: Any, label: Any) -> Any:
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["w2"], label)


def classifier_inputs(seed: int, batch: int) -> Any:
    params = {"w1": numbers(seed, 4, 8), "b1": numbers(seed + 1, 8), "w2": numbers(seed + 2, 8, 3)}
    return params, numbers(seed + 3, batch, 4), np.random.default_rng(seed).integers(0, 3, batch)


def private_step(batch: int) -> Any:
    """A step of differentially private SGD: gradients for each example, clipped, summed and made noisy."""
    private = optax.contrib.differentially_private_aggregate(1.0, 0.5, jax.random.key(0))
    optimiser = optax.chain(private, optax.sgd(0.1))

    def step(params: Any, x: Any, label: Any) -> Any:
        gradients = jax.vmap(jax.grad(classifier_loss), in_axes=(None, 0, 0))(params, x, label)
        updates, _ = optimiser.update(gradients, optimiser.init(params), params)
        return optax.apply_updates(params, updates), gradients

    return step, classifier_inputs(19, batch)


def adam_each(batch: int) -> Any:
    """A fit by Adam for each example."""
    optimiser = optax.adam(0.1)

    def fit(target: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            params, state = carry
            value, gradient = jax.value_and_grad(lambda p: jnp.sum((jnp.sin(p) - target) ** 2))(params)
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(params, updates), state), value

        params = jnp.zeros(3)
        return jax.lax.scan(step, (params, optimiser.init(params)), None, 60)[0][0]

    return lambda targets: jax.vmap(fit)(targets), (np.tanh(numbers(20, batch, 3)) * 0.8,)


def lbfgs_each(batch: int) -> Any:
    """A minimum by L-BFGS with zoom line search for each example, as optax's notebook has it."""
    def solve(a: Any) -> Any:
        def fun(y: Any) -> Any:
            return jnp.sum((a - y[:-1]) ** 2 + 5.0 * (y[1:] - y[:-1] ** 2) ** 2)

        optimiser = optax.lbfgs(memory_size=4)
        value_and_grad = optax.value_and_grad_from_state(fun)

        def step(carry: Any) -> Any:
            params, state = carry
            value, grad = value_and_grad(params, state=state)
            updates, state = optimiser.update(grad, state, params, value=value, grad=grad, value_fn=fun)
            return optax.apply_updates(params, updates), state

        def going(carry: Any) -> Any:
            state = carry[1]
            count, grad = optax.tree.get(state, "count"), optax.tree.get(state, "grad")
            return (count == 0) | ((count < 60) & (optax.tree.norm(grad) >= 1e-3))

        start = jnp.zeros(2)
        return jax.lax.while_loop(going, step, (start, optimiser.init(start)))[0]

    return lambda a: jax.vmap(solve)(a), (np.tanh(numbers(21, batch)) * 0.3 + 1.0,)


PROGRAMS = (
    Program("equinox", "filter_vmap of an MLP", eqx_mlp, Check(1e-5), 100_000),
    Program("equinox", "filter_vmap of filter_grad", eqx_gradients, Check(1e-5), 20_000),
    Program("equinox", "GRU over a sequence", eqx_rnn, Check(1e-5), 10_000),
    Program("equinox", "ensemble, if_array(0)", eqx_ensemble, Check(1e-5), 20_000),
    Program("equinox", "BatchNorm over a named axis", eqx_batch_norm, Check(1e-4), 20_000, "batch"),
    Program("flax", "linen, apply", flax_apply, Check(1e-5), 100_000),
    Program("flax", "linen.vmap, own parameters", flax_lifted, Check(1e-5), 20_000),
    Program("flax", "linen.RNN, LSTM", flax_recurrent, Check(1e-5), 10_000),
    Program("flax", "nnx.vmap", flax_nnx, Check(1e-5), 100_000),
    Program("optax", "private SGD, per-example gradients", private_step, Check(1e-5), 20_000),
    Program("optax", "Adam for each example", adam_each, Check(1e-3), 20_000),
    Program("optax", "L-BFGS for each example", lbfgs_each, Check(5e-3, 0.99), 1_000),
)
