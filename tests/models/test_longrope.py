"""LongRoPE: other frequencies for texts that are longer than the model was first trained on, as transformers has it.

A text that grows past that length is read again; what came before stays, as it does in transformers' `generate`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import genx
from genx.core.base_model import BaseModel
from genx.core.generation import Prefilled, Sampled
from genx.core.loop import read_columns, result_of
from genx.engine.rows.batch import Batch
from genx.errors import ConfigError
from tests.architectures import CONTEXT as LONGEST_SHORT
from tests.architectures import REMOVED, TOLERANCE, Tiny, assert_near, distance, make_tiny, prompt
from tests.engine.rows.conftest import PLENTY, alone, job, run

CONTEXT = 90


@pytest.fixture(scope="module", params=[None, 7], ids=["full", "windows"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    sizes = {"max_position_embeddings": CONTEXT, "sliding_window": request.param}
    return make_tiny("phi3-longrope", tmp_path_factory.mktemp("tiny"), **sizes)


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> BaseModel:
    return tiny.model()


@torch.no_grad()
@pytest.mark.parametrize("length", [1, LONGEST_SHORT - 1, LONGEST_SHORT, LONGEST_SHORT + 1, 63, CONTEXT])
def test_logits_equal_transformers_on_both_sides(tiny: Tiny, model: BaseModel, length: int) -> None:
    x = prompt(2, length)
    assert_near(model(x)[0], tiny.peer(x).logits)
    used = "long_factor" if length > LONGEST_SHORT else "short_factor"
    for name in ("short_factor", "long_factor"):
        rope = {**tiny.recipe.sizes["rope_parameters"], name: [1.0, 2.0, 4.0]}
        found = distance(tiny.model(rope_parameters=rope)(x)[0], model(x)[0])
        assert (found > TOLERANCE) == (name == used and length > 1), name


@torch.no_grad()
@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("factor", [{}, {"factor": 5.5}, {"factor": 0.5}, {"attention_factor": 1.3}])
def test_published_spellings(tiny: Tiny, kind: str, factor: dict[str, float]) -> None:
    """Phi-3's first files say su, its second yarn, for the same thing; the amplitude follows from the lengths."""
    factors = {name: tiny.recipe.sizes["rope_parameters"][name] for name in ("short_factor", "long_factor")}
    scaling = {"type": kind, **factors, **factor}
    folder = tiny.changed(rope_scaling=scaling, rope_theta=1e3, rope_parameters=REMOVED)
    model = genx.load_model(folder)
    # transformers 5.24 takes "su" only with the length in here too, where no published file has it.
    scaling = {**scaling, "original_max_position_embeddings": LONGEST_SHORT}
    spelled = tiny.changed(rope_scaling=scaling, rope_theta=1e3, rope_parameters=REMOVED)
    peer = transformers.AutoModelForCausalLM.from_pretrained(spelled, dtype=torch.float32).eval()
    for length in (9, 70):
        assert_near(model(prompt(2, length))[0], peer(prompt(2, length)).logits)
        assert torch.equal(genx.load_model(spelled)(prompt(2, length))[0], model(prompt(2, length))[0])
    model.save(folder / "saved")
    assert torch.equal(genx.load_model(folder / "saved")(prompt(2, 70))[0], model(prompt(2, 70))[0])


