"""Measuring and watching a policy on whole episodes from fixed starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from zoo.errors import UserError
from zoo.rollouts.generators import Generators
from zoo.rollouts.gymnasium_envs import EpisodeSeeds

if TYPE_CHECKING:
    from zoo.policies.mlp import MLPPolicy
    from zoo.rollouts.gymnasium import GymnasiumRollout

__all__ = [
    "Show",
    "enjoy",
    "evaluation_starts",
    "play",
    "play_side_by_side",
    "student_t",
    "summary",
]

#: takes a frame and how many of them make a second
Show = Callable[[Any, float], None]
_FRAMES_PER_SECOND = 30.0  # of an environment that does not say

#: streams of the evaluation's seed; training uses others
_STARTS, _ACTIONS = 3, 4


def evaluation_starts(seed: int) -> EpisodeSeeds:
    """Return what the episodes of an evaluation start from: ``starts(0, k)`` seeds the k-th."""
    return EpisodeSeeds(seed, _STARTS)


def play(
    rollout: GymnasiumRollout,
    policy: MLPPolicy,
    episodes: int,
    seed: int,
    deterministic: bool,
    num_envs: int,
) -> list[tuple[float, int]]:
    """Play ``episodes`` episodes; return (raw return, length) in the order of their starts.

    Environment j plays the episodes j, j + n, j + 2n, …, whatever their length, so short episodes
    are not over-represented. A deterministic policy sees one environment at a time: how a matrix
    product rounds depends on its rows, and so returns would depend on ``num_envs``.
    """
    return play_side_by_side(rollout, policy, episodes, seed, deterministic, num_envs, 1)[0]


def play_side_by_side(
    rollout: GymnasiumRollout,
    policy: MLPPolicy,
    episodes: int,
    seed: int,
    deterministic: bool,
    num_envs: int,
    policies: int,
) -> list[list[tuple[float, int]]]:
    """Do the same for a stack of policies, each on the same starts in environments of its own.

    Returns a list for each.
    """
    if episodes < 1:
        raise UserError(f"evaluation needs episodes ≥ 1 (got {episodes}).")
    count = min(episodes, num_envs)
    starts = evaluation_starts(seed)
    sequence = np.random.SeedSequence(seed, spawn_key=(_ACTIONS,))
    rng: Any = Generators([np.random.default_rng(sequence) for _ in range(policies)])
    played: list[list[tuple[float, int]]] = [[(0.0, 0)] * episodes for _ in range(policies)]
    current = list(range(count)) * policies
    owner = [policy for policy in range(policies) for _ in range(count)]
    left, count = episodes * policies, count * policies
    envs = rollout.parked_envs(count, starts)
    observation = np.zeros((count, *rollout._encoder.shape), rollout._encoder.dtype)
    was_training = policy.training
    policy.eval()  # one that is measured explores and counts nothing
    try:
        envs.reset(observation, [starts(0, k) for k in current])
        reward, total = np.zeros(count, np.float64), np.zeros(count, np.float64)
        length = np.zeros(count, np.int64)
        flags = np.zeros((2, count), bool)
        one = policy.actor(1 if policies == 1 else count, 1, None)
        while left:
            seen = _seen(policy, observation)
            if not deterministic:
                action = policy.actor(count, 1, rng)(seen, 0)
            elif policies == 1:
                action = np.concatenate([one(row[None], 0).copy() for row in seen])
            else:
                action = one(seen, 0)
            listed = rollout.env_actions(action)
            actions = [a if k < episodes else None for a, k in zip(listed, current, strict=True)]
            reward[:] = 0.0
            finals = envs.step(actions, observation, reward, flags[0], flags[1])
            total += reward
            length += [a is not None for a in actions]
            for i, _ in finals:
                played[owner[i]][current[i]] = (float(total[i]), int(length[i]))
                total[i], length[i] = 0.0, 0
                current[i] += count // policies
                left -= 1
                if current[i] < episodes:
                    observation[i] = envs.restart(i, starts(0, current[i]))
    finally:
        policy.train(was_training)
        envs.close()
    return played


def summary(played: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Mean, deviation and 95 % interval of raw returns."""
    returns = np.array([r for r, _ in played], np.float64)
    number = len(returns)
    std = float(returns.std(ddof=1)) if number > 1 else 0.0
    half = student_t(number - 1) * std / math.sqrt(number) if number > 1 else math.nan
    return {
        "return_mean": float(returns.mean()),
        "return_std": std,
        "return_ci95": half,
        "episodes": number,
        "length_mean": float(np.mean([n for _, n in played])),
    }


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to .2 %.

    Abramowitz and Stegun 26.7.5; the first three, where that series is poor, are tabulated.
    """
    if freedom <= 3:
        return (12.706, 4.303, 3.182)[freedom - 1]
    z, v = 1.959964, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def enjoy(
    rollout: GymnasiumRollout,
    policy: MLPPolicy,
    episodes: int,
    render_mode: str | None,
    seed: int,
    deterministic: bool,
    show: Show | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one dict per episode: episode, return, length and frames.

    Frames are arrays (``rgb_array``) or texts (``ansi``), the first observation's to the last's.
    With ``show`` they are handed over as they are drawn, and none are kept.

    Raises
    ------
    UserError
        For render modes that the environment does not have, and packages that drawing needs.
    """
    try:
        yield from _episodes(rollout, policy, episodes, render_mode, seed, deterministic, show)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(
            f"render mode {render_mode} needs a package that is not installed"
            f" ({str(error).splitlines()[0]}): pip install 'algorithm-zoo[control]'."
        ) from error


