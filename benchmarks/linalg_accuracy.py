"""Backward errors of factors of small matrices in lanes, beside those of LAPACK (through `jax.vmap`).

    python benchmarks/linalg_accuracy.py [names ...] [--markdown]

Each figure is the largest of many matrices: in units of the distance from one to the next number, relative to the
largest element of the matrix; "orthogonal" is the largest element of Q^T Q - I. Residuals are computed in long double.
`--markdown` writes `docs/accuracy_linalg.md`. The exit status is 1 where lanax has more than twice LAPACK's error, and
more than two units.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import lanax

COUNT = 500
SIZES = (2, 3, 4, 6, 8, 16)
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "accuracy_linalg.md"

INTRODUCTION = """\
# Accuracy of linear algebra

Small real matrices are factored in the lanes; [Primitives](primitives.md) has the sizes. The algorithms are backward
stable, as LAPACK's are: the factors are those of a matrix that is nearly the given one. This page says by how much it
is another one, and what the factors look like.

| function | algorithm | conventions |
|---|---|---|
| `cholesky` | by columns | all NaN where the matrix is not positive definite |
| `lu` | by columns | the pivot is the first of the largest elements of its column |
| `qr`, `geqrf`, `ormqr`, ... | Householder's reflections | LAPACK's signs: the diagonal of R may be negative |
| `qr(pivoting=True)`, `geqp3` | the same | first the longest of the columns that are left |
| `eigh` | Jacobi's rotations up to 4 x 4, then tridiagonal form and QR steps | eigenvalues ascend |
| `svd` | rotations of the columns of R until they are orthogonal | singular values descend, none is negative |
| `tridiagonal`, `hessenberg` | Householder's reflections | LAPACK's signs |
| `schur` | Francis' double QR steps | LAPACK's standard form of the 2 x 2 blocks |
| `eig` | by the Schur form | conjugate pairs are exact, the positive imaginary part comes first |

What the problem itself leaves open may come out otherwise than in LAPACK:

- **Signs.** An eigenvector, and a pair of singular vectors, is given but for its sign. Neither LAPACK nor lanax chooses
  it: it is what comes of the rotations. Normalise it where it matters.
- **Equal values.** Of equal eigenvalues or singular values the vectors are any basis. Where singular values are zero
  their vectors complete the others, so U and V are orthogonal whatever the rank is.
- **The order** of the eigenvalues of `schur` and `eig` is that in which they were found: mostly LAPACK's.
- **The length** of the vectors of `eig` is one, and the largest element of each is real, as in LAPACK.

Where a matrix has NaN or infinities, all its eigenvalues, singular values and vectors are NaN. The other examples of
the batch do not notice.

"""
#: What stands before the table.
NOTES = """\
## Backward errors

Largest errors of {count} matrices of each kind: lanax / LAPACK, in units of the distance from 1 to the next number
(1.2e-7 for float32, 2.2e-16 for float64). Residuals are relative to the largest element of the matrix; "orthogonal" is
the largest element of Q^T Q - I (for `svd` of U and of V). *Graded*: rows and columns of sizes from 1e-3 to 1e3.
*Nearly singular*: of rank one, but for 1e-4. *Clustered*: all eigenvalues or singular values but the first are equal
within a few units.

`python benchmarks/linalg_accuracy.py --markdown` makes this page.

