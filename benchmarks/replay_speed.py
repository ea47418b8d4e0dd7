"""Time replay at HalfCheetah-v5's sizes, and print the table of docs/replay.md.

python -m zoo.benchmarks.replay_speed
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import torch
from tensordict import TensorDict

from zoo.core.replay import PriorityKnobs, ReplayBuffer

__all__ = ["filled", "main"]

_OBSERVATION, _ACTION, _EPISODE, _FRAGMENT, _BATCH = 17, 6, 1000, 10_000, 256


def fragment(steps: int, begun: int = 0) -> TensorDict:
    """Return steps of one environment whose episodes are truncated after 1,000."""
    seen = torch.randn(1, steps + 1, _OBSERVATION)
    truncated = (torch.arange(begun, begun + steps) % _EPISODE == _EPISODE - 1)[None]
    leaves = {
        "observation": seen[:, :-1].clone(),
        "next_observation": seen[:, 1:].clone(),
        "action": torch.zeros(1, steps, _ACTION),
        "reward": torch.ones(1, steps),
        "terminated": torch.zeros(1, steps, dtype=torch.bool),
        "truncated": truncated,
        "mask": torch.ones(1, steps, dtype=torch.bool),
    }
    return TensorDict(leaves, batch_size=[1])


def filled(transitions: int, n_step: int, prioritised: bool) -> ReplayBuffer:
    """Return a buffer that holds so many transitions and is full."""
    priority = PriorityKnobs(alpha=0.6) if prioritised else None
    buffer = ReplayBuffer(transitions, _BATCH, gamma=0.99, n_step=n_step, priority=priority)
    for begun in range(0, transitions, _FRAGMENT):
        buffer.extend(fragment(min(_FRAGMENT, transitions - begun), begun))
    return buffer


def microseconds(call: Callable[[], object]) -> float:
    """Return the least time of a call over many short windows: what others' load leaves alone."""
    return min(timeit.repeat(call, number=10, repeat=400)) / 10 * 1e6


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print("| stored | priorities | n | draw | store one step | `feedback` | memory |")
    print("|---|---|---|---|---|---|---|")
    for transitions in (10_000, 1_000_000):
        for prioritised in (False, True):
            for n_step in (1, 3):
                buffer = filled(transitions, n_step, prioritised)
                batch = draw(buffer)
                errors, step = torch.rand(_BATCH), fragment(1)
                times = [microseconds(lambda: draw(buffer))]  # noqa: B023
                times.append(microseconds(lambda: buffer.extend(step)))  # noqa: B023
                times.append(microseconds(lambda: buffer.feedback(batch["index"], errors)))  # noqa: B023
                drawn, stored, told = (f"{t:.0f} µs" for t in times)
                print(
                    f"| {transitions:,} | {'yes' if prioritised else 'no'} | {n_step} | {drawn} |"
                    f" {stored} | {told if prioritised else '–'} | {buffer.nbytes / 1e6:.1f} MB |"
                )


def draw(buffer: ReplayBuffer) -> TensorDict:
    """Return one sampled batch, whatever has been earned."""
    return buffer.sample(progress=0.5)


if __name__ == "__main__":
    main()
