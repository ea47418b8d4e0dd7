"""Make the language model that ships in ``zoo/assets/tiny``, from nothing.

    python benchmarks/tiny_model/make.py --work /tmp/tiny --out zoo/assets/tiny

One CPU thread. The state is saved every 200 steps in ``--work``; the same command resumes there and
ends in the same weights as an uninterrupted run on the same machine.

1. Problems come from `zoo.envs.gsm_symbolic`, level "easy", split "train" only.
2. Every solution in the corpus is correct. They come in three styles, as on the web: worked step by
   step, the last step only, and the bare answer (`STYLES`). The bare answers are why the model
   samples far below what it can do: reinforcement learning finds that working pays.
3. A byte-level BPE with digits split one by one is trained on the corpus, then a Qwen3-shaped
   decoder is trained on it with Muon, in packed rows with document masks.
4. The folder is written and measured with transformers alone: `AutoModelForCausalLM.generate`.

The module below repeats the arithmetic of transformers' ``Qwen3ForCausalLM`` with its parameter
names, because with batched-matmul attention and a compiled step it trains about three times as fast
on one thread; ``write_model`` checks that the two agree.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo.envs.gsm_symbolic import Problem, generate

VOCAB = 1536
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 256, 4, 4, 2, 64, 768
ROPE_THETA, NORM_EPS = 10_000.0, 1e-6

PAD, END = "<|pad|>", "<|end|>"
PROMPT = "Question: {question}\nAnswer:\n"
# Renders [{"role": "user", "content": question}] to exactly PROMPT. System messages are left out:
# pre-training has none.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}Question: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}Answer:\n{{ message['content'] }}" + END + "\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Answer:\n{% endif %}"
)

#: Style of a solution → share of the corpus.
STYLES = {"worked": 0.5, "last step": 0.2, "answer": 0.3}

ROWS, ROW_LENGTH = 32, 256  # 8,192 tokens a step
PROMPT_WEIGHT = 0.1  # of a prompt token in the loss, a solution token having 1
MUON_LR, ADAM_LR, WARMUP, DECAY_SHARE = 4e-3, 3e-3, 50, 0.4


# --------------------------------------------------------------------------------- corpus


def styled(problem: Problem, style: str) -> str:
    """The problem's solution in one of `STYLES`; always correct."""
    *steps, answer = problem.solution.split("\n")
    if style == "answer":
        steps = []
    elif style == "last step":
        steps = steps[-1:]
    return "\n".join([*steps, answer])


def corpus(count: int, seed: int) -> list[tuple[str, str]]:
    """(prompt, solution) pairs in random styles."""
    rng = Random(f"tiny/{seed}")
    names, shares = list(STYLES), list(STYLES.values())
    return [
        (PROMPT.format(question=p.question), styled(p, rng.choices(names, shares)[0]))
        for p in generate(count, split="train", level="easy", seed=seed)
    ]


