"""The interval methods that were tried before one was chosen, for many experiments at once.

Each takes one group [runs, experiments], or two whose difference is asked for, and gives the 95 %
limits, [experiments] each. All are of interquartile means, but ``student``'s of means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from zoo.benchmarks.bootstrap import expanded_band, quantiles, rank_weights, resampled_band
from zoo.benchmarks.statistics import trim
from zoo.benchmarks.student import t_quantile

__all__ = ["CANDIDATES", "Limits"]

Groups = Sequence[np.ndarray]
Limits = tuple[np.ndarray, np.ndarray]
_SIGNS = (1.0, -1.0)
_CDF = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)), otypes=[np.float64])
_QUANTILE = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])


def expanded(groups: Groups) -> Limits:
    """Expanded percentiles (Hesterberg 2015), the method that reports use."""
    band = expanded_band(groups)
    assert band.low is not None and band.high is not None
    return band.low, band.high


def percentile(groups: Groups) -> Limits:
    """Percentiles of the bootstrap, as rliable's."""
    band = resampled_band(groups, "iqm", np.full(groups[0].shape[1], 0.025))
    assert band.low is not None and band.high is not None
    return band.low, band.high


def bca(groups: Groups) -> Limits:
    """Bias-corrected and accelerated percentiles (Efron 1987), the jackknife over all runs."""
    parts = [
        sign * (np.sort(g, axis=0).T @ rank_weights(len(g), trim(len(g)), stream).T)
        for stream, (sign, g) in enumerate(zip(_SIGNS, groups))
    ]
    resampled = np.sort(np.sum(parts, axis=0), axis=1)
    influence = np.concatenate([s * _influence(g) for s, g in zip(_SIGNS, groups)])
    squares = (influence**2).sum(axis=0)
    acceleration = (influence**3).sum(axis=0) / (6 * np.where(squares > 0, squares, 1.0) ** 1.5)
    reps = resampled.shape[1]
    below = (resampled < _value(groups)[:, None]).mean(axis=1)
    bias = _QUANTILE(np.clip(below, 1 / reps, 1 - 1 / reps))

    def limit(z: float) -> np.ndarray:
        level = _CDF(bias + (bias + z) / (1 - acceleration * (bias + z)))
        place = np.rint(level * (reps - 1)).astype(int)
        return np.take_along_axis(resampled, place[:, None], axis=1)[:, 0]

    return limit(-1.959964), limit(1.959964)


def bootstrap_t(groups: Groups) -> Limits:
    """Studentised bootstrap with the standard error of Yuen, 1000 resamples."""
    pivots, errors = [], []
    for stream, (sign, group) in enumerate(zip(_SIGNS, groups)):
        n, ordered = len(group), np.sort(group, axis=0)
        ranks = np.sort(np.random.default_rng((7, stream)).integers(n, size=(n, 1000)), axis=0)
        resample = ordered[ranks]  # [n, reps, experiments], in the order of its ranks
        pivots.append(sign * (_trimmed(resample) - _trimmed(ordered)))
        errors.append(_yuen_variance(resample))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.sum(pivots, axis=0) / np.sqrt(np.sum(errors, axis=0))
    t = np.nan_to_num(t, nan=0.0, posinf=1e12, neginf=-1e12)
    low, high = quantiles(t.T, np.asarray(0.025))
    error = np.sqrt(np.sum([_yuen_variance(np.sort(g, axis=0)) for g in groups], axis=0))
    return _value(groups) - high * error, _value(groups) - low * error


def yuen(groups: Groups) -> Limits:
    """Student's t for trimmed means (Yuen 1974; Tukey & McLaughlin 1963 for one group)."""
    kept = [len(g) - 2 * trim(len(g)) for g in groups]
    variances = [_yuen_variance(np.sort(g, axis=0)) for g in groups]
    return _welch(_value(groups), variances, [h - 1 for h in kept])


def student(groups: Groups) -> Limits:
    """Student's t for the mean, Welch's for a difference of means."""
    value = np.sum([s * g.mean(axis=0) for s, g in zip(_SIGNS, groups)], axis=0)
    variances = [g.var(axis=0, ddof=1) / len(g) for g in groups]
    return _welch(value, variances, [len(g) - 1 for g in groups])


def _value(groups: Groups) -> np.ndarray:
    return np.sum([s * _trimmed(np.sort(g, axis=0)) for s, g in zip(_SIGNS, groups)], axis=0)


def _influence(group: np.ndarray) -> np.ndarray:
    """What each of the sorted runs adds to the trimmed mean, by the jackknife."""
    n, ordered = len(group), np.sort(group, axis=0)
    left_out = np.stack([_trimmed(np.delete(ordered, i, axis=0)) for i in range(n)])
    return (n - 1) / n * (left_out.mean(axis=0) - left_out)


def _trimmed(ordered: np.ndarray) -> np.ndarray:
    cut = trim(len(ordered))
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def _yuen_variance(ordered: np.ndarray) -> np.ndarray:
    """Squared standard error of the trimmed mean, from the winsorised sum of squares."""
    cut = trim(len(ordered))
    kept = len(ordered) - 2 * cut
    winsorised = np.clip(ordered, ordered[cut], ordered[len(ordered) - cut - 1])
    squares = ((winsorised - winsorised.mean(axis=0)) ** 2).sum(axis=0)
    return squares / (kept * (kept - 1))


def _welch(value: np.ndarray, variances: Sequence[np.ndarray], df: Sequence[int]) -> Limits:
    variance = np.sum(variances, axis=0)
    parts = np.sum([v**2 / d for v, d in zip(variances, df)], axis=0)
    with np.errstate(invalid="ignore"):
        joint = np.where(variance > 0, variance**2 / parts, min(df))
    half = t_quantile(0.95, joint) * np.sqrt(variance)
    return value - half, value + half


#: by the name that the tables have
CANDIDATES: dict[str, Callable[[Groups], Limits]] = {
    "expanded percentile": expanded,
    "percentile": percentile,
    "BCa": bca,
    "bootstrap-t": bootstrap_t,
    "Yuen's t": yuen,
    "Student's t of means": student,
}
