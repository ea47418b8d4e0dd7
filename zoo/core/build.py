"""From a resolved configuration to a trainer with all its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.core import checkpoint, choices
from zoo.core.buffer import RolloutBuffer
from zoo.core.config import Config, as_overrides, compose, register
from zoo.core.cpu import set_blas_threads
from zoo.core.learner import Learner
from zoo.core.memory import budget_warning, machine_gib, replay_warning
from zoo.core.paths import anchored
from zoo.core.protocols import Buffer, Plugin, TextEnv
from zoo.core.recorder import Recorder
from zoo.core.trainer import Trainer
from zoo.errors import UserError

__all__ = ["build", "build_from_arguments", "load"]

#: names in a checkpoint and of parameter groups, which no plugin may have
_RESERVED = (
    *("policy", "critic", "learner", "rollout", "buffer", "recorder"),
    *("config", "counters", "total", "rng"),
)
_default_threads: int | None = None


def build(
    config: Config,
    recorder: Recorder | None = None,
    *,
    algorithm: Any = None,
    env: Any = None,
    rewards: Sequence[Any] | None = None,
    plugins: Sequence[Plugin] = (),
    fresh: bool = True,
) -> Trainer:
    """Put a run together.

    Parameters
    ----------
    config : Config
        From :func:`zoo.core.config.compose`, or a run folder's config.yaml.
    recorder : Recorder, optional
        Run folder and loggers.
    algorithm : Algorithm, optional
        An instance to attach the parts to; by default a new one.
    env : TextEnv or callable, optional
        In place of the configured environment: an object that no file can hold.
    rewards : sequence, optional
        Reward items of a text environment that no file can hold.
    plugins : sequence of Plugin
        Objective terms besides the algorithm's own.
    fresh : bool
        Whether training begins here, and what it reads is looked for; a run that is loaded may only
        be evaluated.

    Raises
    ------
    UserError
        Where the parts do not go together, before anything has been trained.
    """
    import torch

    seed = int(config["seed"])
    _seed_everything(seed)
    device = _device(config)
    _threads(config)
    knobs, cls = config.knobs, config.target("algo")
    algorithm = algorithm if algorithm is not None else cls.__new__(cls)
    world: Callable[..., tuple[Any, Any]] = _control if config.world == "control" else _text
    rollout, policy = world(config, cls, knobs, env, rewards)
    policy.to(torch.device(device))
    if config.run.save.rollouts:
        rollout = _saving(config, rollout, recorder)
    terms = [*_plugins(knobs, cls, rollout, policy), *plugins]
    names = [term.name for term in terms]
    if len({*names, *_RESERVED}) < len(names) + len(_RESERVED):
        raise UserError(
            f"plugins need names of their own (got {', '.join(names)}; taken are"
            f" {', '.join(_RESERVED)})."
        )
    if cls.on_policy:
        _refuse_uncorrected(cls, terms, rollout)
    if fresh and hasattr(rollout, "open"):
        rollout.open()
    algorithm.attach(knobs, policy, terms)
    learner = Learner(algorithm, terms, knobs, max_length=getattr(rollout, "max_length", None))
    if hasattr(knobs, "replay"):
        buffer: Buffer = knobs.replay.build(knobs.gamma, seed)
    else:
        buffer = RolloutBuffer(knobs.epochs, knobs.minibatch_size, seed=seed)
    trainer = Trainer(algorithm, rollout, buffer, learner, terms, config.to_dict(), recorder)
    algorithm.trainer = trainer
    questions = getattr(rollout, "env", None)  # of a text run; a fallback is recorded and said now
    if trainer.recorder.folder is not None:
        data = getattr(rollout, "dataset", None) or getattr(questions, "dataset", None)
        trainer.recorder.folder.facts["dataset"] = data
    notice = getattr(questions, "notice", None)
    if notice:
        trainer.recorder.notice(notice)
    if fresh and config.world == "text":
        from zoo.policies.provenance import lacking

        notice = lacking(config.tree)
        if notice:
            trainer.recorder.notice(notice)
    stored, refill = not getattr(rollout, "on_policy", True), getattr(knobs, "refill", None)
    if fresh and stored and refill and refill.rounds:
        trainer.recorder.notice(
            "dynamic sampling (algo.refill) has nothing to sample here: saved groups are learned"
            " from as they are, those that teach nothing too."
        )
    limits = None if stored else getattr(rollout, "knobs", None)  # saved rows are as they are
    longest = sum(getattr(limits, n, 0) for n in ("max_prompt_tokens", "max_new_tokens"))
    warning = budget_warning(knobs.max_tokens_per_micro_batch, longest)
    if warning:
        trainer.recorder.notice(warning)
    if hasattr(knobs, "replay"):
        kept, size = min(knobs.replay.capacity, trainer.total), policy.observation_nbytes
        warning = replay_warning(kept, size, machine_gib())
        if warning:
            trainer.recorder.notice(warning)
    return trainer


def build_from_arguments(
    algorithm: Any,
    env: Any,
    *,
    model: str | None,
    seed: int,
    run_dir: str | Path | None,
    device: str | None,
    logger: str | Sequence[str] | None,
    rewards: Sequence[Any] | None,
    plugins: Sequence[Plugin],
    overrides: Sequence[str],
    knobs: Mapping[str, Any],
) -> Trainer:
    """Build what the constructor of an algorithm was asked for; the command line's own path."""
    named = isinstance(env, str)
    written = {
        "algo": _algorithm_name(type(algorithm)),
        "env": env if named else _kind(env),
        "seed": seed,
    }
    given = {"model": model, "device": device, "run_dir": run_dir and str(run_dir)}
    written |= {k: v for k, v in given.items() if v is not None}
    written["logger"] = "none" if logger is None else logger
    tree = {k: dataclasses.asdict(v) if _is_knobs(v) else v for k, v in knobs.items()}
    written_all = [*as_overrides(written), *as_overrides(tree, "algo."), *overrides]
    config = compose(written_all, None if named or not callable(env) else env)
    items = list(rewards or ())
    if items and all(isinstance(item, str) for item in items) and "rewards" in config.tree["env"]:
        config.tree["env"]["rewards"], rewards, items = anchored(items), None, []
    config.tree["objects"] = {
        "env": [] if named else [getattr(env, "__name__", type(env).__name__)],
        "rewards": [getattr(r, "name", getattr(r, "__name__", str(r))) for r in items],
        "plugins": [plugin.name for plugin in plugins],
    }
    recorder = None
    if config.run.save.rollouts and run_dir is None and logger is None:
        raise UserError("save.rollouts=true writes into the run's folder: give run_dir=.")
    if run_dir is not None or logger is not None:
        from zoo.core.run_folder import open_recorder

        recorder = open_recorder(config)
    own = None if named else env
    try:
        return build(
            config, recorder, algorithm=algorithm, env=own, rewards=rewards, plugins=plugins
        )
    except (UserError, KeyboardInterrupt):
        if recorder is not None:  # nothing was trained, and the next try may use the same name
            recorder.folder.discard()
        raise


