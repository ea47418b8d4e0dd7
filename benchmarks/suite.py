"""From a suite's file to its runs: seeds × rows × environments, all checked before one starts.

    about: what it compares, in one sentence
    seeds: 10                  # how many from 0 on, a list, or a range 0..9
    runs:
      - algo: ppo
        env: [CartPole-v1, Acrobot-v1]
        overrides: [total_steps=100_000, algo.lr=1e-3]
      - {name: ppo-wide, algo: ppo, env: CartPole-v1, overrides: ["model.hidden_sizes=[256,256]"]}

``name`` is the label a run has in tables and reports, by default its algorithm; ``model`` is as in
``zoo train``, and so are the overrides; a row that is dear may name fewer ``seeds`` of its own, and
``together: true`` trains a row's seeds at once in one process. A suite is data: an algorithm that
joins adds a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from zoo.core.config import Config, as_overrides, compose
from zoo.core.overrides import parse
from zoo.core.settings import require_seed
from zoo.errors import UserError, nearest

__all__ = ["Job", "Suite", "load", "names", "seeds"]

_SHIPPED = Path(__file__).resolve().parent / "suites"
_MOST_SEEDS = 10_000
#: what a row may say, and the type of each; the first two it has to say
_SEEDS = (int, str, list)
_ROW = {
    "algo": str,
    "env": (str, list),
    "name": str,
    "model": str,
    "seeds": _SEEDS,
    "together": bool,
    "overrides": list,
}
_SUITE = {"about": str, "seeds": _SEEDS, "runs": list}
#: overrides that would make a run another one than its folder says
_SET_HERE = {
    "algo": "the row's algo:",
    "env": "the row's env:",
    "seed": "the suite's seeds:, or --seeds",
    "run_dir": "--out",
}


@dataclass(frozen=True)
class Job:
    """One run that a suite asks for.

    Attributes
    ----------
    label : str
        Whose run it is; with ``env`` the group it belongs to.
    env : str
        The environment's name, as in ``env=``.
    seed : int
        Its seed.
    overrides : tuple of str
        What ``zoo train`` is given, all but ``run_dir``.
    config : Config
        The settings that these make.
    together : bool
        Whether it is trained in one process with the other seeds.
    """

    label: str
    env: str
    seed: int
    overrides: tuple[str, ...]
    config: Config
    together: bool = False

    @property
    def folder(self) -> str:
        """Where the run goes, relative to the folder of the suite's results."""
        return f"{_file_name(self.label)}/{_file_name(self.env)}/seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.label} {self.env} seed {self.seed}"


@dataclass(frozen=True)
class Suite:
    """A suite: its name, what its file says, and its runs in the order of their start.

    Runs take turns: the first seed of every row and environment, then the second. So a row that
    can't work is seen in the first minutes, and a suite that is stopped half way has compared all
    its rows on the same seeds.
    """

    name: str
    about: str
    text: str
    jobs: tuple[Job, ...]
    notes: tuple[str, ...]


