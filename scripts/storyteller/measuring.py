"""Held-out loss of the model and of a 5-gram model, and what generated stories are like."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from genx.core.base_model import BaseModel
from genx.tokenization import Tokenizer
from storyteller.ngram import NGram
from storyteller.rows import Stories

OPENINGS = ("Once upon a time", "One day", "There was a little", "Lily", "The dog")
_BATCH = 16


@dataclass(frozen=True)
class Loss:
    """A loss over some texts."""

    nats: float
    tokens: int
    num_bytes: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.num_bytes


@torch.inference_mode()
def model_loss(model: BaseModel, texts: Sequence[str], stories: Stories) -> Loss:
    """The loss of whole stories, each read alone from its start, its end included."""
    was_training = model.training
    model.eval()
    nats = 0.0
    for start in range(0, len(stories.ids), _BATCH):
        part = stories.ids[start : start + _BATCH]
        longest = max(map(len, part))
        rows = torch.tensor([ids + [0] * (longest - len(ids)) for ids in part])  # [B, T + 1]
        wanted = rows[:, 1:].clone()  # [B, T]
        for row, ids in zip(wanted, part, strict=True):
            row[len(ids) - 1 :] = -100  # what cross_entropy leaves out
        logits, _ = model(rows[:, :-1])
        nats += nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum").item()
    model.train(was_training)
    return Loss(nats, _predicted(stories), _bytes(texts))


def ngram_loss(ngram: NGram, texts: Sequence[str], stories: Stories) -> Loss:
    """The same for an n-gram model."""
    return Loss(sum(ngram.nats(ids) for ids in stories.ids), _predicted(stories), _bytes(texts))


def generated_stories(
    model: BaseModel, tokenizer: Tokenizer, count: int, end_id: int, seed: int, temperature: float, top_p: float
) -> Iterator[tuple[str, bool]]:
    """Sampled stories from OPENINGS in turn, and whether each ended within 300 tokens."""
    for number in range(count):
        prompt = tokenizer.encode(OPENINGS[number % len(OPENINGS)])
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=300,
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            eos_token_id=end_id,
            generator=torch.Generator().manual_seed(seed + number),
        )
        ids = out[0].tolist()
        yield tokenizer.decode([one for one in ids if one != end_id]), ids[-1] == end_id


def distinct_share(texts: Sequence[str], size: int = 4) -> float:
    """Different runs of `size` words among all of them."""
    runs: list[tuple[str, ...]] = []
    for text in texts:
        words = text.split()
        runs += zip(*(words[i:] for i in range(size)), strict=False)
    return len(set(runs)) / len(runs)


@torch.inference_mode()
def sentence_likelihoods(judge: BaseModel, tokenizer: Tokenizer, texts: Sequence[str]) -> list[float]:
    """Mean log-probability a token of each sentence but the first, after what stands before it, in nats."""
    values: list[float] = []
    for text in texts:
        ends = [match.end() for match in re.finditer(r'[.!?]"?(?=\s|$)', text)]
        counts = [len(tokenizer.encode(text[:end])) for end in ends]
        ids = torch.tensor([tokenizer.encode(text)])  # [1, T]
        logits, _ = judge(ids[:, :-1])
        likely: Tensor = logits[0].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]  # [T - 1]
        for start, end in itertools.pairwise(counts):
            values.append(likely[start - 1 : end - 1].mean().item())
    return values


def _predicted(stories: Stories) -> int:
    return sum(len(ids) - 1 for ids in stories.ids)


def _bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)
