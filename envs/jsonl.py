"""Your own questions and answers, from a .jsonl or .parquet file or a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.core.protocols import Prompt
from zoo.envs.question_files import Row, read_table
from zoo.envs.text import QuestionEnv, make_prompt, read_instruction, read_size
from zoo.errors import UserError

__all__ = ["JSONL"]


class JSONL(QuestionEnv):
    """Questions and gold answers from a file.

    One JSON object a line: ``{"question": "…", "answer": "…"}``. A gold answer that holds ``####``
    counts from there on, so a worked solution may stand before it. Answers that are numbers are
    compared as numbers, others as text, see :mod:`zoo.envs.parsing`.

    Parameters
    ----------
    path : str or Path
        A file, or a folder with ``train`` and ``test`` files. Without a test file a tenth of the
        questions is held out, the same ones every time.
    question_key, answer_key : str
        Names of the two keys.
    train_size, heldout_size : int, optional
        At most so many questions of each split, the first ones.
    rewards
        See :func:`zoo.envs.rewards.item.read_rewards`; None pays for accuracy alone.
    instruction, system
        As in :class:`zoo.envs.gsm8k.GSM8K`.

    Raises
    ------
    UserError
        Data that are not as they must be, named by file and line.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        question_key: str = "question",
        answer_key: str = "answer",
        train_size: int | None = None,
        heldout_size: int | None = None,
        rewards: Any = None,
        instruction: str | bool | None = None,
        system: str | None = None,
    ) -> None:
        if path is None:
            raise UserError(
                "jsonl needs your data: env.path=FILE.jsonl, each line an object with"
                f" '{question_key}' and '{answer_key}'"
            )
        text = read_instruction(instruction)
        sizes = (
            read_size("jsonl", "train_size", train_size),
            read_size("jsonl", "heldout_size", heldout_size),
        )
        table = read_table("jsonl", path, question_key, answer_key)

        def prompts(split: str, rows: list[Row]) -> list[Prompt]:
            return [
                make_prompt(
                    row.question,
                    _gold(row),
                    f"{Path(path).stem}/{split}/{index}",
                    instruction=text,
                    system=system,
                    metadata={"solution": row.answer},
                )
                for index, row in enumerate(rows)
            ]

        super().__init__(
            "jsonl",
            prompts("train", table.train[: sizes[0]]),
            prompts("heldout", table.heldout[: sizes[1]]),
            rewards=rewards,
            dataset=f"jsonl ({path})" + (f"; {table.remark}" if table.remark else ""),
            notice=f"jsonl: {table.remark}." if table.remark else None,
        )


def _gold(row: Row) -> str:
    answer = row.answer.rpartition("####")[2].strip()
    if not answer:
        raise UserError(f"{row.where}: nothing follows the answer's '####'")
    return answer
