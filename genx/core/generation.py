"""Choosing the next token, and the small decisions of the generation loop.

The loop itself is `BaseModel.generate_steps`. Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from genx.core.cache import cache_start_pos
from genx.core.masks import check_generation_mask
from genx.errors import GenerationError
from genx.sampling_args import validate_sampling_args

__all__ = [
    "ContextExceeded",
    "GenerationEvent",
    "Prefilled",
    "Sampled",
    "cache_start_pos",
    "check_generation_mask",
    "check_sequence_length",
    "next_generation_input",
    "sample_next_token",
    "validate_sampling_args",
]

# torch.multinomial takes no longer rows.
_MULTINOMIAL_MAX = 1 << 24

# How many of the most likely tokens are looked at first for a nucleus, and how many times more if it is larger.
_FIRST_CANDIDATES = 256
_MORE_CANDIDATES = 16

Generators = torch.Generator | Sequence[torch.Generator] | None
CacheT = TypeVar("CacheT")


@dataclass(frozen=True)
class Prefilled:
    """The loop has read `done` of the prompt's `total` columns."""

    done: int
    total: int


@dataclass(frozen=True)
class Sampled:
    """The loop has chosen a token for each row: `token_ids` [B, 1].

    `finished` [B] is True for rows that have chosen an end-of-text id, now or earlier; an earlier one holds the pad
    id. `cache_bytes` is what the cache has allocated.
    """

    token_ids: Tensor
    finished: Tensor
    cache_bytes: int


@dataclass(frozen=True)
class ContextExceeded:
    """The text has grown past the model's `limit` positions; from here on each step re-reads the last ones."""

    limit: int


GenerationEvent = Prefilled | Sampled | ContextExceeded


def sample_next_token(
    logits: Tensor,
    do_sample: bool,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generators = None,
) -> Tensor:
    """Choose one token a row: the most likely one, or a draw after temperature, then top-k, then top-p.

    The nucleus is the smallest set of most likely tokens whose probabilities sum to at least `top_p`, the token that
    crosses the threshold included (Holtzman et al. 2020, arXiv:1904.09751, section 3.1). Filters run in float32.

    Args:
        logits: [B, V], of the last position; not modified. -inf forbids a token.
        do_sample: False takes the most likely token and ignores the other arguments.
        temperature: positive; divides the logits before the filters.
        top_k: keep this many most likely tokens (Fan et al. 2018, arXiv:1805.04833); V or more keeps all.
        top_p: keep the nucleus of this mass; 1 keeps all.
        generator: source of randomness; a sequence of B gives each row its own; None is torch's global one.

    Returns:
        Token ids [B, 1].

    Raises:
        GenerationError: (a ValueError) a row has a NaN or +inf logit, or none that is finite.
    """
    best_logit, best_token = logits.max(dim=-1, keepdim=True)  # [B, 1] each; NaN wins over every number
    if not bool(torch.isfinite(best_logit).all()):
        _refuse_logits(best_logit)
    if not do_sample:
        return best_token
    scores = _over_temperature(logits, best_logit, temperature)
    if top_k is not None and top_k < scores.size(-1):
        scores = _keep_top_k(scores, top_k)
    if top_p is not None and top_p < 1:
        scores = _keep_nucleus(scores, top_p)
    probabilities = torch.softmax(scores, dim=-1)
    drawn = _draw(probabilities, generator)
    # Rounding at the ends of a cumulative sum can draw a token of probability 0 on some devices.
    return torch.where(probabilities.gather(-1, drawn) > 0, drawn, best_token)


def next_generation_input(
    x: Tensor, cache: CacheT | None, use_cache: bool, max_seq_len: int
) -> tuple[Tensor, CacheT | None]:
    """What the model reads next, and the cache that it reads it with.

    Past the context that is the window of the last `max_seq_len` tokens, from scratch: all positions have shifted, and
    keys and values of deeper layers remember the dropped tokens, so that no cache can go on.

    Args:
        x: [B, T], the text so far.
        cache: what the last pass returned.
        use_cache: whether to go on from it.
        max_seq_len: positions that the model has.
    """
    if x.size(1) > max_seq_len:
        return x[:, -max_seq_len:], None
    if use_cache and cache is not None:
        return x[:, -1:], cache
    return x, None


def check_sequence_length(seq_len: int, start_pos: int, max_seq_len: int) -> None:
    """Refuse input that runs past the model's positions.

    Raises:
        ValueError: `start_pos` + `seq_len` exceeds `max_seq_len`.
    """
    if start_pos + seq_len > max_seq_len:
        raise ValueError(
            f"{start_pos} cached + {seq_len} new tokens are {start_pos + seq_len}; "
            f"allowed: at most {max_seq_len} positions; shorten the input, or let generate slide its window"
        )


def _over_temperature(logits: Tensor, best_logit: Tensor, temperature: float) -> Tensor:
    # Softmax does not change when the best logit is subtracted first, and no temperature can then overflow.
    limits = torch.finfo(torch.float32)
    divisor = min(max(temperature, limits.tiny), limits.max)
    return (logits.float() - best_logit.float()) / divisor


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    kept, tokens = torch.topk(scores, top_k, dim=-1)
    return torch.full_like(scores, float("-inf")).scatter_(-1, tokens, kept)


def _keep_nucleus(scores: Tensor, top_p: float) -> Tensor:
    """-inf outside the nucleus; of equally likely tokens at its border those with the lowest ids are in it.

    A nucleus is mostly small, so that the whole vocabulary is sorted only where it is not.
    """
    probabilities = torch.softmax(scores, dim=-1)
    vocab_size = scores.size(-1)
    candidates = min(_FIRST_CANDIDATES, vocab_size)
    while True:
        ordered = torch.topk(probabilities, candidates, dim=-1).values
        mass_before = torch.cumsum(ordered, dim=-1) - ordered
        size = (mass_before < top_p).cumprod(dim=-1).sum(dim=-1, keepdim=True)  # [B, 1]
        if candidates == vocab_size or int(size.max()) < candidates:
            break
        candidates = min(_MORE_CANDIDATES * candidates, vocab_size)
    size = size.clamp_min(1)  # whatever the rounding, the best token stays
    last = ordered.gather(-1, size - 1)  # [B, 1], the least probability within
    above = probabilities > last
    border = probabilities == last
    border &= border.cumsum(dim=-1) <= size - above.sum(dim=-1, keepdim=True)
    return scores.masked_fill(~(above | border), float("-inf"))


def _draw(probabilities: Tensor, generator: Generators) -> Tensor:
    if isinstance(generator, Sequence):
        rows = zip(probabilities, generator, strict=True)
        return torch.cat([_draw(row.unsqueeze(0), own) for row, own in rows])
    if probabilities.size(-1) <= _MULTINOMIAL_MAX:
        return torch.multinomial(probabilities, num_samples=1, generator=generator)
    # An exponential race, which is won with exactly these probabilities.
    race = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / race).argmax(dim=-1, keepdim=True)


def _refuse_logits(best_logit: Tensor) -> None:
    bad = ~torch.isfinite(best_logit).flatten()
    row = int(bad.nonzero()[0])
    value = float(best_logit.flatten()[row])
    what = "no finite logit" if value == float("-inf") else f"a logit that is {value}"
    raise GenerationError(
        f"row {row} has {what}, so no token can be chosen; "
        "the weights may be damaged, or overflow in this dtype: try float32"
    )
