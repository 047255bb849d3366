"""The text of one prompt as its tokens come: final pieces, the reason of its end, and its figures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from genx.engine.prompt import Prompt
from genx.engine.settings import GenerationSettings
from genx.engine.stop import StopMatcher
from genx.errors import GenxError


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


class TextDecoder(Protocol):
    """Turns ids into text that is final, as `IncrementalDecoder` does."""

    def push(self, token_id: int) -> str:
        """The text that is final now that this token has come."""

    def flush(self) -> str:
        """The text that is still open, since no token follows."""


class Continuation:
    """The text, ids and times of one prompt's run so far."""

    def __init__(
        self,
        decoder: TextDecoder,
        prompt: Prompt,
        settings: GenerationSettings,
        stop_token_ids: frozenset[int],
        show_eos: bool,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            decoder: fresh, for this text.
            prompt: what the model reads.
            settings: what ends the text; the model's own part of them is up to who runs it.
            stop_token_ids: special tokens that end the text as a stop text would.
            show_eos: let the decoder see the model's own end, whose text it may show.
            clock: seconds since whenever; the run starts now.
        """
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
