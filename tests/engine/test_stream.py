"""One prompt as a stream of events, and the figures at its end."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from genx import load_model
from genx.core.base_model import BaseModel
from genx.core.generation import ContextExceeded, Prefilled
from genx.engine.memory import peak_memory_bytes
from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.engine.stream import FinishReason, Summary, TextPiece, stream
from genx.errors import ArgumentError
from tests.fixtures.models import VOCABULARY, write_bigram, write_scripted


class Bytes:
    """Decodes each id as its character, so that tests need no tokenizer; `tail` is what the end releases."""

    def __init__(self, tail: str = "") -> None:
        self._tail = tail

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def flush(self) -> str:
        return self._tail


class Clock:
    """Time that passes only when the model works: `prefill` seconds for the prompt, `step` for a later token."""

    def __init__(self, model: BaseModel, prefill: float, step: float) -> None:
        self.now = 100.0

        def advance(module: object, arguments: tuple[torch.Tensor, ...]) -> None:
            self.now += step if arguments[0].size(1) == 1 else prefill

        model.register_forward_pre_hook(advance)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., BaseModel]:
    def load(text: str, **model: Any) -> BaseModel:
        return load_model(write_scripted(tmp_path, [ord(c) for c in text], **model))

    return load


def _summary(events: Iterator[object]) -> Summary:
    *_, last = events
    assert isinstance(last, Summary)
    return last


def test_events_in_their_order(scripted: Callable[..., BaseModel]) -> None:
    events = list(stream(scripted("fox"), Bytes(), Prompt((1,)), GenerationSettings(max_new_tokens=3)))
    assert events[:-1] == [Prefilled(1, 1), TextPiece("f"), TextPiece("o"), TextPiece("x")]
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert (summary.text, summary.ids, summary.prompt_tokens) == ("fox", (102, 111, 120), 1)
    assert (summary.finish_reason, summary.limit) == (FinishReason.LENGTH, "max_new_tokens")


def test_the_first_token_counts_to_prefill(scripted: Callable[..., BaseModel]) -> None:
    """lmstudio-ai/mlx-engine#88: ten seconds for the prompt, then nine steps of one second are one token a second."""
    model = scripted("a" * 10, prompt_tokens=20)
    settings = GenerationSettings(max_new_tokens=10)
    clock = Clock(model, prefill=10.0, step=1.0)
    summary = _summary(stream(model, Bytes(), Prompt((1,) * 20), settings, clock=clock))
    assert (summary.ttft, summary.prefill_tps, summary.decode_tps) == (10.0, 2.0, 1.0)


def test_produced_ids_are_counted(scripted: Callable[..., BaseModel]) -> None:
    """vllm-project/vllm#435 and ml-explore/mlx-examples PR #392: not what was asked for, and not characters."""
    model = scripted("abcd\x07")
    settings = GenerationSettings(max_new_tokens=50, eos_token_ids=(7,))
    clock = Clock(model, prefill=1.0, step=0.5)
    summary = _summary(stream(model, Bytes(), Prompt((1,)), settings, clock=clock))
    assert (summary.text, len(summary.ids), summary.finish_reason) == ("abcd", 5, FinishReason.EOS)
    assert summary.decode_tps is not None


def test_a_single_token_has_no_decode_speed(scripted: Callable[..., BaseModel]) -> None:
    summary = _summary(stream(scripted("a"), Bytes(), Prompt((1,)), GenerationSettings(max_new_tokens=1)))
    assert summary.ttft is not None
    assert summary.decode_tps is None
    nothing = _summary(stream(scripted("a"), Bytes(), Prompt((1,)), GenerationSettings(max_new_tokens=0)))
    assert (nothing.ttft, nothing.prefill_tps, nothing.decode_tps, nothing.ids) == (None, None, None, ())


def test_the_cache_is_counted_in_bytes(scripted: Callable[..., BaseModel]) -> None:
    """One layer, keys and values of 64 numbers, 4 bytes each, for 1 + 5 positions."""
    settings = GenerationSettings(max_new_tokens=5)
    assert _summary(stream(scripted("abcde"), Bytes(), Prompt((1,)), settings)).cache_bytes == 2 * 64 * 4 * 6
    uncached = GenerationSettings(max_new_tokens=5, use_cache=False)
    assert _summary(stream(scripted("abcde"), Bytes(), Prompt((1,)), uncached)).cache_bytes == 0


def test_interruption_keeps_the_text(scripted: Callable[..., BaseModel]) -> None:
    answers = iter([False] * 4 + [True])
    summary = _summary(
        stream(scripted("abcdef"), Bytes("!"), Prompt((1,)), GenerationSettings(), interrupted=lambda: next(answers))
    )
    assert (summary.text, summary.finish_reason) == ("abcd!", FinishReason.INTERRUPTED)


