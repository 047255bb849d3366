"""What was measured, as it is written down and read back. No torch.

A report is one JSON object; in JSONL each line is a report of one point, and lines of one file belong together:

    {"schema": 1,
     "env": {
       "genx", "torch", "python": versions; "peers": {package: version},
       "cpu": name, "cores": of the machine, "affinity": cores that this process may use,
       "device": name, "model": folder, "model_hash": sha256 of its configuration and weights,
       "command": as typed, "time": UTC, "seed": of the first repeat, the next ones follow,
       "eos": "ignored": no token ends a row early,
       "read_GB_s", "matmul_GFLOP_s": of float32; measured in this run with the most threads of it,
       "rates": [{"threads", "read_GB_s", "matmul_GFLOP_s": {dtype: n}}]},
     "points": [{
       "engine": "genx" | "transformers" | "llama.cpp",
       "prompt_tokens", "new_tokens", "total_tokens": of a row, "batch": rows, "depth": tokens of a row in the cache
         before the clock starts,
       "dtype", "threads", "weights": the format of the weights; of a peer, `dtype` is that of genx's point beside it,
       "cache", "forward_only", "sampling": {"do_sample", "temperature", "top_k", "top_p"},
       "kernels": "auto" | "native" | "torch": which operations compute, "none" of a peer,
       "prompt": "random" | "file:HASH",
       "status": "ok" | "oom" | "killed" | "crashed" | "failed", "error": text or null,
       "ttft_s", "prefill_tps", "decode_tps", "itl_ms", "peak_memory_bytes", "cache_bytes", "load_s", "limit_share":
         measures, or null where there is nothing to measure,
       "token_passes": positions of a row that went through the model, counted,
       "token_passes_formula": {"cached", "uncached"}: after the specification,
       "reused_tokens": prompt tokens that an engine took from a cache of its own; 0 in a sound run,
       "limits": {"weight_bytes", "cache_bytes", "bytes_per_token", "flop_per_token", "prefill_tps", "decode_tps"},
       "warmup_runs", "warmup_stable", "noisy": measures whose interval is wider than a tenth of the median,
       "ratio": of a peer's point, {"prefill_tps", "decode_tps"}: genx's rate over the peer's, measures}]}

A measure is {"median", "ci95": [lo, hi], "ci_coverage", "samples": one a repeat}; see `estimates` for the interval and
its true coverage. "itl_ms" (inter-token latency; its samples are the medians of the repeats) also has "p50", "p90",
"p99" over all latencies and "latencies": those of each repeat. Rates count the tokens of all rows: see `timing`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genx.bench.estimates import Measure, percentile
from genx.config import read_json
from genx.errors import ConfigError, UsageError

SCHEMA = 1
OK = "ok"
MEASURES = (
    "ttft_s",
    "prefill_tps",
    "decode_tps",
    "itl_ms",
    "peak_memory_bytes",
    "cache_bytes",
    "load_s",
    "limit_share",
)
# What says that two points are the same one.
IDENTITY = (
    *("engine", "prompt_tokens", "new_tokens", "batch", "depth", "dtype", "threads", "weights"),
    *("cache", "forward_only", "sampling", "kernels", "prompt"),
)
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Record:
    """One point of a report; the fields are those of the file, measures by name."""

    engine: str
    prompt_tokens: int
    new_tokens: int
    batch: int
    depth: int
    dtype: str
    threads: int | None
    weights: str
    cache: bool
    forward_only: bool
    sampling: Mapping[str, Any]
    kernels: str
    prompt: str
    status: str
    error: str | None = None
    measures: Mapping[str, Measure] = field(default_factory=dict)
    latencies_ms: tuple[tuple[float, ...], ...] = ()
    token_passes: int | None = None
    token_passes_formula: Mapping[str, int] = field(default_factory=dict)
    reused_tokens: int = 0
    limits: Mapping[str, float] | None = None
    warmup_runs: int = 0
    warmup_stable: bool | None = None
    ratio: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for points that are the same one."""
        return tuple(_frozen(getattr(self, name)) for name in IDENTITY)

    @property
    def noisy(self) -> tuple[str, ...]:
        """Rates and latencies whose interval is too wide to tell small differences."""
        watched = ("ttft_s", "prefill_tps", "decode_tps", "itl_ms")
        return tuple(name for name in watched if name in self.measures and self.measures[name].is_noisy)

    def to_json(self) -> dict[str, Any]:
        """The object of the file."""
        written: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("engine", "prompt_tokens", "new_tokens", "batch", "depth", "dtype", "threads", "weights")
        }
        written |= {"total_tokens": self.prompt_tokens + self.new_tokens, "cache": self.cache}
        written |= {"forward_only": self.forward_only, "sampling": dict(self.sampling)}
        written |= {"kernels": self.kernels, "prompt": self.prompt}
        written |= {"status": self.status, "error": self.error}
        written |= {name: _written(self.measures.get(name)) for name in MEASURES}
        if written["itl_ms"] is not None:
            pooled = [latency for repeat in self.latencies_ms for latency in repeat]
            written["itl_ms"] |= {f"p{percent}": percentile(pooled, percent) for percent in (50, 90, 99)}
            written["itl_ms"]["latencies"] = [list(repeat) for repeat in self.latencies_ms]
        written |= {"token_passes": self.token_passes, "token_passes_formula": dict(self.token_passes_formula)}
        written |= {"reused_tokens": self.reused_tokens, "limits": None if self.limits is None else dict(self.limits)}
        written |= {"warmup_runs": self.warmup_runs, "warmup_stable": self.warmup_stable, "noisy": list(self.noisy)}
        if self.ratio:
            written["ratio"] = {name: _written(measure) for name, measure in self.ratio.items()}
        return written

    @classmethod
    def from_json(cls, source: Mapping[str, Any]) -> "Record":
        """The record of an object of the file.

        Raises:
            ValueError: (or KeyError, TypeError) it is none.
        """
        plain = {entry.name for entry in dataclasses.fields(cls)} - {"measures", "latencies_ms", "ratio"}
        values = {name: source[name] for name in plain if name in source}
        for name in ("engine", "dtype", "weights", "kernels", "prompt", "status"):
            if not isinstance(values[name], str):
                raise TypeError(name)
        for name in ("prompt_tokens", "new_tokens", "batch", "depth"):
            if type(values[name]) is not int:
                raise TypeError(name)
        latency = source.get("itl_ms")
        return cls(
            **values,
            measures=dict(_read_measures(source, MEASURES)),
            latencies_ms=() if latency is None else tuple(tuple(map(float, each)) for each in latency["latencies"]),
            ratio=dict(_read_measures(source.get("ratio") or {}, ("prefill_tps", "decode_tps"))),
        )


