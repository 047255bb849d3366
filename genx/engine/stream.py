"""One prompt as a stream of events: the prompt being read, pieces of text, and in the end one summary."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import torch

from genx.core.generation import ContextExceeded, GenerationEvent, Prefilled
from genx.engine.memory import peak_memory_bytes
from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.engine.stop import StopMatcher
from genx.errors import GenerationError, GenxError

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel


class FinishReason(StrEnum):
    """Why a text ends."""

    EOS = "eos"  # the model's own end
    STOP = "stop"  # a text of --stop
    LENGTH = "length"  # the number of new tokens, or the time, that was allowed
    INTERRUPTED = "interrupted"
    ERROR = "error"


@dataclass(frozen=True)
class TextPiece:
    """New text that is final: never empty, never part of a stop text."""

    text: str


@dataclass(frozen=True)
class Summary:
    """What a finished run came to. Times are None where nothing was there to be timed.

    `ttft` is the time from the start to the first token, `prefill_tps` prompt tokens over that time, and `decode_tps`
    the tokens after the first over theirs. `limit` names the setting that ended a text of reason `length`.
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    seed: int | None
    ttft: float | None
    prefill_tps: float | None
    decode_tps: float | None
    peak_memory: int | None  # bytes
    cache_bytes: int
    limit: str | None = None
    error: GenxError | None = None


StreamEvent = Prefilled | ContextExceeded | TextPiece | Summary


class TextDecoder(Protocol):
    """Turns ids into text that is final, as `IncrementalDecoder` does."""

    def push(self, token_id: int) -> str:
        """The text that is final now that this token has come."""

    def flush(self) -> str:
        """The text that is still open, since no token follows."""


def stream(
    model: "BaseModel",
    decoder: TextDecoder,
    prompt: Prompt,
    settings: GenerationSettings,
    *,
    stop_token_ids: frozenset[int] = frozenset(),
    show_eos: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[StreamEvent]:
    """Continue one prompt.

    Args:
        model: in eval mode, on its device.
        decoder: fresh, for this text.
        prompt: what the model reads.
        settings: what takes effect.
        stop_token_ids: special tokens that `settings.stop` spells; one of them ends the text and is not part of it.
        show_eos: let the decoder see the model's own end, whose text it may show.
        interrupted: asked between steps; True ends the run and keeps its text.
        clock: seconds since whenever.

    Yields:
        `Prefilled`, `TextPiece` and, once, `ContextExceeded`; last of all a `Summary`, even of a run that failed for
        want of memory or of finite logits.

    Raises:
        ArgumentError: (a ValueError) an argument that the model does not allow.
    """
    run = _Run(decoder, prompt, settings, stop_token_ids, show_eos, clock)
    device = next(model.parameters()).device
    try:
        for event in _steps(model, prompt, settings, stop_token_ids, device):
            if isinstance(event, Prefilled | ContextExceeded):
                yield event
            else:
                yield from run.take(int(event.token_ids), event.cache_bytes)
            if run.is_finished(interrupted):
                break
    except GenerationError as error:
        run.fail(error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        run.fail(GenxError(f"out of memory: {error}; fewer tokens, a smaller dtype or another device may help"))
    yield from run.finish()
    yield run.summary(peak_memory_bytes(str(device)))


def _steps(
    model: "BaseModel",
    prompt: Prompt,
    settings: GenerationSettings,
    stop_token_ids: frozenset[int],
    device: torch.device,
) -> Iterator[GenerationEvent]:
    generator = None
    if settings.seed is not None:
        generator = torch.Generator(device).manual_seed(settings.seed)
    mask = prompt.attention_mask
    return model.generate_steps(
        torch.tensor([prompt.ids], device=device),  # [1, P]
        settings.max_new_tokens,
        settings.do_sample,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.use_cache,
        None if mask is None else torch.tensor([mask], device=device),
        [*settings.eos_token_ids, *sorted(stop_token_ids)],
        settings.pad_token_id,
        generator=generator,
    )


class _Run:
    """The text, ids and times of one run so far."""

    def __init__(
        self,
        decoder: TextDecoder,
        prompt: Prompt,
        settings: GenerationSettings,
        stop_token_ids: frozenset[int],
        show_eos: bool,
        clock: Callable[[], float],
    ) -> None:
        self._decoder = decoder
        self._settings = settings
        self._stop_token_ids = stop_token_ids
        self._show_eos = show_eos
        self._matcher = StopMatcher(settings.stop)
        self._clock = clock
        self._started = clock()
        self._token_times: tuple[float, float] | None = None  # of the first and the last token
        self._prompt_tokens = len(prompt.ids)
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._is_cut = False  # before a stop text
        self._cache_bytes = 0
        self._reason: FinishReason | None = None
        self._limit: str | None = None
        self._error: GenxError | None = None

    def take(self, token_id: int, cache_bytes: int) -> Iterator[TextPiece]:
        """Take the next token; yield the text that it makes final."""
        now = self._clock()
        self._token_times = (self._token_times[0] if self._token_times else now, now)
        self._ids.append(token_id)
        self._cache_bytes = max(self._cache_bytes, cache_bytes)
        if token_id in self._stop_token_ids:
            self._reason = FinishReason.STOP
            return
        if token_id in self._settings.eos_token_ids:
            self._reason = FinishReason.EOS
            if not self._show_eos:
                return
        yield from self._match(self._decoder.push(token_id))

    def is_finished(self, interrupted: Callable[[], bool]) -> bool:
        """Whether the run ends here: it has its reason, is interrupted, or its time is over."""
        if self._reason is None and interrupted():
            self._reason = FinishReason.INTERRUPTED
        max_time = self._settings.max_time
        if self._reason is None and max_time is not None and self._clock() - self._started >= max_time:
            self._reason, self._limit = FinishReason.LENGTH, "max_time"
        return self._reason is not None

    def fail(self, error: GenxError) -> None:
        """End the run with this error; its text stays."""
        self._reason, self._error = FinishReason.ERROR, error

    def finish(self) -> Iterator[TextPiece]:
        """Yield the text that was held back, since nothing follows."""
        if self._reason is None:
            self._reason, self._limit = FinishReason.LENGTH, "max_new_tokens"
        if not self._is_cut:
            yield from self._match(self._decoder.flush())
            yield from self._piece(self._matcher.flush())

    def summary(self, peak_memory: int | None) -> Summary:
        """The figures of the run."""
        ttft = prefill_tps = decode_tps = None
        if self._token_times is not None:
            first, last = self._token_times
            ttft = first - self._started
            prefill_tps = self._prompt_tokens / ttft if ttft > 0 else None
            decode_tps = (len(self._ids) - 1) / (last - first) if last > first else None
        assert self._reason is not None
        return Summary(
            text="".join(self._pieces),
            ids=tuple(self._ids),
            finish_reason=self._reason,
            prompt_tokens=self._prompt_tokens,
            seed=self._settings.seed,
            ttft=ttft,
            prefill_tps=prefill_tps,
            decode_tps=decode_tps,
            peak_memory=peak_memory,
            cache_bytes=self._cache_bytes,
            limit=self._limit,
            error=self._error,
        )

    def _match(self, text: str) -> Iterator[TextPiece]:
        released, stopped = self._matcher.push(text)
        if stopped:
            self._is_cut = True
            if self._error is None:
                self._reason, self._limit = FinishReason.STOP, None
        yield from self._piece(released)

    def _piece(self, text: str) -> Iterator[TextPiece]:
        if text:
            self._pieces.append(text)
            yield TextPiece(text)
