"""The one loop: equal to a naive one, with and without a cache, past the context, row by row in a batch."""

from collections.abc import Sequence

import pytest
import torch

from genx.core.base_model import BaseModel
from genx.core.generation import ContextExceeded, Prefilled, Sampled
from tests.architectures import CONTEXT, VOCAB, assert_near, prompt

PAST_CONTEXT = CONTEXT + 12


@torch.no_grad()
def naive(model: BaseModel, x: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Re-read the last T_max tokens at each step and take the most likely token."""
    for _ in range(new_tokens):
        logits, _ = model(x[:, -CONTEXT:])
        x = torch.cat((x, logits[:, -1].argmax(-1, keepdim=True)), dim=1)
    return x


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("length", [1, 13, CONTEXT - 1, CONTEXT, CONTEXT + 1, CONTEXT + 5])
def test_generate_equals_a_naive_loop_past_the_context(model: BaseModel, use_cache: bool, length: int) -> None:
    """Past the window it failed (huggingface/transformers#27682), past the context too (#1749)."""
    x = prompt(2, length)
    steps = PAST_CONTEXT - length
    assert torch.equal(model.generate(x, steps, do_sample=False, use_cache=use_cache), naive(model, x, steps))


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_left_padded_batch_equals_its_rows_alone(model: BaseModel, use_cache: bool) -> None:
    """Positions counted the padding (huggingface/transformers PR #7552), or were one row's for all
    (unslothai/unsloth#3699); padding took places in the window (ml-explore/mlx-lm#439); mask and keys had other
    columns (huggingface/transformers PR #34093)."""
    lengths = [13, 2, 9, 1]
    rows = [prompt(1, length, seed=length) for length in lengths]
    x = torch.full((len(rows), max(lengths)), 7)
    mask = torch.zeros_like(x)
    for row, alone in enumerate(rows):
        x[row, -alone.size(1) :] = alone
        mask[row, -alone.size(1) :] = 1
    steps = PAST_CONTEXT - max(lengths)  # the longest rows slide, the others not yet
    batch = model.generate(x, steps, do_sample=False, use_cache=use_cache, attention_mask=mask)
    for row, alone in enumerate(rows):
        expected = model.generate(alone, steps, do_sample=False, use_cache=use_cache)
        assert batch[row, max(lengths) :].tolist() == expected[0, alone.size(1) :].tolist()


@pytest.mark.parametrize("use_cache", [True, False])
def test_holes_equal_the_prompt_without_hidden_tokens(model: BaseModel, use_cache: bool) -> None:
    x = prompt(2, 14)
    mask = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1], [0, 1] * 7])
    batch = model.generate(x, 20, do_sample=False, use_cache=use_cache, attention_mask=mask)
    for row, columns in enumerate(mask.bool()):
        alone = x[row, columns].unsqueeze(0)
        expected = model.generate(alone, 20, do_sample=False, use_cache=use_cache)
        assert batch[row, 14:].tolist() == expected[0, alone.size(1) :].tolist()


@torch.no_grad()
def test_float16_with_left_padding_is_finite(model: BaseModel) -> None:
    """huggingface/transformers#25311 and #27179: padded rows overflowed in float16."""
    half = type(model)(model.config).half().eval()
    half.load_state_dict(model.state_dict())
    x = prompt(2, 8)
    mask = torch.tensor([[0] * 7 + [1], [1] * 8])
    logits, _ = half(x, attention_mask=mask)
    alone, _ = half(x[:1, 7:])
    assert bool(torch.isfinite(logits).all())
    assert float((logits[0, 7:] - alone[0]).abs().max()) <= 2e-2 * float(alone.abs().max())


