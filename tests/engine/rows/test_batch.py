"""Rows that generate together: each as it does alone, none in another's way, within the memory that is allowed."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from genx import cache_rules
from genx.cache_rules import allocated_positions
from genx.core import cache as core_cache
from genx.core.base_model import BaseModel
from genx.core.loop import PREFILL_CHUNK
from genx.engine.rows import batch as batches
from genx.engine.rows import budget
from genx.engine.rows.active_row import ActiveRow
from genx.engine.rows.batch import Batch
from genx.engine.rows.reading import PROMPT_TOKENS
from genx.models.llama import Llama
from tests.architectures import CONTEXT, VOCAB
from tests.engine.rows.conftest import PLENTY, alone, job, random_jobs, run

JOBS = random_jobs(12)
SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4000, "initializer_range": 0.5}


@pytest.fixture(scope="module")
def expected(model: BaseModel) -> dict[int, tuple[int, ...]]:
    return {one.place: alone(model, one) for one in JOBS}


@pytest.fixture
def llama() -> Llama:
    torch.manual_seed(1)
    return Llama(SMALL).eval()


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
def test_a_row_is_the_same_at_any_batch_size(model: BaseModel, expected: dict[int, Any], size: int) -> None:
    """Greedy and sampled, with windows and past the context: vllm-project/vllm#51226, #1595; mlx-lm#439; #42 to #51."""
    summaries, _ = run(Batch(model, size=size, cache_bytes=PLENTY), JOBS)
    assert {place: summary.ids for place, summary in summaries.items()} == expected


def test_a_row_is_the_same_in_any_order_and_in_blocks(model: BaseModel, expected: dict[int, Any]) -> None:
    summaries, _ = run(Batch(model, size=5, cache_bytes=PLENTY, batch_invariant=True), JOBS[::-1])
    assert {place: summary.ids for place, summary in summaries.items()} == expected


