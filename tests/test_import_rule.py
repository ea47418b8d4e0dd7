"""Who may import whom, and how long a file may be (docs/architecture.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "zoo": "zoo",
    "algorithms": "zoo.algorithms",
    "envs": "zoo.envs",
    "benchmarks": "zoo.benchmarks",
}
CORE = ("zoo.core", "zoo.plugins", "zoo.policies", "zoo.rollouts")
ABOVE = ("zoo.algorithms", "zoo.envs", "zoo.cli", "zoo.benchmarks", "algorithms", "envs")
#: package → what it must never import, at the top of a file or inside a function
FORBIDDEN = {
    "zoo.functional": (*CORE, *ABOVE, "zoo.errors", "zoo.conf"),
    **dict.fromkeys(CORE, ABOVE),
    "zoo.algorithms": ("zoo.envs", "zoo.cli", "zoo.benchmarks", "envs"),
    "zoo.envs": ("zoo.algorithms", "zoo.cli", "zoo.benchmarks", "algorithms"),
}
#: imported only where they are used, so that `zoo list` and a CartPole run never load them
HEAVY = {"transformers", "peft", "vllm", "ray", "wandb", "tensorboard", "reasoning_gym"}
HEAVY |= {"mujoco", "matplotlib", "hydra", "rich", "rliable", "pandas"}
LONGEST = 500


def sources() -> dict[str, Path]:
    """Every source file by its dotted module name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


SOURCES = sources()


def imports(module: str, tree: ast.AST, functions: bool = True) -> Iterator[str]:
    """Every module imported below a node, in functions too or not; typing-only ones don't count."""
    package = module in SOURCES and SOURCES[module].name == "__init__.py"
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports(module, other, functions)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = len(parts) - node.level + package
                origin = ".".join([*parts[:kept], *filter(None, [node.module])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(module, node, functions)


def packages_of(module: str) -> Iterator[str]:
    """The packages that a module lies in; importing a sibling by name goes through them."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def within(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def broken_rules(module: str, text: str) -> list[str]:
    """What a file's imports break, in words."""
    tree = ast.parse(text)
    names = set(imports(module, tree))
    rules = next((f for p, f in FORBIDDEN.items() if within(module, (p,))), ())
    found = [f"{module} must not import {n}" for n in sorted(names) if within(n, tuple(rules))]
    heavy = {n for n in imports(module, tree, functions=False) if within(n, HEAVY)}
    found += [f"{module} must import {n} inside a function" for n in sorted(heavy)]
    if within(module, ("zoo.functional",)):
        allowed = ("torch", "zoo.functional")
        strange = (n for n in names if not within(n, allowed))
        outside = sorted(n for n in strange if n.split(".")[0] not in sys.stdlib_module_names)
        found += [f"{module} must import torch only, not {n}" for n in outside]
    return found


@pytest.mark.parametrize("module", SOURCES)
def test_a_file_keeps_the_import_rule(module):
    assert broken_rules(module, SOURCES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("zoo.functional.returns", "import numpy"),
        ("zoo.functional.returns", "from zoo.core import batch"),
        ("zoo.core.trainer", "from zoo.algorithms import PPO"),
        ("zoo.core.trainer", "def f():\n    from zoo import envs"),
        ("zoo.plugins.kl", "from ..cli import main"),
        ("zoo.algorithms.ppo", "import zoo.envs.gsm8k"),
        ("zoo.envs.text", "from zoo import algorithms"),
        ("zoo.policies.language", "import transformers.models"),
        ("zoo.cli", "class A:\n    import rich"),
    ],
)
def test_the_rule_sees_what_breaks_it(module, text):
    assert broken_rules(module, text)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("zoo.functional.returns", "import math\nimport torch\nfrom torch import Tensor"),
        ("zoo.core.trainer", "if TYPE_CHECKING:\n    from zoo.algorithms import PPO"),
        ("zoo.policies.language", "def load():\n    import transformers"),
        ("zoo.cli.train", "from zoo.algorithms import PPO\nfrom zoo.core.build import build"),
        ("zoo.algorithms.ppo", "from zoo.functional import returns"),
    ],
)
def test_the_rule_lets_pass_what_is_right(module, text):
    assert broken_rules(module, text) == []


def test_no_imports_run_in_a_circle():
    """Nor those inside functions; what is imported for types alone is not imported."""
    sorter = TopologicalSorter(
        {
            module: {n for n in imports(module, ast.parse(path.read_text())) if n in SOURCES}
            - {module, *packages_of(module)}
            for module, path in SOURCES.items()
        }
    )
    sorter.prepare()  # raises CycleError with the circle


@pytest.mark.parametrize("module", SOURCES)
def test_a_file_is_short_enough_to_be_read(module):
    limit = LONGEST
    if module == "zoo.core.trainer" or within(module, ("zoo.algorithms",)):
        limit = 150
    lines = len(SOURCES[module].read_text().splitlines())
    assert lines <= limit, f"{SOURCES[module]} has {lines} lines, at most {limit}"
