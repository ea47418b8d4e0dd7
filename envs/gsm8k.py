"""GSM8K: grade-school word problems (Cobbe et al., 2021, arXiv:2110.14168).

The data come from the first of these that is there: a local folder (``path=``), the Hugging Face
hub's ``openai/gsm8k``, and, where neither can be reached, problems made from GSM-Symbolic's
templates, which is said in ``notice`` and ``dataset``. All are scored alike, by
:mod:`zoo.envs.parsing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.core.protocols import Prompt
from zoo.envs import hub, parsing
from zoo.envs.question_files import Row, read_table
from zoo.envs.text import QuestionEnv, make_prompt, read_instruction, read_seed, read_size
from zoo.errors import UserError, nearest

__all__ = ["GSM8K", "gsm_symbolic_prompts"]

#: Sizes of the splits made from templates, where the user names none.
TRAIN_SIZE = 5_000
HELDOUT_SIZE = 500


class GSM8K(QuestionEnv):
    """Word problems whose gold answer is a number.

    Parameters
    ----------
    path : str or Path, optional
        Folder with ``train`` and ``test`` as .jsonl or .parquet, keys ``question`` and ``answer``,
        where the answer ends in ``#### number``. Without a test file a tenth of the questions is
        held out. None looks on the hub, then falls back to GSM-Symbolic.
    level : str
        Of the fallback's problems: ``"easy"`` is what the tiny model can do, or ``"all"``.
    train_size, heldout_size : int, optional
        At most so many questions of each split, the first ones; None takes all (of the fallback
        5,000 and 500).
    seed : int
        Random stream of the fallback's problems.
    rewards
        See :func:`zoo.envs.rewards.item.read_rewards`; None pays for accuracy alone.
    instruction : str or bool, optional
        Stands behind every question: a text, or True for "Think step by step, and end with …".
        None leaves the bare question, as the tiny model knows it.
    system : str, optional
        System message.

    Raises
    ------
    UserError
        Data that are not as they must be, named by file and line; an unknown level.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        level: str = "easy",
        train_size: int | None = None,
        heldout_size: int | None = None,
        seed: int = 0,
        rewards: Any = None,
        instruction: str | bool | None = None,
        system: str | None = None,
    ) -> None:
        _check_level("gsm8k", level)
        text = read_instruction(instruction)
        sizes = (
            read_size("gsm8k", "train_size", train_size),
            read_size("gsm8k", "heldout_size", heldout_size),
        )
        notice = None
        if path is not None:
            table = read_table("gsm8k", path)
            rows = (table.train, table.heldout)
            dataset = f"gsm8k (folder {path})"
            if table.remark:
                dataset += f"; {table.remark}"
                notice = f"gsm8k: {table.remark}."
        else:
            found = hub.gsm8k()
            if isinstance(found, str):
                train, heldout = gsm_symbolic_prompts(level, *sizes, seed, text, system)
                dataset = f"gsm-symbolic ({_version()}, level {level})"
                notice = (
                    f"THIS IS NOT GSM8K: {found}, so problems are made from GSM-Symbolic's"
                    f" templates (level {level}). Give env.path=FOLDER for the real data."
                )
                super().__init__(
                    "gsm8k", train, heldout, rewards=rewards, dataset=dataset, notice=notice
                )
                return
            rows = (_hub_rows(found, "train"), _hub_rows(found, "test"))
            dataset = "gsm8k (hub openai/gsm8k)"
        splits = [
            [
                _prompt(row, f"gsm8k/{split}/{index}", text, system)
                for index, row in enumerate(part[:size])
            ]
            for split, part, size in zip(("train", "heldout"), rows, sizes, strict=True)
        ]
        super().__init__("gsm8k", *splits, rewards=rewards, dataset=dataset, notice=notice)


def gsm_symbolic_prompts(
    level: str,
    train_size: int | None,
    heldout_size: int | None,
    seed: int,
    instruction: str | None,
    system: str | None,
) -> tuple[list[Prompt], list[Prompt]]:
    """Return both splits of problems made from GSM-Symbolic's templates; they share no numbers."""
    from zoo.envs import gsm_symbolic

    _check_level("gsm_symbolic", level)
    seed = read_seed("gsm_symbolic", seed)

    def make(split: Any, count: int) -> list[Prompt]:
        try:
            problems = gsm_symbolic.generate(count, split=split, seed=seed, level=level)
        except (ImportError, ValueError) as error:
            raise UserError(str(error)) from error
        return [
            make_prompt(
                problem.question,
                problem.answer,
                f"gsm_symbolic/{level}/{seed}/{split}/{index}",
                instruction=instruction,
                system=system,
                metadata={"solution": problem.solution, "template": problem.template},
            )
            for index, problem in enumerate(problems)
        ]

    return make("train", train_size or TRAIN_SIZE), make("heldout", heldout_size or HELDOUT_SIZE)


def _check_level(where: str, level: Any) -> None:
    from zoo.envs.gsm_symbolic import LEVELS

    if level not in tuple(LEVELS):
        raise UserError(
            f"{where}: level must be one of {', '.join(LEVELS)} (got {level!r})."
            f"{nearest(str(level), LEVELS)}"
        )


def _prompt(row: Row, id: str, instruction: str | None, system: str | None) -> Prompt:
    _, marker, answer = row.answer.rpartition("####")
    answer = answer.strip()
    if not marker:
        raise UserError(f"{row.where}: the answer has no '#### number' at its end")
    if parsing.number(answer) is None:
        raise UserError(f"{row.where}: '#### {answer[:60]}' is no number")
    return make_prompt(
        row.question,
        answer,
        id,
        instruction=instruction,
        system=system,
        metadata={"solution": row.answer},
    )


def _hub_rows(data: Any, split: str) -> list[Row]:
    return [
        Row(str(record["question"]), str(record["answer"]), f"openai/gsm8k {split}:{index}")
        for index, record in enumerate(data[split], start=1)
    ]


def _version() -> str:
    from importlib.metadata import version

    return f"reasoning-gym {version('reasoning-gym')}"
