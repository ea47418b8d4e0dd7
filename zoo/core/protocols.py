"""The seams: what a rollout, a buffer, a policy, a plugin and a text environment must offer.

Everything here is a small dataclass or a :class:`typing.Protocol`. An implementation inherits from
none of them; it has the methods. Shapes: ``B`` rows (trajectory fragments, episodes or
completions), ``T`` steps (environment steps or tokens).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor, nn

__all__ = [
    "Buffer",
    "Completion",
    "DialogueEnv",
    "Evaluation",
    "Loss",
    "Plugin",
    "Policy",
    "Prompt",
    "Report",
    "Rollout",
    "Scores",
    "TextEnv",
    "Turn",
    "Update",
    "World",
]

World = Literal["control", "text"]


@dataclass
class Evaluation:
    """What a policy says of a batch under its present weights.

    A plain dataclass, not a TensorDict: one is made per mini-batch, and building a TensorDict there
    costs more than a small network's forward.

    Attributes
    ----------
    log_prob : Tensor
        [B, T] float32, natural log of π(a_t | s_t); for tokens at the sampling temperature.
    entropy : Tensor
        [B, T] float32, nats.
    value : Tensor or None
        [B, T] float32, from the critic or value head where there is one; [B, T, 2] of twin critics.
    kl : Tensor or None
        [B, T] float32, exact KL(π ‖ reference) per step, where a reference was given.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor | None = None
    kl: Tensor | None = None


@dataclass
class Update:
    """Where in the run an update stands; passed to :meth:`Algorithm.losses` and the plugins.

    Attributes
    ----------
    step : int
        Mini-batches learned from so far.
    progress : float
        Fraction of the run's budget already spent, 0 at the start, 1 at the end.
    diagnose : bool
        Whether the figures that are only logged should be computed this time.
    """

    step: int = 0
    progress: float = 0.0
    diagnose: bool = True


@dataclass
class Loss:
    """One optimizer step's objective, elementwise; the Learner alone reduces it.

    Attributes
    ----------
    name : str
        Prefix of its logged figures.
    terms : dict of str to Tensor
        [B, T] each, coefficients applied, to be *minimised*; their sum is the objective.
    mask : Tensor
        [B, T] bool: the steps that count.
    groups : tuple of str
        Names of the parameter groups this step moves (``"policy"``, ``"critic"``, …).
    out : Evaluation or None
        The policy's evaluation, where plugins (entropy, KL) are to add their terms.
    metrics : dict of str to Tensor
        [B, T] each, detached; logged as means over the live steps.
    td_error : Tensor or None
        [B], by which prioritised replay draws the rows again.
    divergence : Tensor or None
        [B, T], detached: how far the policy has moved. Where its mean over the mini-batch's live
        steps exceeds ``limit`` the step is not taken, and the round's other mini-batches are left.
    limit : float
        That bound.
    log_ratio : Tensor or None
        [B, T], detached: log π/π_old, whose distribution over a round is logged on text.
    """

    name: str
    terms: dict[str, Tensor]
    mask: Tensor
    groups: tuple[str, ...] = ("policy", "critic")
    out: Evaluation | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)
    td_error: Tensor | None = None
    divergence: Tensor | None = None
    limit: float = math.inf
    log_ratio: Tensor | None = None


class Policy(Protocol):
    """A ``torch.nn.Module`` that acts and that can be asked what it thinks of a batch.

    The Trainer writes ``version`` (optimizer updates so far), and ``done`` of ``total``: how much
    of the budget is spent when a collect begins, for exploration that fades.

    ``stepwise`` says that steps are independent of each other given their observations, so
    fragments may be cut into single steps; ``sampler_is_exact`` that the log-probabilities recorded
    while acting equal the trainer's own to rounding, so they may serve as the old policy's.
    """

    stepwise: bool
    sampler_is_exact: bool
    has_critic: bool
    version: int
    done: int
    total: int

    def evaluate(self, batch: TensorDict, reference: Policy | None = None) -> Evaluation:
        """Log-probabilities, entropies and values of a batch, with gradients."""
        ...

    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probabilities [B, T] without gradients, in parts that fit the memory."""
        ...

    def values(self, batch: TensorDict) -> tuple[Tensor, Tensor]:
        """V(s_t) and V(s_{t+1}) as [B, T] without gradients; the latter of the true next state.

        [B, T, 2] of twin critics.
        """
        ...

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by group name: ``"policy"``, and ``"critic"`` where there is one."""
        ...

    def micro_batches(
        self, minibatch: TensorDict, size: int | None, tokens: int | None = None
    ) -> Sequence[TensorDict]:
        """Cut a mini-batch into parts of at most ``size`` rows; any order, every row once.

        Text policies take ``tokens`` in place of ``size``: the most that a part may have of them,
        prompts and padding included.
        """
        ...

    def reference_copy(self) -> Policy:
        """Return a frozen copy of the policy as it stands."""
        ...


@dataclass
class Report:
    """What the last ``collect`` saw.

    Attributes
    ----------
    metrics : dict of str to float
        Figures for metrics.jsonl.
    records : list of dict
        Rows for the record file (episodes.jsonl, completions.jsonl).
    notices : list of str
        Sentences to be said to the user once (first-step invariants, failing rewards).
    errors : list of str
        Tracebacks of user code, for errors.log.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Rollout(Protocol):
    """Owns environments or prompts, and turns a policy into batches."""

    world: World
    record_file: str

    def collect(self, policy: Any, budget: int | None = None) -> TensorDict:
        """Gather one batch; on control tasks at most ``budget`` steps, rounded up to num_envs."""
        ...

    def report(self) -> Report:
        """Figures and records of the last batch."""
        ...

    def evaluate(self, policy: Any, **options: Any) -> dict[str, float]:
        """Measure the policy on raw rewards, leaving every training state untouched."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit, in plain types and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        ...

    def close(self) -> None:
        """Release environments, workers and files."""
        ...


