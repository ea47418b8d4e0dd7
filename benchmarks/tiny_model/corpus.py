"""The tiny model's corpus: worked solutions, bare answers and plain sums, all correct."""

from __future__ import annotations

import math
from random import Random

import numpy as np
from decoder import VOCABULARY

from zoo.envs.gsm_symbolic import generate

PAD, END = "<|pad|>", "<|end|>"
PROMPT = "Question: {question}\nAnswer:\n"

#: How a text continues after "Answer:". As on the web, many give the bare answer.
BARE_SHARE = 0.55
#: Bare answers teach little per token, so fewer of them are read, their first token at more weight.
BARE_READ = 0.25
BARE_WEIGHT = BARE_SHARE / (1 - BARE_SHARE) * (1 - BARE_READ) / BARE_READ

SHEETS = 0.7  # sheets of plain sums per problem

Document = list[tuple[str, float]]  # (text, loss weight of its tokens), ending in END


def corpus(count: int, seed: int) -> list[Document]:
    """``count`` problems with their solution or bare answer, and sheets of sums between them."""
    rng = Random(f"tiny/{seed}")
    documents: list[Document] = []
    for problem in generate(count, split="train", level="easy", seed=seed):
        prompt = (PROMPT.format(question=problem.question), 0.0)
        if rng.random() < BARE_READ:
            documents.append([prompt, ("####", BARE_WEIGHT), (f" {problem.answer}{END}", 1.0)])
        else:
            documents.append([prompt, (problem.solution + END, 1.0)])
        if rng.random() < SHEETS:
            documents.append(sheet(rng))
    return documents


def sheet(rng: Random) -> Document:
    """Two to six true sums, a line each, in the spellings that worked solutions use."""
    lines: Document = []
    for _ in range(rng.randint(2, 6)):
        given, result = rng.choice((addition, addition, subtraction, multiplication, division))(rng)
        equals = " ="
        if rng.random() < 0.3:
            given, equals = given.replace(" ", ""), "="
        else:
            result = " " + result
        lines += [(given + equals, 0.0), (result + "\n", 1.0)]
    return [*lines, (END, 1.0)]


def term(rng: Random, largest: int) -> int:
    return rng.randint(1, rng.choice((10, 30, 100, 300, largest)))


def addition(rng: Random) -> tuple[str, str]:
    terms = [term(rng, 200) for _ in range(rng.choice((2, 2, 2, 3)))]
    return " + ".join(map(str, terms)), str(sum(terms))


def subtraction(rng: Random) -> tuple[str, str]:
    terms = [term(rng, 200) for _ in range(rng.choice((1, 1, 1, 2)))]
    result = term(rng, 200)
    return " - ".join(map(str, [result + sum(terms), *terms])), str(result)


def multiplication(rng: Random) -> tuple[str, str]:
    factors = [rng.randint(1, rng.choice((5, 12))), rng.randint(1, rng.choice((12, 30, 100)))]
    rng.shuffle(factors)
    return rng.choice((" * ", " x ")).join(map(str, factors)), str(math.prod(factors))


def division(rng: Random) -> tuple[str, str]:
    divisor, result = rng.randint(2, 12), rng.randint(1, rng.choice((12, 60)))
    return f"{divisor * result} / {divisor}", str(result)


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
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def pack(documents: list[Document], tokenizer, width: int, seed: int) -> dict[str, np.ndarray]:
    """Pack documents into rows of ``width`` tokens; those that are longer are left out.

    Returns
    -------
    dict
        ``token`` [N, L], ``position`` [N, L] (from 0 in each document), ``document`` [N, L]
        (-1 is padding) and ``weight`` [N, L], the loss weight of predicting each token.
    """
    rows: list[list[tuple[list[int], list[float]]]] = []
    open_rows: list[tuple[int, int]] = []  # (room left, row), a few at a time
    pieces = tokenizer.encode_batch([text for document in documents for text, _ in document])
    at = 0
    for document in documents:
        tokens: list[int] = []
        weights: list[float] = []
        for _, weight in document:
            tokens += pieces[at].ids
            weights += [weight] * len(pieces[at].ids)
            at += 1
        if len(tokens) > width:
            continue
        weights[0] = 0.0  # nothing predicts it
        fits = [i for i, (room, _) in enumerate(open_rows) if room >= len(tokens)]
        if fits:
            room, row = open_rows.pop(min(fits, key=lambda i: open_rows[i][0]))
        else:
            room, row = width, len(rows)
            rows.append([])
        rows[row].append((tokens, weights))
        if room - len(tokens) > 24:
            open_rows.append((room - len(tokens), row))
        if len(open_rows) > 64:
            open_rows.remove(min(open_rows))
    shape = (len(rows), width)
    packed = {
        "token": np.zeros(shape, np.int16),
        "position": np.zeros(shape, np.int16),
        "document": np.full(shape, -1, np.int16),
        "weight": np.zeros(shape, np.float32),
    }
    for i, row in enumerate(rows):
        start = 0
        for j, (tokens, weights) in enumerate(row):
            stop = start + len(tokens)
            packed["token"][i, start:stop] = tokens
            packed["position"][i, start:stop] = np.arange(len(tokens))
            packed["document"][i, start:stop] = j
            packed["weight"][i, start:stop] = weights
            start = stop
    order = np.random.default_rng(seed).permutation(len(rows))
    return {key: value[order] for key, value in packed.items()}
