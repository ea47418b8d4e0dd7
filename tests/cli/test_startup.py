"""The command line answers at once: nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "tensordict", "transformers", "gymnasium", "hydra", "omegaconf", "numpy", "rich")

AFTER = f"""
import sys
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code + AFTER], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "code",
    [
        "import zoo",
        "import zoo.cli; assert zoo.cli.main(['--help']) == 0",
        "import zoo.cli; assert zoo.cli.main(['list']) == 0",
        "import zoo.cli; assert zoo.cli.main(['list', '--matrix']) == 0",
        "import zoo.cli; assert zoo.cli.main(['train', 'seed']) == 2",
        "import zoo.algorithms, zoo.envs",
    ],
)
def test_imports_nothing_heavy(code: str) -> None:
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_parts_of_the_package_are_imported_when_asked_for() -> None:
    code = "import zoo; assert zoo.algorithms.PPO.name == 'ppo'; assert 'core' in dir(zoo)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_unknown_part_of_the_package_is_an_attribute_error() -> None:
    import zoo

    with pytest.raises(AttributeError, match="no attribute 'algorithm'"):
        _ = zoo.algorithm
