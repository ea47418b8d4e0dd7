"""GRPO on a language model: this library's seconds and memory per update and TRL's.

Eight prompts, eight completions of 64 tokens each, one update per rollout; the same weights,
prompts, reward, learning rate and threads; weights and Adam's state in float32, the forward pass in
``--precision`` on both sides; no gradient checkpointing, no reference. TRL lives in an environment
of its own, whose interpreter is named:

    python -m venv trl-env && trl-env/bin/pip install trl==1.16.0
    python -m zoo.benchmarks.peers.trl_speed smollm2-135m --python trl-env/bin/python
    python -m zoo.benchmarks.peers.trl_speed tiny --agree --python trl-env/bin/python

``--agree`` compares loss and gradients of one batch in float32 in place of the clock: with each
other, and with the written formula by transformers' own forward pass, row by row, in float64 (which
of the two is nearer) and in float32 (how near such a pass comes at all).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.benchmarks.peers.alternate import child, module
from zoo.core.run_folder import made_with

__all__ = ["PROMPTS", "agreement", "compare", "formula", "main", "task_of"]

PROMPTS = (
    "Tom has 3 apples and buys 5 more. He eats 2 of them. How many apples does he have left?",
    "A train travels 60 miles in one hour. How far does it travel in three and a half hours?",
    "Anna reads 12 pages a day. How many days does she need for a book of 180 pages?",
    "A box holds 6 eggs. A farmer fills 14 boxes and has 5 eggs left. How many eggs were there?",
    "Sam earns $15 an hour and works 8 hours a day, 5 days a week. What does he earn in a week?",
    "A rope of 48 meters is cut into 4 equal parts. How long is each of the parts?",
    "There are 25 students in a class. 2 out of 5 of them are girls. How many boys are there?",
    "A shirt costs $40 and is reduced by a quarter of its price. What does it cost now?",
)


def task_of(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what both sides are given; the model is saved to ``folder`` for both."""
    from zoo.policies.language_loading import load_model

    model, tokenizer = load_model(arguments.model, torch.float32)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return {
        "model": str(folder / "model"),
        "prompts": list(PROMPTS[: 2 if arguments.agree else None]),  # float32 takes much memory
        "group_size": 8,
        "max_new_tokens": arguments.tokens,
        "micro_batch_size": 16 if arguments.agree else arguments.micro_batch_size,
        "precision": "float32" if arguments.agree else arguments.precision,
        "lr": 1e-6,
        "betas": [0.9, 0.98],
        "threads": arguments.threads,
        "warmup": 1,
        "updates": arguments.updates,
        "folder": str(folder),
        "seed": 0,
    }


def compare(
    task: Mapping[str, Any], sides: Mapping[str, Sequence[str]], runs: int
) -> list[dict[str, Any]]:
    """Run both sides in turn, each run in a fresh process, and print what came of each."""
    results = []
    for run in range(runs):
        for name in list(sides) if run % 2 == 0 else reversed(list(sides)):
            result = child(sides[name], {**task, "kind": "speed", "seed": run})
            results.append({"side": name, "run": run, **result})
            spent = {k: statistics.median(v) for k, v in result["seconds"].items()}
            learn = spent["update"] - spent["sample"] - spent["optimizer"]
            print(
                f"run {run} {name:4} {spent['update']:7.2f} s an update (CPU {spent['cpu']:.2f} s):"
                f" sampling {spent['sample']:.2f}, learning {learn:.2f},"
                f" optimizer {spent['optimizer']:.2f};"
                f" peak {result['peak_gib']:.2f} GiB above {result['loaded_gib']:.2f}",
                flush=True,
            )
    ours, theirs = sides
    for what, figure in (
        ("seconds per update", lambda r: statistics.median(r["seconds"]["update"])),
        ("CPU seconds per update", lambda r: statistics.median(r["seconds"]["cpu"])),
        ("peak above the loaded model", lambda r: r["peak_gib"]),
    ):
        of = {
            side: statistics.median(figure(r) for r in results if r["side"] == side)
            for side in sides
        }
        print(f"{what}: {of[ours]:.2f} against {of[theirs]:.2f}, ratio {of[ours] / of[theirs]:.2f}")
    return results


