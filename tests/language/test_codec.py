"""Templates, beginning tokens and stop tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from small_models import make_tokenizer

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
