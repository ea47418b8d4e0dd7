"""Change one operator of the mathematics at a time, and see that a test fails.

    python tests/mutants.py                                    all, about 20 minutes on one core
    python tests/mutants.py zoo/functional/returns.py          one file
    python tests/mutants.py algorithms --every 5               every fifth mutant

A mutant swaps + and −, × and ÷, min and max, ``and`` and ``or``, moves a comparison by one, negates
a condition, drops a sign, a ``not`` or a ``detach()``, turns a flag, or adds one to a number. Not
changed are error messages and ``__post_init__``, which are about users' input. The tests are those
of the mathematics alone (``TESTS``); what dies there is caught within seconds.

Nothing is written: each mutant lives in a forked process that imports the changed module in place
of the file. Survivors are listed; those in mutants.yaml are known, with the reason. Exit status 1
where fewer than 90 % die.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import io
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import yaml

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("zoo/functional", "algorithms")
#: cheapest first; other processes would import the unchanged module
TESTS = ("tests/functional", "tests/algorithms")
LEFT_OUT = "not world_size and not compiled"
KNOWN = Path(__file__).with_suffix(".yaml")
SECONDS, SHARE = 120, 0.9

_BINARY: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "amin": "amax",
    "all": "any",
    "clamp_min": "clamp_max",
}
_NAMES |= {other: name for name, other in _NAMES.items()}


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what stood there and stands there now, and the module it makes."""

    path: str
    line: int
    code: str
    before: str
    after: str
    tree: ast.Module

    @property
    def key(self) -> str:
        """Names the change by the code of its line; the line's number moves."""
        return f"{self.path}: {self.code}: {self.before} → {self.after}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may be changed into."""
    new = copy.deepcopy(node)
    match new:
        case ast.BinOp() | ast.AugAssign() if type(new.op) in _BINARY:
            new.op = _BINARY[type(new.op)]()
            yield new
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield new.operand
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield new
        case ast.Compare() if type(new.ops[0]) in _COMPARED:
            new.ops[0] = _COMPARED[type(new.ops[0])]()
            yield new
        case ast.IfExp() | ast.If():
            new.test = ast.UnaryOp(ast.Not(), new.test)
            yield new
        case ast.Call(func=ast.Attribute(attr="detach")):
            yield new.func.value  # type: ignore[attr-defined]
        case ast.Attribute() if new.attr in _NAMES:
            new.attr = _NAMES[new.attr]
            yield new
        case ast.Name() if new.id in _NAMES:
            new.id = _NAMES[new.id]
            yield new
        case ast.Constant(value=bool()):
            new.value = not new.value
            yield new
        case ast.Constant(value=int() | float()):
            new.value = new.value + 1  # type: ignore[operator]
            yield new


def sites(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Yield (parent, field, index) of every node in a function's body that computes."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert):
                continue
            if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(
                node, ast.Call
            ):
                continue  # a signature
            if isinstance(child, ast.FunctionDef) and child.name == "__post_init__":
                continue
            if inside:
                yield node, field, index
            yield from sites(child, inside or isinstance(child, ast.FunctionDef))


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    text, name = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
    tree, lines = ast.parse(text), text.splitlines()
    for parent, field, index in list(sites(tree)):
        value = getattr(parent, field)
        node = value if index is None else value[index]
        for new in changes(node):
            ast.copy_location(new, node)
            _put(parent, field, index, new)
            changed = ast.fix_missing_locations(copy.deepcopy(tree))
            _put(parent, field, index, node)
            code = lines[node.lineno - 1].strip()
            yield Mutant(name, node.lineno, code, _said(node), _said(new), changed)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _said(node: ast.AST) -> str:
    """Return a node's code; of an ``if`` the condition alone."""
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutant's tree, and every other one as usual."""

    def __init__(self, mutant: Mutant) -> None:
        dotted = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.name = dotted if dotted.startswith("zoo.") else f"zoo.{dotted}"
        self.path, self.tree = ROOT / mutant.path, mutant.tree

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Claim the mutant's module."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def _own_tests(mutant: Mutant | None) -> list[str]:
    """Return the test file of a mutant's module: most die there, before the others are imported."""
    stem = Path(mutant.path).stem if mutant else ""
    return [str(file) for file in (ROOT / "tests").rglob(f"test_{stem}.py")]


def survives(mutant: Mutant | None, tests: Sequence[str]) -> bool:
    """Run the tests on a mutant, on the unchanged code where there is none, in a process."""
    child = os.fork()
    if child == 0:
        import pytest

        os.chdir(ROOT)
        # Of processor time: a loop that no longer ends is a mutant killed, a busy machine none.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        if mutant is not None:
            sys.meta_path.insert(0, Changed(mutant))
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-k", LEFT_OUT]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            code = pytest.main([*options, *own]) if (own := _own_tests(mutant)) else 0
            code = code or pytest.main([*options, *tests])
        os._exit(int(code))
    return os.waitpid(child, 0)[1] == 0


def main() -> int:
    """Print every survivor and the share that died."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=TARGETS, help="files or folders")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth mutant")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="what has to fail")
    asked = parser.parse_args()
    import gymnasium  # noqa: F401  imported once, here, for all processes
    import tensordict  # noqa: F401
    import torch  # noqa: F401

    if not survives(None, asked.tests):
        print("the tests fail without any change: mend that first.")
        return 2
    known = yaml.safe_load(KNOWN.read_text("utf-8")) if KNOWN.is_file() else {}
    files = [f for p in asked.paths for f in (sorted((ROOT / p).rglob("*.py")) or [ROOT / p])]
    every = [m for file in files for m in mutants(file)][:: asked.every]
    alive, start = [], time.monotonic()
    for number, mutant in enumerate(every, start=1):
        if survives(mutant, asked.tests):
            alive.append(mutant)
            why = known.get(mutant.key, "NOT EXPLAINED")
            print(f"line {mutant.line}: {mutant.key}: {why}", flush=True)
        elif sys.stderr.isatty():
            print(f"{number} of {len(every)}", end="\r", file=sys.stderr)
    killed, took = len(every) - len(alive), time.monotonic() - start
    print(f"{killed} of {len(every)} killed ({killed / len(every):.1%}), {took:.0f} s")
    unknown = [m for m in alive if m.key not in known]
    print(f"{len(alive) - len(unknown)} survivors known, {len(unknown)} not explained")
    return 0 if killed >= SHARE * len(every) and not unknown else 1


if __name__ == "__main__":
    sys.exit(main())
