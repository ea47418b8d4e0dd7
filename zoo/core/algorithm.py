"""What every algorithm shares: the bound parts, and the interface that users import.

An algorithm file holds a dataclass of knobs, ``prepare`` and ``losses``. Training, evaluation,
saving and loading come from here, and do exactly what the command line does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from zoo.core.protocols import Evaluation, Loss, Plugin, Update
from zoo.core.targets import Target
from zoo.errors import UserError, nearest
from zoo.functional import surrogate

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.trainer import Trainer

__all__ = ["Algorithm"]

A = TypeVar("A", bound="Algorithm")


class Algorithm:
    """Base of all algorithms.

    Parameters
    ----------
    env : str, TextEnv or callable
        A name (``"CartPole-v1"``, ``"gsm8k"``), a text environment, or a function that makes a
        Gymnasium environment.
    model : str, optional
        Name or path of a language model (text only).
    seed : int
        Seed of everything that draws.
    run_dir : str or Path, optional
        Folder for config, metrics, checkpoints and summary; None leaves nothing behind.
    device : str, optional
        ``"cpu"``, ``"cuda"``, …; None takes an accelerator where there is one.
    logger : str or list of str, optional
        ``"console"``, ``"tensorboard"``, ``"wandb"``; None is silent.
    rewards : sequence, optional
        Reward items of a text task: names, functions, or RewardItems.
    plugins : sequence of Plugin
        Objective terms of your own, besides entropy, KL and reward scaling.
    overrides : sequence of str
        Anything else of the configuration, as on the command line: ``["rollout.num_envs=4"]``.
    **knobs
        Fields of the algorithm's ``Knobs``: ``lr=3e-4``, ``entropy={"coefficient": 0.01}``.

    Examples
    --------
    >>> from zoo.algorithms import PPO
    >>> PPO("CartPole-v1", seed=1).train(100_000).evaluate(episodes=20)  # doctest: +SKIP
    {'return_mean': 500.0, 'return_std': 0.0, 'return_ci95': 0.0, 'episodes': 20}
    """

    name: ClassVar[str]
    Knobs: ClassVar[type]
    needs_critic: ClassVar[bool] = False
    #: whether every rollout is used by the policy that made it; False with replay
    on_policy: ClassVar[bool] = True
    #: whether importance weights are asked for by ``weighted`` in the loss, and nowhere before
    weighs_losses_only: ClassVar[bool] = False

    knobs: Any
    policy: Any
    plugins: Sequence[Plugin]
    targets: dict[str, Target]
    trainer: Trainer

    def __init__(
        self,
        env: Any,
        *,
        model: str | None = None,
        seed: int = 0,
        run_dir: str | Path | None = None,
        device: str | None = None,
        logger: str | Sequence[str] | None = None,
        rewards: Sequence[Any] | None = None,
        plugins: Sequence[Plugin] = (),
        overrides: Sequence[str] = (),
        **knobs: Any,
    ) -> None:
        from zoo.core.build import build_from_arguments

        known = [field.name for field in dataclasses.fields(self.Knobs)]
        for name, value in knobs.items():
            if name in ("total_steps", "updates"):
                raise UserError(f"the budget is given to train: .train({name}={value}).")
            if name not in known:
                raise UserError(
                    f"{type(self).__name__} has no knob '{name}'.{nearest(name, known)}"
                )
        self.trainer = build_from_arguments(
            self,
            env,
            model=model,
            seed=seed,
            run_dir=run_dir,
            device=device,
            logger=logger,
            rewards=rewards,
            plugins=plugins,
            overrides=overrides,
            knobs=knobs,
        )

    @classmethod
    def bind(cls: type[A], knobs: Any, policy: Any, plugins: Sequence[Plugin] = ()) -> A:
        """Return the bare algorithm around a policy, without environment and trainer."""
        algorithm = cls.__new__(cls)
        algorithm.attach(knobs, policy, plugins)
        return algorithm

    def attach(self, knobs: Any, policy: Any, plugins: Sequence[Plugin]) -> None:
        """Take the parts that ``prepare`` and ``losses`` work with."""
        self.knobs, self.policy, self.plugins = knobs, policy, plugins
        self.targets = self.make_targets()

    # What an algorithm defines.

    def make_targets(self) -> dict[str, Target]:
        """Return the target networks, by name; the Learner moves and saves them."""
        return {}

    @property
    def cycle(self) -> int:
        """How many updates it takes until every loss was yielded once."""
        return 1

    @classmethod
    def critics(cls, knobs: Any) -> int:
        """Return how many value networks the policy has to have."""
        return int(cls.needs_critic)

    @classmethod
    def make_policy(
        cls, model: Any, observation_space: Any, action_space: Any, settings: Any, knobs: Any
    ) -> Any:
        """Return the networks for a control task.

        Parameters
        ----------
        model : callable
            What the choice of ``model=`` stands for.
        observation_space, action_space : gymnasium.Space
            Of one environment.
        settings : dataclass
            The model's.
        knobs : dataclass
            The algorithm's.
        """
        return model(observation_space, action_space, settings, critic=cls.critics(knobs))

    def prepare(self, batch: TensorDict) -> TensorDict:
        """Annotate a fresh rollout with values and advantages; changes no weights."""
        if self.on_policy:
            raise TypeError(f"{type(self).__name__} must define prepare(batch)")
        return batch  # replay stores what happened as it is

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the elementwise losses in order, one optimizer step each."""
        raise TypeError(f"{type(self).__name__} must define losses(batch, update)")

    # What algorithms share.

    @property
    def reference(self) -> Any:
        """The policy to which a plugin needs the exact divergence, where one does."""
        found = (getattr(plugin, "exact_reference", None) for plugin in self.plugins)
        return next((policy for policy in found if policy is not None), None)

    def evaluation(self, batch: TensorDict) -> Evaluation:
        """Evaluate the policy, against the reference where a plugin needs the exact divergence."""
        out: Evaluation = self.policy.evaluate(batch, self.reference)
        return out

    def coefficient(self, name: str) -> float | Tensor:
        """Return the present weight of a plugin's term; 0 where there is no such plugin."""
        return next((p.coefficient for p in self.plugins if p.name == name), 0.0)

    def scaled_reward(self, batch: TensorDict) -> Tensor:
        """Return sampled rewards as the scaling plugin has them, which stores none."""
        reward: Tensor = batch["reward"]
        for plugin in self.plugins:
            if plugin.name == "reward_scale":
                reward = plugin.scale(reward)  # type: ignore[attr-defined]
        return reward

    def td_error(self, q: Tensor, target: Tensor, batch: TensorDict) -> Tensor | None:
        """Return |Q − y| [B], the critics' mean, for replay by priority; else None.

        ``q`` is [B, 1], or [K, B, 1] of several critics, ``target`` [B, 1].
        """
        if batch.get("weight", None) is None:
            return None
        return (q.detach() - target).abs().view(-1, len(target)).mean(0)

    def write_old_log_prob(self, batch: TensorDict) -> None:
        """Write log π_old where several updates will be taken on this rollout.

        With one update the old policy is the present one: the forward's own detached
        log-probabilities serve, the ratio is exactly 1, and nothing is computed here. A language
        model's sampler differs from its trainer by rounding (cached decoding, dtype), so its
        log-probabilities are never taken for the old ones.
        """
        k = self.knobs
        rows = int(batch["mask"].sum()) if self.policy.stepwise else batch.batch_size[0]
        if k.epochs == 1 and (k.minibatch_size is None or k.minibatch_size >= rows):
            return
        if batch.get("old_log_prob", None) is not None:  # the KL penalty in the reward needed it
            return
        exact = self.policy.sampler_is_exact
        batch["old_log_prob"] = batch["log_prob"] if exact else self.policy.log_prob(batch)

    def old_log_prob(self, batch: TensorDict, out: Evaluation) -> Tensor:
        """Return log π_old of the batch's actions, without gradient."""
        old = batch.get("old_log_prob", None)
        return out.log_prob.detach() if old is None else old

    def weighted(
        self, loss: Tensor, batch: TensorDict, old_log_prob: Tensor | None = None
    ) -> Tensor:
        """Return a loss [B, T] times the importance of its steps, where the batch has any.

        That of steps that other weights took (``importance``), or of transitions that were drawn by
        priority (``weight``). An algorithm that ``weighs_losses_only`` gives log π_old [B, T], from
        which the former is made here where a rollout has one update.
        """
        for plugin in self.plugins:
            if plugin.name == "importance" and getattr(plugin, "pending", False):
                if old_log_prob is None:
                    raise TypeError("weighted() needs old_log_prob where weighs_losses_only is set")
                made: Tensor = plugin.weights(batch, old_log_prob)  # type: ignore[attr-defined]
                return made * loss
        for name in ("importance", "weight"):
            weight = batch.get(name, None)
            if weight is not None:
                return weight * loss
        return loss

    def diagnostics(
        self,
        log_ratio: Tensor,
        advantage: Tensor,
        out: Evaluation,
        clip_low: float,
        clip_high: float,
    ) -> dict[str, Tensor]:
        """Elementwise figures that every clipped policy gradient logs."""
        with torch.no_grad():
            low, high = surrogate.clip_fractions(log_ratio, advantage, clip_low, clip_high)
            ratio = log_ratio.exp()
            return {
                "policy/entropy": out.entropy.detach(),
                "policy/clip_fraction_low": low,
                "policy/clip_fraction_high": high,
                "policy/ratio_deviation": (ratio - 1).abs(),
                "policy/kl_to_old": ratio - 1 - log_ratio,
            }

    # What users call.

    def train(self: A, total_steps: int | None = None, *, updates: int | None = None) -> A:
        """Train for that many more environment steps (control) or updates (text).

        Returns
        -------
        Algorithm
            Itself, so that ``.evaluate()`` can follow.
        """
        given = {"env_steps": total_steps, "updates": updates}
        amount = given.pop(self.trainer.unit)
        if any(other is not None for other in given.values()):
            raise UserError(
                f"the budget of a {self.trainer.rollout.world} task counts"
                f" {self.trainer.unit.replace('_', ' ').replace('env', 'environment')}."
            )
        if amount is not None and int(amount) < 0:
            raise UserError(f"train needs a budget of 0 or more (got {amount}).")
        if amount is not None:
            self.trainer.total = self.trainer.done + int(amount)
        self.trainer.run()
        return self

    def evaluate(self, **options: Any) -> dict[str, float]:
        """Measure the policy: ``episodes=`` on control; ``prompts=``, ``samples=`` on text."""
        return self.trainer.evaluate(**options)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint from which :meth:`load` continues bit for bit."""
        self.trainer.save(path)

    @classmethod
    def load(cls: type[A], path: str | Path, **objects: Any) -> A:
        """Read a checkpoint or a run folder.

        ``env=``, ``rewards=`` and ``plugins=`` give again what can't be stored: objects.
        """
        from zoo.core.build import load

        algorithm = load(path, **objects).algorithm
        if not isinstance(algorithm, cls):
            raise UserError(
                f"{path} holds a run of {type(algorithm).__name__}, not of {cls.__name__}:"
                f" use {type(algorithm).__name__}.load."
            )
        return algorithm

    def close(self) -> None:
        """Release environments and worker processes."""
        self.trainer.close()
