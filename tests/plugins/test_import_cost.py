"""What importing the plugins costs."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_plugins_costs_torch_only():
    heavy = ("tensordict", "gymnasium", "transformers", "hydra", "rich", "wandb")
    code = f"import sys, zoo.plugins; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
