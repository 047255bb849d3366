"""Native attention against the core's, over the same steps: windows, rings, ragged rows, odd heads, long contexts."""

import copy

import pytest
import torch
from torch import nn

from genx.core.attention import PLAIN_SCORING, Scoring, attend
from genx.core.cache import LayerCache, RowEntries
from genx.core.norm import RMSNorm, UnitOffsetRMSNorm
from genx.core.positions import Positions
from genx.core.rope import apply_rotary
from genx.kernels.attention import AttentionTraits, NativeAttention, Rotary
from genx.kernels.norm import kernel_norm
from tests.kernels.cases import library, needs_native

pytestmark = needs_native

SIZES = {
    "plain": (4, 4, 16),
    "grouped": (6, 2, 10),
    "one key head": (5, 1, 7),
    "wide": (3, 3, 80),
    "large": (2, 1, 264),
}


class Pair:
    """One layer's attention, natively and by the core, over the same steps."""

    def __init__(
        self,
        sizes: tuple[int, int, int],
        batch: int,
        at_most: int,
        window: int | None = None,
        scoring: Scoring = PLAIN_SCORING,
        norms: tuple[nn.Module, nn.Module] | None = None,
    ) -> None:
        self.sizes, self.batch, self.scoring, self.norms = sizes, batch, scoring, norms
        kernel_norms = [
            None if norm is None else kernel_norm(copy.deepcopy(norm), library()) for norm in norms or (None, None)
        ]
        traits = AttentionTraits(*sizes, window, *kernel_norms, scoring)
        self.native = NativeAttention(traits, library())
        self.caches = [LayerCache(at_most, window), LayerCache(at_most, window)]
        self.window = window
        self.seen = 0
        self.rows: torch.Tensor | None = None
        self.generator = torch.Generator().manual_seed(3)

    def step(self, length: int, visible: torch.Tensor | None = None, angles: int = 0) -> bool:
        """Take a step and compare; False where the native operation leaves it to the core."""
        heads, groups, size = self.sizes
        step = Positions(self.batch, length, torch.device("cpu"), self.seen, self.rows, visible)
        projected = torch.randn(self.batch, length, (heads + 2 * groups) * size, generator=self.generator) * 2
        rotary = make_rotary(step, angles) if angles else None
        parts = projected.unflatten(-1, (-1, size)).transpose(1, 2).split([heads, groups, groups], dim=1)
        query, key, value = parts
        if self.norms is not None:
            query, key = self.norms[0](query), self.norms[1](key)
        if rotary is not None:
            query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        expected, self.caches[0] = attend(query, key, value, step, self.caches[0], self.window, scoring=self.scoring)
        found = self.native(projected.clone(), step, rotary, self.caches[1])
        self.seen, self.rows = step.end, step.rows_after
        if found is None:
            _, self.caches[1] = attend(query, key, value, step, self.caches[1], self.window, scoring=self.scoring)
            return False
        shown = torch.ones(self.batch, length, dtype=torch.bool) if visible is None else visible
        torch.testing.assert_close(found[0][shown], expected[shown], rtol=2e-5, atol=2e-5)
        self.caches[1] = found[1]
        return True


def make_rotary(step: Positions, angles: int) -> Rotary:
    turned = step.positions.unsqueeze(-1).float() * torch.linspace(1, 0.01, angles // 2)
    turned = torch.cat((turned, turned), dim=-1).unsqueeze(1)
    return turned.cos(), turned.sin()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("batch", [1, 3])
def test_steps_of_all_lengths(sizes: str, batch: int) -> None:
    pair = Pair(SIZES[sizes], batch, 400)
    for length in (1, 1, 5, 24, 1, 200, 8, 1, 1, 1):
        assert pair.step(length)


@pytest.mark.parametrize("angles", [2, 6, 10])
def test_all_or_some_channels_rotate(angles: int) -> None:
    pair = Pair(SIZES["grouped"], 2, 50)
    for length in (7, 1, 3, 1):
        assert pair.step(length, angles=angles)


SCORINGS = {
    "scale": Scoring(scale=0.7),
    "cap": Scoring(softcap=1.5),
    "sinks": Scoring(sinks=torch.tensor([0.3, -1.0, 4.0, 0.0, 9.0, -30.0])),
    "all": Scoring(0.2, 3.0, torch.linspace(-2, 2, 6)),
}


@torch.no_grad()
@pytest.mark.parametrize("scoring", SCORINGS)
def test_scores_that_are_no_plain_products(scoring: str) -> None:
    pair = Pair(SIZES["grouped"], 2, 400, scoring=SCORINGS[scoring])
    for length in (1, 6, 1, 250, 1):
        assert pair.step(length, angles=10)


@torch.no_grad()
@pytest.mark.parametrize("kind", [RMSNorm, UnitOffsetRMSNorm, nn.LayerNorm])
def test_heads_that_are_normalised_first(kind: type[nn.Module]) -> None:
    norms = kind(10, 1e-5), kind(10, 1e-5)
    for norm in norms:
        for parameter in norm.parameters():
            parameter.normal_(1.0, 0.3)
    pair = Pair(SIZES["grouped"], 2, 50, norms=norms)
    for length in (3, 1, 6, 1):
        assert pair.step(length, angles=6)


def test_a_window_wraps_round() -> None:
    pair = Pair(SIZES["grouped"], 2, 300, window=9)
    for length in (4, 1, 3, 1, 1, 1, 5, 1, 1, 1, 14, 1, 1):
        overwrites = length > 1 and pair.seen + length > 9
        assert pair.step(length, angles=10) == (not overwrites)
    assert all(pair.step(1) for _ in range(20))


def test_hidden_tokens_leave_nothing_behind() -> None:
    pair = Pair(SIZES["grouped"], 3, 200, window=None)
    visible = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) > 0.4
    visible[:, -1] = True
    assert pair.step(12, visible, angles=10)
    for _ in range(6):
        hidden = torch.tensor([[True], [False], [True]])
        assert pair.step(1, hidden, angles=10)
        assert pair.step(2, torch.cat((hidden, ~hidden), dim=1), angles=10)


