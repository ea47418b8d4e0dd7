"""Templates, beginning tokens and stop tokens."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from small_models import make_tokenizer

from zoo.errors import UserError
from zoo.policies.text_codec import TextCodec

MESSAGES = [{"role": "user", "content": "1+1="}]
PLAIN = "{% for m in messages %}Q: {{ m['content'] }}\n{% endfor %}A:"
WITH_BOS = "{{ bos_token }}" + PLAIN


def encode(**options: Any) -> list[int]:
    return TextCodec(make_tokenizer(**options)).encode(MESSAGES)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_golden_30_a_template_that_holds_bos_gives_exactly_one(adds_bos: bool) -> None:
    ids = encode(bos="<begin>", adds_bos=adds_bos, template=WITH_BOS)
    assert ids[0] == 2
    assert ids.count(2) == 1


def test_bos_where_only_the_tokenizer_adds_it() -> None:
    assert encode(bos="<begin>", adds_bos=True, template=PLAIN).count(2) == 1
    assert encode(bos="<begin>", adds_bos=True).count(2) == 1


def test_no_bos_where_nothing_puts_one() -> None:
    assert encode(template=PLAIN).count(2) == 0
    assert encode(bos="<begin>", template=PLAIN).count(2) == 0


def test_template_and_plain_text() -> None:
    with_template = TextCodec(make_tokenizer(template=PLAIN))
    assert with_template.decode(with_template.encode(MESSAGES)) == "Q: 1+1=\nA:"
    plain = TextCodec(make_tokenizer())
    system = {"role": "system", "content": "add"}
    assert plain.decode(plain.encode([system, *MESSAGES])) == "add\n\n1+1=\n"


def test_arguments_of_the_template_reach_it() -> None:
    template = PLAIN + "{% if enable_thinking is not defined or enable_thinking %} T{% endif %}"
    tokenizer = make_tokenizer(template=template)
    thinks, answers = TextCodec(tokenizer), TextCodec(tokenizer, None, {"enable_thinking": False})
    assert thinks.decode(thinks.encode(MESSAGES)) == "Q: 1+1=\nA: T"
    assert answers.decode(answers.encode(MESSAGES)) == "Q: 1+1=\nA:"


def test_stop_tokens_are_a_set_from_tokenizer_and_generation_config() -> None:
    tokenizer = make_tokenizer()
    assert TextCodec(tokenizer).stop_ids == {1}
    several = SimpleNamespace(eos_token_id=[2, 7])
    assert TextCodec(tokenizer, several).stop_ids == {1, 2, 7}
    assert TextCodec(tokenizer, SimpleNamespace(eos_token_id=5)).stop_ids == {1, 5}


def test_decoding_leaves_special_tokens_out() -> None:
    codec = TextCodec(make_tokenizer())
    ids = codec.encode(MESSAGES)
    assert codec.decode([*ids, 1, 0, 0]) == "1+1=\n"


# What stands between two answers.

CHATML = (
    "{{ bos_token }}{% if messages[0]['role'] != 'system' %}SYS you are{% endif %}"
    "{% for m in messages %}{% set c = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last %}{% set c = c.split('</think>')[-1] %}"
    "{% endif %}T{{ m['role'][0] }}:{{ c }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}Ta:{% endif %}"
)
REPLY = {"role": "user", "content": "no"}


def test_a_reply_goes_on_where_the_answer_ended() -> None:
    codec = TextCodec(make_tokenizer(bos="<begin>", template=CHATML))
    ids = codec.encode_reply(REPLY, last=1)
    assert codec.tokenizer.decode(ids) == "\nTu:no<end>\nTa:"
    # another stop token ended the answer: the template's own follows it
    assert codec.tokenizer.decode(codec.encode_reply(REPLY, last=7)) == "<end>\nTu:no<end>\nTa:"


def test_what_was_said_and_the_reply_are_what_the_template_renders() -> None:
    codec = TextCodec(make_tokenizer(bos="<begin>", template=CHATML))
    answered = [*MESSAGES, {"role": "assistant", "content": "3"}]
    (three,) = codec.tokenizer("3", add_special_tokens=False)["input_ids"]
    row = [*codec.encode(MESSAGES), three, 1]
    row += codec.encode_reply(REPLY, last=1)
    assert row == codec.encode([*answered, REPLY])
    assert row.count(2) == 1  # golden 30: one beginning token per row, whatever the turns


def test_a_thought_that_the_template_would_take_out_stays_as_it_was_sampled() -> None:
    codec = TextCodec(make_tokenizer(bos="<begin>", template=CHATML))
    thought = {"role": "assistant", "content": "<think>x</think>3"}
    rendered = codec.tokenizer.decode(codec.encode([*MESSAGES, thought, REPLY]))
    assert "think" not in rendered  # so a row can't be rendered anew
    assert codec.tokenizer.decode(codec.encode_reply(REPLY, 1)) == rendered.partition("3<end>")[2]


def test_without_a_template_a_reply_stands_below_the_answer() -> None:
    codec = TextCodec(make_tokenizer())
    assert codec.decode(codec.encode_reply(REPLY, last=1)) == "\n\nno\n"


@pytest.mark.parametrize(
    ("template", "what"),
    [
        (
            PLAIN
            + "{% if messages[-1]['role'] == 'user' %}{{ raise_exception('odd') }}{% endif %}",
            "refuses a message of role 'user' behind an answer .*odd",
        ),
        # the message isn't rendered; the answer ends otherwise where something follows
        ("{% for m in messages[:2] %}{{ m['content'] }}<end>{% endfor %}", "doesn't continue"),
        (
            "{% for m in messages %}{{ m['content'] }}{% if loop.last %}<end>{% else %};{% endif %}"
            "{% endfor %}",
            "doesn't continue",
        ),
    ],
)
def test_a_template_that_cannot_go_on_is_refused(template: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        TextCodec(make_tokenizer(template=template)).encode_reply(REPLY, last=1)


def test_a_thought_opened_by_the_prompt_belongs_to_the_answers_text() -> None:
    opened = PLAIN + "{% if add_generation_prompt %}<think>\n{% endif %}"
    codec = TextCodec(make_tokenizer_with("<think>", "</think>", template=opened))
    ids = codec.encode(MESSAGES)
    three = codec.tokenizer("3</think>4", add_special_tokens=False)["input_ids"]
    assert codec.answers([ids], [three]) == ["<think>\n3</think>4"]
    closed = codec.tokenizer("<think>\n</think>\n", add_special_tokens=False)["input_ids"]
    assert codec.answers([closed], [three]) == ["3</think>4"]
    assert TextCodec(make_tokenizer(template=PLAIN)).answers([ids], [three[:1]]) == ["3"]


def make_tokenizer_with(*tokens: str, template: str) -> Any:
    """Return a tokenizer that has further ordinary tokens."""
    from tokenizers import AddedToken

    tokenizer = copy.deepcopy(make_tokenizer(template=template))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    return tokenizer
