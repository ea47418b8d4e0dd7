"""Scalable Vector Graphics: elements, paths and the width of words without a font at hand."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from html import escape
from itertools import pairwise

import numpy as np

__all__ = ["element", "line", "pieces", "shorten", "text_width", "thin"]

# Widths in ems between those of Helvetica, which most system fonts are like, and of DejaVu Sans.
_NARROW, _WIDE = frozenset("ijlI.,:;|!'()[]{}ftr- "), frozenset("mwMWQ@%")


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """Write an element; ``class_`` and ``text_anchor`` are written ``class`` and ``text-anchor``.

    The content is taken as it is: words have to be escaped before. Attributes that are None are
    left out, floats are rounded to one decimal.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            text = _tenth(round(value * 10)) if isinstance(value, float) else str(value)
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return f"<{' '.join(words)}>{content}</{name}>" if content else f"<{' '.join(words)}/>"


def line(x: np.ndarray, y: np.ndarray) -> str:
    """Write the path through points, [N] each, as short as it goes: relative, to a tenth.

    Rounded first and then told apart, so that errors don't add up.
    """
    tenths = np.rint(np.stack([x, y], axis=1) * 10).astype(np.int64)
    moved = np.any(np.diff(tenths, axis=0) != 0, axis=1)
    tenths = tenths[np.concatenate([[True], moved])]
    steps = "".join(_pair(*step) for step in np.diff(tenths, axis=0).tolist())
    return f"M{_pair(*tenths[0].tolist()).strip()}" + (f"l{steps.strip()}" if steps else "h0")


def thin(x: np.ndarray, y: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most ``most`` ≥ 4 points of a curve, [N] each: the ends, peaks and troughs.

    The points are divided into stretches of equal number, and each keeps its least and its
    greatest: no collapse is ever smoothed away.
    """
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(x), (most - 2) // 2 + 1).astype(int)
    kept = {0, len(x) - 1}
    for start, end in pairwise(edges.tolist()):
        kept |= {start + int(y[start:end].argmin()), start + int(y[start:end].argmax())}
    index = np.array(sorted(kept))
    return x[index], y[index]


def pieces(*arrays: np.ndarray) -> Iterator[slice]:
    """Yield the stretches in which all of the arrays, [N] each, are finite."""
    finite = np.isfinite(np.stack(arrays)).all(axis=0).astype(np.int8)
    turns = np.flatnonzero(np.diff(finite, prepend=0, append=0))
    yield from (slice(int(a), int(b)) for a, b in zip(turns[::2], turns[1::2]))


def text_width(text: str, size: float) -> float:
    """Return about how wide words are, a little more rather than less."""
    return size * sum(map(_letter_width, text))


def shorten(text: str, width: float, size: float) -> str:
    """Cut words so that they fit, in their middle: labels tell most at their ends."""
    if text_width(text, size) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        tail = 2 * kept // 5
        cut = f"{text[: kept - tail].rstrip()}…{text[len(text) - tail :].lstrip()}"
        if text_width(cut, size) <= width:
            return cut
    return "…"


def _letter_width(letter: str) -> float:
    if letter < "\x7f":
        wide = 0.7 if letter.isupper() else 0.59
        return 0.32 if letter in _NARROW else (0.88 if letter in _WIDE else wide)
    if unicodedata.combining(letter):
        return 0.0
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.68


def _pair(x: int, y: int) -> str:
    return "".join(text if text[0] == "-" else f" {text}" for text in (_tenth(x), _tenth(y)))


def _tenth(tenths: int) -> str:
    whole, rest = divmod(abs(tenths), 10)
    text = f"{whole or ''}.{rest}" if rest else f"{whole}"
    return f"-{text}" if tenths < 0 else text
