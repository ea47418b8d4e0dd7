"""The same random numbers give TRL's losses and gradients, to 1e-6 and through the whole Learner.

The reference is made by benchmarks/peers/trl_losses.py, from trl's own code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from zoo.algorithms import CISPO, GRPO, GSPO, RLOO, DrGRPO
from zoo.benchmarks.peers.trl_losses import CASES
from zoo.core.learner import Learner
from zoo.core.protocols import Evaluation
from zoo.plugins import KL, KLKnobs

REFERENCE = json.loads(Path(__file__).with_name("trl_losses.json").read_text("utf-8"))
KL_05 = {"kl": KLKnobs(coefficient=0.05)}
#: what each of TRL's settings is called here
OURS: dict[str, tuple[type[GRPO], dict[str, Any]]] = {
    "grpo": (GRPO, {}),
    "grpo, epsilon_high": (GRPO, {"clip_high": 0.28}),
    "grpo, beta": (GRPO, KL_05),
    "grpo, delta": (GRPO, {"dual_clip": 1.5}),
    "grpo, sequence": (GSPO, {"clip_low": 3e-2, "clip_high": 4e-2}),
    "bnpo": (GRPO, {"reduction": "token-mean"}),
    "bnpo, beta, epsilon_high": (GRPO, {"reduction": "token-mean", "clip_high": 0.28, **KL_05}),
    "dapo": (GRPO, {"reduction": "token-mean", "clip_high": 0.28}),
    "dr_grpo": (DrGRPO, {}),
    "dr_grpo, beta": (DrGRPO, KL_05),
    # TRL's epsilon_high of CISPO is the bound itself, ours what it lies above 1
    "cispo": (CISPO, {"clip_high": 0.2}),
}


class Table(nn.Module):
    """Log-probabilities that are parameters; the rows of a part are found by their number."""

    stepwise, sampler_is_exact, version = False, False, 0

    def __init__(self, log_prob: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(log_prob)

    def evaluate(self, batch: TensorDict, reference: Any = None) -> Evaluation:
        log_prob = self.table[batch["row"]]
        return Evaluation(log_prob, torch.zeros_like(log_prob))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [self.table]}

    def micro_batches(self, minibatch: TensorDict, size: int | None) -> list[TensorDict]:
        return list(minibatch.split(size or len(minibatch)))


def learned(
    cls: type[GRPO], knobs: dict[str, Any], given: dict[str, torch.Tensor]
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one update, as the Learner has them before its step."""
    settings = cls.Knobs(**knobs)
    policy, plugins = Table(given["log_prob"]), [KL(settings.kl)]
    learner = Learner(cls.bind(settings, policy, plugins), plugins, settings, REFERENCE["limit"])
    gradients = []

    def step() -> torch.Tensor:
        gradients.append(policy.table.grad.clone())
        return torch.zeros(())

    learner._step = step  # type: ignore[method-assign]
    batch = {name: given[name] for name in ("old_log_prob", "ref_log_prob", "mask")}
    batch["advantage"] = given["advantage"][:, None].expand(given["mask"].shape)
    batch["row"] = torch.arange(len(given["mask"]))
    metrics = learner.update(TensorDict(batch, batch_size=[len(given["mask"])]))
    return sum(float(v) for k, v in metrics.items() if k.startswith("loss/")), gradients[0]


def given() -> dict[str, torch.Tensor]:
    inputs = REFERENCE["inputs"]
    floats = {k: torch.tensor(v, dtype=torch.float64) for k, v in inputs.items() if k != "mask"}
    return {**floats, "mask": torch.tensor(inputs["mask"])}


def test_every_case_of_the_reference_is_compared():
    assert set(OURS) == set(CASES) == set(REFERENCE["cases"]) - {"rloo"}


@pytest.mark.parametrize("micro_batch_size", [None, 2])
@pytest.mark.parametrize("name", OURS)
def test_loss_and_gradient_are_trls(name, micro_batch_size):
    cls, knobs = OURS[name]
    loss, gradient = learned(cls, {**knobs, "micro_batch_size": micro_batch_size}, given())
    expected = REFERENCE["cases"][name]
    assert loss == pytest.approx(expected["loss"], abs=1e-6)
    wanted = torch.tensor(expected["gradient"], dtype=torch.float64)
    torch.testing.assert_close(gradient, wanted, atol=1e-6, rtol=0)
    assert wanted.abs().max() > 0.01


def test_rloos_gradient_is_trls_up_to_the_mean_length():
    """TRL divides by the completions, here it is their tokens: the same for all of an update."""
    x = given()
    x["old_log_prob"] = x["log_prob"]
    _, gradient = learned(RLOO, {}, x)
    expected = torch.tensor(REFERENCE["cases"]["rloo"]["gradient"], dtype=torch.float64)
    mean_length = x["mask"].sum() / len(x["mask"])
    torch.testing.assert_close(gradient * mean_length, expected, atol=1e-6, rtol=0)