def test_interruption_while_the_prompt_is_read(tmp_path: Path) -> None:
    model = load_model(write_bigram(tmp_path, torch.eye(VOCABULARY), context=2048))
    settings = GenerationSettings()
    events = list(stream(model, Bytes(), Prompt((1,) * 1500), settings, interrupted=lambda: True))
    assert events[:-1] == [Prefilled(512, 1500)]
    assert isinstance(events[-1], Summary)
    assert (events[-1].text, events[-1].finish_reason) == ("", FinishReason.INTERRUPTED)


def test_time_is_looked_at_after_each_step(scripted: Callable[..., BaseModel]) -> None:
    model = scripted("abcdef")
    settings = GenerationSettings(max_time=2.0)
    clock = Clock(model, prefill=1.0, step=0.5)
    summary = _summary(stream(model, Bytes(), Prompt((1,)), settings, clock=clock))
    assert (summary.text, summary.finish_reason, summary.limit) == ("abcd", FinishReason.LENGTH, "max_time")


def test_the_context_is_passed_once(scripted: Callable[..., BaseModel]) -> None:
    model = scripted("abcdefgh", context=8)
    events = list(stream(model, Bytes(), Prompt((1,)), GenerationSettings(max_new_tokens=12)))
    assert events.count(ContextExceeded(8)) == 1
    assert events.index(ContextExceeded(8)) == events.index(TextPiece("h")) + 1


def test_what_the_end_releases_is_matched_too(scripted: Callable[..., BaseModel]) -> None:
    settings = GenerationSettings(max_new_tokens=2, stop=("b!",))
    summary = _summary(stream(scripted("ab"), Bytes("!?"), Prompt((1,)), settings))
    assert (summary.text, summary.finish_reason, summary.limit) == ("a", FinishReason.STOP, None)


def test_bad_logits_end_the_run_and_keep_its_text(scripted: Callable[..., BaseModel]) -> None:
    """huggingface/transformers#27179, X6: greedy takes no NaN for an answer."""
    model = scripted("ab")
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[2] = float("nan")
    summary = _summary(stream(model, Bytes(), Prompt((1,)), GenerationSettings()))
    assert (summary.text, summary.finish_reason) == ("ab", FinishReason.ERROR)
    assert "a logit that is nan" in str(summary.error)


@pytest.mark.parametrize("error", [MemoryError("1 TiB"), torch.OutOfMemoryError("1 TiB")])
def test_want_of_memory_ends_the_run(scripted: Callable[..., BaseModel], error: Exception) -> None:
    model = scripted("ab")

    def fail(module: object, arguments: tuple[torch.Tensor, ...]) -> None:
        if arguments[0].size(1) == 1:
            raise error

    model.register_forward_pre_hook(fail)
    summary = _summary(stream(model, Bytes(), Prompt((1, 2)), GenerationSettings()))
    assert summary.finish_reason is FinishReason.ERROR
    assert str(summary.error) == "out of memory: 1 TiB; fewer tokens, a smaller dtype or another device may help"


def test_arguments_are_refused_at_the_first_event(scripted: Callable[..., BaseModel]) -> None:
    with pytest.raises(ArgumentError, match="the prompt holds the token id 300"):
        next(stream(scripted("a"), Bytes(), Prompt((300,)), GenerationSettings()))


@pytest.mark.parametrize("sampling", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}])
def test_a_seed_gives_what_manual_seed_and_generate_give(tmp_path: Path, sampling: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = load_model(write_bigram(tmp_path, torch.randn(VOCABULARY, VOCABULARY) / 10))
    settings = GenerationSettings(max_new_tokens=30, do_sample=True, seed=11, **sampling)
    before = torch.get_rng_state()
    summary = _summary(stream(model, Bytes(), Prompt((1, 2)), settings))
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is left alone
    torch.manual_seed(11)
    expected = model.generate(torch.tensor([[1, 2]]), 30, do_sample=True, **sampling)
    assert list(summary.ids) == expected[0, 2:].tolist()
    assert len(set(summary.ids)) > 10
    assert summary.seed == 11


@pytest.mark.skipif(sys.platform == "win32", reason="resource is a Unix module")
def test_peak_memory_is_in_bytes() -> None:
    """Torch alone takes more than 100 MiB, and no test machine gives a process 64 GiB."""
    peak = peak_memory_bytes("cpu")
    assert peak is not None
    held = torch.ones(64 << 20, dtype=torch.uint8)
    after = peak_memory_bytes("cpu")
    assert after is not None
    assert 100 << 20 < peak <= after < 64 << 30
    assert held.all()
