"""Student's t distribution, without scipy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["t_probability", "t_quantile"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)


def t_probability(t: ArrayLike, df: ArrayLike) -> np.ndarray:
    """P(|T| ≤ t) for T with ``df`` ≥ 1 degrees of freedom, exact to 1e-9.

    With t = √df tan φ it is 2 c ∫₀^φ cos^(df−1) u du, a smooth integrand for every df.
    """
    t, df = np.asarray(t, dtype=np.float64), np.asarray(df, dtype=np.float64)
    return _central(np.arctan(t / np.sqrt(df)), df)


def t_quantile(confidence: float, df: ArrayLike) -> np.ndarray:
    """The t with P(|T| ≤ t) = ``confidence``, for each of ``df`` ≥ 1.

    Newton's method on φ: it is concave there, so that steps from 0 never overshoot.
    """
    df = np.asarray(df, dtype=np.float64)
    phi = np.zeros_like(df)
    for _ in range(60):
        density = 2 * _constant(df) * np.cos(phi) ** (df - 1)
        step = (confidence - _central(phi, df)) / density
        phi = phi + step
        if np.max(np.abs(step), initial=0.0) < 1e-14:
            break
    return np.sqrt(df) * np.tan(phi)


def _central(phi: np.ndarray, df: np.ndarray) -> np.ndarray:
    u = 0.5 * phi[..., None] * (_NODES + 1)
    integral = 0.5 * phi * (np.cos(u) ** (df[..., None] - 1) @ _WEIGHTS)
    return 2 * _constant(df) * integral


def _constant(df: np.ndarray) -> np.ndarray:
    """Γ((df+1)/2) / (√π Γ(df/2))."""
    log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    return np.exp(log_gamma((df + 1) / 2) - log_gamma(df / 2)) / math.sqrt(math.pi)
