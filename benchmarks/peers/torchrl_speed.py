"""PPO on CartPole-v1 and SAC on Pendulum-v1: this library's speed and TorchRL's.

Both get the same hyperparameters, networks, number of environments and number of threads. TorchRL
0.14.1 needs another tensordict and another torch than this library has, hence an environment of its
own, whose interpreter is named:

    python -m venv torchrl-env && torchrl-env/bin/pip install torchrl==0.14.1 'gymnasium>=1.1'
    python -m zoo.benchmarks.peers.torchrl_speed sac --python torchrl-env/bin/python --runs 5
"""

from __future__ import annotations

from pathlib import Path

from zoo.benchmarks.peers import sb3_off_policy, sb3_ppo
from zoo.benchmarks.peers.alternate import alternate, arguments_of, module

__all__ = ["TASKS", "main"]

TASKS = {"ppo": sb3_ppo.TASKS["tuned"], "sac": sb3_off_policy.TASKS["sac"]}


def main() -> None:
    """Run the comparison."""
    parser = arguments_of(__doc__, sorted(TASKS))
    parser.add_argument("--python", required=True, help="an interpreter that has torchrl")
    arguments = parser.parse_args()
    theirs = [arguments.python, str(Path(__file__).with_name("torchrl_side.py"))]
    alternate(TASKS[arguments.task], {"zoo": module("zoo_side"), "TorchRL": theirs}, arguments)


if __name__ == "__main__":
    main()
