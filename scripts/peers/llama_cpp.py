"""llama.cpp's answers about given tokens, through the package xllamacpp."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class LlamaCpp:
    """A loaded GGUF file."""

    def __init__(self, file: Path, context: int, threads: int) -> None:
        library: Any = import_module("xllamacpp")
        parameters = library.CommonParams()
        parameters.model.path = str(file)
        parameters.n_ctx, parameters.n_parallel = context, 1
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        parameters.n_gpu_layers = 0
        parameters.warmup = False
        parameters.cache_ram_mib = 0
        self._server = library.Server(parameters)

    def log_probabilities(self, ids: Sequence[int], vocabulary: int) -> Tensor:
        """Of each id to follow `ids`: [V]."""
        [step] = self._complete(ids, 1, vocabulary)
        found = torch.full((vocabulary,), -torch.inf, dtype=torch.float64)
        for entry in step["top_logprobs"]:
            found[entry["id"]] = entry["logprob"]
        return found

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely ids that follow, each after those before."""
        return [step["id"] for step in self._complete(ids, count, 1)]

    def _complete(self, ids: Sequence[int], count: int, candidates: int) -> list[dict[str, Any]]:
        request = {"prompt": list(ids), "n_predict": count, "n_probs": candidates, "temperature": 0.0, "stream": False}
        neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "ignore_eos": True}
        answer = self._server.handle_completions({**request, **neutral, "cache_prompt": True})
        steps: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
        return steps
