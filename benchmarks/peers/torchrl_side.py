"""TorchRL's side of a comparison, written as its tutorials and its own examples do.

``PYTHON benchmarks/peers/torchrl_side.py TASK``, by an interpreter that has torchrl; nothing of
this library is imported.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib import metadata
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import (
    MLP,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

__all__ = ["main", "train"]


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Train on a task; return the seconds, the steps and the policy's mean return."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    wall, cpu = time.perf_counter(), time.process_time()
    steps, actor = {"ppo": _ppo, "sac": _sac}[task["algo"]](task)
    clock = {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    return {**clock, "steps": steps, "return": _measured(task, actor)}


def _environment(task: dict[str, Any]) -> Any:
    return TransformedEnv(GymEnv(task["env"], device="cpu"), StepCounter())


def _measured(task: dict[str, Any], actor: Any) -> float:
    env, returns = _environment(task), []
    env.set_seed(10_000)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(20):
            returns.append(float(env.rollout(1_000, actor)["next", "reward"].sum()))
    return sum(returns) / len(returns)


def _ppo(task: dict[str, Any]) -> tuple[int, Any]:
    num_envs, cells = task["num_envs"], task["hidden_sizes"]
    env: Any = SerialEnv(num_envs, lambda: _environment(task))
    env.set_seed(task["seed"])
    seen = env.observation_spec["observation"].shape[-1]
    actions = env.action_spec.shape[-1]
    network = MLP(in_features=seen, out_features=actions, num_cells=cells, activation_class=nn.Tanh)
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]),
        spec=env.full_action_spec_unbatched,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(
        MLP(in_features=seen, out_features=1, num_cells=cells, activation_class=nn.Tanh),
        in_keys=["observation"],
    )
    frames = num_envs * task["rollout_steps"]
    collector = Collector(env, actor, frames_per_batch=frames, total_frames=task["steps"])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(frames),
        sampler=SamplerWithoutReplacement(),
        batch_size=task["minibatch_size"],
    )
    advantage = GAE(
        gamma=task["gamma"],
        lmbda=task["gae_lambda"],
        value_network=critic,
        average_gae=True,
    )
    loss_module = ClipPPOLoss(
        actor_network=actor,
        critic_network=critic,
        clip_epsilon=0.2,
        entropy_bonus=False,
        critic_coeff=0.5,
        loss_critic_type="l2",
    )
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=task["lr"], eps=1e-5)
    rounds = -(-task["steps"] // frames)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.0 if task["linear"] else 1.0, total_iters=rounds
    )
    steps = 0
    for data in collector:
        steps += data.numel()
        if task["linear"]:
            loss_module.clip_epsilon.fill_(0.2 * max(0.0, 1 - steps / task["steps"]))
        with torch.no_grad():
            advantage(data)
        buffer.empty()
        buffer.extend(data.reshape(-1))
        for _ in range(task["epochs"]):
            for part in buffer:
                loss = loss_module(part)
                (loss["loss_objective"] + loss["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
        collector.update_policy_weights_()
    collector.shutdown()
    return steps, actor


def _sac(task: dict[str, Any]) -> tuple[int, Any]:
    cells, frames = task["hidden_sizes"], task["train_frequency"]
    env = _environment(task)
    env.set_seed(task["seed"])
    seen, size = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    network = nn.Sequential(
        MLP(in_features=seen, out_features=2 * size, num_cells=cells, activation_class=nn.ReLU),
        NormalParamExtractor(scale_mapping="exp", scale_lb=1e-4),
    )
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={
            "low": env.action_spec.space.low,
            "high": env.action_spec.space.high,
            "tanh_loc": False,
        },
        return_log_prob=False,
    )
    critic = ValueOperator(
        MLP(in_features=seen + size, out_features=1, num_cells=cells, activation_class=nn.ReLU),
        in_keys=["action", "observation"],
    )
    loss_module = SACLoss(
        actor_network=actor, qvalue_network=critic, num_qvalue_nets=2, loss_function="l2"
    )
    loss_module.make_value_estimator(gamma=task["gamma"])
    targets = SoftUpdate(loss_module, tau=task["tau"])
    collector = Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=task["steps"],
        init_random_frames=task["learning_starts"],
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(task["capacity"]), batch_size=task["batch_size"]
    )
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=task["lr"])
    steps = 0
    for data in collector:
        steps += data.numel()
        buffer.extend(data.reshape(-1))
        if steps <= task["learning_starts"]:
            continue
        for _ in range(task["updates"]):
            loss = loss_module(buffer.sample())
            (loss["loss_actor"] + loss["loss_qvalue"] + loss["loss_alpha"]).backward()
            optimizer.step()
            optimizer.zero_grad()
            targets.step()
        collector.update_policy_weights_()
    collector.shutdown()
    return steps, actor


def main() -> None:
    """Train on the task given, and print the result."""
    result = train(json.loads(sys.argv[1]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    packages = ("torchrl", "tensordict", "torch")
    versions = {f"{name} (theirs)": metadata.version(name) for name in packages}
    print(json.dumps({**result, "peak_rss_gib": peak, "versions": versions}))


if __name__ == "__main__":
    main()
