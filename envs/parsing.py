r"""Reading an answer out of a completion, in a strict and a lenient grade.

* **strict** reads the number that directly follows the last ``####``, wherever that stands.
* **lenient** is strict's answer where there is one, else the last ``\boxed{}``, else the last
  number.
* Three or more *different* ``####`` answers are guessing: both grades are 0.
* A thought (``<think>…</think>``) is no answer: what follows the last closing tag is read. In a
  thought that was never closed, strict reads nothing, lenient as where nothing is marked.

Around a number these are read over: currency signs, a percent sign, thousands separators, a sign,
a final point, Markdown emphasis, LaTeX delimiters, a unit or any text behind it. Fractions
(``1/2``, ``\frac{1}{2}``) and scientific notation (``1.5e3``) are numbers. Behind ``####`` an
arithmetic expression (``3 * 6``) is no answer.

Numbers are compared exactly, as fractions. Nothing is evaluated, every pattern runs in linear
time, and digits and exponents are bounded, so no text can hang the grader. A gold answer that is
no number (``Paris``) is compared as text, without regard to case and outer punctuation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = [
    "Grade",
    "boxed",
    "grade",
    "lenient_number",
    "marked_number_end",
    "number",
    "only_marked_text",
    "split_thought",
]

#: Longer texts are read from their end only.
MAX_CHARACTERS = 200_000
#: A number with more digits, or a larger exponent, is read as no number.
MAX_DIGITS = 1_000
MAX_EXPONENT = 300
#: So many different ``####`` answers score nothing.
GUESSES = 3

_THINK, _THOUGHT = "<think>", "</think>"
_MARKER = re.compile(r"#{4,}")
_CURRENCY = r"(?:\\?\$|[€£¥₹])"
# Read over between the marker and the number. The alternatives begin with different characters
# and nothing follows the loop, so there is no backtracking.
_DECORATION = re.compile(r"(?:[\s*_`:=({\[]|\\?\$|[€£¥₹]|\\(?:boxed|text|mathbf)\{|\\[(\[,;! ])*")
_BODY = (
    r"(?:"
    r"\\[dt]?frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\}"
    r"|(?:(?P<whole>[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9])|[0-9]+)(?P<decimals>\.[0-9]+)?"
    r"|(?P<point>\.[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+))?"
    r"(?:/(?P<divisor>[0-9]+)(?![0-9/]|[.,][0-9]))?"
    r")"
)
_SIGN = r"(?P<sign>[-+\u2212])"
_INNER = r"(?P<inner>[-+\u2212])"  # $-18
_NUMBER = re.compile(rf"{_SIGN}?[ \t]?(?:{_CURRENCY}[ \t]?)?{_INNER}?{_BODY}")
# In running text "10-18" holds the number 18, "x=-18" the number -18.
_ANYWHERE = re.compile(rf"(?:(?<![\w)\]}}.]){_SIGN}{_CURRENCY}?(?=[0-9.\\]))?{_BODY}")
# Behind a number: the rest of a malformed one ("1,0"), or of an expression ("3 * 6", "18-20").
_CONTINUED = re.compile(r",[0-9]|\*{1,2}[0-9]|[ \t]+\*[ \t]+[0-9]|[ \t]*[-+/^×÷\u2212][ \t]*[0-9]")
_TAIL = re.compile(r"[\s.%*_`$)}\]]*")


@dataclass(frozen=True)
class Grade:
    """Both grades of one completion.

    Attributes
    ----------
    strict, lenient : float
        1.0 where the answer read in that way equals the gold answer, else 0.0.
    """

    strict: float
    lenient: float


def grade(text: str, gold: str) -> Grade:
    r"""Grade a completion against the gold answer.

    Parameters
    ----------
    text : str
        The completion.
    gold : str
        The right answer: a number, or any short text.

    Returns
    -------
    Grade
        Never raises for what the completion holds.

    Examples
    --------
    >>> grade("6 + 12 = 18\n#### $18.00", "18")
    Grade(strict=1.0, lenient=1.0)
    >>> grade("The answer is 18 apples.", "18")
    Grade(strict=0.0, lenient=1.0)
    """
    text, open_thought = split_thought(text[-MAX_CHARACTERS:])
    target = number(gold)
    if target is None:
        return _grade_text(text, gold, open_thought)
    answers = [] if open_thought else _marked_numbers(text)
    if _guessing(answers):
        return Grade(0.0, 0.0)
    strict = answers[-1] if answers else None
    lenient = strict if strict is not None else _unmarked_number(text)
    return Grade(float(strict == target), float(lenient == target))


def split_thought(text: str) -> tuple[str, bool]:
    """Return what follows the last thought that was closed, and whether another is left open.

    Examples
    --------
    >>> split_thought("<think>17? no</think>18"), split_thought("<think>17?")
    (('18', False), ('<think>17?', True))
    """
    rest = text.rpartition(_THOUGHT)[2]
    return rest, _THINK in rest


def lenient_number(text: str) -> Fraction | None:
    r"""Return strict's answer, else the last ``\boxed{}``'s, else the last number."""
    text, open_thought = split_thought(text[-MAX_CHARACTERS:])
    answers = [] if open_thought else _marked_numbers(text)
    if _guessing(answers):
        return None
    if answers and answers[-1] is not None:
        return answers[-1]
    return _unmarked_number(text)


def number(text: str) -> Fraction | None:
    r"""Return the number that a short text consists of, or None.

    Examples
    --------
    >>> number("$1,000.50"), number(r"\frac{1}{2}"), number("18 apples")
    (Fraction(2001, 2), Fraction(1, 2), None)
    """
    found = _number_at(text, 0)
    if found is None:
        return None
    value, end = found
    return value if _tail(text, end) == len(text) else None


def marked_number_end(text: str) -> int | None:
    """Return where the only ``####`` answer ends, None unless there is exactly one ``####``."""
    markers = list(_MARKER.finditer(text))
    if len(markers) != 1:
        return None
    found = _number_at(text, markers[0].end())
    return None if found is None or found[0] is None else _tail(text, found[1])


