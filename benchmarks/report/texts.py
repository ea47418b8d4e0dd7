"""What texts hold: `` `code` `` and ``[links](target)``; everything else is taken as it is."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Literal
from urllib.parse import quote

__all__ = [
    "Span",
    "clean",
    "leading_number",
    "plain",
    "relative_link",
    "safe_target",
    "slug",
    "spans",
]

# Neither XML nor HTML has a way to write them, and half a surrogate pair has no UTF-8.
_ILLEGAL = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x84\x86-\x9f]")
_BREAKS = re.compile("[ \t\r\n\x85\u2028\u2029]+")  # but no space that forbids a line break
_INLINE = re.compile(r"`([^`]+)`|\[([^\[\]]+)\]\(((?:[^()\s]|\([^()\s]*\))+)\)")
_NUMBER = re.compile(
    r"[<>≤≥≈~]?\s*([+\-−]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+\-−]?\d+)?)\s*(%|[a-zA-Z]+)?"
)
_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Span:
    """A piece of a text; the text of a link may hold code again."""

    kind: Literal["plain", "code", "link"]
    text: str
    target: str = ""


def clean(text: str) -> str:
    """Return the text on one line, without characters that a page can't hold."""
    return _BREAKS.sub(" ", _ILLEGAL.sub("\ufffd", text)).strip(" ")


def spans(text: str) -> list[Span]:
    """Split a text; a link whose target is refused (:func:`safe_target`) stays plain.

    Examples
    --------
    >>> spans("see `a`")
    [Span(kind='plain', text='see ', target=''), Span(kind='code', text='a', target='')]
    """
    text = clean(text)
    found, start = [], 0
    for match in _INLINE.finditer(text):
        code, words, target = match.groups()
        address = safe_target(target) if words else None
        if words and address is None:
            continue
        found.append(Span("plain", text[start : match.start()]))
        found.append(Span("link", words, address or "") if words else Span("code", code))
        start = match.end()
    found.append(Span("plain", text[start:]))
    return [span for span in found if span.text]


def plain(text: str) -> str:
    """Return the text without its marks, for places that take none."""
    return "".join(plain(s.text) if s.kind == "link" else s.text for s in spans(text))


def safe_target(target: str) -> str | None:
    """Return a target as links write it, None unless it is http(s), a relative path or #anchor.

    What a link can't hold is percent-encoded. A colon before the first slash makes a scheme
    (``javascript:``), for browsers also where white space is strewn in; a slash at the start leads
    out of the folder or, doubled, to another host.
    """
    if target.startswith("#"):
        return f"#{slug(target)}"
    outside = not target or target.startswith(("/", "\\")) or ":" in target.split("/", 1)[0]
    if outside and not re.match(r"https?://", target, re.IGNORECASE):
        return None
    return quote(target.encode("utf-8", "replace"), safe="/:?#[]@!$&'*+,;=%-._~")


def relative_link(target: Path, folder: Path) -> str | None:
    """Return the way from a folder to a file or folder that exists, None if it does not.

    It follows the names as they are given, as browsers do: they know nothing of symbolic links.
    """
    if not os.path.exists(target):  # Path.exists raises where a name is too long
        return None
    return quote(os.fsencode(os.path.relpath(target, folder)))


def slug(text: str) -> str:
    """Return a name for an anchor: letters, digits and hyphens, lower case."""
    letters = unicodedata.normalize("NFKC", text).lower()
    return re.sub(r"[\W_]+", "-", letters).strip("-") or "part"


def anchors(names: Iterable[str]) -> list[str]:
    """Return an anchor for each name, no two the same, none that the page has for itself."""
    taken = ["notes", "figures"]
    for name in map(slug, names):
        same = (f"{name}-{number}" for number in count(2))
        taken.append(next(anchor for anchor in chain([name], same) if anchor not in taken))
    return taken[2:]


def leading_number(text: str) -> float | None:
    """Return the number that a cell begins with, in one unit (seconds; 12k → 12,000), or None.

    Examples
    --------
    >>> leading_number("−1.5M [−2M, 0]"), leading_number("2 min"), leading_number("3seeds")
    (-1500000.0, 120.0, 3.0)
    """
    match = _NUMBER.match(plain(text))
    if not match:
        return None
    digits, unit = match.groups()
    return float(digits.replace(",", "").replace("−", "-")) * _UNITS.get(unit or "", 1.0)
