"""The one generation loop: read, choose, append. Everything that generates goes through these functions.

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genx.core.cache import Cache, cache_nbytes, cache_start_pos, cache_text_lengths
from genx.core.generation import (
    ContextExceeded,
    GenerationEvent,
    Generators,
    Prefilled,
    Sampled,
    next_generation_input,
    sample_next_token,
)
from genx.core.graphs import GraphedSteps, capture_for
from genx.core.growing import GrowingColumns
from genx.errors import ArgumentError

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

# Columns read at once from a long prompt: large enough for full-speed matrix products, small enough that no mask of
# T x T and no logits of T x V ever exist.
PREFILL_CHUNK = 512

# do_sample, temperature, top_k, top_p, generator: the arguments of sample_next_token after the logits.
Sampling = tuple[bool, float, int | None, float | None, Generators]


@torch.no_grad()
def generation_loop(
    model: "BaseModel",
    x: Tensor,
    mask: Tensor | None,
    max_new_tokens: int,
    use_cache: bool,
    eos_ids: tuple[int, ...],
    pad_id: int | None,
    sampling: Sampling,
    cache: Cache | None = None,
) -> Generator[GenerationEvent, None, None]:
    """`BaseModel.generate_steps` with its arguments checked.

    Args:
        model: reads the text; past its context, the window of the last tokens.
        x: [B, P] token ids.
        mask: bool [B, P], False hides a token; None hides none.
        max_new_tokens: at most this many steps.
        use_cache: keep keys and values between steps.
        eos_ids: ids that end a row.
        pad_id: fills ended rows; None where no row can end.
        sampling: how a token is chosen.
        cache: holds the first columns of `x`, which are not read again; None holds none.
    """
    limit = model._max_seq_len
    final_length = x.size(1) + max_new_tokens
    text = GrowingColumns(x, final_length)
    masks = None if mask is None else GrowingColumns(mask, final_length)
    eos = torch.tensor(eos_ids, device=x.device, dtype=x.dtype)
    capture = capture_for(model)
    graphs = None if capture is None else GraphedSteps(model, capture)
    finished = torch.zeros(x.size(0), dtype=torch.bool, device=x.device)  # [B]
    for step in range(max_new_tokens):
        if text.length == limit + 1:
            yield ContextExceeded(limit)
        cache = fitting_cache(model, cache, text.columns, None if masks is None else masks.columns)
        inputs, cache = next_generation_input(text.columns, cache, use_cache, limit)
        if step == 0 and cache is not None:
            inputs = x[:, cache_start_pos(cache) :]
        step_mask = None if masks is None else masks.columns[:, -limit:]
        keep = use_cache and text.length <= limit
        reading = read_columns(model, inputs, cache, step_mask, keep, min(final_length, limit))
        if step == 0:
            logits, cache = yield from reading
        else:
            graphed = graphs(inputs, cache) if graphs is not None and masks is None and keep else None
            logits, cache = graphed or result_of(reading)
        next_token = sample_next_token(logits, *sampling)  # [B, 1]
        if pad_id is not None:
            next_token = next_token.masked_fill(finished.unsqueeze(-1), pad_id)
            finished = finished | (next_token == eos).any(dim=-1)  # torch.isin of integers is wrong on older Macs
        text.append(next_token)
        if masks is not None:
            masks.append(torch.ones_like(next_token, dtype=torch.bool))
        yield Sampled(next_token, finished, cache_nbytes(cache))
        if pad_id is not None and bool(finished.all()):
            return


Reading = Generator[Prefilled, None, tuple[Tensor, Cache | None]]


def read_columns(
    model: "BaseModel", inputs: Tensor, cache: Cache | None, mask: Tensor | None, keep: bool, at_most: int
) -> Reading:
    """One pass of the model over `inputs` [B, T], long ones in chunks.

    Args:
        model: reads.
        inputs: the columns that follow those in the cache.
        cache: what was read before, or None.
        mask: bool [B, seen + T], or None.
        keep: whether the cache is wanted afterwards.
        at_most: positions that the text can come to, for a cache that is made here.

    Yields:
        `Prefilled` after each chunk.

    Returns:
        The logits [B, V] after the last column, and the cache (None unless it is kept).
    """
    length = inputs.size(1)
    chunked = length > PREFILL_CHUNK
    if cache is None and (keep or chunked):
        cache = model.new_cache(at_most if keep else length, length if mask is None else mask.sum(-1))
    seen = cache_start_pos(cache)
    logits = inputs.new_empty(0)
    for start in range(0, length, PREFILL_CHUNK):
        chunk = inputs[:, start : start + PREFILL_CHUNK]
        done = start + chunk.size(1)
        logits, cache = model(
            chunk,
            cache,
            use_cache=keep or chunked,
            attention_mask=None if mask is None else mask[:, : seen + done],
            logits_to_keep=int(done == length),
        )
        yield Prefilled(done, length)
    return logits[:, -1], cache if keep else None


def fitting_cache(model: "BaseModel", cache: Cache | None, text: Tensor, mask: Tensor | None) -> Cache | None:
    """The cache if the model can go on from it with `text` [B, n], of which `mask` [B, n] hides some; else None."""
    if cache is None:
        return None
    lengths = text.size(1) if mask is None else mask.sum(-1)
    return cache if model.reads_alike(cache_text_lengths(cache), lengths) else None


def result_of(reading: Reading) -> tuple[Tensor, Cache | None]:
    """What a reading returns, its progress left aside."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: tuple[Tensor, Cache | None] = end.value
            return result


def check_cache(cache: Cache, x: Tensor, use_cache: bool) -> None:
    """Refuse a cache that the loop cannot start from.

    Raises:
        ArgumentError: (a ValueError) caching is switched off, or the cache leaves no token of `x` [B, P] to be read.
    """
    seen = cache_start_pos(cache)
    if not use_cache:
        raise ArgumentError("a cache is given and {use_cache} is false; allowed: one of them; drop the other")
    if seen >= x.size(1):
        raise ArgumentError(
            "the cache holds {seen} tokens and the prompt {given}; allowed: a prompt that goes on after them",
            seen=seen,
            given=x.size(1),
        )


def check_prompt(x: Tensor, vocab_size: int) -> None:
    """Refuse a prompt that is not [B, P] token ids of the vocabulary with P >= 1.

    Raises:
        ArgumentError: (a ValueError) it is not.
    """
    if not isinstance(x, Tensor) or x.dim() != 2 or x.numel() == 0 or x.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(
            "the prompt is {given}; allowed: a tensor of token ids [B, P] in int64 or int32, with at least one row "
            "and one token a row; start an empty text from the model's BOS id",
            given=f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}",
        )
    if not 0 <= int(x.min()) <= int(x.max()) < vocab_size:
        outside = int(x.min()) if int(x.min()) < 0 else int(x.max())
        raise ArgumentError(
            "the prompt holds the token id {given}; allowed: 0 to {last}, the model's vocabulary",
            given=outside,
            last=vocab_size - 1,
        )
