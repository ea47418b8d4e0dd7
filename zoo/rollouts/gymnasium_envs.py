"""Several environments stepped together, each episode from an explicit seed of its own.

Two implementations of one interface: :class:`LocalEnvs`, a plain loop in this process, and
:class:`VectorEnvs`, Gymnasium's own vector environments (in this process or one process each) under
any autoreset mode. Both give the same data: where an episode ends, its final observation is handed
over separately and the environment stands at the first observation of the next episode.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from zoo.errors import UserError

__all__ = [
    "EnvFactory",
    "Envs",
    "EpisodeEnv",
    "EpisodeSeeds",
    "LocalEnvs",
    "ParkedEnvs",
    "RolloutError",
    "SeedOf",
    "VectorEnvs",
]

EnvFactory = Callable[..., gymnasium.Env[Any, Any]]
#: (environment, episode) → the episode's seed
SeedOf = Callable[[int, int], int]
_ERROR = "rollout_error"


class RolloutError(UserError):
    """An environment raised or gave something that can't be used.

    Attributes
    ----------
    index : int
        Which of the environments it was.
    traceback : str
        The environment's own traceback, possibly from another process.
    """

    def __init__(self, message: str, index: int = 0, traceback: str = "") -> None:
        super().__init__(message)
        self.index, self.traceback = index, traceback


class EpisodeSeeds:
    """Seed of every episode as a function of (run seed, stream, environment, episode number).

    Streams of different runs, purposes and environments are independent (NumPy's SeedSequence), and
    any episode can be started again later.

    Parameters
    ----------
    seed : int
        The run's seed.
    stream : int
        Tells purposes apart: training, groups, evaluation.
    """

    _BLOCK = 64

    def __init__(self, seed: int, stream: int) -> None:
        self.seed, self.stream = seed, stream
        self._blocks: dict[int, tuple[int, np.ndarray]] = {}

    def __call__(self, index: int, episode: int) -> int:
        """Return a 31-bit seed (some environments refuse larger ones)."""
        number, offset = divmod(episode, self._BLOCK)
        known = self._blocks.get(index)
        if known is None or known[0] != number:
            sequence = np.random.SeedSequence(self.seed, spawn_key=(self.stream, index, number))
            known = self._blocks[index] = (number, sequence.generate_state(self._BLOCK) >> 1)
        return int(known[1][offset])


class EpisodeEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Start every episode from its own seed, replay an interrupted one, and carry errors home.

    ``reset`` without a seed takes the next episode's. The action None holds the environment where
    it is, for vector environments that can only step all together.

    Parameters
    ----------
    make : callable
        Makes the environment.
    seeds : callable
        Where seeds come from.
    index : int
        Which environment this is.
    park : bool
        Stay at the end of an episode until a seed is given (group rollouts).
    carry_errors : bool
        Report an exception in ``info`` instead of raising it; a worker process survives it so.
    """

    def __init__(
        self,
        make: EnvFactory,
        seeds: SeedOf,
        index: int,
        park: bool = False,
        carry_errors: bool = False,
    ) -> None:
        super().__init__(make())
        self.seeds, self.index, self.park, self.carry_errors = seeds, index, park, carry_errors
        self.episode = -1
        self._make = make
        # A Box2D world remembers earlier episodes, so that one seed gives different episodes
        # (Gymnasium's issue 728); a new instance does not, and costs a tenth of a millisecond.
        module = type(self.env.unwrapped).__module__
        self.renews = module.startswith("gymnasium.envs.box2d")
        self.pending: tuple[int, list[Any]] | None = None
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin the next episode, the one of ``seed``, or the pending replay."""
        return self._guard(self._reset, seed)

    def step(self, action: Any) -> Any:
        """Step, or hold still for None."""
        if action is None:
            return self._last, 0.0, False, False, {}
        return self._guard(self.env.step, action)

    def _reset(self, seed: int | None) -> Any:
        if self.pending is not None:
            return self._replay()
        if seed is None:
            if self.park and self._last is not None:
                return self._last, {}
            self.episode += 1
            seed = self.seeds(self.index, self.episode)
        return self._start(seed)

    def _start(self, seed: int) -> Any:
        if self.renews:
            self.env.close()
            self.env = self._make()
        return self.env.reset(seed=seed)

    def _replay(self) -> Any:
        """Repeat an episode from its seed; ``info["replayed"]`` says whether it went on as long."""
        assert self.pending is not None
        (self.episode, actions), self.pending = self.pending, None
        observation, _ = self._start(self.seeds(self.index, self.episode))
        for action in actions:
            observation, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                self.episode += 1
                observation, _ = self._start(self.seeds(self.index, self.episode))
                return observation, {"replayed": False}
        return observation, {"replayed": True}

    def _guard(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Call the environment; a vector environment can't stack every info, so it gets none."""
        if not self.carry_errors:
            result = call(argument)
        else:
            try:
                *result, info = call(argument)
                result.append({k: v for k, v in info.items() if k == "replayed"})
            except Exception as error:
                told = {_ERROR: (f"{type(error).__name__}: {error}", traceback.format_exc())}
                seen = self.observation_space.sample() if self._last is None else self._last
                result = [seen, told] if call == self._reset else [seen, 0.0, False, False, told]
            result = tuple(result)
        self._last = result[0]
        return result


class Envs(Protocol):
    """N environments stepped together."""

    num_envs: int
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def reset(self, observation: np.ndarray, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode everywhere, writing its first observations into [N, *obs]."""
        ...

    def replay(
        self, observation: np.ndarray, episodes: Sequence[int], actions: Sequence[list[Any]]
    ) -> list[bool]:
        """Repeat interrupted episodes; say for each environment whether it could be followed."""
        ...

    def step(
        self,
        actions: list[Any],
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> list[tuple[int, np.ndarray]]:
        """Step every environment whose action is not None, writing row t of a rollout.

        ``observation`` [N, *obs] takes what the policy sees next; the flags are written only where
        an episode ended, and those environments' final observations are returned by index.
        """
        ...

    def episodes(self) -> list[int]:
        """Number of the episode that each environment is in."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class ParkedEnvs(Envs, Protocol):
    """Environments of which any can begin an episode by itself."""

    def restart(self, index: int, seed: int | None = None) -> np.ndarray:
        """Begin an episode in one environment: the one of a seed, or its next."""
        ...


class LocalEnvs:
    """A plain loop over environments in this process; a fraction of a microsecond per step.

    Parameters
    ----------
    make : callable
        Makes one environment.
    num_envs : int
        How many.
    seeds : EpisodeSeeds
        Where each episode's seed comes from.
    park : bool
        Stay at the end of an episode until the next ``reset`` with seeds.
    """

    def __init__(self, make: EnvFactory, num_envs: int, seeds: SeedOf, park: bool = False) -> None:
        self.num_envs, self.park = num_envs, park
        self.envs = [_made(make, seeds, i, park) for i in range(num_envs)]
        self._steps = [env.env.step for env in self.envs]  # past the wrapper: it only resets
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space

    def reset(self, observation: np.ndarray, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode everywhere."""
        i = 0
        try:
            for i in range(self.num_envs):
                observation[i] = self.restart(i, None if seeds is None else seeds[i])
        except Exception as error:
            raise _raised(i, error) from error

    def restart(self, index: int, seed: int | None = None) -> np.ndarray:
        """Begin an episode in one environment: the one of a seed, or its next."""
        first: np.ndarray = self.envs[index].reset(seed=seed)[0]
        self._steps[index] = self.envs[index].env.step
        return first

    def replay(
        self, observation: np.ndarray, episodes: Sequence[int], actions: Sequence[list[Any]]
    ) -> list[bool]:
        """Repeat interrupted episodes."""
        followed = []
        for i, env in enumerate(self.envs):
            env.pending = (episodes[i], actions[i])
            try:
                observation[i], info = env.reset()
            except Exception as error:
                raise _raised(i, error) from error
            self._steps[i] = env.env.step
            followed.append(info["replayed"])
        return followed

    def step(
        self,
        actions: list[Any],
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> list[tuple[int, np.ndarray]]:
        """Step every environment whose action is not None."""
        finals: list[tuple[int, np.ndarray]] = []
        i = 0
        try:
            for i, step in enumerate(self._steps):
                action = actions[i]
                if action is None:
                    continue
                seen, reward[i], ended, cut, _ = step(action)
                observation[i] = seen
                if ended or cut:
                    terminated[i], truncated[i] = ended, cut and not ended
                    finals.append((i, observation[i].copy()))
                    if not self.park:
                        observation[i] = self.restart(i)
        except Exception as error:
            raise _raised(i, error) from error
        return finals

    def episodes(self) -> list[int]:
        """Number of the episode that each environment is in."""
        return [env.episode for env in self.envs]

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


class VectorEnvs:
    """Gymnasium's vector environments, under whichever autoreset mode, with identical data.

    SAME_STEP hands over the final observation in ``info``. With DISABLED the ended environments are
    reset by mask. With NEXT_STEP the reset takes a step of its own, which is taken at once while
    the others hold still, so that it never becomes a transition.

    Parameters
    ----------
    make, num_envs, seeds, park
        As for :class:`LocalEnvs`.
    mode : AutoresetMode
        The mode.
    processes : bool
        One process per environment.
    """

    def __init__(
        self,
        make: EnvFactory,
        num_envs: int,
        seeds: EpisodeSeeds,
        park: bool = False,
        mode: AutoresetMode = AutoresetMode.SAME_STEP,
        processes: bool = False,
    ) -> None:
        self.num_envs, self.mode, self._broken = num_envs, mode, False
        factories = [_Factory(make, seeds, i, park) for i in range(num_envs)]
        self.vector: AsyncVectorEnv | SyncVectorEnv
        if processes:
            try:
                self.vector = AsyncVectorEnv(factories, copy=False, autoreset_mode=mode)
            except (EOFError, OSError) as error:
                raise RolloutError(
                    "The process of an environment died while it was made; its own output says why."
                    " Try rollout.vector=sync to see the error in this process.",
                    traceback=traceback.format_exc(),
                ) from error
        else:
            self.vector = SyncVectorEnv(factories, copy=False, autoreset_mode=mode)
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def reset(self, observation: np.ndarray, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode everywhere."""
        observation[...] = self._call(
            self.vector.reset, seed=None if seeds is None else list(seeds)
        )[0]

    def replay(
        self, observation: np.ndarray, episodes: Sequence[int], actions: Sequence[list[Any]]
    ) -> list[bool]:
        """Repeat interrupted episodes."""
        self.vector.set_attr("pending", list(zip(episodes, actions, strict=True)))
        observation[...], info = self._call(self.vector.reset)
        return [bool(followed) for followed in info["replayed"]]

    def step(
        self,
        actions: list[Any],
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> list[tuple[int, np.ndarray]]:
        """Step every environment whose action is not None."""
        seen, reward[...], ended, cut, info = self._call(self.vector.step, actions)
        observation[...] = seen
        if not (ended.any() or cut.any()):
            return []
        terminated[...], truncated[...] = ended, cut & ~ended
        over = ended | cut
        last = info["final_obs"] if self.mode == AutoresetMode.SAME_STEP else observation
        finals = [(int(i), np.array(last[i], observation.dtype)) for i in np.flatnonzero(over)]
        if self.mode == AutoresetMode.DISABLED:
            observation[...] = self._call(self.vector.reset, options={"reset_mask": over})[0]
        elif self.mode == AutoresetMode.NEXT_STEP:
            held = [action if done else None for action, done in zip(actions, over, strict=True)]
            observation[...] = self._call(self.vector.step, held)[0]
        return finals

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except (EOFError, OSError) as error:
            self._broken = True
            processes = getattr(self.vector, "processes", [])
            index = next((i for i, p in enumerate(processes) if not p.is_alive()), 0)
            raise RolloutError(
                f"The process of environment {index} died; its own output says why. Try"
                " rollout.vector=sync to see the error in this process.",
                index,
                traceback.format_exc(),
            ) from error
        told = result[-1].get(_ERROR)
        if told is not None:
            index = int(np.flatnonzero(result[-1][f"_{_ERROR}"])[0])
            message, trace = told[index] if not isinstance(told, tuple) else told
            raise RolloutError(f"Environment {index} raised {message}", index, trace)
        return result

    def episodes(self) -> list[int]:
        """Number of the episode that each environment is in."""
        return [int(episode) for episode in self.vector.get_attr("episode")]

    def close(self) -> None:
        """End the environments and their processes."""
        if self._broken and isinstance(self.vector, AsyncVectorEnv):
            for process in self.vector.processes:
                process.terminate()
                process.join()
            self.vector.closed = True  # its own close would wait for the dead process
        else:
            self.vector.close()


class _Factory:
    """Make one wrapped environment, in whichever process."""

    def __init__(self, make: EnvFactory, seeds: SeedOf, index: int, park: bool) -> None:
        self.make, self.seeds, self.index, self.park = make, seeds, index, park
        self._trainer = os.getpid()

    def __call__(self) -> EpisodeEnv:
        if os.getpid() != self._trainer:
            # Ctrl-C reaches every process of the terminal; the trainer finishes its round and
            # saves, for which it needs its workers, and ends them itself.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _made(self.make, self.seeds, self.index, self.park, carry_errors=True)


def _made(
    make: EnvFactory, seeds: SeedOf, index: int, park: bool, carry_errors: bool = False
) -> EpisodeEnv:
    """Make an environment; what the user's own factory raises is told with its traceback."""
    try:
        return EpisodeEnv(make, seeds, index, park, carry_errors)
    except UserError:
        raise  # a sentence already
    except Exception as error:
        raise _raised(index, error, "could not be made:") from error


def _raised(index: int, error: Exception, verb: str = "raised") -> RolloutError:
    message = f"Environment {index} {verb} {type(error).__name__}: {error}"
    return RolloutError(message, index, "".join(traceback.format_exception(error)))