@pytest.mark.parametrize("length", [3, LONGEST_SHORT - 1, LONGEST_SHORT, LONGEST_SHORT + 1])
def test_generated_text_is_transformers_and_the_same_without_a_cache(tiny: Tiny, model: BaseModel, length: int) -> None:
    x = prompt(1, length)
    new = CONTEXT - length
    expected = tiny.peer.generate(x, max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert model.generate(x, new, do_sample=False).tolist() == expected.tolist()
    assert torch.equal(model.generate(x, new + 9, False), model.generate(x, new + 9, False, use_cache=False))


def test_what_is_generated_first_does_not_depend_on_how_much_is_asked_for(model: BaseModel) -> None:
    x = prompt(2, 30)
    assert torch.equal(model.generate(x, 45, do_sample=False)[:, :37], model.generate(x, 7, do_sample=False))


def test_the_text_is_read_again_once(model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda x, *a, **k: (passes.append(x.size(1)), forward(x, *a, **k))[1])
    model.generate(prompt(1, LONGEST_SHORT - 2), 6, do_sample=False)
    assert passes == [LONGEST_SHORT - 2, 1, 1, LONGEST_SHORT + 1, 1, 1]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("chunk", [8, 512])
def test_rows_of_a_batch_cross_one_by_one(
    model: BaseModel, use_cache: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transformers the longest row decides for all."""
    monkeypatch.setattr("genx.core.loop.PREFILL_CHUNK", chunk)
    lengths = [LONGEST_SHORT + 5, 2, LONGEST_SHORT - 3, LONGEST_SHORT]
    rows = [prompt(1, length, seed=length) for length in lengths]
    x = torch.full((len(rows), max(lengths)), 7)
    mask = torch.zeros_like(x)
    for row, own in enumerate(rows):
        x[row, -own.size(1) :] = own
        mask[row, -own.size(1) :] = 1
    batch = model.generate(x, 50, do_sample=False, use_cache=use_cache, attention_mask=mask)
    monkeypatch.undo()
    for row, own in enumerate(rows):
        assert batch[row, max(lengths) :].tolist() == model.generate(own, 50, False)[0, own.size(1) :].tolist()


@torch.no_grad()
def test_a_masked_row_equals_the_row_without_hidden_tokens(model: BaseModel) -> None:
    x = prompt(2, 60)
    mask = torch.tensor([[0] * 25 + [1] * 35, [0] * 15 + [1] * 45])
    logits = model(x, attention_mask=mask)[0]
    for row, columns in enumerate(mask.bool()):
        assert_near(logits[row, columns], model(x[row, columns].unsqueeze(0))[0][0])


@pytest.mark.parametrize("seen", [9, LONGEST_SHORT - 1, LONGEST_SHORT + 1])
def test_a_cache_of_a_beginning_that_was_short_is_not_gone_on_from(model: BaseModel, seen: int) -> None:
    x = prompt(2, LONGEST_SHORT + 4)
    _, cache = result_of(read_columns(model, x[:, :seen], None, None, True, CONTEXT))
    events = list(model.generate_steps(x, 9, do_sample=False, cache=cache))
    read = x.size(1) - seen if seen > LONGEST_SHORT else x.size(1)
    assert events[0] == Prefilled(read, read)
    new = torch.cat([event.token_ids for event in events if isinstance(event, Sampled)], dim=1)
    assert torch.equal(new, model.generate(x, 9, do_sample=False)[:, x.size(1) :])


@torch.no_grad()
def test_forward_refuses_to_mix_short_and_long(model: BaseModel) -> None:
    x = prompt(1, LONGEST_SHORT + 2)
    _, cache = model(x[:, :-2], use_cache=True)
    with pytest.raises(ValueError, match=f"at most {LONGEST_SHORT} tokens, and this pass makes it longer.*announced"):
        model(x[:, -2:], cache, use_cache=True)
    whole = model(x)[0]
    cache, parts = model.new_cache(announced=x.size(1)), []
    for start in range(0, x.size(1), 6):
        logits, cache = model(x[:, start : start + 6], cache, use_cache=True)
        parts.append(logits)
    assert_near(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("invariant", [False, True])
def test_rows_of_a_file_equal_each_alone(model: BaseModel, size: int, invariant: bool) -> None:
    """With beginnings that short and long prompts share, of which some are long themselves."""
    common = prompt(1, LONGEST_SHORT + 3, seed=8)[0].tolist()
    lengths = [20, 22, LONGEST_SHORT - 1, 23, LONGEST_SHORT + 6, 21, LONGEST_SHORT + 5, LONGEST_SHORT, 3]
    jobs = [
        job(place, [*common[: length - 1], place], max_new_tokens=12 + 7 * (place % 3))
        for place, length in enumerate(lengths)
    ]
    summaries, _ = run(Batch(model, size=size, cache_bytes=PLENTY, batch_invariant=invariant), jobs)
    assert {place: summary.error for place, summary in summaries.items()} == dict.fromkeys(range(len(jobs)))
    assert {place: summary.ids for place, summary in summaries.items()} == {
        place: alone(model, one) for place, one in enumerate(jobs)
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"long_factor": None}, "long_factor in rope_scaling is None; allowed: a list of 3"),
        ({"short_factor": [1.0, 2.0]}, "short_factor in rope_scaling is 2 values; allowed: a list of 3, one for each"),
        ({"short_factor": 3}, "short_factor in rope_scaling is 3; allowed: a list"),
        ({"long_factor": [1.0, 0, 2.0]}, r"long_factor\[1\] in rope_scaling is 0; allowed: a finite number above 0"),
        ({"long_factor": [1.0, "\x1b", 2.0]}, r"long_factor\[1\] in rope_scaling is '\\x1b'"),
        ({"short_factor": [float("nan"), 1, 2]}, r"short_factor\[0\] in rope_scaling is nan"),
        ({"factor": -1.0}, "factor in rope_scaling is -1.0"),
        ({"attention_factor": 0}, "attention_factor in rope_scaling is 0"),
        ({"factor": 10**400}, "factor in rope_scaling is 1000"),
        ({"long_factor": [1, 10**400, 1]}, r"long_factor\[1\] in rope_scaling is 1000"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
    ],
)
def test_factors_that_are_none(tiny: Tiny, changes: dict[str, Any], said: str) -> None:
    rope = {**tiny.recipe.sizes["rope_parameters"], **changes}
    with pytest.raises(ConfigError, match=said):
        tiny.model(rope_parameters=rope)


@pytest.mark.parametrize("length", [1, 2.5, "many", -4, True, 1e308, 10**400])
def test_lengths_that_are_none(tiny: Tiny, length: object) -> None:
    with pytest.raises(ConfigError, match="original_max_position_embeddings in rope_scaling is"):
        tiny.model(original_max_position_embeddings=length)


@torch.no_grad()
def test_float64_and_bfloat16_cross_too(tiny: Tiny, tmp_path: Path) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        model = genx.load_model(tiny.folder, dtype=dtype)
        x = prompt(1, LONGEST_SHORT - 4)
        assert model.generate(x, 12, do_sample=False).shape == (1, LONGEST_SHORT + 8)
