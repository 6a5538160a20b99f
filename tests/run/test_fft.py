"""Fourier transforms in lanes: against NumPy's in double precision, against `jax.vmap`, and inside programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lanax
from lanax._complex.fourier import fft_pair, why_no_fft

#: Lengths with every kind of factor: none, powers of two, small primes, larger primes, mixtures.
LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 30, 31, 32, 49, 60, 61, 64, 75, 122, 128]
FORWARD: dict[str, Callable[..., Any]] = {
    "FFT": lambda x, s: np.fft.fftn(x, s, range(1, x.ndim)), "IFFT": lambda x, s: np.fft.ifftn(x, s, range(1, x.ndim)),
    "RFFT": lambda x, s: np.fft.rfftn(x.real, s, range(1, x.ndim)),
    "IRFFT": lambda x, s: np.fft.irfftn(x, s, range(1, x.ndim))}


def check_pair(kind: str, lengths: tuple[int, ...], dtype: Any, bound: float) -> None:
    shape = (*lengths[:-1], lengths[-1] // 2 + 1) if kind == "IRFFT" else lengths
    rng = np.random.default_rng(sum(lengths))
    re, im = (rng.normal(size=(3, *shape)).astype(dtype) for _ in range(2))
    got_re, got_im = jax.jit(fft_pair, static_argnums=(2, 3))(re, im, kind, lengths)
    assert got_re.dtype == dtype
    assert (got_im is None) == (kind == "IRFFT")
    got = np.asarray(got_re, np.float64) + (0 if got_im is None else 1j * np.asarray(got_im, np.float64))
    want = FORWARD[kind](re.astype(np.float64) + 1j * im.astype(np.float64), lengths)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= bound * np.abs(want).max()


@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("lengths", [(n,) for n in LENGTHS[::2]] + [(4, 6), (3, 4, 5)], ids=str)
def test_error_in_single_precision(kind: str, lengths: tuple[int, ...]) -> None:
    check_pair(kind, lengths, np.float32, 5e-7)


@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("lengths", [(n,) for n in LENGTHS[1::2]] + [(8, 5), (2, 3, 7)], ids=str)
def test_error_in_double_precision(kind: str, lengths: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        check_pair(kind, lengths, np.float64, 1e-15)


def test_what_is_left_to_xla() -> None:
    assert "faster in XLA" in str(why_no_fft((256,)))
    assert "faster in XLA" in str(why_no_fft((128, 128)))
    assert "prime factor" in str(why_no_fft((67,)))
    assert why_no_fft((0,))
    with pytest.raises(NotImplementedError):
        fft_pair(jnp.ones(8), jnp.ones(8), "IRFFT", (8,))


def both(f: Callable[..., Any], *args: Any, lanes: bool = True) -> None:
    mapped = lanax.vmap(f, plan=lanax.Plan(route="lanes"))
    want = jax.tree.leaves(jax.jit(jax.vmap(f))(*args))
    for x, y in zip(jax.tree.leaves(mapped(*args)), want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * float(np.abs(y).max()))
    misses = [miss.primitive for miss in lanax.explain(mapped, *args).misses]
    assert (not misses) == lanes, misses


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("n", [5, 8, 24])
def test_of_mapped_functions(n: int) -> None:
    x = numbers(19, n)
    both(lambda x: jnp.fft.ifft(jnp.fft.fft(x + 1j) * jnp.arange(n)), x)
    both(lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2, x)
    both(lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.exp(-jnp.arange(n // 2 + 1) / 3), n), x)


def test_of_several_axes() -> None:
    both(lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2, x.shape), numbers(9, 6, 8))
    both(lambda x: jnp.fft.fftn(x), numbers(9, 2, 3, 4))


@pytest.mark.parametrize("n", [6, 9])
def test_derivatives(n: int) -> None:
    def energy(x: Any) -> Any:
        z = jnp.fft.rfft(x)
        return jnp.sum(jnp.abs(z) ** 4) + jnp.sum(jnp.fft.irfft(z**2, n) ** 3)

    x = numbers(11, n)
    both(jax.grad(energy), x)
    both(lambda x, t: jax.jvp(energy, (x,), (t,)), x, x[::-1])
    got = jax.grad(lambda x: jnp.sum(lanax.vmap(energy)(x)))(x)
    np.testing.assert_allclose(got, jax.vmap(jax.grad(energy))(x), rtol=1e-4, atol=1e-2)


def test_in_a_loop() -> None:
    """A spectral step until the field is smooth: each example leaves when it is done."""
    def smooth(x: Any) -> Any:
        def step(state: Any) -> Any:
            n, u = state
            z = jnp.fft.rfft(u)
            return n + 1, jnp.fft.irfft(z * jnp.exp(-0.1 * jnp.arange(z.shape[0])), u.shape[0])

        return jax.lax.while_loop(lambda s: (s[0] < 30) & (jnp.max(s[1]) > 0.7), step, (0, x))

    both(smooth, numbers(21, 16))


def test_long_ones_go_to_xla() -> None:
    both(lambda x: jnp.abs(jnp.fft.rfft(x)), numbers(5, 200), lanes=False)
