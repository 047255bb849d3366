"""A clock that moves only when a model runs, and workers that answer without a process."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from genx.bench.jobs import Job, Loaded
from genx.bench.limits import Rates, Work
from genx.bench.plan import Plan
from genx.bench.process import Worker, WorkerFailure
from genx.bench.sweep import Point, Workload
from genx.bench.timing import Sample, Timeline

RATES = Rates(threads=2, read_gb_s=10.0, matmul_gflop_s={"float32": 100.0})
WORK = Work(weight_bytes=10**9, cache_bytes=0, decode_flop=10**6, prefill_flop=10**9)


class ModelClock:
    """Seconds that pass while a model runs: `prefill` a pass of several tokens, `step` a pass of one."""

    def __init__(self, prefill: float = 10.0, step: float = 1.0) -> None:
        self.now = 100.0
        self.passes: list[tuple[int, int]] = []  # rows and tokens of each pass
        self._prefill = prefill
        self._step = step

    def __call__(self) -> float:
        return self.now

    def attach(self, model: torch.nn.Module) -> None:
        """Let the passes of a model move this clock."""
        model.register_forward_pre_hook(self._pass)

    def _pass(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.passes.append((inputs[0].size(0), inputs[0].size(1)))
        self.now += self._prefill if inputs[0].size(1) > 1 else self._step


def point(prompt: int = 8, new: int = 4, batch: int = 1, depth: int = 0, dtype: str = "float32") -> Point:
    """A point of 2 threads whose weights are not quantised."""
    return Point(prompt, new, batch, depth, dtype, 2, dtype)


def plan(*points: Point, repeats: int = 5, warmup: int | None = 0, **more: Any) -> Plan:
    """A plan for a model of 100 positions."""
    fixed: dict[str, Any] = {"model": "m", "context": 100, "vocab_size": 97, "device": "cpu"}
    fixed |= {"workload": Workload(), "rates": {2: RATES}, "seed": 1000}
    return Plan(**{**fixed, **more}, points=points or (point(),), repeats=repeats, warmup=warmup)


def sample(seconds: float, of: Point, **more: Any) -> Sample:
    """A run in which every token takes as long."""
    count = max(of.new_tokens, 1)
    times = tuple(seconds * (place + 1) for place in range(count))
    return Sample.of(Timeline(of.batch, of.prompt_tokens, 0.0, times), new_tokens=of.new_tokens, **more)


class FakeWorkers:
    """Starts workers that take the next of the given durations for each run of their engine.

    A duration that is a `WorkerFailure` ends the worker with it. `asked` has the engine and seed of each run, in order.
    """

    def __init__(self, durations: Callable[[Job], Iterable[float | WorkerFailure]]) -> None:
        self._durations = durations
        self.asked: list[tuple[str, int]] = []
        self.started: list[Job] = []
        self.open = 0

    def start(self, job: Job) -> tuple[Worker, dict[str, Any]]:
        self.started.append(job)
        self.open += 1
        work = WORK if job.engine == "genx" else None
        return _FakeWorker(self, job, iter(self._durations(job))), asdict(Loaded(0.5, job.point.threads or 2, work))


class _FakeWorker:
    def __init__(self, workers: FakeWorkers, job: Job, durations: Iterator[float | WorkerFailure]) -> None:
        self._workers = workers
        self._job = job
        self._durations = durations

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._workers.asked.append((self._job.engine, request["seed"]))
        duration = next(self._durations)
        if isinstance(duration, WorkerFailure):
            raise duration
        answer = sample(duration, self._job.point, cache_bytes=640, token_passes=11, peak_memory_bytes=10**8)
        return asdict(answer)

    def close(self) -> None:
        self._workers.open -= 1
