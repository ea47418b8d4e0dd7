"""From values to places on a picture: where ticks stand and how figures are written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

__all__ = [
    "LARGEST",
    "Scale",
    "domain",
    "figure",
    "interval",
    "resolution",
    "short",
    "tick_labels",
    "ticks",
]

_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_LARGE = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_SPACE = "\N{NO-BREAK SPACE}"
#: beyond it the width of a domain would overflow
LARGEST = 1e300


@dataclass(frozen=True)
class Scale:
    """A linear map of ``low … high`` onto ``start … end``, in units of the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: np.ndarray) -> np.ndarray:
        """Return where values lie, [N]."""
        share = (np.asarray(value, float) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def domain(values: np.ndarray, pad: float = 0.0, whole: bool = False) -> tuple[float, float]:
    """Return the stretch that an axis shows: from the least finite value to the greatest.

    Parameters
    ----------
    values : ndarray, [N]
        What has to fit; others than finite ones are passed over.
    pad : float
        The part of the width that is left free at both ends.
    whole : bool
        Whether it starts at 0 where the values begin near it, as steps and seconds do.
    """
    values = values[np.isfinite(values)]
    if values.size == 0:
        return 0.0, 1.0
    low, high = np.clip([values.min(), values.max()], -LARGEST, LARGEST).tolist()
    if whole and 0 <= low <= high / 2:
        low = 0.0
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # constant, but for rounding
        width = abs(high) / 10 or 1.0
        return low - width, high + width
    return low - pad * (high - low), high + pad * (high - low)


def ticks(low: float, high: float, form: str, most: int) -> list[float]:
    """Return about ``most`` round places within ``low … high``, or fewer.

    They are steps of 1, 2 or 5 apart, on a clock those of a clock.

    Examples
    --------
    >>> ticks(0, 530, "number", 7), ticks(0, 4000, "seconds", 5)
    ([0.0, 100.0, 200.0, 300.0, 400.0, 500.0], [0.0, 900.0, 1800.0, 2700.0, 3600.0])
    """
    step = _step((high - low) / most, form)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def _step(least: float, form: str) -> float:
    if form == "seconds" and 0.5 < least <= _CLOCK[-1]:
        return float(next(step for step in _CLOCK if step >= least * 0.99))
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(m for m in (1, 2, 5, 10) if m * power >= least * 0.99)


def decimals(step: float) -> int:
    """Return how many decimals tell two values apart that lie ``step`` from each other."""
    return min(max(0, -math.floor(math.log10(step) + 1e-9)), 300) if step > 0 else 0


def resolution(width: float, form: str) -> float:
    """Return the step at which figures spread over ``width`` show three digits of it.

    Percents have one decimal or more.
    """
    step = 10.0 ** (math.floor(math.log10(width)) - 2) if width > 0 else 1.0
    return min(step, 0.001) if form == "percent" else step


def figure(value: float, form: str, step: float) -> str:
    """Write a value so that it differs from one that lies ``step`` beside it.

    Parameters
    ----------
    value : float
        Seconds for ``seconds``, a fraction for ``percent``.
    form : str
        ``number``, ``count``, ``seconds`` or ``percent``.
    step : float, > 0
        How fine it is to be.

    Examples
    --------
    >>> figure(12_345, "count", 100), figure(0.4136, "percent", 0.001), figure(-3, "number", 1)
    ('12.3k', '41.4\xa0%', '−3')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    value = min(max(float(value), -LARGEST), LARGEST)
    if form == "percent":
        return f"{figure(100 * value, 'number', 100 * step)}{_SPACE}%"
    if form == "seconds":
        return _clock(value, step, *_clock_unit(value))
    size = max(abs(value), step)
    if value and (size >= 1e15 or size < 1e-4):
        digits = math.floor(math.log10(size)) - math.floor(math.log10(step))
        mantissa, power = f"{value:.{min(max(0, digits), 6)}e}".split("e")
        return f"{mantissa}e{int(power)}".replace("-", "−")
    for unit, letter in _LARGE if form == "count" or size >= 1e6 else ():
        if abs(value) >= unit:
            return _fixed(value / unit, step / unit) + letter
    return _fixed(value, step)


def interval(value: float, low: float | None, high: float | None, form: str, step: float) -> str:
    """Write a value with the ends of its interval, if it has one: ``41.4 [38.0, 44.9] %``."""
    if low is None or high is None or math.isnan(low + high):
        return figure(value, form, step)
    if form == "seconds":  # all three in the unit that the greatest needs
        longest = max((abs(v) for v in (value, low, high) if math.isfinite(v)), default=0.0)
        size, name = _clock_unit(longest)
        words = [figure(v / size, "number", step / size) for v in (value, low, high)]
    else:
        name = "%" if form == "percent" else ""
        words = [figure(v, form, step).removesuffix(f"{_SPACE}%") for v in (value, low, high)]
    return f"{words[0]} [{words[1]}, {words[2]}]" + (_SPACE + name if name else "")


def tick_labels(places: list[float], form: str) -> list[str]:
    """Write the figures of an axis, with no more decimals than each needs."""
    step = places[1] - places[0] if len(places) > 1 else abs(max(places, default=1.0)) or 1.0
    fine = step / 100
    if form == "seconds":
        unit = _clock_unit(max(places, default=0.0), step)
        return ["0" if place == 0 else short(_clock(place, fine, *unit)) for place in places]
    return [short(figure(place, form, fine)) for place in places]


def _clock_unit(longest: float, step: float = 60.0) -> tuple[float, str]:
    if abs(longest) >= 7200 and step % 60 == 0:
        return 3600.0, "h"
    return (60.0, "min") if abs(longest) >= 120 and step % 30 == 0 else (1.0, "s")


def _clock(value: float, step: float, unit: float, name: str) -> str:
    return f"{figure(value / unit, 'number', step / unit)}{_SPACE}{name}"


def _fixed(value: float, step: float) -> str:
    text = f"{value:,.{decimals(step)}f}".replace("-", "−")
    return text if re.search("[1-9]", text) else text.lstrip("−")


def short(text: str) -> str:
    """Drop the zeros that end the decimals of a figure."""
    return re.sub(r"\.(?!\d)", "", re.sub(r"(\.\d*?)0+(?!\d)", r"\1", text))
