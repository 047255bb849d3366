"""What counts as what in a timed run. Every figure of genx bench comes from the rules in this file. No torch.

- The clock starts when the prompt lies ready on the device and the cache holds `depth` tokens of each row; making the
  ids, loading and reading the depth are not timed.
- The first new token belongs to prefill: its time is the time to first token, and prefill tokens/s are the prompt
  tokens of all rows over it.
- Decode tokens/s are the tokens of all rows after the first, as many as were produced, over the time from the first to
  the last; the prompt's time is not in it. A latency is the time between two successive tokens of a row.
- A run without new tokens ends when the logits after the prompt are there, and that is its time to first token.
- Tokens are ids. No text is made within the time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeline:
    """When the new tokens of a run came.

    Attributes:
        rows: that ran at once.
        prompt_tokens: of each row.
        started: clock when the prompt was handed over.
        token_times: clock when each token was there in every row; of a run without new tokens, of the logits.
    """

    rows: int
    prompt_tokens: int
    started: float
    token_times: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.token_times[0] - self.started

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens a second."""
        return _rate(self.rows * self.prompt_tokens, self.ttft_s)

    @property
    def decode_tps(self) -> float | None:
        """New tokens a second after the first."""
        return _rate(self.rows * (len(self.token_times) - 1), self.token_times[-1] - self.token_times[0])

    @property
    def latencies_s(self) -> list[float]:
        """Seconds between successive tokens."""
        return [later - sooner for sooner, later in zip(self.token_times, self.token_times[1:], strict=False)]


@dataclass(frozen=True)
class Sample:
    """What one run came to.

    Attributes:
        ttft_s: seconds to the first token.
        prefill_tps: prompt tokens a second, of all rows; None where the clock did not move.
        decode_tps: new tokens a second after the first, of all rows; None where there was no second one.
        latencies_s: between successive tokens.
        new_tokens: produced in each row.
        duration_s: the whole run.
        cache_bytes: most that the cache had allocated; None where the engine does not tell.
        token_passes: positions of each row that went through the model; None where the engine does not tell.
        reused_tokens: prompt tokens of all rows that were not read, beyond the depth; must be 0.
        peak_memory_bytes: most that the process has held so far; None where the system does not tell.
    """

    ttft_s: float
    prefill_tps: float | None
    decode_tps: float | None
    latencies_s: list[float]
    new_tokens: int
    duration_s: float
    cache_bytes: int | None = None
    token_passes: int | None = None
    reused_tokens: int = 0
    peak_memory_bytes: int | None = None

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        new_tokens: int,
        cache_bytes: int | None = None,
        token_passes: int | None = None,
        peak_memory_bytes: int | None = None,
    ) -> "Sample":
        """The sample of a run that was timed token by token."""
        return cls(
            timeline.ttft_s,
            timeline.prefill_tps,
            timeline.decode_tps,
            timeline.latencies_s,
            new_tokens,
            timeline.token_times[-1] - timeline.started,
            cache_bytes,
            token_passes,
            peak_memory_bytes=peak_memory_bytes,
        )


def token_passes(prompt_tokens: int, new_tokens: int, context: int, *, cache: bool, depth: int = 0) -> int:
    """Positions of a row that go through the model, after the specification of the generation core.

    P + (N - 1) with a cache, N P + N (N - 1) / 2 without, as long as the text fits the context; each step that starts
    from a longer text reads the last `context` tokens anew. No new token is the prompt alone: P.

    >>> token_passes(100, 100, 2048, cache=True), token_passes(100, 100, 2048, cache=False)
    (199, 14950)
    >>> token_passes(500, 500, 512, cache=True), token_passes(500, 500, 512, cache=False)
    (249856, 255922)
    """
    passes = 0
    for step in range(max(new_tokens, 1)):
        length = depth + prompt_tokens + step
        if length > context:
            passes += context
        elif step == 0:
            passes += prompt_tokens if cache else length
        else:
            passes += 1 if cache else length
    return passes


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds > 0 else None
