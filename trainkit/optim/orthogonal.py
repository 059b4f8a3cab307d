"""Orthogonal matrices by iterations of odd polynomials."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from trainkit.recipe.optimizers.matrix import Coefficients, Compute

#: The polynomial a x + b x^3 + c x^5 of every iteration (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
#: The best polynomial of each iteration where singular values begin between 1e-3 and 1; the last one is repeated
#: (Amsel et al. 2025, arXiv:2505.16932, appendix A).
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
#: Before each of them but the last, matrices are divided by this, so that rounding leaves no singular value above 1.
MARGIN = 1.01
#: Added to the norm of a matrix.
TINY = 1e-8
#: Matrices with at least so many columns for each row take fewer FLOPs by their squares.
LONG = 1.5
#: Of matrices with fewer rows, a whole product is faster than three of the four quarters of a symmetric one.
MANY_ROWS = 512
Polynomial = tuple[float, float, float]


def orthogonal(matrices: Array, coefficients: Coefficients, iterations: int, compute: Compute = "float32") -> Array:
    """Return matrices (…, m, n) with their singular vectors, and singular values near 1. It is less work if m <= n."""
    polynomials, margin = [NEWTON_SCHULZ] * iterations, 1.0
    if coefficients == "polar-express":
        safe = [(a / MARGIN, b / MARGIN**3, c / MARGIN**5) for a, b, c in POLAR_EXPRESS[:-1]]
        polynomials, margin = (safe + [POLAR_EXPRESS[-1]] * iterations)[:iterations], MARGIN
    x = matrices / (margin * jnp.sqrt(jnp.square(matrices).sum((-2, -1), keepdims=True)) + TINY)
    if compute == "float32" and x.shape[-1] >= LONG * x.shape[-2]:
        return _by_squares(x, polynomials)
    x = x.astype(compute)
    for a, b, c in polynomials:
        square = symmetric(x, x, compute)
        factor = b * square + c * symmetric(square, square, compute)
        x = (a * x + _product("...mk,...kn->...mn", factor, x, compute)).astype(compute)
    return x.astype(jnp.float32)


def _by_squares(x: Array, polynomials: list[Polynomial]) -> Array:
    """Return the polynomials of matrices (…, m, n), one after another, by products of matrices (…, m, m).

    A polynomial of x is f x, where f is a polynomial of the square x x^T; the next square is f x x^T f. Only the
    product of all f is multiplied by x. What is small in x loses digits in the square, the more so the more it grows:
    after two iterations, and then after every third, the square is computed again.
    """
    eye = jnp.eye(x.shape[-2])
    parts = [polynomials[:2], *(polynomials[first : first + 3] for first in range(2, len(polynomials), 3))]
    for part in parts:
        square, factor = symmetric(x, x), eye
        for number, (a, b, c) in enumerate(part):
            f = a * eye + b * square + c * symmetric(square, square)
            factor = f if number == 0 else symmetric(f, factor)
            if number < len(part) - 1:
                square = symmetric(symmetric(f, square), f)
        x = factor @ x
    return x


def symmetric(x: Array, y: Array, compute: Compute = "float32") -> Array:
    """Return x y^T of matrices (…, m, n), which must be symmetric: one of its quarters is copied."""
    axes, half = "...mk,...nk->...mn", x.shape[-2] // 2
    if x.shape[-2] < MANY_ROWS:
        return _product(axes, x, y, compute)
    (x1, x2), (y1, y2) = ((each[..., :half, :], each[..., half:, :]) for each in (x, y))
    corner = _product(axes, x2, y1, compute)
    above = jnp.concatenate([_product(axes, x1, y1, compute), corner.mT], -1)
    below = jnp.concatenate([corner, _product(axes, x2, y2, compute)], -1)
    return jnp.concatenate([above, below], -2)


def _product(axes: str, x: Array, y: Array, compute: Compute) -> Array:
    """Return a product in float32 of matrices rounded to `compute`."""
    return jnp.einsum(axes, x.astype(compute), y.astype(compute), preferred_element_type=jnp.float32)


def is_tall(matrices: Array) -> bool:
    """Return whether matrices (…, m, n) have more rows than columns."""
    return matrices.shape[-2] > matrices.shape[-1]
