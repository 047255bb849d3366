"""Cached equals uncached: one by one, in chunks, past the window, past the context, in ragged batches."""

import copy
import dataclasses

import pytest
import torch

from genx.core.base_model import BaseModel
from genx.core.cache import cache_nbytes, cache_start_pos, join_rows, split_rows
from genx.core.positions import newest_position_in_slot
from genx.errors import GenxError
from tests.architectures import CONTEXT, assert_near, prompt


@torch.no_grad()
def read_in_chunks(
    model: BaseModel, x: torch.Tensor, sizes: list[int], mask: torch.Tensor | None = None
) -> torch.Tensor:
    cache, parts, start = None, [], 0
    for size in sizes:
        seen = None if mask is None else mask[:, : start + size]
        logits, cache = model(x[:, start : start + size], cache, use_cache=True, attention_mask=seen)
        start += size
        assert cache_start_pos(cache) == start
        parts.append(logits)
    return torch.cat(parts, dim=1)


def sizes_of(chunk: int, total: int) -> list[int]:
    return [chunk] * (total // chunk) + ([total % chunk] if total % chunk else [])


@pytest.mark.parametrize("chunk", [1, 3, 7, 19, CONTEXT])
def test_chunks_equal_one_pass(model: BaseModel, chunk: int) -> None:
    x = prompt(2, CONTEXT)
    whole = model(x)[0].detach()
    assert_near(read_in_chunks(model, x, sizes_of(chunk, CONTEXT)), whole)


@pytest.mark.parametrize("sizes", [[13, 1, 1, 9, 1, 15], [2, 30, 1, 7], [1, 1, 5, 33]])
def test_mixed_chunks_equal_one_pass(model: BaseModel, sizes: list[int]) -> None:
    x = prompt(3, CONTEXT)
    assert_near(read_in_chunks(model, x, sizes), model(x)[0].detach())


MASK_ROWS = {
    "left padding": lambda n: [[0] * 9 + [1] * (n - 9), [1] * n, [0] + [1] * (n - 1)],
    "holes": lambda n: [[1, 1, 0] * (n // 3) + [1] * (n % 3), [0, 1] * (n // 2) + [1] * (n % 2), [1] * n],
    "late holes": lambda n: [[1] * 20 + [0] * 11 + [1] * (n - 31), [0] * 30 + [1] * (n - 30), [1] * n],
}


@torch.no_grad()
@pytest.mark.parametrize("rows", MASK_ROWS)
@pytest.mark.parametrize("chunk", [1, 3, 8, CONTEXT])
def test_a_masked_row_equals_the_row_without_hidden_tokens(model: BaseModel, rows: str, chunk: int) -> None:
    """And is finite where a query could see nothing: pytorch/pytorch#103749."""
    x = prompt(3, CONTEXT)
    mask = torch.tensor(MASK_ROWS[rows](CONTEXT))
    found = read_in_chunks(model, x, sizes_of(chunk, CONTEXT), mask)
    assert bool(torch.isfinite(found).all())
    uncached = model(x, attention_mask=mask)[0]
    for row, columns in enumerate(mask.bool()):
        alone = model(x[row, columns].unsqueeze(0))[0][0]
        assert_near(found[row, columns], alone)
        assert_near(uncached[row, columns], alone)


@torch.no_grad()
def test_a_mask_may_have_any_dtype(model: BaseModel) -> None:
    x = prompt(2, 9)
    rows = [[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9]
    expected = model(x, attention_mask=torch.tensor(rows, dtype=torch.bool))[0]
    for dtype in (torch.int64, torch.float32, torch.uint8, torch.bfloat16):
        assert torch.equal(model(x, attention_mask=torch.tensor(rows, dtype=dtype))[0], expected)
    with pytest.raises(ValueError, match="other than 0 and 1"):
        model(x, attention_mask=torch.tensor(rows) * 2)
    with pytest.raises(ValueError, match=r"\[2, 8\]"):
        model(x, attention_mask=torch.tensor(rows)[:, 1:])


@torch.no_grad()
def test_a_mask_cannot_change_what_the_cache_holds(model: BaseModel) -> None:
    x = prompt(1, 6)
    _, cache = model(x[:, :5], use_cache=True)
    with pytest.raises(ValueError, match="as when the cache was filled"):
        model(x[:, 5:], cache, use_cache=True, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]))


@torch.no_grad()
def test_plain_tuples_are_understood(model: BaseModel) -> None:
    x = prompt(2, 20)
    _, cache = model(x[:, :12], use_cache=True)
    pairs, triples = [], []
    for entry in cache:
        keys, values = entry._storage.first(min(12, entry._storage.capacity))
        shift = 0 if entry.window is None else -(12 % entry._storage.capacity)
        keys, values = keys.roll(shift, dims=2), values.roll(shift, dims=2)  # slots in order of position
        triples.append((keys, values, 12))
        pairs.append((keys, values))
    expected = model(x)[0][:, 12:]
    assert cache_start_pos(triples) == 12
    assert cache_start_pos(None) == 0
    assert_near(model(x[:, 12:], triples, use_cache=True)[0], expected)
    if not any(model.layer_windows):
        assert cache_start_pos(pairs) == 12
        assert_near(model(x[:, 12:], pairs)[0], expected)


@torch.no_grad()
def test_two_continuations_of_one_cache(model: BaseModel) -> None:
    x, y = prompt(1, 5, seed=4), prompt(1, 5, seed=5)
    _, cache = model(x[:, :3], use_cache=True)
    first, _ = model(x[:, 3:], cache, use_cache=True)
    other = torch.cat((x[:, :3], y[:, 3:]), dim=1)
    second, _ = model(y[:, 3:], cache, use_cache=True)
    assert_near(first, model(x)[0][:, 3:])
    assert_near(second, model(other)[0][:, 3:])


@torch.no_grad()
def test_an_overwritten_window_is_refused_not_misread(model: BaseModel) -> None:
    x = prompt(1, 30)
    _, cache = model(x[:, :10], use_cache=True)
    kept = copy.deepcopy(cache)
    model(x[:, 10:], cache, use_cache=True)
    if model.layer_windows[0] is not None:
        with pytest.raises(GenxError, match=r"copy\.deepcopy"):
            model(x[:, 10:], cache, use_cache=True)
    assert_near(model(x[:, 10:], kept)[0], model(x)[0][:, 10:])


@torch.no_grad()
def test_without_use_cache_a_given_cache_stays_as_it_is(model: BaseModel) -> None:
    x = prompt(2, CONTEXT)
    _, cache = model(x[:, :21], use_cache=True)
    for _ in range(2):
        logits, after = model(x[:, 21:], cache)
        assert after is None
        assert_near(logits, model(x)[0][:, 21:])
    assert cache_start_pos(cache) == 21


@torch.no_grad()
def test_a_window_layer_holds_no_more_than_its_window(model: BaseModel) -> None:
    config = model.config
    for chunk in (1, 9, CONTEXT):
        cache, start = model.new_cache(CONTEXT), 0
        for size in sizes_of(chunk, CONTEXT):
            _, cache = model(prompt(2, CONTEXT)[:, start : start + size], cache, use_cache=True)
            start += size
        slots = [min(window or CONTEXT, CONTEXT) for window in model.layer_windows]
        per_slot = 2 * 2 * config.num_key_value_heads * config.head_dim * 4  # K and V, two rows, float32
        assert cache_nbytes(cache) == sum(slots) * per_slot


@torch.no_grad()
def test_joined_rows_go_on_as_each_does_alone(model: BaseModel) -> None:
    texts = [prompt(1, length, seed=length)[:, :length] for length in (20, 9, 14)]
    caches = [model(text[:, :-4], use_cache=True)[1] for text in texts]
    steps, joined = [], join_rows(caches)
    for column in (-4, -3):
        logits, joined = model(torch.cat([text[:, [column]] for text in texts], dim=1), joined, use_cache=True)
        steps.append(logits[0])
    assert cache_start_pos(joined) == 18
    # The middle row leaves, and the others go on.
    first, _, last = split_rows(joined)
    tokens = torch.cat([texts[0][:, [-2]], texts[2][:, [-2]]], dim=1)
    logits, joined = model(tokens, join_rows([first, last]), use_cache=True)
    for row, place in ((0, 0), (2, 1)):
        alone = model(texts[row])[0][0, -4:-1]
        assert_near(torch.stack([steps[0][row], steps[1][row], logits[0, place]]), alone)
    assert cache_nbytes(joined) == sum(entry.nbytes for entry in (*first, *last))
    with pytest.raises(ValueError, match="side by side"):
        model(prompt(2, 1), joined)


@torch.no_grad()
def test_joined_rows_read_any_number_of_tokens(model: BaseModel) -> None:
    """A row that goes on, one that begins, one in the middle of a long prompt, past their windows too."""
    texts = [prompt(1, length, seed=length)[:, :length] for length in (CONTEXT, 11, CONTEXT - 5)]
    caches = [model.new_cache(CONTEXT, announced=text.size(1)) for text in texts]
    read, logits = [0, 0, 0], [[], [], []]
    while rows := [row for row in range(3) if read[row] < texts[row].size(1)]:
        turn = sum(read)
        lengths = [min(1 + (5 * turn + 7 * row) % 9, texts[row].size(1) - read[row]) for row in rows]
        tokens = [texts[row][:, read[row] : read[row] + length] for row, length in zip(rows, lengths, strict=True)]
        others = join_rows([[layer.fork(CONTEXT) for layer in caches[row]] for row in rows], lengths)
        joined = join_rows([caches[row] for row in rows], lengths)
        found, after = model(torch.cat(tokens, dim=1), joined, use_cache=True)
        last, _ = model(torch.cat(tokens, dim=1), others, use_cache=True, logits_to_keep=1)
        for place, (row, own, cache) in enumerate(zip(rows, found[0].split(lengths), split_rows(after), strict=True)):
            logits[row].append(own)
            caches[row], read[row] = cache, read[row] + lengths[place]
            assert_near(last[0, place], own[-1])
    for row, text in enumerate(texts):
        assert_near(torch.cat(logits[row]), model(text)[0][0])


@torch.no_grad()
def test_the_window_holds_the_last_positions(model: BaseModel) -> None:
    """huggingface/transformers#37574: the shift started a step early or late."""
    x, capacity = prompt(1, CONTEXT), model.layer_windows[0] or CONTEXT
    wide = model.config.sliding_window and CONTEXT
    whole = type(model)(dataclasses.replace(model.config, sliding_window=wide)).eval()
    whole.load_state_dict(model.state_dict())
    _, full = whole(x[:, :1], use_cache=True)
    _, cache = model(x[:, :1], use_cache=True)
    for end in range(2, CONTEXT + 1):
        _, cache = model(x[:, end - 1 : end], cache, use_cache=True)
        _, full = whole(x[:, end - 1 : end], full, use_cache=True)
        slots = min(end, capacity)
        positions = newest_position_in_slot(slots, capacity, None, end, x.device)[0]
        assert sorted(positions.tolist()) == list(range(end - slots, end))
        # The first layer's keys do not depend on the window, so that each slot can be told by its content.
        assert_near(cache[0]._storage.first(slots)[0], full[0]._storage.keys[:, :, positions])


def test_past_the_last_position_forward_refuses(model: BaseModel) -> None:
    with pytest.raises(ValueError, match=f"at most {CONTEXT}"):
        model(prompt(1, CONTEXT + 1))
    _, cache = model(prompt(1, CONTEXT), use_cache=True)
    with pytest.raises(ValueError, match=f"{CONTEXT} cached"):
        model(prompt(1, 1), cache, use_cache=True)