"""

Matrices = Callable[[np.random.Generator, int], np.ndarray]


# -- matrices --------------------------------------------------------------------------------------------------------
def ordinary(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(COUNT, n, n))


def graded(rng: np.random.Generator, n: int) -> np.ndarray:
    scale = 10.0 ** rng.integers(-3, 4, (COUNT, 2, n))
    return rng.normal(size=(COUNT, n, n)) * scale[:, 0, :, None] * scale[:, 1, None, :]


def nearly_singular(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(COUNT, n, 1)) * rng.normal(size=(COUNT, 1, n)) + 1e-4 * rng.normal(size=(COUNT, n, n))


def clustered(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.normal(size=(COUNT, n, 1))
    return np.eye(n) + x * np.swapaxes(x, -1, -2) + 1e-7 * rng.normal(size=(COUNT, n, n))


FAMILIES: tuple[Matrices, ...] = (ordinary, graded, nearly_singular, clustered)


# -- functions and their errors --------------------------------------------------------------------------------------
def size(x: np.ndarray) -> np.ndarray:
    """The largest element of each matrix."""
    return np.abs(x).max((-1, -2))


def flip(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def orthogonal(q: np.ndarray) -> np.ndarray:
    return size(flip(q) @ q - np.eye(q.shape[-1]))


def symmetric(a: np.ndarray) -> np.ndarray:
    return (a + flip(a)) / 2


def definite(a: np.ndarray) -> np.ndarray:
    a = a @ flip(a)
    return symmetric(a * (1 + 1e-3 * np.eye(a.shape[-1])))


def lu_error(a: np.ndarray, lu: np.ndarray, _: np.ndarray, order: np.ndarray) -> dict[str, np.ndarray]:
    rows = np.take_along_axis(a, order.astype(int)[..., None], -2)
    return {"PA - LU": size((np.tril(lu, -1) + np.eye(a.shape[-1])) @ np.triu(lu) - rows) / size(a)}


def solve_error(a: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    b = a.sum(-1, keepdims=True)
    x = x[..., None]
    return {"AX - B": size(a @ x - b) / (size(a) * size(x) + size(b))}


#: The function, what is made of each matrix, and the errors of its results.
FUNCTIONS: dict[str, tuple[Callable, Callable, Callable[..., dict[str, np.ndarray]]]] = {
    "cholesky": (lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), definite,
                 lambda a, x: {"A - LL^T": size(x @ flip(x) - a) / size(a)}),
    "lu": (jax.lax.linalg.lu, lambda a: a, lu_error),
    "solve": (lambda a: jnp.linalg.solve(a, a.sum(-1)), lambda a: a, solve_error),
    "qr": (jnp.linalg.qr, lambda a: a,
           lambda a, q, r: {"A - QR": size(q @ r - a) / size(a), "orthogonal": orthogonal(q)}),
    "eigh": (lambda a: tuple(jnp.linalg.eigh(a, symmetrize_input=False)), symmetric,
             lambda a, w, v: {"A - VwV^T": size(v * w[..., None, :] @ flip(v) - a) / size(a),
                              "orthogonal": orthogonal(v)}),
    "svd": (lambda a: tuple(jnp.linalg.svd(a)), lambda a: a,
            lambda a, u, s, vt: {"A - USV^T": size(u * s[..., None, :] @ vt - a) / size(a),
                                 "orthogonal": np.maximum(orthogonal(u), orthogonal(flip(vt)))}),
    "schur": (jax.lax.linalg.schur, lambda a: a,
              lambda a, t, z: {"A - ZTZ^T": size(z @ t @ flip(z) - a) / size(a), "orthogonal": orthogonal(z)}),
}


def errors(name: str, dtype: type, n: int, family: Matrices) -> dict[str, tuple[float, float]]:
    """For each error its largest value of lanax and of LAPACK, in units."""
    fun, prepared, error = FUNCTIONS[name]
    a = prepared(family(np.random.default_rng(n), n)).astype(dtype)
    found = []
    for mapped in (lanax.vmap(fun), jax.vmap(fun)):
        results = jax.tree.leaves(jax.jit(mapped)(a))
        found.append(error(a.astype(np.longdouble), *(np.asarray(x).astype(np.longdouble) for x in results)))
    eps = np.finfo(dtype).eps
    return {what: (float(found[0][what].max() / eps), float(found[1][what].max() / eps)) for what in found[0]}


Row = tuple[str, str, str, int, list[tuple[float, float]]]


def rows(names: list[str]) -> Iterator[Row]:
    for name in names:
        for dtype in (np.float32, np.float64):
            for n in SIZES:
                columns = [errors(name, dtype, n, family) for family in FAMILIES]
                for what in columns[0]:
                    yield name, what, np.dtype(dtype).name, n, [column[what] for column in columns]


def is_worse(ours: float, theirs: float) -> bool:
    return not ours <= max(2 * theirs, 2.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*FUNCTIONS, []], help="functions; all where none is given")
    parser.add_argument("--markdown", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    heads = ("function", "error", "dtype", "n", *(f.__name__.replace("_", " ") for f in FAMILIES))
    shown, lines, bad = Table(*heads), [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"], 0
    for *labels, n, pairs in rows(options.names or list(FUNCTIONS)):
        bad += sum(is_worse(*pair) for pair in pairs)
        cells = [*labels, str(n), *(f"{x:.1f} / {y:.1f}" + " !" * is_worse(x, y) for x, y in pairs)]
        shown.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    if options.markdown:
        PAGE.write_text(INTRODUCTION + NOTES.format(count=COUNT) + "\n".join(lines) + "\n")
    else:
        Console().print(shown)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