def _episodes(
    rollout: GymnasiumRollout,
    policy: MLPPolicy,
    episodes: int,
    render_mode: str | None,
    seed: int,
    deterministic: bool,
    show: Show | None,
) -> Iterator[dict[str, Any]]:
    env = _render(rollout, render_mode)
    drawn = render_mode in ("rgb_array", "ansi")  # human draws by itself
    rate = float(env.metadata.get("render_fps") or _FRAMES_PER_SECOND)
    frames: list[Any] = []
    take = frames.append if show is None else lambda frame: show(frame, rate)
    starts = evaluation_starts(seed)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ACTIONS,)))
    was_training = policy.training
    policy.eval()
    try:
        for episode in range(episodes):
            seen, _ = env.reset(seed=starts(0, episode))
            total, length, over = 0.0, 0, False
            frames.clear()
            if drawn:
                take(_drawn(env))
            while not over:
                observation = np.asarray(seen, rollout._encoder.dtype)[None]
                actor = policy.actor(1, 1, None if deterministic else rng)
                action = rollout.env_actions(actor(_seen(policy, observation), 0))[0]
                seen, reward, terminated, truncated, _ = env.step(action)
                total, length, over = total + float(reward), length + 1, terminated or truncated
                if drawn:
                    take(_drawn(env))
            yield {"episode": episode, "return": total, "length": length, "frames": list(frames)}
    finally:
        policy.train(was_training)
        env.close()


def _drawn(env: gymnasium.Env[Any, Any]) -> Any:
    """Draw a frame; MuJoCo, which needs OpenGL, fails in a different way with every backend."""
    try:
        return env.render()
    except gymnasium.error.Error:
        raise
    except Exception as error:
        if not hasattr(env.unwrapped, "mujoco_renderer"):
            raise
        raise UserError(
            "MuJoCo found no OpenGL to draw with"
            f" ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}): set"
            " MUJOCO_GL=egl (graphics card or Mesa) or MUJOCO_GL=osmesa (software) in the"
            " environment."
        ) from error


def _render(rollout: GymnasiumRollout, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    if render_mode is None:
        return rollout.make()
    maker = getattr(rollout.make, "make", None) or rollout.make  # a ControlEnv around a function
    accepts = inspect.signature(maker).parameters.values()
    if not any(p.name == "render_mode" or p.kind is p.VAR_KEYWORD for p in accepts):
        raise UserError("This environment's factory takes no render_mode, so it can't be shown.")
    env = rollout.make(render_mode=render_mode)
    offered = env.metadata.get("render_modes") or []
    if offered and render_mode not in offered:
        env.close()
        raise UserError(
            f"This environment can't be shown as {render_mode}: it has {', '.join(offered)}."
        )
    return env


def _seen(policy: MLPPolicy, observation: np.ndarray) -> np.ndarray:
    return observation if policy.normalizer is None else policy.normalizer(observation)
