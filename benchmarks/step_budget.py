"""Where each microsecond of a training step goes, and what it could not fall below.

    python -m zoo.benchmarks.step_budget dqn

trains on the settings of the comparisons with other libraries (``benchmarks/peers``), takes the
CPU time of the parts as they run, each without the parts inside it, and prints a table in Markdown:
calls and microseconds per environment step, the 10th percentile of the rounds, which other
processes' load on the caches touches least (the median with ``--median``, on a quiet machine).
Below stand the floors: the matrix products at the rate that this machine reaches on
256 × 256 × 256, and a bare environment.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from zoo import algorithms
from zoo.benchmarks.peers import sb3_off_policy, sb3_ppo, zoo_side
from zoo.core import buffer, learner, optimizer, recorder, replay, targets, trainer
from zoo.policies import acting, dense, off_policy_acting, stacked
from zoo.rollouts import gymnasium as rollout
from zoo.rollouts import gymnasium_envs

__all__ = ["Stopwatch", "main"]

_TASKS = {**sb3_off_policy.TASKS, "ppo": sb3_ppo.TASKS["tuned"]}
#: (owner, attribute, what the table calls it), from the outermost in
_PARTS: list[tuple[Any, str, str]] = [
    (trainer.Trainer, "round", "the round's own bookkeeping"),
    (rollout.GymnasiumRollout, "collect", "collect: track, batch, episodes"),
    (gymnasium_envs.LocalEnvs, "step", "collect: the environment's step"),
    (acting.CategoricalActor, "__call__", "collect: acting"),
    (off_policy_acting.ValueActor, "__call__", "collect: acting"),
    (off_policy_acting.BoxActor, "__call__", "collect: acting"),
    (off_policy_acting._WarmUp, "__call__", "collect: acting"),
    (trainer, "check", "check of the batch"),
    (buffer.RolloutBuffer, "extend", "store"),
    (replay.ReplayBuffer, "extend", "store"),
    (learner.Learner, "learn", "update: learner"),
    (buffer.RolloutBuffer, "minibatches", "update: draw"),
    (replay.ReplayBuffer, "minibatches", "update: draw"),
    (learner.Learner, "update", "update: learner"),
    (torch.Tensor, "backward", "update: backward between networks"),
    (stacked.Stacked, "forward", "update: networks forward"),
    (stacked._Stacked, "backward", "update: networks backward"),
    (dense._Dense, "forward", "update: networks forward"),
    (dense._Dense, "backward", "update: networks backward"),
    (learner, "gradient_norm", "update: gradient norm"),
    (optimizer.FusedAdamW, "advance", "update: Adam"),
    (targets.Target, "update", "update: target networks"),
    (recorder.Recorder, "log", "log"),
]


class Stopwatch:
    """Time calls and iterations by part, each without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inside = [0.0]

    def measure(self, part: str, call: Callable[[], Any]) -> Any:
        """Call, and note the time of this part alone."""
        self._inside.append(0.0)
        started = time.thread_time()
        try:
            return call()
        finally:
            whole = time.thread_time() - started
            self.seconds[part] += whole - self._inside.pop()
            self.calls[part] += 1
            self._inside[-1] += whole

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Replace a function or method by one that is timed; of an iterator, every ``next``."""
        plain, static = getattr(owner, name), isinstance(vars(owner).get(name), staticmethod)

        def timed(*arguments: Any, **options: Any) -> Any:
            result = self.measure(part, lambda: plain(*arguments, **options))
            return self._each(part, result) if isinstance(result, Iterator) else result

        setattr(owner, name, staticmethod(timed) if static else timed)

    def _each(self, part: str, iterator: Iterator[Any]) -> Iterator[Any]:
        done = object()
        while (item := self.measure(part, lambda: next(iterator, done))) is not done:
            yield item


def _trained(name: str) -> Any:
    """Return the algorithm after its first updates, on one thread."""
    task = {**_TASKS[name], "threads": 1, "learning_starts": 1_000}
    torch.set_num_threads(1)
    knobs, overrides = zoo_side.translated(task)
    algorithm = getattr(algorithms, name.upper())(
        task["env"], device="cpu", overrides=[*overrides, "logger=none"], **knobs
    )
    algorithm.train(2_000)
    algorithm.trainer.total = 10**9
    return algorithm


def _flops(rounds: int, algorithm: Any) -> float:
    """Return the floating-point operations of the matrix products per environment step."""
    counted, dot, before = 0, np.dot, algorithm.trainer.done

    def counting(a: Any, b: Any, **options: Any) -> Any:
        nonlocal counted
        result = dot(a, b, **options)
        counted += 2 * a.shape[-1] * np.size(result)
        return result

    np.dot = counting  # type: ignore[assignment]
    try:
        with FlopCounterMode(display=False) as torchs:
            for _ in range(rounds):
                algorithm.trainer.round()
    finally:
        np.dot = dot
    return (counted + torchs.get_total_flops()) / (algorithm.trainer.done - before)


def _matrix_rate() -> float:
    """Return floating-point operations per second of NumPy's product of 256 × 256 matrices."""
    a, out = np.ones((256, 256), np.float32), np.empty((256, 256), np.float32)
    return (
        2 * 256**3 / (min(timeit.repeat(lambda: np.dot(a, a, out=out), number=5, repeat=200)) / 5)
    )


def _bare_step(name: str) -> float:
    """Return the least seconds of a step of the environment alone."""
    env = gymnasium.make(name)
    env.reset(seed=0)
    action = env.action_space.sample()

    def step() -> None:
        if any(env.step(action)[2:4]):
            env.reset()

    return min(timeit.repeat(step, number=10, repeat=200)) / 10


def main() -> None:
    """Measure one algorithm, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algo", choices=sorted(_TASKS))
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps measured")
    parser.add_argument("--median", action="store_true", help="instead of the 10th percentile")
    arguments = parser.parse_args()
    algorithm = _trained(arguments.algo)
    rate, bare = _matrix_rate(), _bare_step(_TASKS[arguments.algo]["env"])
    flops = _flops(4 if arguments.algo in ("dqn", "ppo") else 64, algorithm)
    watch = Stopwatch()
    watch.wrap(type(algorithm), "losses", "update: loss equations")
    for owner, name, part in _PARTS:
        watch.wrap(owner, name, part)
    rounds: list[dict[str, float]] = []
    before = algorithm.trainer.done
    while algorithm.trainer.done < before + arguments.steps:
        watch.seconds.clear()
        begun = algorithm.trainer.done
        for _ in range(algorithm.cycle):
            algorithm.trainer.round()
        steps = algorithm.trainer.done - begun
        rounds.append({part: s / steps * 1e6 for part, s in watch.seconds.items()})
    steps = algorithm.trainer.done - before
    share = 50 if arguments.median else 10
    figures = {p: np.percentile([r.get(p, 0.0) for r in rounds], share) for p in watch.calls}
    print(f"| {arguments.algo} | calls per step | µs per step |")
    print("|---|---|---|")
    for part in sorted(figures, key=lambda part: -figures[part]):
        print(f"| {part} | {watch.calls[part] / steps:.2f} | {figures[part]:.1f} |")
    print(f"| all | | {sum(figures.values()):.0f} |")
    products = f"{flops / 1e6:.2f} MFLOP at {rate / 1e9:.0f} GFLOP/s"
    print(f"| floor: {products} | | {flops / rate * 1e6:.1f} |")
    print(f"| floor: the bare environment | | {bare * 1e6:.1f} |")


if __name__ == "__main__":
    main()
