"""The colours, in one place: each as it is on the light and on the dark page.

The series' colours were searched, within the hues of Okabe and Ito's set, for the largest smallest
distance (CIE Lab) to people with normal sight, protanopia, deuteranopia and tritanopia, at a
contrast of 3 : 1 or more to the page (WCAG 2.2, 1.4.11). From the ninth series on, dashes tell the
repeated colours apart.
"""

from __future__ import annotations

__all__ = ["COLOURS", "NUM_COLOURS", "NUM_DASHES", "series_class", "variables"]

COLOURS: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#15171c"),
    "raised": ("#f6f7f9", "#1d2027"),
    "ink": ("#1c1f26", "#e6e8ec"),
    "muted": ("#5c6370", "#a0a7b4"),
    "line": ("#e3e6ea", "#2d323b"),
    "axis": ("#9aa1ad", "#626a78"),
    "accent": ("#1d4fe0", "#8fb0f5"),
    "note": ("#b7791f", "#d9a441"),
    "note-page": ("#fdf8ec", "#25211a"),
    "c0": ("#1d4fe0", "#8fb0f5"),
    "c1": ("#d5770e", "#d9741a"),
    "c2": ("#1f8057", "#2fe0a0"),
    "c3": ("#6920a1", "#a95de8"),
    "c4": ("#7b611e", "#f5c64a"),
    "c5": ("#20a0cc", "#2e8ba8"),
    "c6": ("#bc3b90", "#e5486a"),
    "c7": ("#40464d", "#dcdee2"),
}
NUM_COLOURS = 8
NUM_DASHES = 4


def series_class(colour: int) -> str:
    """Return the CSS classes of a group's colour and, past the eighth, of its dashes."""
    if colour < 0:
        return "cx"
    dash = colour // NUM_COLOURS % NUM_DASHES
    return f"c{colour % NUM_COLOURS}" + (f" d{dash}" if dash else "")


def variables(theme: int) -> str:
    """Return the colours as CSS custom properties: of the light (0) or the dark theme (1)."""
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())
