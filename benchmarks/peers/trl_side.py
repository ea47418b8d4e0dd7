"""TRL's side of the comparison of text training: ``PYTHON benchmarks/peers/trl_side.py TASK``.

Run by an interpreter that has trl 1.16.0; nothing of this library is imported. ``TASK`` is the JSON
object that `trl_speed` makes; the answer is the last line printed.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["Memory", "gradients", "main", "reward", "train"]


class Memory:
    """The largest resident set since the model was loaded, above what was resident then, in GiB."""

    def __init__(self, model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            parameter.detach().sum()  # weights that are mapped from a file are read only now
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak so far is forgotten
        self.loaded = self._read("VmRSS")

    def report(self) -> dict[str, float]:
        """``peak_gib`` above the baseline, ``loaded_gib`` the baseline."""
        return {"peak_gib": self._read("VmHWM") - self.loaded, "loaded_gib": self.loaded}

    @staticmethod
    def _read(name: str) -> float:
        status = Path("/proc/self/status").read_text("ascii", errors="replace")
        return int(status.partition(f"{name}:")[2].split()[0]) / 2**20  # in KiB


def reward(text: str) -> float:
    """Digits of a completion: costs nothing and differs within a group."""
    return float(sum(c.isdigit() for c in text))


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Take updates; return seconds and CPU seconds of each, by phase, and the peak of memory."""
    from transformers import TrainerCallback

    seconds: dict[str, list[float]] = {"update": [], "sample": [], "optimizer": [], "cpu": []}

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun, self.cpu = time.perf_counter(), time.process_time()

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.stepping = time.perf_counter()

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            seconds["optimizer"].append(time.perf_counter() - self.stepping)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds["update"].append(time.perf_counter() - self.begun)
            seconds["cpu"].append(time.process_time() - self.cpu)

    trainer = _trainer(task, task["updates"] + task["warmup"], [Clock()])
    generate = trainer._generate

    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = generate(*arguments, **named)
        seconds["sample"].append(time.perf_counter() - start)
        return result

    trainer._generate = timed
    memory = Memory(trainer.model)
    trainer.train()
    scored = task["group_size"] * len(task["prompts"]) * task["max_new_tokens"]
    used = trainer._metrics["train"]["completions/mean_length"] or [
        row["completions/mean_length"]
        for row in trainer.state.log_history
        if "completions/mean_length" in row
    ]
    assert all(length == task["max_new_tokens"] for length in used), used
    return {
        "seconds": {k: v[task["warmup"] :] for k, v in seconds.items()},
        "tokens": scored,
        **memory.report(),
    }


def gradients(task: dict[str, Any]) -> dict[str, Any]:
    """Compute loss and gradients of a saved batch; write the latter to ``task["out"]``."""
    trainer = _trainer(task, 1, [])
    batch = torch.load(task["batch"], weights_only=True)
    steps, width = batch["action"].shape[1], batch["prompt_ids"].shape[1]
    mask = torch.arange(steps) < batch["completion_length"][:, None]
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": batch["prompt_ids"],
            "prompt_mask": (
                torch.arange(width) >= (width - batch["prompt_length"])[:, None]
            ).long(),
            "completion_ids": batch["action"],
            "completion_mask": mask.long(),
            "advantages": batch["advantage"][:, 0],
            "old_per_token_logps": batch["old_log_prob"],
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    found = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    torch.save(found, task["out"])
    return {"loss": loss.item()}


def _trainer(task: dict[str, Any], updates: int, callbacks: list[Any]) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(task["threads"])
    rows = task["group_size"] * len(task["prompts"])
    assert rows % task["micro_batch_size"] == 0
    config = GRPOConfig(
        output_dir=task["folder"],
        per_device_train_batch_size=task["micro_batch_size"],
        gradient_accumulation_steps=rows // task["micro_batch_size"],
        num_generations=task["group_size"],
        max_completion_length=task["max_new_tokens"],
        generation_kwargs={"min_new_tokens": task["max_new_tokens"]},
        learning_rate=task["lr"],
        adam_beta1=task["betas"][0],
        adam_beta2=task["betas"][1],
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        gradient_checkpointing=False,
        bf16=task["precision"] == "bfloat16",
        use_cpu=True,
        seed=task["seed"],
        max_steps=updates,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(task["model"])
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32),
        reward_funcs=lambda completions, **_: [reward(c[0]["content"]) for c in completions],
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in task["prompts"]]
        ),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def main() -> None:
    """Do what the task asks for, and print the result."""
    task = json.loads(sys.argv[1])
    result = (train if task["kind"] == "speed" else gradients)(task)
    packages = ("trl", "transformers", "torch")
    print(json.dumps({**result, "versions": {p: metadata.version(p) for p in packages}}))


if __name__ == "__main__":
    main()