def only_marked_text(text: str) -> str | None:
    """Return what follows the ``####``, stripped; None unless there is exactly one of them."""
    pieces = _MARKER.split(text)
    return pieces[1].strip() if len(pieces) == 2 else None


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{}``; None without one, or where it never closes."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    start += len(r"\boxed{")
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return None


def _marked_numbers(text: str) -> list[Fraction | None]:
    """Return the number behind each ``####`` in order, None where there is none."""
    found = (_number_at(text, marker.end()) for marker in _MARKER.finditer(text))
    return [None if one is None else one[0] for one in found]


def _guessing(answers: list[Fraction | None]) -> bool:
    different: set[Fraction] = set()
    for answer in answers:
        if answer is not None:
            different.add(answer)
            if len(different) >= GUESSES:
                return True
    return False


def _unmarked_number(text: str) -> Fraction | None:
    if r"\boxed{" in text:
        content = boxed(text)
        if content is None:  # cut off inside the box: whatever digits stand there may be half
            return None
        inside = number(content)
        if inside is None:
            inside = _last_number(content)
        if inside is not None:
            return inside
    return _last_number(text)


def _last_number(text: str) -> Fraction | None:
    last = None
    for match in _ANYWHERE.finditer(text):
        last = match
    return None if last is None else _value(last)


def _number_at(text: str, position: int) -> tuple[Fraction | None, int] | None:
    """Read the number that begins at a position, decoration aside, and where it ends."""
    decoration = _DECORATION.match(text, position)
    if decoration is not None:
        position = decoration.end()
    match = _NUMBER.match(text, position)
    if match is None or (match["sign"] and match["inner"]) or _CONTINUED.match(text, match.end()):
        return None
    return _value(match), match.end()


def _tail(text: str, position: int) -> int:
    tail = _TAIL.match(text, position)
    return position if tail is None else tail.end()


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match.group()) > MAX_DIGITS:
        return None
    groups = match.groupdict()
    if groups["top"]:
        bottom = int(groups["bottom"])
        value = Fraction(int(groups["top"]), bottom) if bottom else None
    else:
        whole = re.sub(r"[^0-9]", "", groups["whole"] or "")
        decimals = (groups["decimals"] or groups["point"] or ".")[1:]
        value = Fraction(int(whole + decimals), 10 ** len(decimals))
        exponent = groups["exponent"]
        if exponent:
            if len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
                return None
            value *= Fraction(10) ** int(exponent)
        if groups["divisor"]:
            divisor = int(groups["divisor"])
            value = value / divisor if divisor else None
    negative = (groups["sign"] or groups.get("inner") or "+") in "-\u2212"
    return -value if negative and value is not None else value


def _grade_text(text: str, gold: str, open_thought: bool) -> Grade:
    target = _plain(gold)
    pieces = [] if open_thought else _MARKER.split(text)[1:]
    answers = [answer for answer in (_plain(_first_line(piece)) for piece in pieces) if answer]
    if not target or len(set(answers)) >= GUESSES:
        return Grade(0.0, 0.0)
    strict = answers[-1] if answers else None
    lenient = strict
    if lenient is None:
        content = boxed(text)
        lenient = _plain(content if content is not None else _last_line(text))
    return Grade(float(strict == target), float(lenient == target))


def _first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0]


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(" \t.,;:!?'\"*_`$()[]{}").casefold()
