"""Measures a plan point by point: warm-up until stable, then repeats, genx and its peers in turns. No torch."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genx.bench.estimates import Measure, ratio_of_pairs
from genx.bench.jobs import TRANSFORMERS, Job, Loaded
from genx.bench.limits import Work
from genx.bench.plan import LEAST_WARMUPS, LONG_WARMUP_S, MOST_WARMUPS, STABLE_WITHIN, Plan
from genx.bench.process import Worker, WorkerFailure, start_worker
from genx.bench.records import OK, Record
from genx.bench.sweep import Point
from genx.bench.timing import Sample, token_passes

Start = Callable[[Job], tuple[Worker, dict[str, Any]]]


@dataclass(frozen=True)
class Doing:
    """What is going on, and how far the plan has come in steps of decoding, roughly."""

    what: str
    done: float
    total: float


@dataclass(frozen=True)
class Measured:
    """A point is done, whatever its status; `is_new` is False where it was there before."""

    record: Record
    is_new: bool = True
    warnings: tuple[str, ...] = ()


Event = Doing | Measured


def measure(plan: Plan, known: Sequence[Record] = (), start: Start = start_worker) -> Generator[Event, None, None]:
    """Measure the points of a plan.

    Args:
        plan: what is measured.
        known: records of an earlier run; a point all of whose engines are among them with status ok is not run again.
        start: begins a worker for a job.

    Yields:
        `Doing` before each step and `Measured` for each engine of each point, in the plan's order. Closing the
        iterator ends the processes.
    """
    finished = {record.identity: record for record in known if record.status == OK}
    total = sum(plan.cost(point) for point in plan.points) or 1.0
    done = 0.0
    for point in plan.points:
        wanted = [_blank(plan, engine, point).identity for engine in plan.engines]
        if all(identity in finished for identity in wanted):
            yield from (Measured(finished[identity], is_new=False) for identity in wanted)
        else:
            for event in _Group(plan, point, start).measure():
                yield event if isinstance(event, Measured) else Doing(event.what, done + event.done, total)
        done += plan.cost(point)


class _Runner:
    """One engine at one point."""

    def __init__(self, plan: Plan, engine: str, point: Point) -> None:
        self.engine = engine
        self.samples: list[Sample] = []
        self.loaded: Loaded | None = None
        self.failure: WorkerFailure | None = None
        self.warmups: list[float] = []  # seconds
        self._job = plan.job(engine, point)
        self._fixed_warmups = plan.warmup
        self._worker: Worker | None = None

    @property
    def is_alive(self) -> bool:
        return self._worker is not None and self.failure is None

    @property
    def is_stable(self) -> bool:
        if len(self.warmups) < 2:
            return False
        before, last = self.warmups[-2:]
        return abs(last - before) <= STABLE_WITHIN * before

    @property
    def is_warm(self) -> bool:
        count = len(self.warmups)
        if self._fixed_warmups is not None:
            return count >= self._fixed_warmups
        if count < LEAST_WARMUPS:
            return False
        return self.is_stable or count >= MOST_WARMUPS or sum(self.warmups) >= LONG_WARMUP_S

    def load(self, start: Start) -> None:
        try:
            self._worker, answer = start(self._job)
            work = answer["work"]
            self.loaded = Loaded(
                answer["load_s"],
                answer["threads"],
                None if work is None else Work(**work),
                tuple(answer["warnings"]),
            )
        except WorkerFailure as failure:
            self.failure = failure

    def warm_up(self, seed: int) -> None:
        sample = self._run(seed)
        if sample is not None:
            self.warmups.append(sample.duration_s)

    def repeat(self, seed: int) -> None:
        sample = self._run(seed)
        if sample is not None:
            self.samples.append(sample)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def _run(self, seed: int) -> Sample | None:
        assert self._worker is not None
        try:
            return Sample(**self._worker.ask({"seed": seed}))
        except WorkerFailure as failure:
            self.failure = failure
            return None


class _Group:
    """A point with genx and its peers."""

    def __init__(self, plan: Plan, point: Point, start: Start) -> None:
        self._plan = plan
        self._point = point
        self._start = start
        self._runners = [_Runner(plan, engine, point) for engine in plan.engines]
        self._done = 0.0

    def measure(self) -> Iterator[Event]:
        try:
            for runner in self._runners:
                yield self._doing(runner, "loading")
                runner.load(self._start)
            yield from self._warm_up()
            yield from self._repeat()
        finally:
            for runner in self._runners:
                runner.close()
        genx = self._runners[0]
        for runner in self._runners:
            warnings = () if runner.loaded is None else runner.loaded.warnings
            yield Measured(_record(self._plan, self._point, runner, genx), warnings=warnings)

    def _warm_up(self) -> Iterator[Event]:
        plan = self._plan
        for runner in self._runners:
            while runner.is_alive and not runner.is_warm:
                count = len(runner.warmups)
                yield self._doing(runner, f"warm-up {count + 1}")
                runner.warm_up(plan.run_seed(plan.repeats + count))
                if count < (LEAST_WARMUPS if plan.warmup is None else plan.warmup):
                    self._done += plan.run_cost(self._point)

    def _repeat(self) -> Iterator[Event]:
        plan = self._plan
        for repeat in range(plan.repeats):
            # Each engine goes first as often as the others, so that a machine that slows down favours none.
            turn = repeat % len(self._runners)
            for runner in self._runners[turn:] + self._runners[:turn]:
                if runner.is_alive:
                    yield self._doing(runner, f"repeat {repeat + 1} of {plan.repeats}")
                    runner.repeat(plan.run_seed(repeat))
                    self._done += plan.run_cost(self._point)

    def _doing(self, runner: _Runner, what: str) -> Doing:
        return Doing(f"{runner.engine} {self._point}: {what}", self._done, 0.0)


def _blank(plan: Plan, engine: str, point: Point) -> Record:
    return Record(**plan.identity(engine, point), status=OK)


def _record(plan: Plan, point: Point, runner: _Runner, genx: _Runner) -> Record:
    identity = plan.identity(runner.engine, point)
    if runner.failure is not None:
        return Record(**identity, status=runner.failure.status, error=str(runner.failure))
    samples, loaded = runner.samples, runner.loaded
    assert loaded is not None
    work = _work_for(runner, genx, point)
    limits = None if work is None else _limits(plan, point, work)
    ratio = {} if runner is genx else _ratio(genx.samples, samples)
    return Record(
        **{**identity, "threads": loaded.threads},
        status=OK,
        measures=_measures(samples, loaded, limits),
        latencies_ms=tuple(tuple(1000 * s for s in sample.latencies_s) for sample in samples if sample.latencies_s),
        token_passes=samples[0].token_passes,
        token_passes_formula={
            name: token_passes(point.prompt_tokens, point.new_tokens, plan.context, cache=cache, depth=point.depth)
            for name, cache in (("cached", True), ("uncached", False))
        },
        reused_tokens=sum(sample.reused_tokens for sample in samples),
        limits=limits,
        warmup_runs=len(runner.warmups),
        warmup_stable=runner.is_stable if len(runner.warmups) > 1 else None,
        ratio=ratio,
    )


def _measures(samples: Sequence[Sample], loaded: Loaded, limits: Mapping[str, float] | None) -> dict[str, Measure]:
    found: dict[str, Sequence[float | None]] = {
        "ttft_s": [sample.ttft_s for sample in samples],
        "prefill_tps": [sample.prefill_tps for sample in samples],
        "decode_tps": [sample.decode_tps for sample in samples],
        "itl_ms": [1000 * Measure(tuple(s.latencies_s)).median if s.latencies_s else None for s in samples],
        "peak_memory_bytes": [sample.peak_memory_bytes for sample in samples],
        "cache_bytes": [sample.cache_bytes for sample in samples],
        "load_s": [loaded.load_s],
    }
    if limits is not None:
        rate = "decode_tps" if samples[0].decode_tps is not None else "prefill_tps"
        found["limit_share"] = [None if tps is None else tps / limits[rate] for tps in found[rate]]
    return {
        name: Measure(tuple(value for value in values if value is not None))
        for name, values in found.items()
        if any(value is not None for value in values)
    }


def _work_for(runner: _Runner, genx: _Runner, point: Point) -> Work | None:
    """What the tokens need: known of genx, and the same for transformers where it has the same weights."""
    same = runner is genx or (runner.engine == TRANSFORMERS and point.weights == point.dtype)
    return genx.loaded.work if same and genx.loaded is not None else None


def _limits(plan: Plan, point: Point, work: Work) -> dict[str, float]:
    rates = plan.rates[point.threads]
    return {
        "weight_bytes": work.weight_bytes,
        "cache_bytes": work.cache_bytes,
        "bytes_per_token": work.weight_bytes / point.batch + work.cache_bytes,
        "flop_per_token": work.decode_flop,
        "prefill_tps": work.prefill_limit_tps(rates, point.batch, point.prompt_tokens, point.dtype),
        "decode_tps": work.decode_limit_tps(rates, point.batch, point.dtype),
    }


def _ratio(genx: Sequence[Sample], peer: Sequence[Sample]) -> dict[str, Measure]:
    """genx's rate over the peer's, repeat by repeat."""
    found = {}
    for name in ("prefill_tps", "decode_tps"):
        pairs = [(getattr(theirs, name), getattr(ours, name)) for ours, theirs in zip(genx, peer, strict=False)]
        if pairs and all(ours and theirs for theirs, ours in pairs):
            found[name] = ratio_of_pairs([theirs for theirs, _ in pairs], [ours for _, ours in pairs])
    return found
