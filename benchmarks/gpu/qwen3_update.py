"""One GRPO update of a Qwen3-0.6B-shaped model: peak memory and seconds by phase, on one GPU.

    python -m zoo.benchmarks.gpu.qwen3_update --out qwen3-update.json
    python -m zoo.benchmarks.gpu.qwen3_update --small --device cpu

Random weights of that shape, with the settings of ``preset=qwen3-0.6b-full``: 8 prompts × 8
completions × 512 tokens, micro-batches of 2, float32 weights and Adam state, bfloat16 products, the
reference monitored. One update warms up, one is measured; in all about two minutes. The guide that
the preset follows claims 21 GiB and 45 s, for a 32 GB card and sampling by vLLM.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.benchmarks.gpu.phases import Phases
from zoo.benchmarks.peers.text_side import Digits
from zoo.benchmarks.peers.trl_speed import PROMPTS
from zoo.core.protocols import Completion, Prompt, Scores
from zoo.core.run_folder import made_with

__all__ = ["GUIDE", "SHAPES", "main", "measure"]

#: what the guide says of this update
GUIDE = {"peak_gib": 21.0, "seconds": 45.0}
#: fields of Qwen3Config: that of Qwen3-0.6B, and one for testing this script
SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000.0,
    },
    "small": {
        "vocab_size": 2048,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}


class _EvenTokens(Digits):
    """Pays for even token ids: random weights say nothing that has a text."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        paid = [float(sum(i % 2 == 0 for i in c.token_ids)) for c in completions]
        return Scores(paid, {"even": paid}, {}, {"accuracy_strict": paid, "accuracy_lenient": paid})


def measure(
    shape: str,
    device: str,
    *,
    prompts: int = 8,
    group_size: int = 8,
    tokens: int = 512,
    micro_batch_size: int = 2,
    adam_state: str = "device",
    checkpointing: bool = False,
    reference: bool = True,
) -> dict[str, Any]:
    """Take two updates; return seconds and peak memory (GiB) of the second by phase.

    Phases nest: ``update`` is all of it, ``learn`` holds forward, backward and ``optimizer``.
    """
    from zoo.algorithms import GRPO

    with tempfile.TemporaryDirectory() as folder:
        _save(SHAPES[shape], Path(folder))
        algorithm = GRPO(
            _EvenTokens(PROMPTS[:prompts]),
            model=folder,
            seed=0,
            device=device,
            lr=1e-6,
            betas=(0.9, 0.98),
            group_size=group_size,
            micro_batch_size=micro_batch_size,
            adam_state=adam_state,
            precision="bfloat16",
            overrides=[
                f"algo.kl.monitor_every={int(reference)}",
                "eval.at_end=false",
                "model.sampling_dtype=bfloat16",
                f"model.gradient_checkpointing={str(checkpointing).lower()}",
                f"rollout.prompts={prompts}",
                f"rollout.max_new_tokens={tokens}",
                f"rollout.max_rows={prompts * group_size}",
            ],
        )
    trainer: Any = algorithm.trainer
    trainer.algorithm.policy.codec.stop_ids = frozenset()  # every completion has full length
    trainer.round()
    phases = Phases(torch.device(device))
    phases.wrap(trainer.rollout.sampler, "generate", "sample")
    phases.wrap(trainer.algorithm, "prepare", "prepare")
    phases.wrap(trainer.learner, "learn", "learn")
    phases.wrap(trainer.learner.optimizer, "advance", "optimizer")
    with phases.phase("update"):
        row = trainer.round()
    assert row["update/steps"] == 2 and row["completion/length_mean"] == tokens
    return {
        "shape": shape,
        "parameters": sum(p.numel() for p in trainer.algorithm.policy.model.parameters()),
        "completions": prompts * group_size,
        "tokens": prompts * group_size * tokens,
        "seconds": {name: phase.seconds for name, phase in phases.seen.items()},
        "peak_gib": {name: phase.peak_gib for name, phase in phases.seen.items()},
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
    }


def _save(shape: dict[str, Any], folder: Path) -> None:
    """Write a random model of a shape, with the tiny model's tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from zoo.policies.language_loading import load_model

    torch.manual_seed(0)
    _, tokenizer = load_model("tiny", torch.float32)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(**shape, **ends, bos_token_id=None, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Measure, print a table and the same as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a small shape and 2 × 4 × 8 tokens")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--adam-state", choices=("device", "host", "8bit"), default="device")
    parser.add_argument("--checkpointing", action="store_true", help="recompute layers")
    parser.add_argument("--no-reference", dest="reference", action="store_false")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no CUDA device here: --small --device cpu tries the script out")
    size = {"prompts": 2, "group_size": 4, "tokens": 8} if arguments.small else {}
    result = measure(
        "small" if arguments.small else "0.6b",
        arguments.device,
        micro_batch_size=arguments.micro_batch_size,
        adam_state=arguments.adam_state,
        checkpointing=arguments.checkpointing,
        reference=arguments.reference,
        **size,
    )
    print(f"{'phase':12} {'seconds':>9} {'peak GiB':>9}")
    for name, seconds in result["seconds"].items():
        print(f"{name:12} {seconds:9.2f} {result['peak_gib'][name]:9.2f}")
    print(f"{'the guide':12} {GUIDE['seconds']:9.2f} {GUIDE['peak_gib']:9.2f}   (Qwen3-0.6B, vLLM)")
    given = {k: str(v) for k, v in vars(arguments).items()}
    record = json.dumps({**result, "guide": GUIDE, "arguments": given, "made_with": made_with()})
    print(record)
    if arguments.out:
        arguments.out.write_text(record + "\n", "utf-8")


if __name__ == "__main__":
    main()
