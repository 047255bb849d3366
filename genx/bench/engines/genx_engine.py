"""genx's own loop, the one that `genx run` runs."""

import time
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from genx.bench.engines.rows import check_context, rows_of
from genx.bench.jobs import Job, Loaded
from genx.bench.machine import Clock, clock_of
from genx.bench.sweep import Point
from genx.bench.timing import Sample, Timeline
from genx.bench.work import work_of
from genx.checkpoint import open_source
from genx.core.base_model import BaseModel
from genx.core.cache import Cache, cache_nbytes
from genx.core.generation import Sampled, next_generation_input
from genx.core.loop import fitting_cache, read_columns, result_of
from genx.engine.arithmetic import QUANTIZE, Arithmetic, choose_arithmetic
from genx.engine.loading import load_to_run
from genx.engine.memory import peak_memory_bytes
from genx.errors import GenxWarning


class GenxEngine:
    """A loaded model that runs one point.

    Raises:
        UsageError: the depth and the prompt are longer than the model's context.
        GenxError: the model cannot be loaded.
    """

    def __init__(self, job: Job, clock: Clock = time.perf_counter) -> None:
        if job.point.threads is not None:
            torch.set_num_threads(job.point.threads)
        self._job = job
        self._clock = clock_of(job.device, clock)
        started = self._clock()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._model = load_to_run(job.model, _arithmetic(job)).model
        self._load_s = self._clock() - started
        self._warnings = tuple(str(w.message) for w in caught if issubclass(w.category, GenxWarning))
        self._passes = 0
        self._model.register_forward_pre_hook(self._count)
        check_context(job.point, self._model.config.max_position_embeddings)

    def loaded(self) -> Loaded:
        return Loaded(self._load_s, torch.get_num_threads(), work_of(self._model, self._job.point), self._warnings)

    @torch.no_grad()
    def run(self, seed: int) -> Sample:
        point = self._job.point
        x = torch.tensor(rows_of(self._job, seed), device=self._job.device)  # [B, depth + P (+ N)]
        cache = self._read_depth(x[:, : point.depth])
        self._passes = 0
        cache_bytes = 0
        times = []
        steps = self._steps(x, cache, seed)
        del cache  # so that its memory is the loop's to grow
        started = self._clock()
        for cache_bytes_now in steps:
            times.append(self._clock())
            cache_bytes = max(cache_bytes, cache_bytes_now)
        return Sample.of(
            Timeline(point.batch, point.prompt_tokens, started, tuple(times)),
            new_tokens=len(times) if point.new_tokens else 0,
            cache_bytes=cache_bytes,
            token_passes=self._passes,
            peak_memory_bytes=peak_memory_bytes(self._job.device),
        )

    def _steps(self, x: Tensor, cache: Cache | None, seed: int) -> Iterator[int]:
        """The run, step by step; gives what the cache has allocated each time that a token is there."""
        point, workload = self._job.point, self._job.workload
        if point.new_tokens == 0 or workload.forward_only:
            return forward_steps(self._model, x, cache, point, use_cache=workload.cache)
        generator = torch.Generator(self._job.device).manual_seed(seed)
        events = self._model.generate_steps(
            x,
            point.new_tokens,
            workload.do_sample,
            workload.temperature,
            workload.top_k,
            workload.top_p,
            workload.cache,
            generator=generator,
            cache=cache,
        )
        return (event.cache_bytes for event in events if isinstance(event, Sampled))

    def _read_depth(self, x: Tensor) -> Cache | None:
        if x.size(1) == 0:
            return None
        at_most = min(self._job.point.context, self._model.config.max_position_embeddings)
        return result_of(read_columns(self._model, x, None, None, True, at_most))[1]

    def _count(self, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._passes += inputs[0].size(1)


def _arithmetic(job: Job) -> Arithmetic:
    """What a point is computed in: `genx run` would choose the same."""
    point = job.point
    dtype = point.dtype if point.weights == point.dtype else "auto"
    as_stored = choose_arithmetic(job.device, dtype, "none", job.workload.kernels)
    if point.weights not in QUANTIZE or as_stored.held(open_source(job.model)) == point.weights:
        return as_stored
    return choose_arithmetic(job.device, dtype, point.weights, job.workload.kernels)


def forward_steps(model: BaseModel, x: Tensor, cache: Cache | None, point: Point, *, use_cache: bool) -> Iterator[int]:
    """The passes of the loop without its choices: the tokens after the prompt are those of `x`."""
    first = point.depth + point.prompt_tokens
    limit = model.config.max_position_embeddings
    for step in range(max(point.new_tokens, 1)):
        text = x[:, : first + step]
        inputs, cache = next_generation_input(text, fitting_cache(model, cache, text, None), use_cache, limit)
        if step == 0 and cache is not None:
            inputs = text[:, point.depth :]
        keep = use_cache and text.size(1) <= limit
        _, cache = result_of(read_columns(model, inputs, cache, None, keep, min(point.context, limit)))
        yield cache_nbytes(cache)
