"""Value rescaling (Pohlen et al. 2018): targets of all magnitudes without clipped rewards."""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-3  # of both papers, Pohlen et al. 2018 and Kapturowski et al. 2019


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x.

    sqrt(a + 1) - 1 is computed as a / (sqrt(a + 1) + 1), which keeps the digits of small values.
    """
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def inverse_rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return h^-1(x) = sign(x) (((sqrt(1 + 4 e (|x| + 1 + e)) - 1) / (2 e))^2 - 1), with e = `epsilon`.

    With u = |x| + 1 + e, (sqrt(1 + 4 e u) - 1) / (2 e) is computed as 2 u / (sqrt(1 + 4 e u) + 1).
    """
    u = x.abs() + 1 + epsilon
    root = 2 * u / ((1 + 4 * epsilon * u).sqrt() + 1)
    return x.sign() * (root.square() - 1)