def test_a_prompt_longer_than_a_chunk_is_read_in_chunks(model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    x = prompt(2, 29)
    mask = torch.tensor([[0] * 11 + [1] * 18, [1] * 29])
    expected = model.generate(x, 5, do_sample=False, attention_mask=mask)
    monkeypatch.setattr("genx.core.loop.PREFILL_CHUNK", 8)
    passes: list[int] = []
    model_forward = model.forward
    monkeypatch.setattr(model, "forward", lambda x, *a, **k: (passes.append(x.size(1)), model_forward(x, *a, **k))[1])
    for use_cache in (True, False):
        passes.clear()
        events = list(model.generate_steps(x, 5, False, use_cache=use_cache, attention_mask=mask))
        found = torch.cat([x, *(event.token_ids for event in events if isinstance(event, Sampled))], dim=1)
        assert torch.equal(found, expected)
        read = [(event.done, event.total) for event in events if isinstance(event, Prefilled)]
        assert read == [
            (8, 29),
            (16, 29),
            (24, 29),
            (29, 29),
        ]
        assert passes[:4] == [8, 8, 8, 5]
        assert passes[4:] == ([1] * 4 if use_cache else [8, 8, 8, 6, 8, 8, 8, 7, 8, 8, 8, 8, 8, 8, 8, 8, 1])


def test_the_head_is_computed_for_the_last_position_only(model: BaseModel) -> None:
    widths: list[int] = []
    handle = model.lm_head.register_forward_hook(lambda _module, inputs, _output: widths.append(inputs[0].size(1)))
    model.generate(prompt(1, 20), 4, do_sample=False)
    handle.remove()
    assert widths == [1, 1, 1, 1]


def test_growing_past_the_context_is_said_once(model: BaseModel) -> None:
    events = list(model.generate_steps(prompt(1, CONTEXT - 3), 10, False))
    exceeded = [place for place, event in enumerate(events) if isinstance(event, ContextExceeded)]
    sampled_before = sum(isinstance(event, Sampled) for event in events[: exceeded[0]])
    assert len(exceeded) == 1
    assert sampled_before == 4  # tokens 38 to 41 are chosen with the context; the next step slides


class TestEndOfText:
    """EOS and pad in a batch, as the specification's section on them says."""

    @staticmethod
    def first_new(model: BaseModel, x: torch.Tensor, steps: int) -> list[list[int]]:
        return model.generate(x, steps, do_sample=False)[:, x.size(1) :].tolist()

    def test_after_eos_a_row_holds_pad_only(self, model: BaseModel) -> None:
        """huggingface/transformers#31261: rows went on after their end."""
        x = prompt(4, 6)
        free = self.first_new(model, x, 12)
        eos = free[0][2]
        found = model.generate(x, 12, do_sample=False, eos_token_id=eos, pad_token_id=1)[:, 6:].tolist()
        for row, (expected, got) in enumerate(zip(free, found, strict=True)):
            end = expected.index(eos) + 1 if eos in expected else len(got)
            assert got[:end] == expected[: len(got)][:end], row
            assert got[end:] == [1] * (len(got) - end), row

    def test_all_rows_ended_on_the_third_step(self, model: BaseModel) -> None:
        """The seventh exercise: [4, P + 3]."""
        x = prompt(1, 6).repeat(4, 1)
        free = self.first_new(model, x, 3)[0]
        eos = free[2]
        expected_steps = free.index(eos) + 1
        found = model.generate(x, 10, do_sample=False, eos_token_id=eos)
        assert found.shape == (4, 6 + expected_steps)

    def test_several_ids_and_the_first_pads(self, model: BaseModel) -> None:
        x = prompt(2, 6)
        free = self.first_new(model, x, 8)
        stops = [free[0][0], free[1][4]]
        found = model.generate(x, 8, do_sample=False, eos_token_id=stops)[:, 6:].tolist()
        assert found[0] == [stops[0]] * len(found[0])
        assert model.generate(x, 8, do_sample=False, eos_token_id=[]).shape == (2, 14)

    @pytest.mark.parametrize("fill", [0, 5, 96])
    def test_what_fills_the_padding_does_not_matter(self, model: BaseModel, fill: int) -> None:
        """The mask decides, not the id: huggingface/transformers#25790, and #22312 of models without a pad id."""
        x = torch.cat((torch.full((1, 7), fill), prompt(1, 2)), dim=1)
        mask = torch.tensor([[0] * 7 + [1] * 2])
        free = self.first_new(model, prompt(1, 2), 6)[0]
        eos = free[-1]
        found = model.generate(x, 6, do_sample=False, attention_mask=mask, eos_token_id=eos, pad_token_id=fill)
        assert found[0, 9:].tolist() == free[: free.index(eos) + 1]

    def test_eos_in_the_prompt_ends_nothing(self, model: BaseModel) -> None:
        x = prompt(1, 6)
        unused = next(i for i in range(VOCAB) if i not in self.first_new(model, x, 5)[0])
        with_eos = x.clone()
        with_eos[0, 2] = unused
        assert model.generate(with_eos, 1, do_sample=False, eos_token_id=unused).shape == (1, 7)

    @pytest.mark.parametrize("eos", [None, [], VOCAB, [-1, VOCAB + 5]])
    def test_pad_means_nothing_where_no_row_can_end(self, model: BaseModel, eos: int | list[int] | None) -> None:
        x = prompt(1, 6)
        expected = model.generate(x, 4, do_sample=False)
        found = model.generate(x, 4, do_sample=False, eos_token_id=eos, pad_token_id=10**6)
        assert torch.equal(found, expected)


class TestRefused:
    """Arguments that generate refuses, and those it must not."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"do_sample": True, "temperature": 0}, "temperature is 0"),
            ({"do_sample": True, "temperature": -1.0}, "temperature is -1.0"),
            ({"do_sample": True, "temperature": float("nan")}, "temperature is nan"),
            ({"do_sample": True, "temperature": float("inf")}, "temperature is inf"),
            ({"do_sample": True, "top_k": 5, "top_p": 0.9}, "both given"),
            ({"do_sample": True, "top_k": 0}, "top_k is 0"),
            ({"do_sample": True, "top_k": -1}, "top_k is -1"),
            ({"do_sample": True, "top_k": 2.0}, "top_k is 2.0"),
            ({"do_sample": True, "top_k": True}, "top_k is True"),
            ({"do_sample": True, "top_p": 0.0}, "top_p is 0.0"),
            ({"do_sample": True, "top_p": 1.5}, "top_p is 1.5"),
            ({"do_sample": True, "top_p": float("nan")}, "top_p is nan"),
            ({"do_sample": False, "max_new_tokens": -1}, "max_new_tokens is -1"),
            ({"do_sample": False, "max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
            ({"do_sample": False, "eos_token_id": 3, "pad_token_id": VOCAB}, f"pad_token_id is {VOCAB}"),
            ({"do_sample": False, "eos_token_id": 3, "pad_token_id": -1}, "pad_token_id is -1"),
            ({"do_sample": True, "generator": [torch.Generator()]}, "generator has 1 entries; allowed: one a row, 2"),
            ({"do_sample": False, "eos_token_id": [VOCAB, 3]}, f"pad_token_id is {VOCAB}.*the first eos_token_id"),
            ({"do_sample": False, "attention_mask": torch.ones(2, 5)}, r"attention_mask has the shape \[2, 5\]"),
            ({"do_sample": False, "attention_mask": torch.tensor([[1] * 5 + [0], [1] * 6])}, "last token of row 0"),
            ({"do_sample": False, "attention_mask": torch.full((2, 6), 0.5)}, "other than 0 and 1"),
        ],
    )
    def test_value_errors(self, model: BaseModel, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            model.generate(prompt(2, 6), **{"max_new_tokens": 3, **arguments})

    @pytest.mark.parametrize("token", [-1, VOCAB])
    def test_ids_outside_the_vocabulary(self, model: BaseModel, token: int) -> None:
        with pytest.raises(ValueError, match=f"token id {token}"):
            model.generate(torch.tensor([[3, token, 4]]), 1, do_sample=False)

    @pytest.mark.parametrize(
        "x",
        [[[1, 2]], torch.tensor([1, 2]), torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, 3, dtype=torch.long)]
        + [torch.ones(1, 3, dtype=dtype) for dtype in (torch.float32, torch.bool, torch.uint8, torch.int16)],
    )
    def test_what_is_no_prompt(self, model: BaseModel, x: torch.Tensor) -> None:
        with pytest.raises(ValueError, match=r"the prompt is .*; allowed: a tensor of token ids"):
            model.generate(x, 1, do_sample=False)

    def test_int32_ids(self, model: BaseModel) -> None:
        found = model.generate(prompt().int(), 3, do_sample=False)
        assert torch.equal(found, model.generate(prompt(), 3, do_sample=False))

    def test_logits_to_keep(self, model: BaseModel) -> None:
        assert [model(prompt(2, 5), logits_to_keep=keep)[0].size(1) for keep in (0, 1, 5, 9)] == [0, 1, 5, 5]
        with pytest.raises(ValueError, match="logits_to_keep is -1"):
            model(prompt(2, 5), logits_to_keep=-1)

    def test_an_unknown_argument(self, model: BaseModel) -> None:
        with pytest.raises(TypeError, match="max_lenght"):
            model.generate(prompt(), 3, do_sample=False, max_lenght=3)

    def test_greedy_checks_no_sampling_argument(self, model: BaseModel) -> None:
        expected = model.generate(prompt(), 3, do_sample=False)
        found = model.generate(prompt(), 3, do_sample=False, temperature=0, top_k=0, top_p=7.0)
        assert torch.equal(found, expected)

    def test_no_new_tokens(self, model: BaseModel) -> None:
        assert torch.equal(model.generate(prompt(), 0, do_sample=False), prompt())

    def test_a_mask_of_ones_is_none(self, model: BaseModel) -> None:
        x = prompt(2, 6)
        found = model.generate(x, 3, do_sample=False, attention_mask=torch.ones(2, 6))
        assert torch.equal(found, model.generate(x, 3, do_sample=False))


class TestSeeds:
    def test_a_generator_equals_the_global_seed(self, model: BaseModel) -> None:
        torch.manual_seed(11)
        expected = model.generate(prompt(), 8, do_sample=True, temperature=5.0)
        own = torch.Generator().manual_seed(11)
        assert torch.equal(model.generate(prompt(), 8, do_sample=True, temperature=5.0, generator=own), expected)

    def test_with_and_without_cache_a_seed_draws_the_same(self, model: BaseModel) -> None:
        found = [
            model.generate(
                prompt(), 20, True, 4.0, use_cache=cached, generator=torch.Generator().manual_seed(1)
            ).tolist()
            for cached in (True, False)
        ]
        assert found[0] == found[1]

    def test_a_row_with_its_own_generator_ignores_its_neighbours(self, model: BaseModel) -> None:
        """vllm-project/vllm#51226 and #1595: same seed, other batch, other text."""

        def rows(x: torch.Tensor, seeds: Sequence[int]) -> list[list[int]]:
            own = [torch.Generator().manual_seed(seed) for seed in seeds]
            return model.generate(x, 10, do_sample=True, temperature=5.0, generator=own).tolist()

        a, b, c = prompt(3, 6).split(1)
        alone = rows(a, [1])[0]
        assert rows(torch.cat((a, b)), [1, 2])[0] == alone
        assert rows(torch.cat((c, a)), [9, 1])[1] == alone


class TestTraining:
    def test_gradients_reach_every_parameter(self, model: BaseModel) -> None:
        fresh = type(model)(model.config).train()
        logits, _ = fresh(prompt(2, CONTEXT))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), prompt(2, CONTEXT)[:, 1:].flatten())
        loss.backward()
        for name, parameter in fresh.named_parameters():
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().max()) > 0, name

    def test_gradients_pass_through_a_cache_that_is_read_on(self, model: BaseModel) -> None:
        x = prompt(1, 9)

        def gradient(*sizes: int) -> torch.Tensor:
            fresh = type(model)(model.config).double().eval()
            fresh.load_state_dict(model.state_dict())
            cache, total, start = None, torch.zeros((), dtype=torch.float64), 0
            for size in sizes:
                logits, cache = fresh(x[:, start : start + size], cache, use_cache=True)
                total = total + logits.square().sum()
                start += size
            total.backward()
            found = fresh.get_parameter(fresh.embedding_name).grad
            assert found is not None
            return found

        assert_near(gradient(3, 1, 2, 3), gradient(9))

    def test_dropout_is_on_in_train_mode_only(self, model: BaseModel) -> None:
        sizes = {"vocab_size": 50, "embed_dim": 32, "num_heads": 4, "num_layers": 2, "max_position_embeddings": 16}
        fresh = type(model)({**sizes, "dropout": 0.5})
        x = torch.randint(0, 50, (2, 10))
        fresh.train()
        assert not torch.equal(fresh(x)[0], fresh(x)[0])
        fresh.eval()
        assert torch.equal(fresh(x)[0], fresh(x)[0])

    def test_generate_builds_no_graph(self, model: BaseModel) -> None:
        for event in model.generate_steps(prompt(), 2, False):
            assert torch.is_grad_enabled(), "the caller's mode is its own"
            if isinstance(event, Sampled):
                assert not event.token_ids.requires_grad
