"""Whole runs of the off-policy algorithms: intervals over saves, a temperature that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from zoo.algorithms import DQN, SAC

SMALL = ["rollout.num_envs=4", "model.hidden_sizes=[8]", "log_every=null", "eval.at_end=false"]


def test_golden_08_saving_and_loading_changes_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four environments, a block of updates every 2 steps each, targets every third update."""
    overrides = [*SMALL, "rollout.steps=2", "algo.replay.learning_starts=8"]
    overrides += ["algo.replay.updates_per_step=0.25", "algo.replay.batch_size=4"]
    agent = DQN("CartPole-v1", target_every=3, overrides=overrides)
    moved: list[int] = []
    for k in range(5):
        learner, (target,) = agent.trainer.learner, agent.targets.values()
        monkeypatch.setattr(target, "update", lambda: moved.append(learner.updates))  # noqa: B023
        agent.train(24)
        # 8 new steps a round at a quarter of an update each; the first round only fills
        assert learner.updates == 4 + 6 * k
        agent.save(tmp_path / f"{k}.pt")
        agent = DQN.load(tmp_path / f"{k}.pt")
    assert agent.trainer.counters["env_steps"] == 120
    assert moved == list(range(3, 29, 3))


def test_golden_22_sac_runs_with_a_fixed_temperature() -> None:
    overrides = [*SMALL, "algo.replay.learning_starts=8", "algo.replay.batch_size=8"]
    agent = SAC(
        "Pendulum-v1", entropy={"mode": "fixed", "coefficient": 0.2}, overrides=overrides
    ).train(64)
    assert agent.trainer.learner.updates > 0 and agent.coefficient("entropy") == 0.2
    assert "entropy" not in agent.trainer.learner._groups
    assert all(torch.isfinite(p).all() for p in agent.policy.parameters())
