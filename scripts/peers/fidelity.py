"""How near one engine's answers about given texts are to those of a reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

TEXTS = Path(__file__).with_name("texts.txt")
PROMPT, CONTINUED = 16, 64  # tokens of a text that is continued greedily, and new ones


@dataclass(frozen=True)
class Fidelity:
    """One format against the reference.

    Attributes:
        name: engine and format.
        tokens: that were compared.
        kl: mean of the Kullback-Leibler divergence KL(reference || format), in nats.
        agreement: share of tokens whose most likely successor is the reference's.
        perplexity: of the texts.
        prefix: mean number of new tokens before greedy text differs from the reference's, of CONTINUED.
    """

    name: str
    tokens: int
    kl: float
    agreement: float
    perplexity: float
    prefix: float


class Texts:
    """What is read: ids [T] of each text, and the places in it that are compared."""

    def __init__(self, ids: Sequence[tuple[int, ...]], every: int) -> None:
        self.ids = ids
        self.places = [range(0, len(text) - 1, every) for text in ids]


Answers = Callable[[tuple[int, ...], range], Tensor]
"""Log-probabilities [places, V] of what follows each place of a text."""
Greedy = Callable[[tuple[int, ...]], list[int]]


def compare(
    name: str,
    answers: Answers,
    greedy: Greedy,
    texts: Texts,
    reference: Sequence[Tensor],
    continued: Sequence[Sequence[int]],
) -> Fidelity:
    """One engine on all texts."""
    kl = agreed = surprise = 0.0
    tokens = prefix = 0
    for ids, places, expected, own_text in zip(texts.ids, texts.places, reference, continued, strict=True):
        found, wanted = answers(ids, places).double(), expected.double()
        kl += float((wanted.exp() * (wanted - found)).nan_to_num(0.0).sum())
        agreed += int((wanted.argmax(-1) == found.argmax(-1)).sum())
        following = torch.tensor([ids[place + 1] for place in places])
        surprise -= float(found.gather(1, following.unsqueeze(1)).sum())
        tokens += len(places)
        pairs = zip(greedy(ids[:PROMPT]), own_text, strict=True)
        prefix += next((place for place, (a, b) in enumerate(pairs) if a != b), CONTINUED)
    perplexity = float(torch.tensor(surprise / tokens).exp())
    return Fidelity(name, tokens, kl / tokens, agreed / tokens, perplexity, prefix / len(texts.ids))


def table(rows: Sequence[Fidelity]) -> str:
    """Markdown."""
    lines = [
        f"| weights | KL to float32, nats | same most likely token | perplexity | equal greedy tokens of {CONTINUED} |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.kl:.5f} | {row.agreement:.1%} | {row.perplexity:.3f} | {row.prefix:.1f} |" for row in rows
    ]
    return "\n".join([*lines, "", f"{rows[0].tokens:,} tokens of {len(TEXTS.read_text().split(chr(10) * 2))} texts"])
