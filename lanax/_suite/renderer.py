"""A sphere-tracing renderer, one example for each pixel: loops inside branches. Plain JAX; knows nothing of lanax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lanax._suite.program import Case

EPSILON = 1e-3
FAR = 20.0
STEPS = 256
BOUNCES = 4


def unit(v: jax.Array) -> jax.Array:
    """`v` scaled to length 1."""
    return v / jnp.sqrt(jnp.dot(v, v))


def sphere(p: jax.Array, centre: jax.Array, radius: float) -> jax.Array:
    """Distance from `p` to a sphere."""
    return jnp.linalg.norm(p - centre) - radius


def box(p: jax.Array, centre: jax.Array, half: jax.Array) -> jax.Array:
    """Distance from `p` to a box with rounded edges."""
    q = jnp.abs(p - centre) - half
    return jnp.sqrt(jnp.sum(jnp.maximum(q, 0.0) ** 2) + 1e-12) + jnp.minimum(jnp.max(q), 0.0) - 0.05


def ring(p: jax.Array, centre: jax.Array, radius: float, thickness: float) -> jax.Array:
    """Distance from `p` to a torus that lies flat."""
    x, y, z = p - centre
    return jnp.hypot(jnp.hypot(x, z) - radius, y) - thickness


def objects(p: jax.Array) -> jax.Array:
    """Distance from `p` to each object of the scene."""
    return jnp.array([
        p[1] + 1.0,
        sphere(p, jnp.array([-1.2, 0.0, 0.0]), 1.0),
        box(p, jnp.array([1.3, -0.3, 0.3]), jnp.array([0.6, 0.6, 0.6])),
        ring(p, jnp.array([0.2, -0.8, -1.6]), 0.6, 0.2),
    ])


def distance(p: jax.Array) -> jax.Array:
    """Distance from `p` to the nearest object."""
    return jnp.min(objects(p))


def march(origin: jax.Array, direction: jax.Array, far: float) -> tuple[jax.Array, jax.Array]:
    """Walks along a ray. Returns how far it came and whether it hit something."""

    def walking(state):
        t, gap, count = state
        return (gap > EPSILON) & (t < far) & (count < STEPS)

    def walk(state):
        t, _, count = state
        gap = distance(origin + t * direction)
        return t + gap, gap, count + 1

    t, gap, _ = lax.while_loop(walking, walk, (jnp.float32(0.02), jnp.float32(1.0), 0))
    return t, gap <= EPSILON


#: Of each object: red, green, blue, and the fraction of the light that it mirrors.
MATERIALS = np.array(
    [[0.5, 0.5, 0.5, 0.0], [0.9, 0.9, 0.9, 0.8], [0.2, 0.5, 0.9, 0.0], [0.9, 0.7, 0.2, 0.5]], np.float32
)
LIGHT = np.array([0.45, 0.8, -0.4], np.float32) / np.float32(np.sqrt(0.45**2 + 0.8**2 + 0.4**2))


def shade(origin: jax.Array, direction: jax.Array, t: jax.Array) -> tuple[jax.Array, ...]:
    """Light from the point that the ray has hit: its colour, and where its mirrored part comes from."""
    p = origin + t * direction
    normal = unit(jax.grad(distance)(p))
    facing = jnp.dot(normal, LIGHT)

    def lit(p):
        _, blocked = march(p + 0.01 * normal, jnp.asarray(LIGHT), 8.0)
        return jnp.where(blocked, 0.0, facing)

    light = lax.cond(facing > 0.0, lit, lambda p: jnp.zeros_like(facing), p)
    material = jnp.asarray(MATERIALS)[jnp.argmin(objects(p))]
    colour = (1.0 - material[3]) * material[:3] * (0.2 + 0.8 * light)
    mirrored = direction - 2.0 * jnp.dot(direction, normal) * normal
    return colour, material[3], p + 0.01 * normal, mirrored


def sky(origin: jax.Array, direction: jax.Array, t: jax.Array) -> tuple[jax.Array, ...]:
    """Light of the sky, where the ray ends."""
    height = jnp.clip(0.5 + 0.5 * direction[1], 0.0, 1.0)
    colour = (1.0 - height) * jnp.array([0.9, 0.9, 0.95]) + height * jnp.array([0.3, 0.5, 0.9])
    return colour, 0.0 * t, origin, direction


def pixel(u: jax.Array, v: jax.Array) -> jax.Array:
    """Red, green and blue of the pixel at (u, v), both from -1 to 1: follows a ray over its reflections."""

    def bright(state):
        _, strength, _, _, count = state
        return (strength > 0.02) & (count < BOUNCES)

    def bounce(state):
        colour, strength, origin, direction, count = state
        t, hit = march(origin, direction, FAR)
        light, mirror, origin, direction = lax.cond(hit, shade, sky, origin, direction, t)
        return colour + strength * light, strength * mirror, origin, direction, count + 1

    origin = jnp.array([0.0, 0.8, -5.0])
    direction = unit(jnp.array([0.7 * u, 0.7 * v - 0.2, 1.0]))
    return lax.while_loop(bright, bounce, (jnp.zeros(3), jnp.float32(1.0), origin, direction, 0))[0]


def renderer(batch: int) -> Case:
    """A square picture of about `batch` pixels."""
    side = round(batch**0.5)
    line = np.linspace(-1.0, 1.0, side, dtype=np.float32)
    u, v = np.meshgrid(line, -line)
    return Case(pixel, 0, (u.ravel(), v.ravel()))
