"""The command line in this process, and one short trained run that the tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from short_run import SHORT, Command

from zoo.cli import main


@pytest.fixture
def zoo(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command and gives its status, standard output and error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run; tests read it only."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", *SHORT, f"run_dir={folder}", "logger=none"]) == 0
    return folder


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of that run to change."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    return copy
