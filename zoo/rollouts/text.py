"""Rollouts of a language model on a text environment: prompts → completions → scores → batch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from tensordict import TensorDict

from zoo.core.protocols import Completion, DialogueEnv, Prompt, Report, TextEnv, World
from zoo.errors import UserError
from zoo.policies.transformers_forward import left_pad
from zoo.rollouts import text_figures
from zoo.rollouts.dialogue import converse, transcript
from zoo.rollouts.invariants import first_step, said
from zoo.rollouts.prompt_stream import PromptStream
from zoo.rollouts.refill import Refill, RefillKnobs
from zoo.rollouts.sampling import Sampler, Samples, SamplingParams, refuse_filters
from zoo.rollouts.text_checks import check_options, check_scores, check_turns
from zoo.rollouts.text_evaluation import summary
from zoo.rollouts.text_figures import Answered

if TYPE_CHECKING:
    from zoo.policies.language import LanguagePolicy

__all__ = ["TextRollout", "TextRolloutKnobs"]

#: a reward that fails now and then is lived with; one that always fails ends the run after these
#: updates, and a shorter run as a failed one
_UNPAID = 10
_MOST_PROMPTS = 1_000_000
#: rounds ahead at most
_STALENESS = 8


@dataclass(frozen=True)
class TextRolloutKnobs:
    """How much is sampled per update, and within which lengths."""

    #: prompts per update; each is answered group_size times
    prompts: int = 16
    #: tokens after which a completion is cut; of a dialogue, both sides' together
    max_new_tokens: int = 96
    #: tokens that a prompt may have at most
    max_prompt_tokens: int = 512
    #: error refuses an environment with longer prompts; filter leaves those out and says how many
    truncation: Literal["error", "filter"] = "error"
    #: completions sampled together; fewer take less memory
    max_rows: int = 256
    #: rows of completions.jsonl per update
    records: int = 4
    #: rounds that sampling is ahead of learning, beside which it then runs; 0 is off
    staleness: int = 0
    #: nucleus sampling; training refuses anything but 1
    top_p: float = 1.0
    #: likeliest tokens to draw from; training refuses anything but 0
    top_k: int = 0

    def __post_init__(self) -> None:
        """Refuse what can't be sampled."""
        for name in ("prompts", "max_new_tokens", "max_prompt_tokens", "max_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"rollout.{name} must be ≥ 1 (got {getattr(self, name)}).")
        if self.prompts > _MOST_PROMPTS:
            raise UserError(
                f"rollout.prompts must be ≤ {_MOST_PROMPTS:,} (got {self.prompts:,}): so many are"
                " answered group_size times each before every update."
            )
        if not 0 <= self.staleness <= _STALENESS:
            raise UserError(
                f"rollout.staleness must be from 0 to {_STALENESS} (got {self.staleness}): each"
                " round ahead takes a copy of the weights, and samples are of an older policy."
            )
        refuse_filters(self.top_p, self.top_k)


class TextRollout:
    """Prompts of a text environment, answered in groups.

    Parameters
    ----------
    env : TextEnv
        Gives prompts and scores completions.
    sampler : Sampler
        Continues prompts, for instance `HFSampler`.
    group_size : int
        Completions per prompt.
    seed : int
        Of the prompts' order and of sampling.
    knobs : TextRolloutKnobs, optional
        The rest; or give its fields by name.
    refill : RefillKnobs, optional
        Dynamic sampling; off by default.
    """

    world: World = "text"
    record_file = "completions.jsonl"

    def __init__(
        self,
        env: TextEnv,
        sampler: Sampler,
        *,
        group_size: int = 8,
        seed: int = 0,
        knobs: TextRolloutKnobs | None = None,
        refill: RefillKnobs | None = None,
        **settings: Any,
    ) -> None:
        self.env, self.sampler, self.group_size, self.seed = env, sampler, group_size, seed
        #: the environment where it answers completions, None where a row is a single one
        self.dialogue: DialogueEnv | None = check_turns(env) if hasattr(env, "reply") else None
        self.knobs = knobs or TextRolloutKnobs(**settings)
        if group_size < 1:
            raise UserError(f"group_size must be ≥ 1 (got {group_size}).")
        self.refill = Refill(refill or RefillKnobs(), self.knobs.prompts)
        self.max_length = self.knobs.max_new_tokens
        if hasattr(sampler, "max_rows"):  # an engine with a memory manager of its own has no such
            sampler.max_rows = self.knobs.max_rows
        self.generator = torch.Generator().manual_seed(seed)
        self._groups = 0
        self._collected = 0
        self._unpaid = 0  # updates in a row in which every reward failed
        self._stream: PromptStream | None = None
        self._stream_state: Mapping[str, Any] | None = None
        self._encoded: dict[str, tuple[Any, list[Prompt], list[list[int]]]] = {}
        self._notices: list[str] = []
        self._errors: list[str] = []
        self._report = Report()
        #: what each prompt of the last evaluation was worth, by its figures
        self.outcomes: dict[str, Any] | None = None

    # Training.

    def collect(self, policy: LanguagePolicy, budget: int | None = None) -> TensorDict:
        """Answer the next prompts ``group_size`` times each, and more where they teach nothing.

        Figures are of all that was sampled, records too; the batch may hold less, and groups that
        an earlier one left over. ``budget`` counts updates in this world and doesn't shorten one.
        """
        answered: list[Answered] = []

        def answer(count: int) -> TensorDict:
            answered.append(self._answer(policy, count))
            return self._batch(policy, answered[-1], count)

        batch = self.refill.collect(answer)
        self._rest()
        metrics = text_figures.metrics(answered, self.group_size) | self.refill.metrics
        metrics |= getattr(self.sampler, "metrics", {})
        if self._collected == 0:
            self._notices += getattr(self.sampler, "notices", [])
            metrics |= first_step(policy, batch)
            self._notices += said(policy, batch, metrics)
        records = text_figures.records(
            answered, self.group_size, self._groups, self.knobs.records, self._collected
        )
        self._collected += 1
        failed = text_figures.failed(answered)
        self._notices += failed + self.refill.notices
        self._unpaid = 0 if bool(batch["mask"].any()) else self._unpaid + 1
        ended = self._collected >= getattr(policy, "total", math.inf)
        if self._unpaid == _UNPAID or (ended and self._unpaid == self._collected):
            raise text_figures.Unpaid(self._unpaid, self._errors, ever=not ended)
        self._report = Report(
            metrics=metrics, records=records, notices=self._notices, errors=self._errors
        )
        self._notices, self._errors = [], []
        return batch

    def report(self) -> Report:
        """Figures, sampled completions and notices of the last `collect`."""
        return self._report

    # Measuring.

    def evaluate(
        self,
        policy: LanguagePolicy,
        *,
        prompts: int | None = 200,
        samples: int = 4,
        k: int | None = None,
        seed: int = 10_000,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        greedy: bool = True,
    ) -> dict[str, float]:
        """Measure on held-out prompts, leaving training's random state alone.

        Parameters
        ----------
        prompts : int or None
            How many, chosen by the seed; None takes all. Rewards aren't run, only the environment's
            grading, where it has a ``grade`` beside ``score``.
        samples : int
            Completions per prompt at the sampling temperature; 0 measures greedy decoding only.
        k : int, optional
            Of pass@k, at most ``samples``, which is the default.
        greedy : bool
            Whether to measure greedy decoding as well.

        Returns
        -------
        dict
            ``accuracy_strict``, ``accuracy_lenient`` (means over prompts × samples),
            ``accuracy_ci95`` (half-width for the strict one, of means per prompt, because samples
            of one prompt aren't independent), ``pass_at_k`` (unbiased), ``k``, ``n`` (prompts),
            ``greedy_strict``, ``greedy_lenient``, ``length_mean``, ``truncated``; the others'
            half-widths as ``accuracy_lenient_ci95``, ``pass_at_k_ci95``, ``greedy_strict_ci95``,
            ``greedy_lenient_ci95``. ``outcomes`` has what each prompt was worth.
        """
        k = samples if k is None else k
        check_options(
            prompts=prompts,
            samples=samples,
            k=k,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
        )
        if samples < 1 and not greedy:
            raise UserError("evaluation needs samples ≥ 1 or greedy=true.")
        if samples and not 1 <= k <= samples:
            raise UserError(f"pass@k needs 1 ≤ k ≤ samples (got k={k}, samples={samples}).")
        held_out, encoded = self._prompts(policy, "heldout")
        order = np.random.default_rng(np.random.SeedSequence(seed)).permutation(len(held_out))
        index = order[:prompts].tolist()
        result: dict[str, float] = {}
        values: dict[str, list[float]] = {}
        passes = [(True, 1)] if greedy else []
        passes += [(False, samples)] if samples else []
        for is_greedy, repeats in passes:
            generator = torch.Generator().manual_seed(seed)
            drawn = self._sample(
                policy,
                [held_out[i] for i in index],
                [encoded[i] for i in index],
                repeats,
                generator,
                greedy=is_greedy,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
            )
            repeated = [i for i in index for _ in range(repeats)]
            answered = self._score(
                [held_out[i] for i in repeated],
                [encoded[i] for i in repeated],
                *drawn,
                graded_only=True,
            )
            figures, each = summary(answered.scores, answered.samples, repeats, k, is_greedy)
            result, values = result | figures, values | each
        self._rest()
        if not samples:
            result |= {"accuracy_strict": result["greedy_strict"]}
            result |= {"accuracy_lenient": result["greedy_lenient"]}
        self.outcomes = {"prompts": [held_out[i].id for i in index], "k": k, "values": values}
        return result

    def enjoy(
        self, policy: LanguagePolicy, *, prompts: int = 3, seed: int = 0, greedy: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yield held-out prompts with one completion each, and what it is worth."""
        check_options(prompts=prompts, seed=seed)
        held_out, encoded = self._prompts(policy, "heldout")
        order = np.random.default_rng(np.random.SeedSequence(seed)).permutation(len(held_out))
        index = order[:prompts].tolist()
        generator = torch.Generator().manual_seed(seed)
        asked, ids = [held_out[i] for i in index], [encoded[i] for i in index]
        drawn = self._sample(policy, asked, ids, 1, generator, greedy=greedy)
        answered = self._score(asked, ids, *drawn)
        scores = answered.scores
        for i, (prompt, completion) in enumerate(
            zip(answered.prompts, answered.completions, strict=True)
        ):
            yield {
                "id": prompt.id,
                "prompt": policy.codec.decode(ids[i]),
                "completion": transcript(completion),
                "answer": prompt.answer,
                "rewards": {
                    "total": scores.total[i],
                    **{name: values[i] for name, values in scores.items.items()},
                    **{name: values[i] for name, values in scores.grades.items()},
                },
            }

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Place in the prompt stream, random generator and counters."""
        stream = self._stream.state_dict() if self._stream else self._stream_state
        return {
            "stream": dict(stream) if stream else None,
            "generator": self.generator.get_state(),
            "groups": self._groups,
            "collected": self._collected,
            "unpaid": self._unpaid,
            "refill": self.refill.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit on the CPU."""
        self._stream, self._stream_state = None, state["stream"]
        self.generator.set_state(state["generator"])
        self._groups, self._collected = state["groups"], state["collected"]
        self._unpaid = state.get("unpaid", 0)  # an older version kept no such count
        if "refill" in state:  # else saved by a version that had no such thing
            self.refill.load_state_dict(state["refill"])

    def close(self) -> None:
        """End the environment's workers, and an engine."""
        self.env.close()
        if hasattr(self.sampler, "close"):
            self.sampler.close()

    # Parts of the above.

    def _rest(self) -> None:
        """Let an engine that can give back memory do so until the next sampling."""
        if hasattr(self.sampler, "rest"):
            self.sampler.rest()

    def _prompts(
        self, policy: LanguagePolicy, split: Literal["train", "heldout"]
    ) -> tuple[list[Prompt], list[list[int]]]:
        """Prompts of a split that are short enough, and their tokens; encoded once."""
        known = self._encoded.get(split)
        if known is not None and known[0] is policy.codec.tokenizer:
            return known[1], known[2]
        prompts = list(self.env.prompts(split))
        if not prompts:
            raise UserError(f"env={self.env.name} has no prompts in its {split} split.")
        encoded = policy.codec.encode_all([p.messages for p in prompts])
        limit = self.knobs.max_prompt_tokens
        long = [len(ids) for ids in encoded if len(ids) > limit]
        if long:
            found = (
                f"{len(long)} of {len(prompts)} {split} prompts of env={self.env.name} have more"
                f" than rollout.max_prompt_tokens={limit} tokens, the longest {max(long)}"
            )
            if self.knobs.truncation == "error" or len(long) == len(prompts):
                raise UserError(
                    f"{found}: raise the limit, or leave them out with rollout.truncation=filter."
                )
            self._notices.append(f"{found}; they are left out.")
            short = [i for i, ids in enumerate(encoded) if len(ids) <= limit]
            prompts, encoded = [prompts[i] for i in short], [encoded[i] for i in short]
        if any(not ids for ids in encoded):
            raise UserError(f"env={self.env.name} has an empty prompt in its {split} split.")
        self._encoded[split] = (policy.codec.tokenizer, prompts, encoded)
        return prompts, encoded

    def _answer(self, policy: LanguagePolicy, count: int) -> Answered:
        """Sample and score that many further prompts, ``group_size`` completions each."""
        start = time.perf_counter()
        prompts, encoded = self._prompts(policy, "train")
        index = self._prompt_stream(len(prompts)).take(count)
        repeated = [i for i in index for _ in range(self.group_size)]
        asked, ids = [prompts[i] for i in index], [encoded[i] for i in index]
        drawn = self._sample(policy, asked, ids, self.group_size, self.generator)
        sampled = time.perf_counter()
        answered = self._score(
            [prompts[i] for i in repeated], [encoded[i] for i in repeated], *drawn
        )
        answered.sample_s, answered.score_s = sampled - start, time.perf_counter() - sampled
        return answered

    def _prompt_stream(self, count: int) -> PromptStream:
        if self._stream is None:
            self._stream = PromptStream(count, self.seed)
            if self._stream_state:
                if self._stream_state["count"] != count:
                    raise UserError(
                        f"the run was saved with {self._stream_state['count']} training prompts and"
                        f" env={self.env.name} now has {count}: resume it with the same data."
                    )
                self._stream.load_state_dict(self._stream_state)
        return self._stream

    def _sample(
        self,
        policy: LanguagePolicy,
        prompts: list[Prompt],
        prompt_ids: list[list[int]],
        repeats: int,
        generator: torch.Generator,
        *,
        greedy: bool = False,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> tuple[Samples, list[Completion]]:
        params = SamplingParams(
            temperature=policy.temperature if temperature is None else temperature,
            max_new_tokens=self.knobs.max_new_tokens,
            stop_ids=policy.codec.stop_ids,
            greedy=greedy,
            top_p=top_p,
            top_k=top_k,
        )
        if self.dialogue is not None:
            return converse(
                self.dialogue, self.sampler, policy, prompts, prompt_ids, repeats, params, generator
            )
        samples = self.sampler.generate(policy, prompt_ids, repeats, params, generator)
        lengths, finished = samples.length.tolist(), samples.finished.tolist()
        ids = [row[:n] for row, n in zip(samples.token.tolist(), lengths, strict=True)]
        texts = policy.codec.answers([p for p in prompt_ids for _ in range(repeats)], ids)
        return samples, [Completion(*c) for c in zip(texts, ids, finished, strict=True)]

    def _score(
        self,
        prompts: list[Prompt],
        prompt_ids: list[list[int]],
        samples: Samples,
        completions: list[Completion],
        *,
        graded_only: bool = False,
    ) -> Answered:
        grade = getattr(self.env, "grade", None) if graded_only else None
        scores = (grade or self.env.score)(prompts, completions)
        check_scores(self.env, scores, len(completions))
        self._errors += scores.errors
        return Answered(prompts, prompt_ids, samples, completions, scores)

    def _batch(self, policy: LanguagePolicy, answered: Answered, groups: int) -> TensorDict:
        samples, scores = answered.samples, answered.scores
        device = samples.token.device
        rows, steps = samples.token.shape
        prompt_ids, prompt_length = left_pad(answered.prompt_ids, policy.codec.pad_id)
        last = torch.arange(steps, device=device) == (samples.length - 1)[:, None]
        total = torch.tensor(scores.total, dtype=torch.float32, device=device)
        valid = total.isfinite()
        own = samples.own
        live = torch.arange(steps, device=device) < samples.length[:, None] if own is None else own
        items = {
            name: torch.tensor(values, dtype=torch.float32, device=device)
            for name, values in scores.items.items()
        }
        group = torch.arange(groups, device=device) + self._groups
        self._groups += groups
        return TensorDict(
            {
                "prompt_ids": prompt_ids.to(device),
                "prompt_length": prompt_length.to(device),
                "completion_length": samples.length,
                "action": samples.token,
                "log_prob": samples.log_prob,
                # A reward that failed leaves its row out of everything, never as a silent 0.
                "reward": last * total.nan_to_num(0.0, 0.0, 0.0)[:, None],
                "mask": live & valid[:, None],
                "terminated": last & samples.finished[:, None],
                "truncated": last & ~samples.finished[:, None],
                "group": group.repeat_interleave(self.group_size),
                "version": torch.full((rows,), policy.version, device=device),
                "reward_items": TensorDict(items, batch_size=[rows]),
                **({} if own is None else {"own": own}),
            },
            batch_size=[rows],
        )