def agreement(
    task: Mapping[str, Any], sides: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, Any]:
    """Give both sides one batch; return their losses and how far their gradients are apart.

    ``from_exact`` has how far each is from the gradient of `formula` in float64, and how far that
    in float32 is; ``from_formula`` how far each is from the latter.
    """
    ours, theirs = sides
    loss, gradients, batch = {}, {}, str(folder / "batch.pt")
    for name in (ours, theirs):
        out = str(folder / f"{name}.pt")
        result = child(sides[name], {**task, "kind": "agree", "batch": batch, "out": out})
        loss[name], gradients[name] = result["loss"], torch.load(out, weights_only=True)
    found = torch.load(batch, weights_only=True)
    loss["formula"], plain = formula(task["model"], found, torch.float32)
    loss["exact"], exact = formula(task["model"], found, torch.float64)
    return {
        "loss": loss,
        **_apart(gradients[ours], gradients[theirs]),
        "from_formula": {name: _apart(of, plain) for name, of in gradients.items()},
        "from_exact": {
            name: _apart(of, exact) for name, of in {**gradients, "formula": plain}.items()
        },
    }


def formula(
    model: str, batch: Mapping[str, torch.Tensor], dtype: torch.dtype, clip: float = 0.2
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return GRPO's loss and gradients, row by row, from the formula as it is written.

    J = mean over rows of the mean over a row's tokens of min(rA, clip(r, 1 − ε, 1 + ε)A), with
    r = π(token)/π_old(token), by transformers' forward pass (DeepSeekMath, eq. 3, without KL).
    """
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    rows, total = len(batch["action"]), 0.0
    for i in range(rows):
        prompt = batch["prompt_ids"][i, -int(batch["prompt_length"][i]) :]
        answer = batch["action"][i, : (length := int(batch["completion_length"][i]))]
        scores = net(torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]
        log_prob = scores.log_softmax(-1).gather(-1, answer[:, None])[:, 0]
        ratio = (log_prob - batch["old_log_prob"][i, :length]).exp()
        advantage = batch["advantage"][i, 0].to(dtype)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        loss = -gain.mean() / rows
        loss.backward()
        total += loss.item()
    return total, {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def _apart(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> dict[str, float]:
    assert set(left) == set(right)
    gaps = [(left[name].double() - right[name].double()) for name in right]
    difference, norm = (
        sum(float(g.double().square().sum()) for g in of) ** 0.5 for of in (gaps, right.values())
    )
    return {
        "gradient_gap": max(float(gap.abs().max()) for gap in gaps),
        "largest_gradient": max(float(g.abs().max()) for g in right.values()),
        "relative_gap": difference / norm,  # of the L2 norms over all parameters
    }


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=("tiny", "smollm2-135m"))
    parser.add_argument("--python", required=True, help="an interpreter that has trl 1.16.0")
    parser.add_argument("--agree", action="store_true", help="compare gradients, not speed")
    parser.add_argument("--runs", type=int, default=3, help="alternating runs of each side")
    parser.add_argument("--updates", type=int, default=3, help="timed updates of each run")
    parser.add_argument("--tokens", type=int, default=64, help="of each completion")
    parser.add_argument("--micro-batch-size", type=int, default=64, help="rows per backward")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    arguments = parser.parse_args()
    theirs = [arguments.python, str(Path(__file__).with_name("trl_side.py"))]
    sides = {"zoo": module("text_side"), "TRL": theirs}
    with tempfile.TemporaryDirectory() as folder:
        task = task_of(arguments, Path(folder))
        if arguments.agree:
            result: Any = agreement(task, sides, Path(folder))
            print(json.dumps(result))
        else:
            result = compare(task, sides, arguments.runs)
    if arguments.out:
        record = {"task": task, "made_with": made_with(), "results": result}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
