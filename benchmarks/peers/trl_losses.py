"""What TRL's trainers compute from random numbers: losses and gradients to compare ours with.

    python benchmarks/peers/trl_losses.py > tests/algorithms/trl_losses.json

runs where trl 1.16.0 is installed; nothing else of ours is imported. ``_compute_loss`` of
``GRPOTrainer`` and ``RLOOTrainer`` is called as it stands: the forward pass is replaced by a table
of log-probabilities, and what else of the trainer it reads is filled in by hand.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = ["CASES", "LIMIT", "inputs", "main", "reference"]

ROWS, STEPS, LIMIT = 6, 7, 10
#: settings of GRPOTrainer, by name; what is not said is in `_trainer`
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo, epsilon_high": {"loss_type": "grpo", "epsilon_high": 0.28},
    "grpo, beta": {"loss_type": "grpo", "beta": 0.05},
    "grpo, delta": {"loss_type": "grpo", "delta": 1.5},
    "grpo, sequence": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon_low": 3e-2,
        "epsilon_high": 4e-2,
    },
    "bnpo": {"loss_type": "bnpo"},
    "bnpo, beta, epsilon_high": {"loss_type": "bnpo", "beta": 0.05, "epsilon_high": 0.28},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dr_grpo, beta": {"loss_type": "dr_grpo", "beta": 0.05},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.2},
}


def inputs() -> dict[str, Tensor]:
    """Log-probabilities [6, 7] of policy, old policy and reference, lengths and advantages."""
    generator = torch.Generator().manual_seed(0)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(ROWS, STEPS, generator=generator, dtype=torch.float64)

    log_prob = -noise(1.0).abs() - 0.1
    length = torch.tensor([7, 1, 5, 3, 6, 2])
    return {
        "log_prob": log_prob,
        "old_log_prob": log_prob + noise(0.3),
        "ref_log_prob": log_prob + noise(0.5),
        "mask": torch.arange(STEPS) < length[:, None],
        "advantage": torch.randn(ROWS, generator=generator, dtype=torch.float64),
    }


def reference() -> dict[str, Any]:
    """Loss and gradient in the log-probabilities of every case, and what they were made from."""
    from trl import GRPOTrainer, RLOOTrainer

    given = inputs()
    found = {name: _evaluate(GRPOTrainer, given, **settings) for name, settings in CASES.items()}
    # at the old policy itself: elsewhere RLOOTrainer's ratio is that of whole completions
    found["rloo"] = _evaluate(RLOOTrainer, {**given, "old_log_prob": given["log_prob"]})
    versions = {package: metadata.version(package) for package in ("trl", "torch", "transformers")}
    shown = {name: value.tolist() for name, value in given.items()}
    return {"versions": versions, "inputs": shown, "limit": LIMIT, "cases": found}


def _evaluate(cls: Any, given: dict[str, Tensor], **settings: Any) -> dict[str, Any]:
    log_prob = given["log_prob"].clone().requires_grad_()
    mask = given["mask"].long()
    trainer = _trainer(cls, log_prob, settings)
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
            "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
            "completion_ids": torch.zeros(ROWS, STEPS, dtype=torch.long),
            "completion_mask": mask,
            "advantages": given["advantage"],
            "old_per_token_logps": given["old_log_prob"],
            "old_logps": (given["old_log_prob"] * mask).sum(1),
            "ref_per_token_logps": given["ref_log_prob"],
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    assert log_prob.grad is not None
    return {"loss": loss.item(), "gradient": log_prob.grad.tolist()}


def _trainer(cls: Any, log_prob: Tensor, settings: dict[str, Any]) -> Any:
    """Return a trainer that was never initialised, with what its loss reads."""
    args = SimpleNamespace(
        delta=settings.pop("delta", None), use_bias_correction_kl=False, steps_per_generation=1
    )
    parts = {
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        "args": args,
        "_metrics": {"train": defaultdict(list)},
        "_get_per_token_logps_and_entropies": lambda *a, **k: (
            log_prob,
            torch.zeros_like(log_prob),
            None,
        ),
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "use_vllm": False,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": LIMIT,
        "_entropy_bonus_enabled": False,
        **settings,
    }
    trainer = cls.__new__(cls)
    for name, value in parts.items():
        object.__setattr__(trainer, name, value)
    return trainer


def main() -> None:
    """Print the values as JSON."""
    json.dump(reference(), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