def load(
    path: str | Path,
    recorder: Recorder | None = None,
    *,
    needed: Sequence[str] = ("env", "rewards", "plugins"),
    **objects: Any,
) -> Trainer:
    """Rebuild a run from its folder or from a checkpoint file, ready to continue.

    ``env=``, ``rewards=`` and ``plugins=`` give again the objects that a file can't hold; of those
    not in ``needed`` the run does without (an evaluation reads no reward items).
    """
    path = Path(path)
    file = path / "checkpoints" / "last.pt" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise UserError(
            f"{path} has no checkpoint to load (expected {file}): give the folder of a run, or"
            " start that one again in another folder."
        )
    state = checkpoint.load_run(file)
    config = Config.from_dict(state["config"])
    held = (config.tree.get("objects") or {}).items()
    lacking = {kind: n for kind, n in held if n and kind in needed and not objects.get(kind)}
    if lacking:
        named = " and ".join(f"{kind} ({', '.join(n)})" for kind, n in lacking.items())
        again = ", ".join(f"{kind}=…" for kind in lacking)
        raise UserError(
            f"{path} was trained from Python with objects that no file can hold, {named}: give them"
            f" again there, {config['algo._target_'].rpartition('.')[2]}.load({str(path)!r},"
            f" {again}), and then call .evaluate(), or .train() to go on."
        )
    trainer = build(config, recorder, **objects, fresh=False)
    trainer.load_state_dict(state)
    return trainer


