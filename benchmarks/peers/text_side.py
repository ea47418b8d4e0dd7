"""Our own side of the comparison of text training: ``python -m zoo.benchmarks.peers.text_side``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import torch

from zoo.benchmarks.peers.trl_side import Memory, reward
from zoo.core.protocols import Completion, Prompt, Scores

__all__ = ["Digits", "gradients", "main", "train"]


class Digits:
    """The task's prompts, and `reward` for each completion."""

    name, notice, dataset = "digits", None, "the comparison's prompts"

    def __init__(self, questions: Sequence[str]) -> None:
        self.questions = questions

    def prompts(self, split: Literal["train", "heldout"]) -> list[Prompt]:
        """Return the same prompts for both splits: nothing is measured here."""
        return [
            Prompt(text, "", [{"role": "user", "content": text}], str(i))
            for i, text in enumerate(self.questions)
        ]

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        """Pay for digits."""
        paid = [reward(c.text) for c in completions]
        grades = {"accuracy_strict": paid, "accuracy_lenient": paid}
        return Scores(paid, {"digits": paid}, {}, grades)

    def close(self) -> None:
        """Nothing is open."""


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Take updates; return seconds and CPU seconds of each, by phase, and the peak of memory."""
    trainer = _trainer(task)
    policy = trainer.algorithm.policy
    policy.codec.stop_ids = frozenset()  # every completion has the same length, on both sides
    seconds: dict[str, list[float]] = {"update": [], "sample": [], "optimizer": [], "cpu": []}
    advance = trainer.learner.optimizer.advance

    def timed(shrink: float = 1.0) -> None:
        start = time.perf_counter()
        advance(shrink)
        seconds["optimizer"].append(time.perf_counter() - start)

    trainer.learner.optimizer.advance = timed
    memory = Memory(policy.model)
    for update in range(task["warmup"] + task["updates"]):
        cpu = time.process_time()
        start = time.perf_counter()
        row = trainer.round()
        seconds["update"].append(time.perf_counter() - start)
        seconds["cpu"].append(time.process_time() - cpu)
        seconds["sample"].append(row["time/sample"])
        assert row["completion/length_mean"] == task["max_new_tokens"]
        assert row["update/steps"] == update + 1
    return {
        "seconds": {k: v[task["warmup"] :] for k, v in seconds.items()},
        "tokens": task["group_size"] * len(task["prompts"]) * task["max_new_tokens"],
        **memory.report(),
    }


def gradients(task: dict[str, Any]) -> dict[str, Any]:
    """Sample a batch and save it; write its gradients to ``task["out"]`` and return its loss."""
    trainer = _trainer(task)
    algorithm, learner = trainer.algorithm, trainer.learner
    batch = algorithm.prepare(trainer.rollout.collect(algorithm.policy))
    # an older policy's, so that ratios differ from 1 and some are clipped
    noise = torch.randn(batch["mask"].shape, generator=torch.Generator().manual_seed(0))
    batch["old_log_prob"] = (batch["log_prob"] + 0.2 * noise) * batch["mask"]
    prompts, answers = ("prompt_ids", "prompt_length"), ("action", "completion_length")
    names = (*prompts, *answers, "advantage", "old_log_prob")
    torch.save({name: batch[name] for name in names}, task["batch"])
    learner.optimizer.advance = lambda shrink: None  # the gradients are wanted as they are
    learner.optimizer.clear = lambda: None
    metrics = learner.update(batch)
    model = algorithm.policy.model
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    torch.save(found, task["out"])
    return {"loss": float(metrics["loss/policy"]), "lengths": batch["completion_length"].tolist()}


def _trainer(task: dict[str, Any]) -> Any:
    from zoo.algorithms import GRPO

    rows, size = task["group_size"] * len(task["prompts"]), task["micro_batch_size"]
    algorithm = GRPO(
        Digits(task["prompts"]),
        model=task["model"],
        seed=task["seed"],
        device="cpu",
        lr=task["lr"],
        betas=tuple(task["betas"]),
        group_size=task["group_size"],
        micro_batch_size=None if size == rows else size,
        max_grad_norm=1.0,
        precision=task["precision"],
        overrides=[
            "algo.kl.monitor_every=0",
            "eval.at_end=false",
            "model.instruct=false",
            f"model.sampling_dtype={task['precision']}",
            f"rollout.prompts={len(task['prompts'])}",
            f"rollout.max_new_tokens={task['max_new_tokens']}",
            f"threads={task['threads']}",
        ],
    )
    return algorithm.trainer


def main() -> None:
    """Do what the task asks for, and print the result."""
    task = json.loads(sys.argv[1])
    result = (train if task["kind"] == "speed" else gradients)(task)
    print(json.dumps({**result, "versions": {}}))


if __name__ == "__main__":
    main()
