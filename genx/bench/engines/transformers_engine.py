"""Hugging Face transformers on the same weights, tokens and threads, through its own `generate`."""

import time
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from genx.bench.engines.rows import check_context, rows_of
from genx.bench.jobs import Job, Loaded
from genx.bench.machine import Clock, clock_of
from genx.bench.timing import Sample, Timeline
from genx.engine.memory import peak_memory_bytes
from genx.errors import UsageError


class TransformersEngine:
    """A loaded model that runs one point.

    Raises:
        UsageError: the point is one that it cannot run.
    """

    def __init__(self, job: Job, clock: Clock = time.perf_counter) -> None:
        if job.workload.forward_only:
            raise UsageError("--forward-only times genx's model alone; a peer's generate chooses tokens; drop either")
        if job.point.threads is not None:
            torch.set_num_threads(job.point.threads)
        self._job = job
        self._clock = clock_of(job.device, clock)
        self._library: Any = import_module("transformers")
        started = self._clock()
        dtype = getattr(torch, job.point.dtype)
        self._model = self._library.AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype, local_files_only=True)
        self._model = self._model.to(job.device).eval()
        self._load_s = self._clock() - started
        self._model.generation_config = self._library.GenerationConfig()  # else its end-of-text ids are put back
        self._passes = 0
        self._model.register_forward_pre_hook(self._count, with_kwargs=True)
        check_context(job.point, self._model.config.max_position_embeddings)

    def loaded(self) -> Loaded:
        return Loaded(self._load_s, torch.get_num_threads())

    @torch.no_grad()
    def run(self, seed: int) -> Sample:
        point = self._job.point
        x = torch.tensor(rows_of(self._job, seed), device=self._job.device)  # [B, depth + P]
        past = self._read_depth(x[:, : point.depth])
        settings = self._settings(point.new_tokens)
        watch = _Watch(self._clock)
        torch.manual_seed(seed)
        self._passes = 0
        started = self._clock()
        if point.new_tokens == 0:
            self._model(x[:, point.depth :], logits_to_keep=1, use_cache=self._job.workload.cache, **past)
            watch.times.append(self._clock())
        else:
            self._model.generate(
                x, attention_mask=torch.ones_like(x), generation_config=settings, streamer=watch, **past
            )
        return Sample.of(
            Timeline(point.batch, point.prompt_tokens, started, tuple(watch.times)),
            new_tokens=len(watch.times) if point.new_tokens else 0,
            token_passes=self._passes,
            peak_memory_bytes=peak_memory_bytes(self._job.device),
        )

    def _settings(self, new_tokens: int) -> Any:
        workload = self._job.workload
        sampling: dict[str, Any] = {}
        if workload.do_sample:
            sampling = {
                "temperature": workload.temperature,
                "top_k": workload.top_k or 0,
                "top_p": workload.top_p or 1.0,
            }
        return self._library.GenerationConfig(
            max_new_tokens=max(new_tokens, 1),
            do_sample=workload.do_sample,
            use_cache=workload.cache,
            eos_token_id=None,
            pad_token_id=0,
            **sampling,
        )

    def _read_depth(self, x: Tensor) -> dict[str, Any]:
        """The argument that hands over the cache, none without depth."""
        if x.size(1) == 0:
            return {}
        cache = self._library.DynamicCache(config=self._model.config)
        self._model(x, past_key_values=cache, logits_to_keep=1)
        return {"past_key_values": cache}

    def _count(self, module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named["input_ids"] if "input_ids" in named else inputs[0]
        self._passes += ids.size(1)


class _Watch:
    """Notes when each token comes; `generate` hands it the prompt first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._has_seen_prompt = False
        self.times: list[float] = []

    def put(self, ids: Tensor) -> None:
        if self._has_seen_prompt:
            self.times.append(self._clock())
        self._has_seen_prompt = True

    def end(self) -> None:
        """Nothing is held back."""