@dataclass(frozen=True)
class Report:
    """The environment and the points of one file."""

    env: Mapping[str, Any]
    points: tuple[Record, ...]

    def to_json(self) -> dict[str, Any]:
        """The object of the file."""
        return {"schema": SCHEMA, "env": dict(self.env), "points": [point.to_json() for point in self.points]}


def read_report(path: Path) -> Report:
    """A report that was written as JSON, or as JSONL, whose last line may be torn.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    try:
        objects = list(_objects(path))
        if not objects or any(found.get("schema") != SCHEMA for found in objects):
            raise UsageError(f"{path} is no report of genx bench, schema {SCHEMA}; give a file of -o json or -o jsonl")
        points = tuple(Record.from_json(point) for found in objects for point in found["points"])
        return Report(dict(objects[0]["env"]), points)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} is no complete report of genx bench: {type(error).__name__} {error}; "
            "give a file of -o json or -o jsonl"
        ) from error


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    try:
        yield read_json(path, "the report")
        return
    except ConfigError as error:
        if not isinstance(error.__cause__, ValueError):
            raise
    with path.open(encoding="utf-8-sig") as file:
        lines = [line for line in file.read(_MOST_BYTES).split("\n") if line.strip()]
    for number, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if number == 0 or number < len(lines) - 1:
                raise


def _written(measure: Measure | None) -> dict[str, Any] | None:
    if measure is None:
        return None
    return {
        "median": measure.median,
        "ci95": list(measure.interval),
        "ci_coverage": measure.coverage,
        "samples": list(measure.samples),
    }


def _read_measures(source: Mapping[str, Any], names: Iterable[str]) -> Iterator[tuple[str, Measure]]:
    for name in names:
        found = source.get(name)
        if found is None:
            continue
        samples = tuple(float(sample) for sample in found["samples"])
        if not samples or not all(math.isfinite(sample) for sample in samples):
            raise ValueError(f"{name} has no finite samples")
        yield name, Measure(samples)


def _frozen(value: object) -> object:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value
