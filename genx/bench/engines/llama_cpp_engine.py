"""llama.cpp on the same tokens and threads, through the server of the package xllamacpp, called in this process."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from genx.bench.engines.rows import rows_of
from genx.bench.jobs import Job, Loaded
from genx.bench.timing import Sample
from genx.engine.memory import peak_memory_bytes
from genx.errors import GenxError, UsageError

_ROOM = 8  # positions of a row beyond those of the text, which the server keeps for itself


class LlamaCppEngine:
    """A loaded model that runs one point.

    Raises:
        UsageError: the point is one that llama.cpp cannot run.
        GenxError: llama.cpp refuses the file.
    """

    def __init__(self, job: Job) -> None:
        library: Any = import_module("xllamacpp")
        if job.workload.forward_only or not job.workload.cache:
            raise UsageError("llama.cpp always keeps a cache and chooses tokens; drop --no-cache and --forward-only")
        if job.point.threads is None or job.gguf is None:
            raise UsageError("llama.cpp needs a GGUF file and a number of threads; give --gguf FILE and --threads N")
        self._job = job
        point = job.point
        parameters = library.CommonParams()
        parameters.model.path = job.gguf
        parameters.n_parallel = point.batch
        parameters.n_ctx = (point.context + _ROOM) * point.batch
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = job.point.threads
        parameters.warmup = False  # genx bench does that itself
        parameters.cache_ram_mib = 0
        if job.device == "cpu":
            parameters.n_gpu_layers = 0
        started = time.perf_counter()
        try:
            self._server = library.Server(parameters)
        except RuntimeError as error:
            raise GenxError(f"llama.cpp cannot load {job.gguf}: {error}") from error
        self._load_s = time.perf_counter() - started

    def loaded(self) -> Loaded:
        assert self._job.point.threads is not None
        return Loaded(self._load_s, self._job.point.threads)

    def run(self, seed: int) -> Sample:
        point = self._job.point
        rows = rows_of(self._job, seed)
        with ThreadPoolExecutor(point.batch) as pool:
            if point.depth:
                list(pool.map(lambda row: self._complete(row, rows[row][: point.depth], 0, seed), range(point.batch)))
            started = time.perf_counter()
            done = list(
                pool.map(lambda row: self._complete(row, rows[row], point.new_tokens, seed), range(point.batch))
            )
        return sample_of(done, started, point.prompt_tokens, point.depth, point.new_tokens)

    def _complete(self, slot: int, ids: list[int], new_tokens: int, seed: int) -> "Row":
        workload = self._job.workload
        row = Row()
        request = {
            "prompt": ids,
            "n_predict": new_tokens,
            "id_slot": slot,
            "cache_prompt": self._job.point.depth > 0,
            "ignore_eos": True,
            "stream": True,
            "timings_per_token": True,
            "seed": (seed + slot) % (1 << 32),
            "temperature": workload.temperature if workload.do_sample else 0.0,
            "top_k": workload.top_k or 0,
            "top_p": 1.0 if workload.top_p is None else workload.top_p,
            "min_p": 0.0,
        }
        answer = self._server.handle_completions(request, lambda chunk: row.take(chunk, time.perf_counter()))
        row.refuse(answer)
        return row


@dataclass
class Row:
    """What one row's chunks said, each of which carries the server's own timings so far."""

    chunks: list[tuple[float, int, float]] = field(default_factory=list)  # clock, tokens so far, seconds of decoding
    reused: int = 0
    error: str | None = None

    def take(self, chunk: Mapping[str, Any], now: float) -> bool:
        """Note a chunk; False asks for more."""
        timings = chunk.get("timings")
        if timings is not None:
            self.chunks.append((now, timings["predicted_n"], timings["predicted_ms"] / 1000))
            self.reused = timings["cache_n"]
        self.refuse(chunk)
        return False

    def refuse(self, answer: Mapping[str, Any] | None) -> None:
        """Keep the error that an answer may be."""
        if answer is not None and "error" in answer:
            self.error = str(answer["error"].get("message", answer["error"]))

    @property
    def first(self) -> float:
        """Clock of the first token, even if its text was held back until it was whole characters."""
        now, _, decoding = self.chunks[0]
        return now - decoding

    @property
    def last(self) -> float:
        """Clock of the last token."""
        return self.first + self.chunks[-1][2]

    def tokens_by(self, moment: float) -> int:
        """Tokens that had come by a moment of the clock."""
        return max((tokens for now, tokens, _ in self.chunks if now <= moment), default=1)

    def latencies_s(self) -> list[float]:
        """Seconds between tokens; those of one chunk share its time."""
        found: list[float] = []
        tokens, decoding = 1, 0.0
        for _, tokens_now, decoding_now in self.chunks:
            new = tokens_now - tokens
            found += [(decoding_now - decoding) / new] * new if new > 0 else []
            tokens, decoding = max(tokens, tokens_now), decoding_now
        return found


def sample_of(rows: list[Row], started: float, prompt_tokens: int, depth: int, new_tokens: int) -> Sample:
    """The figures of rows that ran at once: the first token is there when the slowest row has it.

    Raises:
        GenxError: the server refused a row.
    """
    for row in rows:
        if row.error is not None or not row.chunks:
            raise GenxError(f"llama.cpp: {row.error or 'no answer'}")
    first, last = max(row.first for row in rows), max(row.last for row in rows)
    decoded = sum(row.chunks[-1][1] - row.tokens_by(first) for row in rows)
    ttft = first - started
    return Sample(
        ttft_s=ttft,
        prefill_tps=len(rows) * prompt_tokens / ttft if ttft > 0 else None,
        decode_tps=decoded / (last - first) if decoded and last > first else None,
        latencies_s=rows[0].latencies_s(),
        new_tokens=min(row.chunks[-1][1] for row in rows) if new_tokens else 0,
        duration_s=last - started,
        reused_tokens=sum(row.reused - depth for row in rows),
        peak_memory_bytes=peak_memory_bytes("cpu"),
    )