def _control(
    config: Config, cls: Any, knobs: Any, env: Any, rewards: Sequence[Any] | None
) -> tuple[Any, Any]:
    if rewards is not None:
        raise UserError("rewards= is for text environments; a Gymnasium one pays its own.")
    settings = _as_arguments(config.settings("env"))
    if env is not None:
        settings |= {"id": getattr(env, "__name__", type(env).__name__), "make": env}
    rollout = config.target("rollout")(
        config.target("env")(**settings),
        group_size=getattr(knobs, "group_size", None),
        seed=int(config["seed"]),
        **_as_arguments(config.settings("rollout")),
    )
    policy = cls.make_policy(
        config.target("model"),
        rollout.observation_space,
        rollout.action_space,
        config.settings("model"),
        knobs,
    )
    return rollout, policy


def _text(
    config: Config, cls: Any, knobs: Any, env: Any, rewards: Sequence[Any] | None
) -> tuple[Any, Any]:
    from zoo.rollouts.asynchronous import AsynchronousRollout
    from zoo.rollouts.text import TextRollout

    model = config.settings("model")
    if env is None:
        arguments = _as_arguments(config.settings("env"))
        if "instruction" in arguments and arguments["instruction"] is None:
            arguments["instruction"] = model.instruct
        if rewards is not None:
            arguments["rewards"] = rewards
        env = config.target("env")(**arguments)
    elif rewards is not None:
        raise UserError("rewards= goes with a named environment; your own scores by itself.")
    make, settings = config.target("rollout"), config.settings("rollout")
    if hasattr(settings, "max_rows"):
        _refuse_too_large(config, model, knobs, settings)
    policy = config.target("model").load(model, critic=cls.critics(knobs))
    common = {"group_size": getattr(knobs, "group_size", 1), "seed": int(config["seed"])}
    if hasattr(make, "collect"):  # a whole rollout, where others only sample
        return make(env, **_as_arguments(settings), **common), policy
    sampler = make(settings) if hasattr(make, "Knobs") else make()
    refill = getattr(knobs, "refill", None)
    rollout = TextRollout(env, sampler, knobs=settings, refill=refill, **common)
    staleness = rollout.knobs.staleness
    return (AsynchronousRollout(rollout, staleness) if staleness else rollout), policy


def _refuse_too_large(config: Config, model: Any, knobs: Any, rollout: Any) -> None:
    """Refuse what the accelerator, or the card that a preset is made for, can't hold."""
    import torch

    preset = config["preset"]
    card = choices.about("preset", preset).get("card_gib") if preset else None
    if _device(config).startswith("cuda"):
        card = torch.cuda.get_device_properties(_device(config)).total_memory / 2**30
    if card is None or not hasattr(model, "lora"):
        return
    from zoo.policies.footprint import footprint, refuse_too_large
    from zoo.policies.language_loading import shapes

    outline = shapes(model.path)
    if outline is not None:
        refuse_too_large(footprint(outline, model, knobs, rollout, card), card, str(model.path))