class Buffer(Protocol):
    """Holds batches between the rollout and the learner."""

    def extend(self, batch: TensorDict) -> None:
        """Add a prepared batch."""
        ...

    def __len__(self) -> int:
        """How many mini-batches are waiting."""
        ...

    @property
    def diagnosed_every(self) -> int:
        """How many mini-batches apart the figures that are only logged are computed."""
        ...

    def minibatches(self, progress: float = 0.0) -> Iterator[TensorDict]:
        """Yield the mini-batches of one round; ``progress`` is the share of the budget spent."""
        ...

    def feedback(self, index: Tensor, td_error: Tensor) -> None:
        """Tell what the update saw (prioritised replay); a no-op elsewhere."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Contents and random generator."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        ...


class Plugin(Protocol):
    """An objective term that every algorithm can carry: entropy, KL, reward scaling."""

    name: str

    @property
    def coefficient(self) -> float | Tensor:
        """The present weight of the term."""
        ...

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """See a fresh rollout before ``prepare``; may write keys or change ``reward``."""
        ...

    def terms(self, out: Evaluation, batch: TensorDict, update: Update) -> dict[str, Tensor]:
        """Elementwise objective terms [B, T], coefficient applied, to be minimised."""
        ...

    def figures(self, out: Evaluation, batch: TensorDict) -> dict[str, Tensor]:
        """Detached elementwise figures [B, T], to be logged as means over the live steps."""
        ...

    def after_update(self, metrics: dict[str, float]) -> str | None:
        """See the round's averaged figures, and add others (an adaptive coefficient moves here).

        Returns
        -------
        str or None
            A sentence to be said to the user.
        """
        ...

    def parameters(self) -> list[nn.Parameter]:
        """Learnable parameters; the Learner gives them an optimizer group of their own."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        ...


@dataclass(frozen=True)
class Prompt:
    """One question of a text environment.

    Attributes
    ----------
    question, answer : str
        The task and its gold answer.
    messages : list of dict
        Chat messages (``role``, ``content``); the policy's own chat template renders them.
    id : str
        Stable name of the item.
    metadata : dict
        Whatever the scorer needs besides.
    """

    question: str
    answer: str
    messages: list[dict[str, str]]
    id: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What one side said in a dialogue.

    Attributes
    ----------
    role : str
        ``"assistant"`` is the policy, any other the environment.
    text : str
        As a chat message's content.
    token_ids : list of int
        As they stand in the row: the policy's as sampled; the environment's with all that the chat
        template writes from the end of one answer to where the next one starts.
    """

    role: str
    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Completion:
    """One sampled answer: its text, its token ids, and whether it ended on a stop token.

    Attributes
    ----------
    text : str
        Of a dialogue, the policy's own turns with a blank line between. Where the prompt itself
        opened a thought, with the tag that did.
    token_ids : list of int
        What the policy sampled, stop tokens included, and nothing of the environment's.
    finished : bool
        Of a dialogue: it came to its end, and no length limit cut it.
    turns : tuple of Turn
        A dialogue from its first answer on; empty where there is a single one.
    """

    text: str
    token_ids: list[int]
    finished: bool
    turns: tuple[Turn, ...] = ()


@dataclass
class Scores:
    """Itemised rewards of n completions.

    Attributes
    ----------
    total : list of float
        Weighted sum of the items, NaN where an item failed.
    items : dict of str to list of float
        Raw item values, NaN where the item raised, hung or returned something that is no number.
    failures : dict of str to int
        How many completions each item failed on.
    grades : dict of str to list of float
        ``accuracy_strict`` and ``accuracy_lenient`` at least, whether rewarded or not: 0, 1, or NaN
        where grading failed.
    errors : list of str
        One traceback per kind of failure, for the run folder.
    """

    total: list[float]
    items: dict[str, list[float]]
    failures: dict[str, int] = field(default_factory=dict)
    grades: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@runtime_checkable
class TextEnv(Protocol):
    """Prompts and a scorer. Single-turn: one prompt, one completion, one score.

    ``dataset`` names what is really used; ``notice`` is a sentence to be said loudly (a fallback).
    """

    name: str
    dataset: str
    notice: str | None

    def prompts(self, split: Literal["train", "heldout"]) -> Sequence[Prompt]:
        """The prompts of a split; the two splits share none."""
        ...

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        """Score completion i as an answer to prompt i; never raises for a completion's sake."""
        ...

    def close(self) -> None:
        """End worker processes."""
        ...


@runtime_checkable
class DialogueEnv(TextEnv, Protocol):
    """A text environment that answers completions, so that a row is a dialogue.

    ``max_turns`` (≥ 1) is how often the policy speaks at most: the rules of the game, so that a
    dialogue which reaches it is finished, not truncated.
    """

    max_turns: int

    def reply(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion]
    ) -> Sequence[dict[str, str] | None]:
        """Return the message (``role``, ``content``) that follows each dialogue, None at its end.

        It is asked after every turn of the policy's but the last one possible, of dialogues that no
        length limit has cut. What it says may depend on prompt and dialogue alone: there is no
        other state, so a run resumes exactly.
        """
        ...
