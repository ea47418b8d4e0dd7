"""Sampled completions as a table: for the terminal, and in plain columns for other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.errors import UserError

__all__ = ["Every", "columns", "for_terminal"]

_WIDTH = 240  # characters of a text that the terminal shows


class Every:
    """Tell in which rounds a table is due: in the first one, then every so many updates.

    Parameters
    ----------
    logger : str
        Whose tables, for messages.
    samples_every : int
        Updates between two tables; 0 shows none.
    samples : int
        Completions in each.

    Raises
    ------
    UserError
        Where one of the numbers is none.
    """

    def __init__(self, logger: str, samples_every: int, samples: int = 1) -> None:
        for name, value, least in (("samples_every", samples_every, 0), ("samples", samples, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(
                    f"logger.{logger}.{name} takes a whole number ≥ {least} (got {value!r})."
                )
        self.samples_every, self.samples = samples_every, samples
        self._last: int | None = None

    def due(self, updates: int, records: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether completions are to be shown now; asking counts as showing."""
        if not self.samples_every or not records or "completion" not in records[0]:
            return False
        if self._last is not None and updates < self._last + self.samples_every:
            return False
        self._last = updates
        return True


def columns(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return names and rows; what is nested gets a column for each part, as ``items/accuracy``.

    A value that a record lacks is None; values that are neither numbers nor text are written out.
    """
    flat = [_flat(record) for record in records]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return names, [[row.get(name) for name in names] for row in flat]


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": x for inner, x in _flat(value).items()}
        else:
            plain = value is None or isinstance(value, bool | int | float | str)
            found[name] = value if plain else str(value)
    return found


def for_terminal(records: Sequence[Mapping[str, Any]]) -> Any:
    """Return a table of rich: rewards, the end of each prompt and the start of its completion."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, expand=True, show_lines=len(records) > 1)
    table.add_column("sample", no_wrap=True)
    table.add_column("prompt", ratio=1, overflow="fold")
    table.add_column("completion", ratio=1, overflow="fold")
    for record in records:
        prompt = str(record.get("prompt", "")).strip()
        completion = str(record.get("completion", "")).strip()
        table.add_row(
            Text("\n".join(_worth(record))),
            Text(("…" if len(prompt) > _WIDTH else "") + prompt[-_WIDTH:]),
            Text(completion[:_WIDTH] + ("…" if len(completion) > _WIDTH else "")),
        )
    return table


def _worth(record: Mapping[str, Any]) -> list[str]:
    """Write the reward, its items and the length, one in a line."""
    given = {"reward": record.get("reward"), **record.get("items", {})}
    lines = [f"{name} {'–' if x is None else f'{x:.3g}'}" for name, x in given.items()]
    cut = "" if record.get("finished", True) else ", cut"
    return [*lines, f"{record['tokens']} tokens{cut}"] if "tokens" in record else lines