def names() -> list[str]:
    """Return the names of the suites that come with the library, sorted."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load(
    source: str,
    *,
    only_seeds: str | None = None,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Suite:
    """Read and check a suite.

    Parameters
    ----------
    source : str
        One of :func:`names`, or the path of a file.
    only_seeds : str, optional
        In place of the suite's seeds and of its rows'; see :func:`seeds`.
    only : sequence of str
        ``label/env``, a label or an environment: the runs to keep. Empty keeps all.
    overrides : sequence of str
        Settings for every run; they come last and win.

    Raises
    ------
    UserError
        For a file that is missing or wrong, a row whose settings can't be (it is named), and runs
        that would share a folder.
    """
    path, text = _find(source)
    tree = _read(path, text)
    asked = None if only_seeds is None else seeds(only_seeds)
    suites = asked or seeds(tree["seeds"], f"{path.name}: seeds")
    rows, drawn = [], {}
    for number, row in enumerate(tree["runs"], start=1):
        where = f"{path.name}, row {number}"
        for job in _row(row, where, suites[0], overrides):
            rows.append(job)
            own = asked is None and "seeds" in row
            drawn[job.folder] = seeds(row["seeds"], f"{where}: seeds") if own else suites
    _refuse_shared_folders(rows)
    rows = _selected(rows, only)
    turns = zip_longest(*([_with_seed(job, s) for s in drawn[job.folder]] for job in rows))
    return Suite(
        name=path.stem,
        about=tree.get("about", ""),
        text=text,
        jobs=tuple(job for turn in turns for job in turn if job is not None),
        notes=tuple(dict.fromkeys(note for job in rows for note in job.config.notes)),
    )


def seeds(asked: Any, where: str = "--seeds") -> tuple[int, ...]:
    """Return the seeds that a count, a list, or a text of either or of a range stands for.

    Examples
    --------
    >>> seeds(3), seeds("0..2"), seeds([5, 7]), seeds("5,7")
    ((0, 1, 2), (0, 1, 2), (5, 7), (5, 7))
    """
    listed = asked
    if isinstance(asked, str):
        try:
            listed = _from_text(asked)
        except ValueError:
            listed = None
    if isinstance(listed, int) and not isinstance(listed, bool):
        listed = range(listed)
    if not isinstance(listed, list | range):
        written = "[0,3,5]" if where.endswith("=") else "0,3,5"  # an override, an option
        raise UserError(
            f"{where} takes how many seeds there are, a range as in 0..4, or a list as in {written}"
            f" (got {asked!r})."
        )
    amount = len(listed) if isinstance(listed, list) else listed.stop - listed.start
    if not 0 < amount <= _MOST_SEEDS:
        raise UserError(f"{where} must name 1 to {_MOST_SEEDS:,} seeds (got {asked!r}).")
    taken: set[int] = set()
    for seed in listed:
        if type(seed) is not int:
            raise UserError(f"{where} takes whole numbers (got {seed!r}).")
        require_seed(where, seed)
        if seed in taken:
            raise UserError(f"{where} names {seed} twice: two runs would share one folder.")
        taken.add(seed)
    return tuple(listed)


def _from_text(text: str) -> int | list[int] | range:
    first, between, last = text.partition("..")
    if between:
        return range(int(first), int(last) + 1)
    return [int(part) for part in text.split(",")] if "," in text else int(text)


def _find(source: str) -> tuple[Path, str]:
    """Return a suite's path and text; a bare word is a shipped suite's name first."""
    path = Path(source).expanduser()
    if source in names():
        path = _SHIPPED / f"{source}.yaml"
    elif not path.is_file():
        offered = ", ".join(names())
        hint = nearest(source, names())
        raise UserError(
            f"no suite '{source}': there is {offered}, or give the path of a file.{hint}"
        )
    try:
        return path, path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read the suite {path}: {error}.") from error


def _read(path: Path, text: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    _check(tree, _SUITE, ("seeds", "runs"), path.name)
    if not tree["runs"]:
        raise UserError(f"{path.name} has no runs: list at least one row with algo: and env:.")
    return dict(tree)


def _check(tree: Any, types: Mapping[str, Any], needed: Iterable[str], where: str) -> None:
    """Refuse keys that there are not, and values of the wrong type."""
    if not isinstance(tree, Mapping):
        raise UserError(f"{where} must be a mapping with {', '.join(types)} (got {tree!r}).")
    for key, value in tree.items():
        if key not in types:
            hint = nearest(str(key), types)
            raise UserError(f"{where}: no key '{key}', there is {', '.join(types)}.{hint}")
        if not isinstance(value, types[key]) or isinstance(value, bool) != (types[key] is bool):
            raise UserError(f"{where}: {key} takes {_kind(types[key])} (got {value!r}).")
    for key in needed:
        if key not in tree:
            raise UserError(f"{where}: {key} is missing.")


def _kind(types: Any) -> str:
    words = {str: "a text", list: "a list", int: "a whole number", bool: "true or false"}
    return " or ".join(words[t] for t in (types if isinstance(types, tuple) else (types,)))


def _row(row: Any, where: str, seed: int, overrides: Sequence[str]) -> Iterator[Job]:
    """Yield a row's runs with one seed, one for each environment."""
    _check(row, _ROW, ("algo", "env"), where)
    envs = [row["env"]] if isinstance(row["env"], str) else row["env"]
    for kind, listed in (("env", envs), ("overrides", row.get("overrides", []))):
        for text in listed:
            if not isinstance(text, str):
                raise UserError(f"{where}: {kind} lists texts (got {text!r}).")
    if not envs:
        raise UserError(f"{where}: env lists nothing.")
    for env in envs:
        try:
            yield _job(row, env, seed, [*row.get("overrides", []), *overrides])
        except UserError as error:
            raise UserError(f"{where} ({row['algo']} on {env}): {error}") from error


def _job(row: Mapping[str, Any], env: str, seed: int, overrides: list[str]) -> Job:
    picked, values = parse(overrides)
    for key in [*picked, *dict(values)]:
        if key in _SET_HERE:
            raise UserError(f"the override {key}= is set by the suite: use {_SET_HERE[key]}.")
    chosen = {"algo": row["algo"], "env": env, "seed": seed}
    given = {"model": row["model"]} if "model" in row else {}
    config = compose([*as_overrides({**chosen, **given}), *overrides])
    # A model that was chosen for the user is chosen once, here, for every process and machine.
    chosen["model"] = config["model.name"]
    chosen |= {"preset": config["preset"]} if config["preset"] else {}
    written = (*as_overrides(chosen), *overrides)
    together = row.get("together", False)
    return Job(row.get("name", row["algo"]), env, seed, written, config, together)


def _with_seed(job: Job, seed: int) -> Job:
    """Return the run with another seed, without composing its settings again."""
    old, new = (as_overrides({"seed": s})[0] for s in (job.seed, seed))
    config = Config({**job.config.tree, "seed": seed}, job.config.notes)
    overrides = tuple(new if text == old else text for text in job.overrides)
    return replace(job, seed=seed, overrides=overrides, config=config)


def _refuse_shared_folders(jobs: Iterable[Job]) -> None:
    taken: dict[str, Job] = {}
    for job in jobs:
        other = taken.setdefault(job.folder.casefold(), job)
        if other is not job:
            raise UserError(
                f"two rows would write the folder {Path(job.folder).parent} ({other.label} on"
                f" {other.env}, {job.label} on {job.env}): give one of them another name:."
            )


def _selected(jobs: list[Job], only: Sequence[str]) -> list[Job]:
    """Keep the runs that one of ``only`` names, all where there is none."""
    ways = {job.folder: (f"{job.label}/{job.env}", job.label, job.env) for job in jobs}
    for name in only:
        if not any(name in those for those in ways.values()):
            offered = [those[0] for those in ways.values()]
            raise UserError(
                f"--only {name}: the suite has {', '.join(offered)}.{nearest(name, offered)}"
            )
    return [job for job in jobs if not only or not set(only).isdisjoint(ways[job.folder])]


def _file_name(name: str) -> str:
    """Return the name with what can't stand in a file's name, or shouldn't, replaced.

    Examples
    --------
    >>> _file_name("ALE/Pong-v5"), _file_name("a:b c")
    ('ALE-Pong-v5', 'a-b-c')
    """
    return re.sub(r"[^\w.+-]+", "-", name).lstrip(".-")[:80] or "unnamed"
