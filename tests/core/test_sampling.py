"""The numbers of the specification's sections on sampling, and the public reports of class b."""

import math

import pytest
import torch

from genx.core.generation import check_generation_mask, check_sequence_length, next_generation_input, sample_next_token
from genx.errors import ArgumentError, GenerationError
from genx.sampling_args import validate_sampling_args

P = (0.5, 0.3, 0.15, 0.05)


def distribution(logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **arguments: object) -> list[float]:
    """The probabilities that the draw is made with, of one row."""
    seen: list[torch.Tensor] = []
    draw = torch.multinomial

    def spy(probabilities: torch.Tensor, **keywords: object) -> torch.Tensor:
        seen.append(probabilities)
        return draw(probabilities, **keywords)

    monkeypatch.setattr(torch, "multinomial", spy)
    sample_next_token(logits.unsqueeze(0), True, **arguments)
    return seen[0][0].tolist()


def logits_of(probabilities: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def near(*expected: float) -> object:
    return pytest.approx(list(expected), abs=5.1e-4)


class TestTemperature:
    @pytest.mark.parametrize(
        ("temperature", "expected"),
        [
            (0.5, (0.867, 0.117, 0.016)),
            (1, (0.665, 0.245, 0.090)),
            (2, (0.506, 0.307, 0.186)),
            (100, (0.337, 0.333, 0.330)),
        ],
    )
    def test_table(self, temperature: float, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        assert distribution(torch.tensor([2.0, 1.0, 0.0]), monkeypatch, temperature=temperature) == near(*expected)

    def test_exercise_1_two_maxima(self, monkeypatch: pytest.MonkeyPatch) -> None:
        z = torch.tensor([1.0, 1.0, 0.0])
        assert distribution(z, monkeypatch) == near(0.422, 0.422, 0.155)
        assert distribution(z, monkeypatch, temperature=1e-4) == near(0.5, 0.5, 0.0)

    @pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-8])
    def test_tiny_is_greedy(self, temperature: float) -> None:
        """huggingface/transformers#36896: tiny temperatures work; they made every probability NaN."""
        logits = torch.tensor([[3.0, 5.0, -2.0, float("-inf")]])
        assert all(sample_next_token(logits, True, temperature).item() == 1 for _ in range(20))

    def test_huge_is_uniform_over_what_is_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        z = torch.tensor([30.0, -30.0, float("-inf")])
        assert distribution(z, monkeypatch, temperature=1e300) == near(0.5, 0.5, 0.0)

    @pytest.mark.parametrize("temperature", [2, 2.0])
    def test_whole_numbers_are_numbers(self, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Vision-CAIR/MiniGPT-4#200: 2 was refused as not a float."""
        validate_sampling_args(True, temperature)
        assert distribution(torch.tensor([2.0, 1.0, 0.0]), monkeypatch, temperature=temperature) == near(
            0.506, 0.307, 0.186
        )


class TestTopK:
    def test_example(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert distribution(logits_of(P), monkeypatch, top_k=2) == near(0.625, 0.375, 0, 0)

    @pytest.mark.parametrize("top_k", [4, 5, 100_000])
    def test_the_vocabulary_or_more_keeps_all(self, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """TransformerLensOrg/TransformerLens PR #1347: a larger top_k crashed."""
        assert distribution(logits_of(P), monkeypatch, top_k=top_k) == near(*P)

    def test_exercise_3_one_is_greedy(self) -> None:
        logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
        assert torch.equal(sample_next_token(logits, True, top_k=1), sample_next_token(logits, False))
        assert torch.equal(sample_next_token(logits, True, top_p=1e-6), sample_next_token(logits, False))

    def test_ties_at_the_border_keep_k(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = distribution(torch.zeros(10), monkeypatch, top_k=3)
        assert sorted(kept) == [0.0] * 7 + [pytest.approx(1 / 3)] * 3


class TestTopP:
    @pytest.mark.parametrize(
        ("top_p", "expected"),
        [(0.3, (1, 0, 0, 0)), (0.7, (0.625, 0.375, 0, 0)), (0.9, (0.526, 0.316, 0.158, 0)), (1.0, P)],
    )
    def test_table(self, top_p: float, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        assert distribution(logits_of(P), monkeypatch, top_p=top_p) == near(*expected)

    @pytest.mark.parametrize(
        ("top_p", "expected"),
        [(0.3, (1, 0, 0, 0)), (0.5, (0.571, 0.429, 0, 0)), (0.75, (0.444, 0.333, 0.222, 0))],
    )
    def test_exercise_2(self, top_p: float, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        assert distribution(logits_of((0.4, 0.3, 0.2, 0.1)), monkeypatch, top_p=top_p) == near(*expected)

    @pytest.mark.parametrize(
        ("probabilities", "top_p", "kept"),
        [((0.5, 0.41, 0.09), 0.9, 2), ((0.4, 0.3, 0.2, 0.1), 0.8, 3), ((0.9, 0.1), 0.5, 1)],
    )
    def test_the_token_that_crosses_stays(
        self, probabilities: tuple[float, ...], top_p: float, kept: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """rasbt/reasoning-from-scratch#164: the nucleus was smaller than asked for."""
        found = distribution(logits_of(probabilities), monkeypatch, top_p=top_p)
        assert sum(probability > 0 for probability in found) == kept

    def test_temperature_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel with temperature, and ggml-org/llama.cpp#4091: the order decides the kept set."""
        assert distribution(logits_of(P), monkeypatch, top_p=0.6) == near(0.625, 0.375, 0, 0)
        assert distribution(logits_of(P), monkeypatch, temperature=0.5) == near(0.685, 0.247, 0.062, 0.007)
        assert distribution(logits_of(P), monkeypatch, temperature=0.5, top_p=0.6) == near(1, 0, 0, 0)
        z = torch.tensor([3.0, 2.0, 1.0])
        assert sum(p > 0 for p in distribution(z, monkeypatch, temperature=0.5, top_p=0.8)) == 1

    def test_exercise_8(self, monkeypatch: pytest.MonkeyPatch) -> None:
        z = logits_of(P)
        assert distribution(z, monkeypatch, temperature=2) == near(0.379, 0.294, 0.208, 0.120)
        for temperature, kept in [(1, 3), (1.5, 3), (1.6, 3), (1.68, 4), (2, 4)]:
            found = distribution(z, monkeypatch, temperature=temperature, top_p=0.9)
            assert sum(probability > 0 for probability in found) == kept, temperature

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("top_p", [1e-8, 1e-4, 1e-3])
    def test_the_best_token_always_survives(self, dtype: torch.dtype, top_p: float) -> None:
        """ml-explore/mlx-lm PR #1912: a tiny top_p kept nothing, and the draw was noise."""
        logits = torch.randn(4096, generator=torch.Generator().manual_seed(1)).to(dtype).unsqueeze(0)
        logits[0, 7] = 9
        assert all(sample_next_token(logits, True, top_p=top_p).item() == 7 for _ in range(5))

    @pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 6.0])
    def test_no_whole_sort_is_needed(self, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """10,000 rows against the printed formula: every size of nucleus, and ties at its border."""
        source = torch.Generator().manual_seed(3)
        kept: list[torch.Tensor] = []
        monkeypatch.setattr(
            "genx.core.generation._draw",
            lambda probabilities, _: (kept.append(probabilities > 0), probabilities.argmax(-1, keepdim=True))[1],
        )
        for vocab_size in (5, 300, 5000):
            logits = torch.randn(250, vocab_size, generator=source) * spread
            logits[:50] = logits[:50].round()
            for top_p in (0.05, 0.5, 0.9, 0.999):
                sample_next_token(logits, True, top_p=top_p)
                probabilities = torch.softmax(logits - logits.amax(-1, keepdim=True), -1)
                ordered, tokens = torch.sort(probabilities, descending=True, stable=True, dim=-1)
                expected = ordered.cumsum(-1) - ordered < top_p
                assert torch.equal(kept.pop(), torch.zeros_like(expected).scatter_(-1, tokens, expected))

    def test_one_filters_nothing_in_a_large_vocabulary(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In float32 the printed formula drops thousands of tokens here: its running sum reaches 1 too early."""
        z = torch.randn(262_144, generator=torch.Generator().manual_seed(0)) * 3
        probabilities = torch.softmax(z, -1).sort(descending=True).values
        dropped = int((probabilities.cumsum(-1) - probabilities >= 1.0).sum())
        assert dropped > 1000, "this row does not show the rounding"
        assert all(probability > 0 for probability in distribution(z, monkeypatch, top_p=1.0))


class TestDraw:
    def test_logits_are_not_modified(self) -> None:
        logits = torch.randn(3, 20)
        before = logits.clone()
        for arguments in ({}, {"temperature": 0.3}, {"top_k": 3}, {"top_p": 0.4}):
            sample_next_token(logits, True, **arguments)
        sample_next_token(logits, False)
        assert torch.equal(logits, before)

    def test_frequencies(self) -> None:
        draws = sample_next_token(logits_of(P).repeat(20_000, 1), True, generator=torch.Generator().manual_seed(0))
        counts = torch.bincount(draws.flatten(), minlength=4) / 20_000
        assert counts.tolist() == pytest.approx(P, abs=0.012)

    def test_a_filtered_token_is_never_drawn(self) -> None:
        """pytorch/pytorch#13867: a draw returned a token of weight zero."""
        logits = torch.full((1, 50_000), float("-inf"))
        logits[0, 31_337] = 0.0
        draws = sample_next_token(logits.expand(200, -1), True, generator=torch.Generator().manual_seed(0))
        assert draws.unique().tolist() == [31_337]

    def test_a_row_longer_than_multinomial_takes(self) -> None:
        """huggingface/transformers#45245: more than 2^24 categories crashed."""
        logits = torch.zeros(1, (1 << 24) + 1)
        logits[0, -1] = 40.0
        assert sample_next_token(logits, True).item() == 1 << 24

    @pytest.mark.parametrize("do_sample", [True, False])
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ([1.0, math.nan, 2.0], "row 1 has a logit that is nan"),
            ([1.0, math.inf, 2.0], "row 1 has a logit that is inf"),
            ([-math.inf] * 3, "row 1 has no finite logit"),
        ],
    )
    def test_logits_without_a_choice_are_refused(self, row: list[float], message: str, do_sample: bool) -> None:
        """huggingface/transformers#27179: argmax takes a NaN without complaint."""
        with pytest.raises(GenerationError, match=message):
            sample_next_token(torch.tensor([[0.0, 1.0, 2.0], row]), do_sample)

    def test_minus_infinity_forbids(self) -> None:
        logits = torch.tensor([[5.0, float("-inf"), 4.0]])
        drawn = {sample_next_token(logits, True, temperature=50.0).item() for _ in range(60)}
        assert drawn == {0, 2}


class TestSmallDecisions:
    def test_next_generation_input(self) -> None:
        x = torch.arange(10).unsqueeze(0)
        cache = [(torch.zeros(1, 1, 9, 4), torch.zeros(1, 1, 9, 4))]
        assert [part if part is None else part.tolist() for part in next_generation_input(x, None, True, 16)] == [
            x.tolist(),
            None,
        ]
        step, kept = next_generation_input(x, cache, True, 16)
        assert step.tolist() == [[9]]
        assert kept is cache
        assert next_generation_input(x, cache, False, 16)[1] is None
        assert next_generation_input(x, cache, True, 10)[1] is cache
        window, dropped = next_generation_input(x, cache, True, 9)
        assert window.tolist() == [list(range(1, 10))]
        assert dropped is None

    def test_check_sequence_length(self) -> None:
        check_sequence_length(4, 12, 16)
        with pytest.raises(ValueError, match="17; allowed: at most 16"):
            check_sequence_length(4, 13, 16)

    def test_check_generation_mask(self) -> None:
        x = torch.zeros(2, 3, dtype=torch.long)
        assert check_generation_mask(torch.ones(2, 3), x) is None
        mask = check_generation_mask(torch.tensor([[0, 1, 1], [1, 1, 1]]), x)
        assert mask is not None
        assert mask.tolist() == [[False, True, True], [True, True, True]]
        with pytest.raises(ArgumentError, match="of row 1;"):
            check_generation_mask(torch.tensor([[0, 1, 1], [1, 1, 0]]), x)