def train_tokenizer(texts: list[str]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def pack(pairs: list[tuple[str, str]], tokenizer, seed: int) -> dict[str, np.ndarray]:
    """Pack documents into rows of ROW_LENGTH + 1 tokens.

    Returns
    -------
    dict
        ``token`` [N, L+1], ``position`` [N, L+1] (from 0 in each document), ``document`` [N, L+1]
        (-1 is padding) and ``weight`` [N, L+1], the loss weight of predicting each token.
    """
    end = tokenizer.token_to_id(END)
    prompts = tokenizer.encode_batch([prompt for prompt, _ in pairs])
    solutions = tokenizer.encode_batch([solution for _, solution in pairs])
    width = ROW_LENGTH + 1
    rows: list[list[tuple[list[int], int]]] = []
    open_rows: list[tuple[int, int]] = []  # (room left, row), a few at a time
    for prompt, solution in zip(prompts, solutions, strict=True):
        tokens = [*prompt.ids, *solution.ids, end]
        if len(tokens) > width:
            continue
        fits = [i for i, (room, _) in enumerate(open_rows) if room >= len(tokens)]
        if fits:
            best = min(fits, key=lambda i: open_rows[i][0])
            room, row = open_rows.pop(best)
        else:
            room, row = width, len(rows)
            rows.append([])
        rows[row].append((tokens, len(prompt.ids)))
        if room - len(tokens) > 24:
            open_rows.append((room - len(tokens), row))
        if len(open_rows) > 64:
            open_rows.remove(min(open_rows))
    shape = (len(rows), width)
    token = np.zeros(shape, np.int16)
    position = np.zeros(shape, np.int16)
    document = np.full(shape, -1, np.int16)
    weight = np.zeros(shape, np.float32)
    for i, row in enumerate(rows):
        start = 0
        for j, (tokens, prompt_length) in enumerate(row):
            stop = start + len(tokens)
            token[i, start:stop] = tokens
            position[i, start:stop] = np.arange(len(tokens))
            document[i, start:stop] = j
            weight[i, start + 1 : start + prompt_length] = PROMPT_WEIGHT
            weight[i, start + prompt_length : stop] = 1.0
            start = stop
    order = np.random.default_rng(seed).permutation(len(rows))
    return {
        "token": token[order],
        "position": position[order],
        "document": document[order],
        "weight": weight[order],
    }


# ---------------------------------------------------------------------------------- model


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + NORM_EPS)
        return (x.float() * scale * self.weight).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.q_norm = RMSNorm(HEAD_DIM)
        self.k_norm = RMSNorm(HEAD_DIM)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        B, T, _ = x.shape
        groups = HEADS // KV_HEADS
        q = rotate(self.q_norm(self.q_proj(x).view(B, T, HEADS, HEAD_DIM)), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(B, T, KV_HEADS, HEAD_DIM)), cos, sin)
        v = self.v_proj(x).view(B, T, KV_HEADS, HEAD_DIM)
        # [B, kv, groups·T, D]: the queries that share a key head are one batched matmul
        q = q.view(B, T, KV_HEADS, groups, HEAD_DIM).permute(0, 2, 3, 1, 4)
        q = q.reshape(B * KV_HEADS, groups * T, HEAD_DIM)
        k = k.permute(0, 2, 3, 1).reshape(B * KV_HEADS, HEAD_DIM, T)
        v = v.permute(0, 2, 1, 3).reshape(B * KV_HEADS, T, HEAD_DIM)
        score = torch.bmm(q, k).view(B, KV_HEADS, groups, T, T).float() / math.sqrt(HEAD_DIM)
        share = (score + mask[:, None, None]).softmax(-1).to(v.dtype)
        out = torch.bmm(share.view(B * KV_HEADS, groups * T, T), v)
        out = out.view(B, KV_HEADS, groups, T, HEAD_DIM).permute(0, 3, 1, 2, 4)
        return self.o_proj(out.reshape(B, T, HEADS * HEAD_DIM))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.mlp = FeedForward()
        self.input_layernorm = RMSNorm(HIDDEN)
        self.post_attention_layernorm = RMSNorm(HIDDEN)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Qwen3's decoder with tied embeddings. ``forward`` gives logits [B, T, V]."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = RMSNorm(HIDDEN)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * LAYERS) if residual else 1))

    def forward(self, token: Tensor, position: Tensor, document: Tensor) -> Tensor:
        T = token.shape[1]
        frequency = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = position[:, :, None, None].float() * frequency  # [B, T, 1, D/2]
        cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        visible = causal & (document[:, :, None] == document[:, None, :])
        mask = torch.zeros(visible.shape).masked_fill(~visible, -1e9)  # [B, T, T]
        x = self.embed_tokens(token)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves layout. x: [B, T, heads, D]; cos, sin: [B, T, 1, D]."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


# ------------------------------------------------------------------------------- training


class Muon:
    """Muon (Jordan et al., 2024): momentum, orthogonalised by five Newton-Schulz steps."""

    def __init__(self, parameters: list[nn.Parameter], momentum: float = 0.95):
        self.parameters = parameters
        self.momentum = momentum
        self.buffers = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            assert parameter.grad is not None
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            update = orthogonalise(parameter.grad.lerp(buffer, self.momentum))
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - lr * 0.1).add_(update, alpha=-lr * scale * 5)


