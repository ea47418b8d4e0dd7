"""Small random models of several architectures, a byte tokenizer, a text environment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDict
from torch import nn

from zoo.core.protocols import Completion, Prompt, Scores
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.policies.transformers_forward import left_pad

VOCAB = 64
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ROPE_SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
OWN_FORWARD = ("llama", "llama-biases", "qwen2", "qwen3", "qwen3-untied")
ARCHITECTURES = (*OWN_FORWARD, "gpt2", "gemma2")


def make_model(name: str, width: int = 1) -> Any:
    """A random model whose outputs are far from uniform; engines take no heads below 32 wide."""
    import transformers as hf

    shape = {**SHAPE, "hidden_size": 32 * width}
    # The capped head of Gemma 2 is no plain matrix product.
    made: dict[str, Callable[[], Any]] = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**shape)),
        "llama-biases": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(
                **shape,
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
                rope_parameters=ROPE_SCALED,
            )
        ),
        "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**shape)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(
            hf.Qwen3Config(**shape, head_dim=16 * width, tie_word_embeddings=True)
        ),
        "qwen3-untied": lambda: hf.Qwen3ForCausalLM(
            hf.Qwen3Config(**shape, head_dim=16 * width, attention_bias=True)
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=VOCAB,
                n_embd=32 * width,
                n_layer=2,
                n_head=2,
                n_positions=256,
                bos_token_id=1,
                eos_token_id=1,
            )
        ),
        "gemma2": lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(
                **shape, head_dim=16 * width, final_logit_softcapping=3.0, sliding_window=256
            )
        ),
    }
    torch.manual_seed(0)
    model = made[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.2)
            else:
                parameter.add_(torch.rand_like(parameter) - 0.5)
    return model.eval()


@functools.cache
def make_tokenizer(bos: str | None = None, adds_bos: bool = False, template: str | None = None):
    """Letters, digits and punctuation, one token each; ids 0 pad, 1 end, 2 begin."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
    )
    from transformers import PreTrainedTokenizerFast

    letters = "\n abcdefghijklmnopqrstuvwxyzABCDQT0123456789+-*=.,?#:'$"
    vocab = {"<pad>": 0, "<end>": 1, "<begin>": 2, "<unk>": 3}
    vocab |= {c: i + 4 for i, c in enumerate(letters)}
    assert len(vocab) <= VOCAB
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<end>", "<begin>")])
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<begin> $A", special_tokens=[("<begin>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<end>",
        bos_token=bos,
        chat_template=template,
    )


def make_policy(name: str = "qwen3", critic: bool = False, **knobs: Any) -> LanguagePolicy:
    """A fresh float32 policy around `make_model`."""
    settings = {"sampling_dtype": "float32", **knobs}
    return LanguagePolicy(
        make_model(name), make_tokenizer(), LanguageKnobs(**settings), critic=critic
    )


def make_batch(
    prompts: Sequence[Sequence[int]], rows: Sequence[tuple[int, Sequence[int]]], pad: int = 0
) -> TensorDict:
    """A batch of (index of the prompt, completion) rows."""
    prompt_ids, prompt_length = left_pad([list(prompts[i]) for i, _ in rows], pad)
    longest = max(len(c) for _, c in rows)
    action = torch.tensor([list(c) + [pad] * (longest - len(c)) for _, c in rows])
    length = torch.tensor([len(c) for _, c in rows])
    mask = torch.arange(longest) < length[:, None]
    return TensorDict(
        {
            "prompt_ids": prompt_ids,
            "prompt_length": prompt_length,
            "action": action,
            "completion_length": length,
            "mask": mask,
            "group": torch.tensor([i for i, _ in rows]),
            "advantage": torch.linspace(-1.0, 1.0, len(rows))[:, None].expand(mask.shape).clone(),
        },
        batch_size=[len(rows)],
    )


def random_batch(groups: int = 4, seed: int = 0, longest: int = 40) -> TensorDict:
    """Groups of unequal size and completions of 1 to ``longest`` tokens, one of them that long."""
    g = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> list[int]:
        return torch.randint(0, VOCAB, (n,), generator=g).tolist()

    prompts = [tokens(3 + 5 * i) for i in range(groups)]
    rows = [
        (i, tokens(int(torch.randint(1, longest, (), generator=g))))
        for i in range(groups)
        for _ in range(1 + (3 * i) % 5)
    ]
    rows[0] = (0, tokens(longest))
    order = torch.randperm(len(rows), generator=g).tolist()
    return make_batch(prompts, [rows[i] for i in order])


def naive_log_prob(policy: LanguagePolicy, batch: TensorDict) -> list[torch.Tensor]:
    """log softmax(z / T) of each row's tokens, the row alone, unpadded, by transformers."""
    result = []
    width = batch["prompt_ids"].shape[1]
    for row in batch:
        length, n = int(row["prompt_length"]), int(row["completion_length"])
        ids = torch.cat([row["prompt_ids"][width - length :], row["action"][:n]])
        logits = policy.model(ids[None], use_cache=False).logits[0, length - 1 : -1]
        log_probs = (logits / policy.temperature).log_softmax(-1)
        result.append(log_probs.gather(-1, row["action"][:n, None]).squeeze(-1))
    return result


class Sums:
    """A text environment: a sum to complete; reward for each digit in the answer, plus accuracy."""

    name, notice = "sums", None
    dataset = "sums (made up)"

    def __init__(self, count: int = 10, failing: Sequence[int] = ()) -> None:
        self.count, self.failing, self.scored = count, failing, 0

    def prompts(self, split: Literal["train", "heldout"]) -> list[Prompt]:
        """Disjoint sums."""
        offset = 0 if split == "train" else self.count
        texts = [f"{i}+{i}=" for i in range(offset, offset + self.count)]
        return [
            Prompt(t, str(2 * (offset + i)), [{"role": "user", "content": t}], f"{split}/{i}")
            for i, t in enumerate(texts)
        ]

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        """Count digits; ``failing`` positions of each call have no score."""
        self.scored += len(completions)
        digits = [float(sum(c.isdigit() for c in x.text)) for x in completions]
        right = [float(p.answer in c.text) for p, c in zip(prompts, completions, strict=True)]
        for i in self.failing:
            digits[i] = float("nan")
        total = [d + r for d, r in zip(digits, right, strict=True)]
        return Scores(
            total,
            {"digits": digits, "accuracy": right},
            {"digits": len(self.failing)},
            {"accuracy_strict": right, "accuracy_lenient": right},
        )

    def close(self) -> None:
        """Nothing is open."""
