"""The shipped tiny model, as transformers sees it."""

import json
from pathlib import Path

import pytest
import torch

import zoo

transformers = pytest.importorskip("transformers")

FOLDER = Path(zoo.__file__).parent / "assets" / "tiny"
QUESTION = "A pie has 12 pieces. If Ava eats 2 pieces a day, how many days will the pie last?"


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def test_chat_template_gives_the_pretraining_prompt(tokenizer):
    chat = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == f"Question: {QUESTION}\nAnswer:\n"


def test_tokenizer_adds_no_bos_and_loses_nothing(tokenizer):
    text = f"Question: {QUESTION}\nAnswer:\n£1,250.50 — naïve 日本\n"
    ids = tokenizer(text).input_ids
    assert tokenizer.bos_token is None
    assert tokenizer.decode(ids) == text


def test_digits_are_tokens_of_their_own(tokenizer):
    pieces = [tokenizer.decode([i]) for i in tokenizer("made 2048 * 17 = 34816").input_ids]
    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("20481734816")


def test_prompt_and_completion_tokenise_apart_as_they_do_together(tokenizer):
    prompt, completion = f"Question: {QUESTION}\nAnswer:\n", "#### 6<|end|>"
    together = tokenizer(prompt + completion).input_ids
    assert together == tokenizer(prompt).input_ids + tokenizer(completion).input_ids
    assert together[-1] == tokenizer.eos_token_id


def test_end_and_padding_are_different_tokens_everywhere(tokenizer, model):
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
    assert model.config.vocab_size == len(tokenizer)


def test_generation_config_carries_no_sampling_parameters():
    stored = json.loads((FOLDER / "generation_config.json").read_text())
    assert set(stored) == {"eos_token_id", "pad_token_id"}


def test_weights_are_small_and_bfloat16():
    assert (FOLDER / "model.safetensors").stat().st_size < 8_000_000
    stored = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto")
    assert stored.dtype == torch.bfloat16


def test_solutions_end_and_some_are_right(tokenizer, model):
    pytest.importorskip("reasoning_gym")
    from zoo.envs.gsm_symbolic import generate

    problems = generate(32, split="heldout", seed=7)
    chats = [[{"role": "user", "content": p.question}] for p in problems]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=96)
    new = ids[:, inputs["input_ids"].shape[1] :]
    assert (new == tokenizer.eos_token_id).any(1).float().mean() > 0.9
    answers = [t.rpartition("####")[2].strip() for t in tokenizer.batch_decode(new, True)]
    right = sum(a == p.answer for a, p in zip(answers, problems, strict=True))
    assert right >= 4, f"{right} of 32"
