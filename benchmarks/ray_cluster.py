"""Runs on a Ray cluster: each is a task that starts the run's process on its node.

A run's process is the same as on one machine, so what Ray does to its own workers (it keeps them,
and what they imported, for the next task) is nothing to the run. All nodes must see the folder of
results under the same path; that is asked of each before the first run starts.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import Any

from zoo.benchmarks.life import Ended
from zoo.benchmarks.processes import Launch, Process
from zoo.errors import UserError

__all__ = ["RayCluster"]

_POLL_S = 0.2
_ANSWER_S = 10.0


class RayCluster:
    """Runs as Ray tasks.

    Parameters
    ----------
    address : str
        ``auto`` (the cluster that this machine belongs to), ``local`` (a new one, here), or
        ``host:port``.
    out : Path
        The folder of results, an absolute path.

    Attributes
    ----------
    cores, most : int
        CPUs of all nodes together, and of the largest one.

    Raises
    ------
    UserError
        Where Ray is not installed, there is no cluster at the address, or a node can't do it.
    """

    def __init__(self, address: str, out: Path) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError(
                "--ray needs Ray, which is not installed: `pip install 'algorithm-zoo[scale]'`."
            ) from error
        self._ray: Any = ray
        if address not in ("auto", "local"):
            _refuse_silent(address)
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        own = {"include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address, **quiet, **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"no Ray cluster at --ray {address}: {_first_line(error)}") from error
        self._tasks: dict[Any, str] = {}
        try:
            nodes = [node for node in ray.nodes() if node["Alive"]]
            cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes]
            self.cores, self.most = max(1, sum(cpus)), max(1, *cpus)
            self._accelerators = ray.cluster_resources().get("GPU", 0) >= 1
            self._ask_nodes(nodes, out)
        except BaseException:
            ray.shutdown()
            raise

    def start(self, name: str, launch: Launch) -> None:
        """Hand a run to the cluster, which starts it where there is room."""
        task = self._ray.remote(_attend).options(
            name=name,
            num_cpus=launch.threads,
            num_gpus=1 if launch.accelerator and self._accelerators else 0,
            max_retries=0,  # what is to be done with a run that got lost is ours to say
        )
        self._tasks[task.remote(launch)] = name

    def ended(self) -> list[tuple[str, Ended]]:
        """Return the runs that ended since the last call, without waiting."""
        if not self._tasks:
            return []
        over, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        return [(self._tasks.pop(task), self._result(task)) for task in over]

    def stop(self) -> None:
        """Ask every run to save and stop."""
        for task in self._tasks:
            self._ray.cancel(task)

    def kill(self) -> None:
        """End every run at once."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started for us ends."""
        self._ray.shutdown()

    def _result(self, task: Any) -> Ended:
        try:
            ended: Ended = self._ray.get(task)
        except self._ray.exceptions.RayError as error:  # cancelled, or its node is gone
            return Ended(None, _first_line(error))
        return ended

    def _ask_nodes(self, nodes: list[dict[str, Any]], out: Path) -> None:
        """Have every node read a file that is written here."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        token, text = out / f".token-{os.getpid()}", secrets.token_hex()
        try:
            token.write_text(text)
        except OSError as error:
            raise UserError(f"can't write in {out}: {error.strerror}.") from error
        try:
            for node in nodes:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                task = self._ray.remote(_read).options(num_cpus=0, scheduling_strategy=there)
                try:
                    seen = self._ray.get(task.remote(token))
                except self._ray.exceptions.RayError as error:
                    raise UserError(
                        f"the Ray node {node['NodeManagerAddress']} can't run algorithm-zoo"
                        f" ({_first_line(error)}): install it there as it is here."
                    ) from error
                if seen != text:
                    raise UserError(
                        f"the Ray node {node['NodeManagerAddress']} does not see {out}: give an"
                        " --out on a file system that all nodes share."
                    )
        finally:
            token.unlink()


def _refuse_silent(address: str) -> None:
    """Refuse an address where nobody answers; Ray itself would ask there for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--ray takes auto, local, or HOST:PORT (got {address}).")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at --ray {address}: {error}.") from error


def _attend(launch: Launch) -> Ended:
    """Start a run's process and wait for it; being cancelled, have it save and stop."""
    # A cluster that was started in the background ignores Ctrl-C, and then cancelling does nothing.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = Process(launch)
    while True:
        try:
            while (ended := process.poll()) is None:
                time.sleep(_POLL_S)
            return ended
        except KeyboardInterrupt:  # this is how ray.cancel reaches a task
            process.stop()


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
