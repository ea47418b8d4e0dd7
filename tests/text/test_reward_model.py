"""A sequence classifier as a reward: its numbers are transformers' own, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.core.protocols import Completion, Turn
from zoo.envs.rewards import RewardModel
from zoo.envs.rewards.item import read_rewards
from zoo.envs.text import QuestionEnv, make_prompt
from zoo.errors import UserError

sys.path.append(str(Path(__file__).parents[1] / "language"))
from small_models import SHAPE, make_tokenizer

CHAT = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
PROMPT = make_prompt("1+1=", "2", "sum/0", system="add")
COMPLETIONS = [
    Completion("2.", [1], True),
    Completion("perhaps it is 3, who can tell", [1], True),
    Completion("a\n\nb", [1, 1], True, (Turn("assistant", "a", [1]), Turn("user", "no", [2]))),
]


def save(folder: Path, labels: int = 1, template: str | None = CHAT, pad: bool = True) -> Any:
    """Write a random classifier and its tokenizer; return both."""
    import transformers as hf

    torch.manual_seed(labels)
    config = hf.Qwen2Config(**SHAPE, num_labels=labels)
    if labels > 1:
        config.id2label = {0: "bad", 1: "so-so", 2: "good"}
        config.label2id = {"bad": 0, "so-so": 1, "good": 2}
    model = hf.Qwen2ForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer().backend_tokenizer,
        pad_token="<pad>" if pad else None,
        eos_token="<end>",
        chat_template=template,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, hf.AutoTokenizer.from_pretrained(folder)


def logits(model: Any, tokenizer: Any, text: str, last: int = 0) -> torch.Tensor:
    """Of the text alone, or of its last tokens."""
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model(ids[:, -last:]).logits[0]


TEXTS = [
    "s:add\nu:1+1=\na:2.\n",
    "s:add\nu:1+1=\na:perhaps it is 3, who can tell\n",
    "s:add\nu:1+1=\na:a\nu:no\n",
]


@pytest.mark.parametrize("pad", [True, False])
def test_one_output_pays_its_logit_for_the_whole_conversation(tmp_path: Path, pad: bool) -> None:
    model, tokenizer = save(tmp_path, pad=pad)
    items = {"accuracy": 1, "reward_model": {"path": str(tmp_path), "weight": 0.5}}
    with QuestionEnv("sums", [PROMPT], [PROMPT], rewards=items) as env:
        scores = env.score([PROMPT] * 3, COMPLETIONS)
    assert not scores.failures, scores.errors
    expected = [float(logits(model, tokenizer, text)[0]) for text in TEXTS]
    assert scores.items["reward_model"] == pytest.approx(expected, abs=1e-4)
    assert len({round(x, 3) for x in expected}) == 3
    assert scores.total == pytest.approx(
        [a + 0.5 * e for a, e in zip(scores.items["accuracy"], expected, strict=True)], abs=1e-4
    )


def test_of_several_outputs_one_label_pays_its_probability(tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path, labels=3)
    turns = [list(c.turns) or [Turn("assistant", c.text, [1])] for c in COMPLETIONS]
    arguments = [PROMPT] * 3, [c.text for c in COMPLETIONS], turns
    expected = [float(logits(model, tokenizer, text).softmax(-1)[2]) for text in TEXTS]
    for label in ("good", 2):
        assert RewardModel(str(tmp_path), label=label)(*arguments) == pytest.approx(
            expected, abs=1e-5
        )
    with pytest.raises(UserError, match="3 outputs: say by label=.*bad, so-so, good"):
        RewardModel(str(tmp_path))(*arguments)


def test_without_a_template_it_reads_a_pair_of_texts(tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path, template=None)
    turns = [[Turn("assistant", "2.", [1])]]
    found = RewardModel(str(tmp_path))([PROMPT], ["2."], turns)
    pair = tokenizer("add\n\n1+1=", "2.", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert found == pytest.approx([float(model(pair).logits[0, 0])], abs=1e-5)


def test_the_beginning_is_what_too_long_a_conversation_loses(tmp_path: Path) -> None:
    model, tokenizer = save(tmp_path)
    turns = [[Turn("assistant", "2.", [1])]]
    found = RewardModel(str(tmp_path), max_tokens=5)([PROMPT], ["2."], turns)
    assert found == pytest.approx([float(logits(model, tokenizer, TEXTS[0], 5)[0])], abs=1e-5)


def test_it_is_made_by_name_or_given_as_an_object(tmp_path: Path) -> None:
    made = {"name": "quality", "function": "reward_model", "path": "x/y", "weight": 2}
    (item,) = read_rewards([made])
    assert (item.name, item.weight, item.timeout_s) == ("quality", 2.0, 600.0)
    assert item.function == RewardModel("x/y")
    (item,) = read_rewards([RewardModel("x/y", rows=4)])
    assert (item.name, item.timeout_s, item.batch) == ("reward_model", 600.0, True)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("reward_model", "needs a path"),
        ({"name": "reward_model"}, "needs a path"),
        ({"name": "reward_model", "path": "a/b", "lable": 1}, "no option 'lable'.*label"),
        ({"name": "reward_model", "path": "a/b", "rows": 0}, "rows must be a whole number"),
        ({"name": "reward_model", "path": 3}, "path must name a model"),
    ],
)
def test_what_makes_no_reward_model_is_refused(spec: Any, what: str) -> None:
    with pytest.raises(UserError, match=what):
        read_rewards([spec])


def test_a_model_that_is_no_trained_classifier_is_refused(tmp_path: Path) -> None:
    import transformers as hf

    save(tmp_path / "lm")
    hf.Qwen2ForCausalLM(hf.Qwen2Config(**SHAPE)).save_pretrained(tmp_path / "lm")
    for path, what in ((tmp_path / "lm", "no trained classifier.*score"), (tmp_path, "be loaded")):
        items = [{"name": "reward_model", "path": str(path)}]
        with (
            QuestionEnv("sums", [PROMPT], [PROMPT], rewards=items) as env,
            pytest.raises(UserError, match=what),
        ):
            env.score([PROMPT], COMPLETIONS[:1])