def orthogonalise(matrix: Tensor) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).float()


def schedule(step: int, steps: int) -> float:
    decay = min(1.0, (steps - step) / (DECAY_SHARE * steps))
    return min(1.0, (step + 1) / WARMUP) * decay


def loss_of(model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(rows["token"][:, :-1], rows["position"][:, :-1], rows["document"][:, :-1])
    target, weight = rows["token"][:, 1:], rows["weight"][:, 1:]
    nll = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none")
    return (nll * weight.flatten()).sum() / weight.sum()


def train(data: dict[str, np.ndarray], steps: int, seed: int, work: Path, compile: bool) -> Decoder:
    torch.manual_seed(seed)
    model = Decoder()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    checkpoint = work / f"checkpoint-{steps}-{seed}.pt"
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        first = state["step"]
        model.load_state_dict(state["model"])
        muon.buffers = state["muon"]
        adam.load_state_dict(state["adam"])
        print(f"resumed at step {first}", flush=True)
    step_loss = torch.compile(loss_of) if compile else loss_of
    count = len(data["token"])
    epoch, order = -1, np.arange(count)
    per_epoch = count // ROWS
    started = time.perf_counter()
    for step in range(first, steps):
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            order = np.random.default_rng((seed, epoch)).permutation(count)
        at = (step % per_epoch) * ROWS
        rows = {key: torch.from_numpy(value[order[at : at + ROWS]]) for key, value in data.items()}
        rows = {k: v if k == "weight" else v.long() for k, v in rows.items()}
        loss = step_loss(model, rows)
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
        if (step + 1) % 200 == 0:
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "muon": muon.buffers,
                "adam": adam.state_dict(),
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    return model


# ------------------------------------------------------------------- writing and measuring


def write_model(model: Decoder, tokenizer, out: Path) -> None:
    """Write the folder that transformers loads, and check that its model agrees with ours."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    out.mkdir(parents=True, exist_ok=True)
    pad, end = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
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
    token = torch.randint(2, VOCAB, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = model(token, torch.arange(64).expand(2, 64), torch.zeros_like(token))
        theirs = loaded(token).logits
    gap = (ours - theirs).abs().max().item()
    print(f"largest logit gap to transformers: {gap:.1e}", flush=True)
    assert gap < 1e-3, gap


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


@torch.inference_mode()
def measure(folder: Path, prompts: int, samples: int, split: str = "heldout") -> dict[str, float]:
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
    right = np.array([[is_right(t, p) for t in ts] for ts, p in zip(sampled, problems)])
    bare = np.array([[t.startswith("####") for t in ts] for ts in sampled])
    return {
        "sampled": float(right.mean()),
        "greedy": float(np.mean([is_right(t[0], p) for t, p in zip(greedy, problems)])),
        f"pass@{samples}": float(right.any(1).mean()),
        "bare answers": float(bare.mean()),
        "sampled accuracy of bare answers": float(right[bare].mean()) if bare.any() else 0.0,
        "sampled accuracy of the others": float(right[~bare].mean()) if (~bare).any() else 0.0,
        "tokens": float(np.mean([len(tokenizer(t).input_ids) + 1 for ts in sampled for t in ts])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("zoo/assets/tiny"))
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=256, help="held-out problems to measure on")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    pairs = corpus(arguments.examples, arguments.seed)
    tokenizer = train_tokenizer([prompt + solution for prompt, solution in pairs[:20_000]])
    data = pack(pairs, tokenizer, arguments.seed)
    live = (data["document"] >= 0).mean()
    print(f"{len(pairs)} examples in {len(data['token'])} rows, {live:.0%} full", flush=True)
    model = train(data, arguments.steps, arguments.seed, arguments.work, arguments.compile)
    write_model(model, tokenizer, arguments.out)
    for name, value in measure(arguments.out, arguments.prompts, 8).items():
        print(f"{name}: {value:.3f}", flush=True)


if __name__ == "__main__":
    main()