def test_hidden_tokens_and_a_window() -> None:
    pair = Pair(SIZES["plain"], 2, 100, window=6)
    for start in range(14):
        assert pair.step(1, torch.tensor([[start % 3 != 0], [start % 2 == 0]]), angles=16)


def test_rows_of_their_own_memory() -> None:
    heads, groups, size = SIZES["grouped"]
    native = NativeAttention(AttentionTraits(heads, groups, size), library())
    lengths = (3, 140, 1)
    entries: tuple[list[LayerCache], list[LayerCache]] = ([], [])
    for kept in entries:
        generator = torch.Generator().manual_seed(8)
        for length in lengths:
            step = Positions(1, length, torch.device("cpu"))
            key, value = torch.randn(2, 1, groups, length, size, generator=generator)
            query = torch.zeros(1, heads, length, size)
            _, after = attend(query, key, value, step, LayerCache(200))
            assert isinstance(after, LayerCache)
            kept.append(after)
    for more in ((1, 1, 1), (1, 19, 2), (30, 1, 17)):
        step = Positions.of_rows([row.seen for row in entries[0]], more, torch.device("cpu"))
        projected = torch.randn(1, sum(more), (heads + 2 * groups) * size, generator=torch.Generator().manual_seed(2))
        query, key, value = projected.unflatten(-1, (-1, size)).transpose(1, 2).split([heads, groups, groups], dim=1)
        expected, after = attend(query, key, value, step, RowEntries(entries[0], more))
        found = native(projected.clone(), step, None, RowEntries(entries[1], more))
        assert found is not None
        torch.testing.assert_close(found[0], expected, rtol=2e-5, atol=2e-5)
        entries = list(after.rows), list(found[1].rows)
    assert [row.seen for row in entries[1]] == [35, 161, 21]


@pytest.mark.parametrize("sizes", SIZES)
def test_what_a_token_mixes_does_not_depend_on_how_much_is_read_with_it(sizes: str) -> None:
    heads, groups, size = SIZES[sizes]
    native = NativeAttention(AttentionTraits(heads, groups, size), library())
    projected = torch.randn(2, 300, (heads + 2 * groups) * size, generator=torch.Generator().manual_seed(6))
    mixed = []
    for lengths in ([300], [1, 7, 8, 9, 130, 2, 63, 80]):
        cache = LayerCache(400)
        parts = []
        for length in lengths:
            step = Positions(2, length, torch.device("cpu"), cache.seen)
            found = native(projected[:, cache.seen : cache.seen + length].clone(), step, None, cache)
            assert found is not None
            cache = found[1]
            parts.append(found[0])
        mixed.append(torch.cat(parts, dim=1))
    assert torch.equal(mixed[0], mixed[1])


def test_the_number_of_threads_changes_nothing() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            native = NativeAttention(AttentionTraits(6, 2, 64), library())
            cache = LayerCache(2000)
            generator = torch.Generator().manual_seed(4)
            for length in (1500, 1):
                step = Positions(1, length, torch.device("cpu"), cache.seen)
                result = native(torch.randn(1, length, 640, generator=generator), step, None, cache)
                assert result is not None
                mixed, cache = result
            found.append(mixed)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(strange: float) -> None:
    native = NativeAttention(AttentionTraits(2, 1, 8), library())
    projected = torch.randn(2, 1, 32)
    projected[1, 0, 0] = strange
    result = native(projected, Positions(2, 1, torch.device("cpu")), None, LayerCache(4))
    assert result is not None
    assert bool(result[0][0].isfinite().all())
    assert not bool(result[0][1, 0, :8].isfinite().any())


def test_a_cache_of_another_dtype_is_left_to_the_core() -> None:
    key = torch.zeros(1, 1, 3, 8, dtype=torch.bfloat16)
    entry = LayerCache.from_plain((key, key), 10, None, None)
    native = NativeAttention(AttentionTraits(2, 1, 8), library())
    assert native(torch.zeros(1, 1, 32), Positions(1, 1, torch.device("cpu"), 3), None, entry) is None
    assert entry.seen == 3
