"""Sampling and training speed of the tiny model, ours and transformers', in one process.

    OMP_NUM_THREADS=1 python -m zoo.benchmarks.peers.transformers_speed --runs 5

Both sides get the same weights and the same prompts (GSM-Symbolic questions from reasoning-gym),
one thread, and take turns. Sampling counts useful tokens: those up to a completion's end token.
transformers is timed in several settings, and the best one counts. Training is one forward and
backward of log-probabilities under bfloat16 autocast, with transformers' head on the completion
alone; once with a prompt for every row, once with groups of eight that share one.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.core.run_folder import made_with
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.policies.transformers_forward import left_pad
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.sampling import Samples, SamplingParams

__all__ = ["Speeds", "main", "sampling", "training"]

#: by name of the side: tokens per second of wall-clock, and of CPU
Speeds = dict[str, list[tuple[float, float]]]
#: dtype of the weights, attention, and what else generate() is given
SETTINGS: dict[str, tuple[torch.dtype, str, dict[str, Any]]] = {
    "transformers float32": (torch.float32, "sdpa", {}),
    "transformers bfloat16": (torch.bfloat16, "sdpa", {}),
    "transformers bfloat16, eager": (torch.bfloat16, "eager", {}),
    "transformers bfloat16, static": (torch.bfloat16, "sdpa", {"cache_implementation": "static"}),
}


def sampling(policy: LanguagePolicy, prompts: list[list[int]], new: int, runs: int) -> Speeds:
    """Continue every prompt once, on each side in turn."""
    codec = policy.codec
    params = SamplingParams(policy.temperature, new, codec.stop_ids)
    models = {
        dtype: copy.deepcopy(policy.model).to(dtype).eval() for dtype, *_ in SETTINGS.values()
    }
    ids, length = left_pad(prompts, codec.pad_id)
    mask = (torch.arange(ids.shape[1]) >= (ids.shape[1] - length)[:, None]).long()
    ends = torch.tensor(sorted(codec.stop_ids))

    def ours(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        return int(HFSampler().generate(policy, prompts, 1, params, generator).length.sum())

    def theirs(dtype: torch.dtype, attention: str, options: dict[str, Any]) -> Callable[[int], int]:
        def run(seed: int) -> int:
            torch.manual_seed(seed)
            models[dtype].set_attn_implementation(attention)
            with torch.inference_mode():
                out = models[dtype].generate(
                    ids,
                    attention_mask=mask,
                    do_sample=True,
                    temperature=policy.temperature,
                    top_p=1.0,
                    top_k=0,
                    max_new_tokens=new,
                    eos_token_id=ends.tolist(),
                    pad_token_id=codec.pad_id,
                    disable_compile=True,
                    **options,
                )
            ended = torch.isin(out[:, ids.shape[1] :], ends).long()
            return int((ended.cumsum(1) - ended == 0).sum())  # the end token itself counts

        return run

    sides = {"ours": ours, **{name: theirs(*of) for name, of in SETTINGS.items()}}
    return _in_turn(sides, runs)


def training(policy: LanguagePolicy, batch: TensorDict, runs: int) -> Speeds:
    """Forward and backward of every row's log-probabilities, on each side in turn."""
    model = copy.deepcopy(policy.model).train()
    tokens = int((batch["prompt_length"] + batch["completion_length"]).sum())
    ids = torch.cat([batch["prompt_ids"], batch["action"]], 1)
    column, width = torch.arange(ids.shape[1]), batch["prompt_ids"].shape[1]
    steps = batch["action"].shape[1]
    live = (column >= (width - batch["prompt_length"])[:, None]) & (
        column < (width + batch["completion_length"])[:, None]
    )

    def ours(_: int) -> int:
        policy.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = policy.evaluate(batch)
        (out.log_prob * batch["mask"]).sum().backward()
        return tokens

    def theirs(attention: str) -> int:
        model.set_attn_implementation(attention)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = model(
                ids,
                attention_mask=live.long(),
                position_ids=(live.cumsum(1) - 1).clamp_min(0),
                logits_to_keep=steps + 1,
                use_cache=False,
            ).logits[:, :-1]
        log_prob = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), batch["action"], reduction="none"
        )
        (log_prob * batch["mask"]).sum().backward()
        return tokens

    sides = {
        "ours": ours,
        "transformers": lambda _: theirs("sdpa"),
        "transformers, eager": lambda _: theirs("eager"),
    }
    return _in_turn(sides, runs)


def _in_turn(sides: dict[str, Callable[[int], int]], runs: int) -> Speeds:
    speeds: Speeds = {name: [] for name in sides}
    for run in range(-1, runs):  # the first one warms up
        for name, function in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            tokens = function(run + 1)
            if run >= 0:
                spent = time.perf_counter() - wall, time.process_time() - cpu
                speeds[name].append((tokens / spent[0], tokens / spent[1]))
    return speeds


def _batch(policy: LanguagePolicy, prompts: list[list[int]], repeats: int, new: int) -> TensorDict:
    """Sampled completions of the prompts, ``repeats`` of each."""
    params = SamplingParams(policy.temperature, new, policy.codec.stop_ids)
    generator = torch.Generator().manual_seed(0)
    drawn: Samples = HFSampler().generate(policy, prompts, repeats, params, generator)
    ids, length = left_pad([p for p in prompts for _ in range(repeats)], policy.codec.pad_id)
    return TensorDict(
        {
            "prompt_ids": ids,
            "prompt_length": length,
            "action": drawn.token,
            "completion_length": drawn.length,
            "mask": torch.arange(drawn.token.shape[1]) < drawn.length[:, None],
            "group": torch.arange(len(prompts)).repeat_interleave(repeats),
        },
        batch_size=[len(ids)],
    )


def _say(what: str, speeds: Speeds) -> dict[str, Any]:
    medians = {
        name: [statistics.median(s[clock] for s in of) for clock in (0, 1)]
        for name, of in speeds.items()
    }
    best = max((n for n in medians if n != "ours"), key=lambda n: medians[n][1])
    for name, (wall, cpu) in medians.items():
        print(f"{what:32} {name:36} {wall:8,.0f} tokens/s, {cpu:8,.0f} per CPU second")
    ratio = medians["ours"][1] / medians[best][1]
    print(f"{what:32} ours / {best}: {ratio:.2f} (CPU)", flush=True)
    return {"medians": medians, "best": best, "ratio_cpu": ratio, "runs": speeds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    from zoo.envs import GSM8K

    policy = LanguagePolicy.load(LanguageKnobs(path="tiny", sampling_dtype="bfloat16"))
    questions = GSM8K().prompts("train")[: arguments.rows]
    prompts = policy.codec.encode_all([q.messages for q in questions])
    new, rows = arguments.new_tokens, arguments.rows
    results = {"sampling": _say("sampling", sampling(policy, prompts, new, arguments.runs))}
    for name, repeats in (("training, a prompt per row", 1), ("training, groups of 8", 8)):
        batch = _batch(policy, prompts[: max(1, rows // repeats)], repeats, new)
        results[name] = _say(name, training(policy, batch, arguments.runs))
    if arguments.out:
        record = {"arguments": vars(arguments), "made_with": made_with(), "results": results}
        arguments.out.write_text(json.dumps(record, indent=1, default=str) + "\n", "utf-8")


if __name__ == "__main__":
    main()