def test_in_blocks_logits_are_the_same_to_the_last_bit(model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm#51187: bits that differ by the batch size end in other texts sooner or later."""
    bits: dict[tuple[int, int], bytes] = {}
    choose = batches.choose_tokens

    def choose_and_keep(rows: Sequence[tuple[ActiveRow, torch.Tensor]]) -> None:
        bits.update({(row.job.place, row.text.length): logits.numpy().tobytes() for row, logits in rows})
        choose(rows)

    monkeypatch.setattr(batches, "choose_tokens", choose_and_keep)
    seen: list[dict[tuple[int, int], bytes]] = []
    for size in (1, 3, 17):
        run(Batch(model, size=size, cache_bytes=PLENTY, batch_invariant=True), JOBS)
        seen.append(dict(bits))
        bits.clear()
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == sum(one.settings.max_new_tokens for one in JOBS)


def test_every_pass_is_as_wide_as_there_are_rows_left(llama: Llama) -> None:
    """huggingface/transformers#31261: rows that have ended went on. An ended row's place is taken at once."""
    shapes: list[tuple[int, int]] = []
    llama.register_forward_pre_hook(lambda _, arguments: shapes.append(tuple(arguments[0].shape)))
    lengths = [3, 9, 5, 2, 7]
    run(
        Batch(llama, size=2, cache_bytes=PLENTY), [job(i, [i + 1] * 4, max_new_tokens=n) for i, n in enumerate(lengths)]
    )
    # Rows 0 and 1 begin together; a prompt of 4 is read in the pass after another row's end, beside the row that stays.
    # Row 1 takes 9 passes, and beside it rows 0, 2 and 3; the last of row 3 is the first of row 4, which ends alone.
    assert shapes == [(1, n) for n in (4 + 4, 2, 2, 1 + 4, 2, 2, 2, 2, 1 + 4, 1 + 4, 1, 1, 1, 1, 1, 1)]


def test_eos_ends_each_row_where_it_stands_and_frees_its_place(llama: Llama) -> None:
    texts = {i: alone(llama, job(i, [i + 1, 7], max_new_tokens=12)) for i in range(4)}
    ends = {texts[0][3], texts[1][6]}
    jobs = [job(i, [i + 1, 7], max_new_tokens=12, eos_token_ids=tuple(ends)) for i in range(4)]
    summaries, _ = run(Batch(llama, size=4, cache_bytes=PLENTY), jobs)
    for place, text in texts.items():
        end = next((n + 1 for n, token_id in enumerate(text) if token_id in ends), len(text))
        assert summaries[place].ids == text[:end]
        assert summaries[place].finish_reason == ("eos" if text[end - 1] in ends else "length")


def test_a_stop_text_ends_its_own_row_only(llama: Llama) -> None:
    """ml-explore/mlx-examples#524, huggingface/transformers#26959: one row's stop ended all."""
    text = alone(llama, job(0, [3, 4], max_new_tokens=10))
    stop = f"{text[4]},"
    jobs = [job(0, [3, 4], max_new_tokens=10, stop=(stop,)), job(1, [3, 4], max_new_tokens=10)]
    summaries, _ = run(Batch(llama, size=2, cache_bytes=PLENTY), jobs)
    cut = ",".join(map(str, text)).split(stop)[0]
    assert summaries[0].text in (cut, cut + ",", "")
    assert (summaries[0].finish_reason, summaries[1].finish_reason) == ("stop", "length")
    assert summaries[1].ids == text


def test_a_long_prompt_is_read_in_parts_beside_the_steps_of_others(llama: Llama) -> None:
    shapes: list[tuple[int, int]] = []
    llama.register_forward_pre_hook(lambda _, arguments: shapes.append(tuple(arguments[0].shape)))
    jobs = [job(0, [1, 2], max_new_tokens=8), job(1, [5] * 3000, max_new_tokens=2)]
    run(Batch(llama, size=2, cache_bytes=PLENTY), jobs)
    assert shapes[:8] == [(1, PREFILL_CHUNK)] + [(1, 1 + PROMPT_TOKENS)] * 7  # row 0 waits for none of them
    left = 3000 - (PREFILL_CHUNK - 2) - 7 * PROMPT_TOKENS
    whole, rest = divmod(left, PREFILL_CHUNK)
    assert shapes[8:] == [(1, PREFILL_CHUNK)] * whole + [(1, rest), (1, 1)]


def test_a_shared_beginning_is_read_once(llama: Llama) -> None:
    shared = list(range(1, 41))
    jobs = [job(i, [*shared, 41 + i], max_new_tokens=3) for i in range(6)]
    summaries, turns = run(Batch(llama, size=3, cache_bytes=PLENTY), jobs)
    assert sum(turn.prompt_tokens for turn in turns) == len(shared) + len(jobs)
    assert {i: summary.ids for i, summary in summaries.items()} == {i: alone(llama, one) for i, one in enumerate(jobs)}
    assert {summary.prompt_tokens for summary in summaries.values()} == {len(shared) + 1}


def test_samples_of_one_prompt_share_all_of_it_but_the_last_token(llama: Llama) -> None:
    ids = list(range(1, 31))
    jobs = [job(i, ids, max_new_tokens=4, do_sample=True, seed=i) for i in range(5)]
    summaries, turns = run(Batch(llama, size=5, cache_bytes=PLENTY), jobs)
    assert sum(turn.prompt_tokens for turn in turns) == len(ids) - 1 + len(jobs)
    assert {i: summary.ids for i, summary in summaries.items()} == {i: alone(llama, one) for i, one in enumerate(jobs)}
    assert len({summary.ids for summary in summaries.values()}) > 1


@pytest.fixture
def most_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most bytes that caches have held at once, looked at whenever one allocates."""
    live: list[weakref.ref[torch.Tensor]] = []
    most = [0]
    allocate = core_cache._Storage.allocate

    def watched(like: torch.Tensor, capacity: int) -> object:
        storage = allocate(like, capacity)
        live.extend((weakref.ref(storage.keys), weakref.ref(storage.values)))
        most[0] = max(most[0], sum(tensor.nbytes for ref in live if (tensor := ref()) is not None))
        return storage

    monkeypatch.setattr(core_cache._Storage, "allocate", watched)
    return lambda: most[0]


@pytest.mark.parametrize("rows", [1, 3])
def test_caches_never_take_more_than_they_may(model: BaseModel, most_bytes: Callable[[], int], rows: int) -> None:
    per_position = 2 * model.config.num_key_value_heads * model.config.head_dim * 4
    largest = sum(allocated_positions(CONTEXT, CONTEXT, window) for window in model.layer_windows) * per_position
    summaries, turns = run(Batch(model, size=9, cache_bytes=rows * largest), random_jobs(8, seed=4))
    assert 0 < most_bytes() <= rows * largest
    assert max(turn.cache_bytes for turn in turns) <= rows * largest
    assert all(summary.error is None for summary in summaries.values())


def test_caches_that_grow_never_take_more_than_they_may(
    llama: Llama, most_bytes: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that grows holds its old memory until that is copied."""
    for module in (cache_rules, budget):
        monkeypatch.setattr(module, "WHOLE_UP_TO", 16)
        monkeypatch.setattr(module, "GROWTH", 8)
    allowed = 3 * (30 + 24) * 2 * 2 * 8 * 4  # three rows at a time, at the moment at which all grow for the last time
    jobs = [job(place, [place + 1] * 10, max_new_tokens=20) for place in range(7)]
    summaries, _ = run(Batch(llama, size=7, cache_bytes=allowed), jobs)
    assert allowed / 3 < most_bytes() <= allowed
    assert [summaries[place].ids for place in range(7)] == [alone(llama, one) for one in jobs]


def test_a_row_that_can_never_fit_fails_alone(llama: Llama) -> None:
    enough_for_20 = 20 * 2 * 8 * 4 * 2
    jobs = [job(0, [1] * 10, max_new_tokens=10), job(1, [1] * 10, max_new_tokens=11), job(2, [2], max_new_tokens=3)]
    summaries, _ = run(Batch(llama, size=3, cache_bytes=enough_for_20), jobs)
    assert [summaries[i].finish_reason for i in range(3)] == ["length", "error", "length"]
    assert str(summaries[1].error) == (
        f"the row's cache needs {21 * 128:,} bytes for 21 positions; allowed: {enough_for_20:,} for all caches "
        "(--kv-memory); a smaller max_new_tokens needs less"
    )


def test_a_row_without_a_token_to_choose_fails_alone(llama: Llama) -> None:
    """huggingface/transformers#27179: NaN logits."""
    with torch.no_grad():
        llama.get_parameter("model.embed_tokens.weight")[9] = float("nan")
    jobs = [job(0, [1, 2], max_new_tokens=4), job(1, [9, 2], max_new_tokens=4), job(2, [3, 2], max_new_tokens=4)]
    summaries, _ = run(Batch(llama, size=3, cache_bytes=PLENTY), jobs)
    assert [summaries[i].finish_reason for i in range(3)] == ["length", "error", "length"]
    assert "a logit that is nan" in str(summaries[1].error)
    assert summaries[2].ids == alone(llama, jobs[2])


def test_what_is_too_much_at_once_is_read_one_by_one(llama: Llama) -> None:
    """Memory ends between two layers, when the first has read more than the second."""

    def full(_: object, arguments: tuple[torch.Tensor, ...]) -> None:
        if arguments[0].size(1) > most:
            raise MemoryError("no room")

    llama.get_submodule("model.layers.1").register_forward_pre_hook(full)
    jobs = [job(0, [1, 2], max_new_tokens=9), job(1, [3] * 40, max_new_tokens=3), job(2, [4] * 38, max_new_tokens=5)]
    most = 1000
    here = {one.place: alone(llama, one) for one in jobs}
    most = 40
    summaries, _ = run(Batch(llama, size=3, cache_bytes=PLENTY), jobs)
    assert {place: summary.ids for place, summary in summaries.items()} == here
    most = 39
    summaries, _ = run(Batch(llama, size=3, cache_bytes=PLENTY), jobs)
    assert str(summaries[1].error).startswith("out of memory: no room; a smaller --batch-size")
    assert {place: summaries[place].ids for place in (0, 2)} == {place: here[place] for place in (0, 2)}


def test_no_new_tokens_asked_for_needs_no_pass(llama: Llama) -> None:
    calls: list[object] = []
    llama.register_forward_pre_hook(lambda *_: calls.append(None))
    summaries, _ = run(Batch(llama, size=2, cache_bytes=PLENTY), [job(0, [1], max_new_tokens=0)])
    assert (summaries[0].ids, summaries[0].finish_reason, calls) == ((), "length", [])


def test_jobs_are_taken_a_bounded_number_ahead(llama: Llama) -> None:
    taken = 0

    def jobs() -> Iterator[Any]:
        nonlocal taken
        for place in range(1000):
            taken += 1
            yield job(place, [place % VOCAB % 50], max_new_tokens=2)

    events = Batch(llama, size=2, cache_bytes=PLENTY).run(jobs())
    next(events)
    assert taken <= 100
