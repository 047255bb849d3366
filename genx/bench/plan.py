"""What a whole run measures, and about how long each part of it takes. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genx.bench.jobs import GENX, LLAMA_CPP, Job
from genx.bench.limits import Rates
from genx.bench.sweep import Point, Workload
from genx.bench.timing import token_passes

# Bounds of a warm-up whose length is not given.
LEAST_WARMUPS, MOST_WARMUPS = 2, 5
STABLE_WITHIN = 0.05  # of the duration of the run before
LONG_WARMUP_S = 30.0  # after which two runs must do

_SEEDS = 1 << 63  # what every generator of random numbers takes
_TOKENS_LIKE_A_STEP = 32  # prompt tokens that take about as long as one step of decoding


@dataclass(frozen=True)
class Plan:
    """A sweep with everything that its points share.

    Attributes:
        model: the checkpoint's folder.
        context: positions that the model has.
        vocab_size: random ids are below it.
        device: where genx and transformers run, such as cpu.
        points: in the order in which they are measured.
        workload: how they run.
        rates: what the machine can do, by number of threads.
        repeats: runs of each point that count.
        warmup: runs before them; None: until they are stable.
        seed: of the first repeat; each next one has the next number.
        peers: engines that are measured beside genx, in turns.
        gguf: the file for llama.cpp.
        gguf_format: the format of its weights.
        text: ids that prompts are cut from, instead of random ones.
    """

    model: str
    context: int
    vocab_size: int
    device: str
    points: tuple[Point, ...]
    workload: Workload
    rates: Mapping[int | None, Rates]
    repeats: int
    warmup: int | None
    seed: int
    peers: tuple[str, ...] = ()
    gguf: str | None = None
    gguf_format: str = "gguf"
    text: tuple[int, ...] | None = None

    @property
    def engines(self) -> tuple[str, ...]:
        """genx first, then its peers."""
        return (GENX, *self.peers)

    def job(self, engine: str, point: Point) -> Job:
        """What one engine is asked at one point."""
        gguf = self.gguf if engine == LLAMA_CPP else None
        return Job(engine, self.model, gguf, self.device, point, self.workload, self.vocab_size, self.text)

    def identity(self, engine: str, point: Point) -> dict[str, Any]:
        """The fields of a record that say which point it is."""
        weights = {GENX: point.weights, LLAMA_CPP: self.gguf_format}.get(engine, point.dtype)
        workload = self.workload
        return {
            "engine": engine,
            "prompt_tokens": point.prompt_tokens,
            "new_tokens": point.new_tokens,
            "batch": point.batch,
            "depth": point.depth,
            "dtype": point.dtype,
            "threads": point.threads,
            "weights": weights,
            "cache": workload.cache,
            "forward_only": workload.forward_only,
            "sampling": {
                "do_sample": workload.do_sample,
                "temperature": workload.temperature if workload.do_sample else None,
                "top_k": workload.top_k,
                "top_p": workload.top_p,
            },
            "kernels": workload.kernels if engine == GENX else "none",
            "prompt": workload.prompt,
        }

    def run_seed(self, number: int) -> int:
        """The seed of a run: 0 and on for the repeats, after them those of the warm-up."""
        return (self.seed + number) % _SEEDS

    def run_cost(self, point: Point) -> float:
        """About how long a run of a point takes, in steps of decoding."""
        read = point.depth + point.prompt_tokens
        if not self.workload.cache:
            read = token_passes(point.prompt_tokens, point.new_tokens, self.context, cache=False)
        return point.batch * (read / _TOKENS_LIKE_A_STEP) + point.new_tokens + 1

    def cost(self, point: Point) -> float:
        """About how long all runs of a point take, in steps of decoding."""
        warmups = LEAST_WARMUPS if self.warmup is None else self.warmup
        return len(self.engines) * (warmups + self.repeats) * self.run_cost(point)
