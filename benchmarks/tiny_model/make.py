"""Make the language model that ships in ``zoo/assets/tiny``, from nothing.

    python benchmarks/tiny_model/make.py --work /tmp/tiny --out zoo/assets/tiny

One CPU thread; the shipped run took 27 minutes of training on a busy two-core machine. The state is
saved every 200 steps in ``--work``; the same command resumes there and, on the same machine, ends
in the same weights as an uninterrupted run.

1. Problems come from `zoo.envs.gsm_symbolic`, level "easy", split "train" only.
2. Everything in the corpus is correct. Answers come worked step by step or bare, as on the web; the
   bare ones are why the model samples far below what it can do, and reinforcement learning finds
   that working pays. Sheets of plain sums are mixed in, so that more of what is read is arithmetic.
3. A byte-level BPE with digits split one by one is trained on the corpus, then a Qwen3-shaped
   decoder is trained on it with Muon, in packed rows with document masks.
4. The folder is written and measured with transformers alone: `AutoModelForCausalLM.generate`.
   ``--measure`` repeats only that, on the model in ``--out``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from corpus import END, PAD, corpus, pack, train_tokenizer
from decoder import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    NORM_EPS,
    ROPE_THETA,
    VOCABULARY,
    Decoder,
    Muon,
)
from torch import Tensor, nn

from zoo.envs.gsm_symbolic import Problem, Split, generate

#: Renders [{"role": "user", "content": question}] to `corpus.PROMPT`. System messages are left out:
#: pre-training has none.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}Question: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Answer:\n{{ message['content'] }}" + END + "\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Answer:\n{% endif %}"
)

SAVE_EVERY = 200
ROWS, ROW_LENGTH = 44, 176  # 7,744 tokens a step
INPUTS = ("token", "position", "document")
TARGETS = 3_200  # of them in the loss, a fixed number so that the compiled step has one shape
MUON_LR, ADAM_LR, WARMUP, DECAY_SHARE = 0.02, 3e-3, 50, 0.4


def schedule(step: int, steps: int) -> float:
    decay = min(1.0, (steps - step) / (DECAY_SHARE * steps))
    return min(1.0, (step + 1) / WARMUP) * decay


def batch_of(data: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, Tensor]:
    """Inputs [B, T] and the TARGETS places that the loss looks at (some of weight 0 if fewer)."""
    batch = {key: torch.from_numpy(data[key][rows, :-1]).long() for key in INPUTS}
    weight = data["weight"][rows, 1:].ravel()
    at = np.argsort(weight == 0, kind="stable")[:TARGETS]
    batch["at"] = torch.from_numpy(at)
    batch["weight"] = torch.from_numpy(weight[at])
    batch["target"] = torch.from_numpy(data["token"][rows, 1:].ravel()[at]).long()
    return batch


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(*(batch[key] for key in INPUTS), batch["at"])
    nll = F.cross_entropy(logits.float(), batch["target"], reduction="none")
    return (nll * batch["weight"]).sum() / batch["weight"].sum()


def train(data: dict[str, np.ndarray], steps: int, seed: int, work: Path) -> Decoder:
    torch.manual_seed(seed)
    model = Decoder()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    # A checkpoint belongs to one corpus, seed and length: with any other it is not found.
    identity = hashlib.sha256(data["token"].tobytes() + f"{seed}/{steps}".encode()).hexdigest()[:12]
    checkpoint = work / f"checkpoint-{identity}.pt"
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        first = state["step"]
        model.load_state_dict(state["model"])
        muon.buffers = state["muon"]
        adam.load_state_dict(state["adam"])
        print(f"resumed at step {first}", flush=True)
    step_loss = torch.compile(loss_of)
    count = len(data["token"])
    epoch, order = -1, np.arange(count)
    per_epoch = count // ROWS
    started = time.perf_counter()
    for step in range(first, steps):
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            order = np.random.default_rng((seed, epoch)).permutation(count)
        at = (step % per_epoch) * ROWS
        loss = step_loss(model, batch_of(data, order[at : at + ROWS]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = schedule(step, steps)
        adam.param_groups[0]["lr"] = ADAM_LR * rate
        muon.step(MUON_LR * rate)
        adam.step()
        model.zero_grad()
        if (step + 1) % 50 == 0:
            elapsed = time.perf_counter() - started
            speed = (step + 1 - first) * ROWS * ROW_LENGTH / elapsed
            print(
                f"step {step + 1}/{steps} loss {loss.item():.4f} lr× {rate:.2f}"
                f" {elapsed:.0f} s {speed:,.0f} tokens/s",
                flush=True,
            )
        if (step + 1) % SAVE_EVERY == 0:
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "muon": muon.buffers,
                "adam": adam.state_dict(),
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    return model


def write_model(model: Decoder, tokenizer, out: Path) -> None:
    """Write the folder that transformers loads, and check that its model agrees with ours."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    out.mkdir(parents=True, exist_ok=True)
    pad, end = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FFN,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "padding_side": "left",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(out / "config.json", config)
    write_json(out / "tokenizer_config.json", tokenizer_config)
    write_json(out / "generation_config.json", {"eos_token_id": end, "pad_token_id": pad})
    tokenizer.save(str(out / "tokenizer.json"))
    weights = {
        f"model.{name}": value.detach().bfloat16() for name, value in model.state_dict().items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})

    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    model.load_state_dict({name.removeprefix("model."): v.float() for name, v in weights.items()})
    token = torch.randint(2, VOCABULARY, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = model(token, torch.arange(64).expand(2, 64), torch.zeros_like(token))
        theirs = loaded(token).logits
    gap = (ours - theirs).abs().max().item()
    print(f"largest logit gap to transformers: {gap:.1e}", flush=True)
    assert gap < 1e-3, gap


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


@torch.inference_mode()
def measure(folder: Path, prompts: int, samples: int, split: Split = "heldout") -> dict[str, float]:
    """Accuracy on problems of ``split`` by the number after the last ``####``, at temperature 1."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)
    problems = generate(prompts, split=split, level="easy", seed=1_000)

    def complete(repeat: int, **sampling) -> list[list[str]]:
        completions: list[list[str]] = []
        for start in range(0, len(problems), 32):
            part = problems[start : start + 32]
            chats = [[{"role": "user", "content": p.question}] for p in part]
            texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
            inputs = tokenizer(texts, return_tensors="pt", padding=True)
            inputs.pop("token_type_ids", None)
            ids = model.generate(
                **inputs, max_new_tokens=96, num_return_sequences=repeat, **sampling
            )
            new = tokenizer.batch_decode(
                ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
            )
            completions += [new[i : i + repeat] for i in range(0, len(new), repeat)]
        return completions

    def is_right(text: str, problem: Problem) -> bool:
        _, marker, answer = text.rpartition("####")
        return bool(marker) and answer.strip() == problem.answer

    sampled = complete(samples, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    greedy = complete(1, do_sample=False)
    right = np.array(
        [[is_right(t, p) for t in ts] for ts, p in zip(sampled, problems, strict=True)]
    )
    bare = np.array([[t.startswith("####") for t in ts] for ts in sampled])
    return {
        "sampled": float(right.mean()),
        "greedy": float(
            np.mean([is_right(t[0], p) for t, p in zip(greedy, problems, strict=True)])
        ),
        f"pass@{samples}": float(right.any(1).mean()),
        "bare answers": float(bare.mean()),
        "sampled accuracy of bare answers": float(right[bare].mean()) if bare.any() else 0.0,
        "sampled accuracy of the others": float(right[~bare].mean()) if (~bare).any() else 0.0,
        "tokens": float(np.mean([len(tokenizer(t).input_ids) + 1 for ts in sampled for t in ts])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("zoo/assets/tiny"))
    parser.add_argument("--work", type=Path, default=Path("runs/tiny"), help="for checkpoints")
    parser.add_argument("--problems", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=256, help="held-out problems to measure on")
    parser.add_argument("--measure", action="store_true", help="measure only, train nothing")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    if not arguments.measure:
        arguments.work.mkdir(parents=True, exist_ok=True)
        documents = corpus(arguments.problems, arguments.seed)
        texts = ["".join(text for text, _ in document) for document in documents[:20_000]]
        tokenizer = train_tokenizer([text.replace(END, "") for text in texts])
        data = pack(documents, tokenizer, ROW_LENGTH + 1, arguments.seed)
        live = (data["document"] >= 0).mean()
        rows = len(data["token"])
        print(f"{len(documents):,} documents in {rows:,} rows, {live:.0%} full", flush=True)
        model = train(data, arguments.steps, arguments.seed, arguments.work)
        write_model(model, tokenizer, arguments.out)
    for name, value in measure(arguments.out, arguments.prompts, 8).items():
        print(f"{name}: {value:.3f}", flush=True)


if __name__ == "__main__":
    main()