def _saving(config: Config, rollout: Any, recorder: Recorder | None) -> Any:
    """Put the rollout into one that writes down what it collects."""
    from zoo.rollouts.saving import SavingRollout

    if not getattr(rollout, "on_policy", True):
        raise UserError("save.rollouts=true goes with new rollouts; these are saved ones already.")
    folder = None if recorder is None or recorder.folder is None else recorder.folder.path
    about = {"algo": config["algo.name"], "model": config["model.name"], "seed": config["seed"]}
    return SavingRollout(rollout, folder, about, config.run.save.max_gib)


def _refuse_uncorrected(cls: Any, terms: Sequence[Plugin], rollout: Any) -> None:
    """Refuse to learn from another policy's rollouts as if they were one's own."""
    if any(term.name == "importance" for term in terms):
        return
    for others, what in (
        (not getattr(rollout, "on_policy", True), "saved ones"),
        (getattr(rollout, "staleness", 0), "those sampled ahead (rollout.staleness)"),
    ):
        if others:
            raise UserError(
                f"{cls.__name__} learns from its own rollouts, and has no importance correction for"
                f" {what}: give its knobs an `importance: ImportanceKnobs`, or use algo=ppo."
            )


def _plugins(knobs: Any, cls: Any, rollout: Any, policy: Any) -> list[Any]:
    """Build every plugin; the KL penalty, by the old policy, is not scaled with the rewards."""
    from zoo.plugins import KL, Entropy, Facts, Importance, RewardScale

    facts = Facts(
        algorithm=cls.name,
        world=rollout.world,
        action_space=getattr(rollout, "action_space", None),
        gamma=getattr(knobs, "gamma", 1.0),
        on_policy=cls.on_policy,
        stochastic=getattr(policy, "stochastic", True),
        group_scale=getattr(knobs, "scale", None),
        sampled_ahead=getattr(rollout, "staleness", 0) > 0,
        one_update=cls.weighs_losses_only
        and not policy.stepwise
        and (knobs.epochs, knobs.minibatch_size) == (1, None),
    )
    order = (
        ("entropy", Entropy),
        ("reward_scale", RewardScale),
        ("importance", Importance),
        ("kl", KL),
    )
    return [plugin.build(getattr(knobs, n), facts) for n, plugin in order if hasattr(knobs, n)]


def _seed_everything(seed: int) -> None:
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _device(config: Config) -> str:
    import torch

    device = str(config["device"])
    if device == "auto":
        accelerated = config.world == "text" and torch.cuda.is_available()
        return "cuda" if accelerated else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = "Expected one of" not in str(error)  # which goes on with twenty names
        reason = str(error).splitlines()[0].rstrip(".") if known else "torch knows no such device"
        raise UserError(
            f"device={device} is not available here: {reason}; device=auto takes what there is."
        ) from error
    return device


def _threads(config: Config) -> None:
    """Set torch's CPU threads: as asked, one for small networks, else as they were at the start."""
    import torch

    global _default_threads  # noqa: PLW0603
    _default_threads = _default_threads or torch.get_num_threads()
    small = getattr(config.settings("model"), "small", config.world == "control")
    chosen = config["threads"] or (1 if small else _default_threads)
    torch.set_num_threads(int(chosen))
    set_blas_threads(int(chosen))  # NumPy's, in which small networks are computed


def _as_arguments(settings: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(settings):
        return {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return dict(settings)


def _is_knobs(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _algorithm_name(cls: type) -> str:
    """Return the name of the class's file in ``conf/algo``, else its dotted path."""
    path = register(cls)
    name: str = getattr(cls, "name", "")
    shipped = name in choices.names("algo") and choices.read("algo", name)["_target_"] == path
    return name if shipped else path


def _kind(env: Any) -> str:
    """Name the stand-in in ``conf/env`` for an environment that is given as an object."""
    if isinstance(env, TextEnv):
        return "own_text"
    if callable(env):
        return "own_control"
    raise UserError(
        "env takes a name, a TextEnv (prompts and score), or a function that makes a Gymnasium"
        f" environment (got {type(env).__name__})."
    )
