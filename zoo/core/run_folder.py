"""What a run leaves behind: one folder that evaluation, resume and reports read.

config.yaml       the full settings, versions, git revision, hardware
metrics.jsonl     one object per round
episodes.jsonl    returns and lengths (control); completions.jsonl: samples with rewards (text)
checkpoints/      last.pt and best.pt
summary.json      status, counters, last and best evaluation; written atomically
errors.log        tracebacks
"""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from zoo.core.atomic import replacing
from zoo.core.choices import short_name
from zoo.core.config import Config
from zoo.core.recorder import Recorder
from zoo.errors import UserError

__all__ = ["RunFolder", "finite", "fresh_name", "made_with", "open_recorder"]

_PACKAGES = ("torch", "tensordict", "numpy", "gymnasium", "transformers", "reasoning-gym", "vllm")
_LOCK_TRIES = 10
_ROWS = ("metrics.jsonl", "episodes.jsonl", "completions.jsonl")


class RunFolder:
    """The folder of one run.

    Parameters
    ----------
    path : Path
        An existing folder; :meth:`create` makes a new one and :meth:`open` checks an old one.
    config : Config
        The run's settings.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.checkpoints = path / "checkpoints"
        self._lock: int | None = None
        self.facts: dict[str, Any] = {
            "algo": config["algo.name"],
            "env": config["env.name"],
            "dataset": None,
            "model": config["model.name"],
            "preset": config["preset"],
            "seed": config["seed"],
        }
        self._updates = 0

    @classmethod
    def create(cls, config: Config) -> RunFolder:
        """Make the folder that ``run_dir`` names, or ``runs/<algo>-<env>-<time>``.

        Raises
        ------
        UserError
            Where it already holds something, or can't be made.
        """
        named = config["run_dir"]
        path = Path(named).expanduser() if named else fresh_name(config)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                old = f"{_advice(path)}, or " if (path / "config.yaml").exists() else ""
                raise UserError(
                    f"the run folder {path} is not empty: {old}choose another run_dir=."
                )
            folder = cls(path, config)
            folder.lock()
            folder.checkpoints.mkdir()
            record = {**config.to_dict(), "made_with": made_with()}
            _write(path / "config.yaml", yaml.safe_dump(record, sort_keys=False))
        except OSError as error:
            raise UserError(f"can't make the run folder {path}: {error.strerror}.") from error
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open the folder of an earlier run.

        Raises
        ------
        UserError
            Where there is none, or its config.yaml can't be read.
        """
        path = Path(path).expanduser()
        file = path / "config.yaml"
        if not file.is_file():
            raise UserError(f"{path} is no run folder: it has no config.yaml.")
        try:
            tree = yaml.safe_load(file.read_text("utf-8"))
            tree.pop("made_with", None)
            return cls(path, Config.from_dict(tree))
        except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{file} is not the configuration of a run: {error!r}.") from error

    def lock(self) -> None:
        """Claim the folder for this process until it ends; two writers would mix their rows.

        Raises
        ------
        UserError
            Where another process is training in it.
        """
        file = os.open(self.path, os.O_RDONLY)
        for waited in range(_LOCK_TRIES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = file
                return
            except OSError as error:
                if waited == _LOCK_TRIES - 1:
                    os.close(file)
                    raise UserError(
                        f"another process is training in {self.path}: wait for it, or stop it"
                        " first."
                    ) from error
            time.sleep(0.05)  # a report that looks whether it is held holds it for an instant

    def unlock(self) -> None:
        """Give the folder up."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Remove a folder in which no round was recorded."""
        self.unlock()
        if not (self.path / "metrics.jsonl").exists():
            shutil.rmtree(self.path)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one round's figures; NaN and infinity become null."""
        self._updates = int(row.get("updates", self._updates))
        self._append("metrics.jsonl", [row])

    def append_records(self, file: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to ``episodes.jsonl`` or ``completions.jsonl``, marked with their round."""
        self._append(file, ({"updates": self._updates, **row} for row in records))

    def append_error(self, text: str) -> None:
        """Add a traceback to errors.log."""
        with (
            self._writing("errors.log"),
            (self.path / "errors.log").open("a", encoding="utf-8") as f,
        ):
            f.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}, update {self._updates}\n{text}\n")

    def write_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write summary.json in one go and return what it holds."""
        whole: dict[str, Any] = finite({"run_dir": str(self.path), **self.facts, **summary})
        with self._writing("summary.json"):
            _write(self.path / "summary.json", json.dumps(whole, indent=2, ensure_ascii=False))
        return whole

    def read_summary(self) -> dict[str, Any]:
        """Return what summary.json holds, an empty dict where there is none yet."""
        file = self.path / "summary.json"
        if not file.is_file():
            return {}
        summary: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return summary

    def truncate_after(self, updates: int) -> None:
        """Drop the rows past a round, and a half-written last one, before a resumed run goes on."""
        self._updates = updates
        for name in _ROWS:
            file = self.path / name
            if not file.is_file():
                continue
            kept = []
            # str.splitlines also cuts at separators that JSON leaves as they are, U+2028 for one;
            # what follows the last newline was being written when the process ended.
            for line in file.read_text("utf-8", errors="replace").split("\n")[:-1]:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if row.get("updates", 0) <= updates:
                    kept.append(f"{line}\n")
            with self._writing(name):
                _write(file, "".join(kept))

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows)
        with self._writing(name), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(text)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            last = self.checkpoints / "last.pt"
            state = (
                f"the last checkpoint, {last}, is valid" if last.exists() else "nothing is saved"
            )
            raise UserError(
                f"no space left on the disk for {self.path / name}; {state}. Free some space, then"
                f" {_advice(self.path)}."
            ) from error


def open_recorder(config: Config, folder: RunFolder | None = None, done: int = 0) -> Recorder:
    """Make the run folder, unless it is given, and the loggers that the settings name.

    Parameters
    ----------
    config : Config
        The run's settings.
    folder : RunFolder, optional
        The folder of a run to be resumed.
    done : int
        How much of the budget such a run has spent.
    """
    from zoo.core.loggers import make_loggers

    folder = folder or RunFolder.create(config)
    return Recorder(folder, make_loggers(config, folder.path, done), config.tree.get("log_every"))


def fresh_name(config: Config) -> Path:
    """Return ``runs/<algo>-<env>-<time>``, numbered where that is taken."""
    name = "-".join(short_name(str(config[key])) for key in ("algo.name", "env.name"))
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = stem, 1
    while path.exists():  # two runs in one second
        count += 1
        path = stem.with_name(f"{stem.name}-{count}")
    return path


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def _advice(path: Path) -> str:
    """Say what can be done with a folder that holds something: there may be nothing to resume."""
    if (path / "checkpoints" / "last.pt").exists():
        return f"go on with `zoo train --resume {shlex.quote(str(path))}`"
    return f"delete {path}, which has no checkpoint to go on from, and start again"


def finite(value: Any) -> Any:
    """Return plain JSON values: NaN and infinity are null, NumPy scalars and tensors numbers."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    return finite(value.tolist()) if hasattr(value, "tolist") else str(value)


def made_with() -> dict[str, Any]:
    """Return what a run is made with: the time, versions, git revisions and hardware."""
    import torch

    import zoo

    versions = {"python": platform.python_version(), "algorithm-zoo": zoo.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    source = Path(zoo.__file__).resolve().parent.parent
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions,
        "git": {
            "algorithm-zoo": _revision(source) if (source / ".git").exists() else None,
            "working_directory": _revision(Path.cwd()),
        },
        "hardware": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "accelerators": devices,
        },
    }


def _processor() -> str:
    """Return the processor's name; Linux says it in /proc only."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def _revision(folder: Path) -> str | None:
    command = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
