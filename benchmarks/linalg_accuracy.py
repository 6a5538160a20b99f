"""Backward errors of factors of small matrices in lanes, beside those of LAPACK (through `jax.vmap`).

    python benchmarks/linalg_accuracy.py [names ...] [--markdown]

Each figure is the largest of many matrices: in units of the distance from one to the next number, relative to the
largest element of the matrix; "orthogonal" is the largest element of Q^H Q - I. Residuals are computed in long double.
`--markdown` writes `docs/accuracy_linalg.md`. The exit status is 1 where lanax has more than twice LAPACK's error, and
more than two units.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import lanax

COUNT = 500
SIZES = (2, 3, 4, 6, 8, 10, 16)
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "accuracy_linalg.md"

INTRODUCTION = """\
# Accuracy of linear algebra

Small matrices are factored in the lanes; [Primitives](primitives.md) has the sizes. The algorithms are backward
stable, as LAPACK's are: the factors are those of a matrix that is nearly the given one. This page says by how much it
is another one, and what the factors look like.

| function | algorithm | conventions |
|---|---|---|
| `cholesky` | by columns | all NaN where the matrix is not positive definite |
| `lu` | by columns | the pivot is the first of the largest elements of its column |
| `qr`, `geqrf`, `ormqr`, ... | Householder's reflections | LAPACK's signs: the diagonal of R may be negative |
| `qr(pivoting=True)`, `geqp3` | the same | first the longest of the columns that are left |
| `triangular_solve` | by substitution | what is not in the triangle is not read |
| `tridiagonal_solve` | by elimination, as LAPACK's `gtsv` | NaN where the matrix is singular |
| `eigh` | tridiagonal form, then QR steps; up to 4 x 4 Jacobi's rotations | eigenvalues ascend |
| `svd` | rotations of the columns of R (complex: of a bidiagonal form) | singular values descend, none is negative |
| `tridiagonal`, `hessenberg` | Householder's reflections | LAPACK's signs |
| `schur` | Francis' double QR steps; for complex matrices single ones | LAPACK's standard form of the 2 x 2 blocks |
| `eig` | by the Schur form | of a real matrix conjugate pairs are exact, the positive imaginary part comes first |

What the problem itself leaves open may come out otherwise than in LAPACK:

- **Signs.** An eigenvector, and a pair of singular vectors, is given but for its sign, or a complex phase. Neither
  LAPACK nor lanax chooses it: it is what comes of the rotations. Normalise it where it matters.
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
(1.2e-7 for float32 and complex64, 2.2e-16 for float64 and complex128). Residuals are relative to the largest element of
the matrix; "orthogonal" is the largest element of Q^H Q - I (for `svd` of U and of V). Of systems, the residual is
relative to the largest elements of A and X together. What is above two units and above twice LAPACK's has an
exclamation mark; tests hold a sample to twice LAPACK's. *Graded*: rows and columns of sizes from 1e-3 to 1e3.
*Nearly singular*: of rank one, but for 1e-4. *Clustered*: all eigenvalues or singular values but the first are equal
within a few units.

`python benchmarks/linalg_accuracy.py --markdown` makes this page.

"""

Matrices = Callable[[Any, int], np.ndarray]


# -- matrices --------------------------------------------------------------------------------------------------------
class Numbers:
    """Random numbers, real or complex."""

    def __init__(self, seed: int, is_complex: bool):
        self.rng = np.random.default_rng(seed)
        self.is_complex = is_complex

    def normal(self, *shape: int) -> np.ndarray:
        x = self.rng.normal(size=(COUNT, *shape))
        return x + 1j * self.rng.normal(size=x.shape) if self.is_complex else x


def ordinary(numbers: Numbers, n: int) -> np.ndarray:
    return numbers.normal(n, n)


def graded(numbers: Numbers, n: int) -> np.ndarray:
    scale = 10.0 ** numbers.rng.integers(-3, 4, (COUNT, 2, n))
    return numbers.normal(n, n) * scale[:, 0, :, None] * scale[:, 1, None, :]


def nearly_singular(numbers: Numbers, n: int) -> np.ndarray:
    return numbers.normal(n, 1) * numbers.normal(1, n) + 1e-4 * numbers.normal(n, n)


def clustered(numbers: Numbers, n: int) -> np.ndarray:
    x = numbers.normal(n, 1)
    return np.eye(n) + x * adjoint(x) + 1e-7 * numbers.normal(n, n)


FAMILIES: tuple[Matrices, ...] = (ordinary, graded, nearly_singular, clustered)


# -- functions and their errors --------------------------------------------------------------------------------------
Errors = dict[str, np.ndarray]


def size(x: np.ndarray) -> np.ndarray:
    """The largest element of each matrix."""
    return np.abs(x).max((-1, -2))


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2).conj()


def orthogonal(q: np.ndarray) -> np.ndarray:
    return size(adjoint(q) @ q - np.eye(q.shape[-1]))


def as_given(a: np.ndarray) -> np.ndarray:
    return a


def hermitian(a: np.ndarray) -> np.ndarray:
    return (a + adjoint(a)) / 2


def definite(a: np.ndarray) -> np.ndarray:
    a = a @ adjoint(a)
    return hermitian(a * (1 + 1e-3 * np.eye(a.shape[-1])))


def tridiagonal(a: np.ndarray) -> np.ndarray:
    return np.triu(np.tril(a, 1), -1)


def diagonals(a: Any) -> tuple[Any, Any, Any]:
    """What is left of, on and right of the diagonal, by row."""
    beside = (jnp.pad(jnp.diagonal(a, k), (max(0, -k), max(0, k))) for k in (-1, 1))
    low, high = beside
    return low, jnp.diagonal(a), high


def lu_error(a: np.ndarray, lu: np.ndarray, _: np.ndarray, order: np.ndarray) -> Errors:
    rows = np.take_along_axis(a, np.real(order).astype(int)[..., None], -2)
    return {"PA - LU": size((np.tril(lu, -1) + np.eye(a.shape[-1])) @ np.triu(lu) - rows) / size(a)}


def solve_error(a: np.ndarray, x: np.ndarray) -> Errors:
    b = a.sum(-1, keepdims=True)
    x = x[..., None]
    return {"AX - B": size(a @ x - b) / (size(a) * size(x) + size(b))}


def product_error(what: str, a: np.ndarray, rebuilt: np.ndarray, *unitary: np.ndarray) -> Errors:
    return {what: size(rebuilt - a) / size(a), "orthogonal": np.maximum.reduce(list(map(orthogonal, unitary)))}


#: The function, what is made of each matrix, errors of the results, and rows of the largest complex matrix in lanes.
FUNCTIONS: dict[str, tuple[Callable, Callable, Callable[..., Errors], int]] = {
    "cholesky": (lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), definite,
                 lambda a, x: {"A - LL^H": size(x @ adjoint(x) - a) / size(a)}, 10),
    "lu": (jax.lax.linalg.lu, as_given, lu_error, 10),
    "solve": (lambda a: jnp.linalg.solve(a, a.sum(-1)), as_given, solve_error, 10),
    "triangular_solve": (lambda a: jax.scipy.linalg.solve_triangular(a, a.sum(-1), lower=True), np.tril, solve_error,
                         10),
    "tridiagonal_solve": (lambda a: jax.lax.linalg.tridiagonal_solve(*diagonals(a), a.sum(-1)[:, None])[:, 0],
                          tridiagonal, solve_error, 16),
    "qr": (jnp.linalg.qr, as_given, lambda a, q, r: product_error("A - QR", a, q @ r, q), 16),
    "eigh": (lambda a: tuple(jnp.linalg.eigh(a, symmetrize_input=False)), hermitian,
             lambda a, w, v: product_error("A - VwV^H", a, v * w[..., None, :] @ adjoint(v), v), 16),
    "svd": (lambda a: tuple(jnp.linalg.svd(a)), as_given,
            lambda a, u, s, vh: product_error("A - USV^H", a, u * s[..., None, :] @ vh, u, adjoint(vh)), 16),
    "hessenberg": (lambda a: jax.scipy.linalg.hessenberg(a, calc_q=True), as_given,
                   lambda a, h, q: product_error("A - QHQ^H", a, q @ h @ adjoint(q), q), 16),
    "schur": (jax.lax.linalg.schur, as_given,
              lambda a, t, z: product_error("A - ZTZ^H", a, z @ t @ adjoint(z), z), 16),
    "eig": (lambda a: tuple(jnp.linalg.eig(a)), as_given,
            lambda a, w, v: {"AV - Vw": size(a @ v - v * w[..., None, :]) / size(a)}, 16),
}


def errors(name: str, dtype: type, n: int, family: Matrices) -> dict[str, tuple[float, float]]:
    """For each error its largest value of lanax and of LAPACK, in units."""
    fun, prepared, error, _ = FUNCTIONS[name]
    a = prepared(family(Numbers(n, np.dtype(dtype).kind == "c"), n)).astype(dtype)
    found = []
    for mapped in (lanax.vmap(fun), jax.vmap(fun)):
        results = jax.tree.leaves(jax.jit(mapped)(a))
        found.append(error(*map(exact, (a, *results))))
    eps = np.finfo(dtype).eps
    return {what: (float(found[0][what].max() / eps), float(found[1][what].max() / eps)) for what in found[0]}


def exact(x: Any) -> np.ndarray:
    """An array in long double."""
    x = np.asarray(x)
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


Row = tuple[str, str, str, int, list[tuple[float, float]]]


def rows(names: list[str]) -> Iterator[Row]:
    for name in names:
        for dtype in DTYPES:
            most = FUNCTIONS[name][-1] if np.dtype(dtype).kind == "c" else max(SIZES)
            for n in (n for n in SIZES if n <= most):
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
