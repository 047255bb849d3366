"""What a run came to: rows for a person, an object for a program."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from genx.cli.requests import PromptRequest
from genx.cli.status import Row
from genx.engine.settings import GenerationSettings, Origin
from genx.kv_size.quantities import human_bytes

if TYPE_CHECKING:
    from genx.engine.stream import Summary

# How a prompt reaches the model.
CHAT_TEMPLATE = "chat template"
PLAIN_TEXT = "plain text"
TOKEN_IDS = "token ids"


@dataclass(frozen=True)
class ModelFacts:
    """What runs, as the summary names it; `origins` has those of device, dtype, threads and weights."""

    name: str
    folder: str
    architecture: str
    parameters: int
    context: int
    device: str
    dtype: str  # of the arithmetic
    weights: str  # how they lie in memory
    weight_bytes: int
    operations: str  # native or torch
    operations_reason: str
    decode: str  # how a GPU is given a step; empty on a CPU
    threads: int
    processes: int  # that each hold a part of the model; sizes are those of the first
    mode: str  # one of the three above
    suggested_sampling: Mapping[str, Any]
    origins: Mapping[str, Origin]


def summary_rows(summary: "Summary", settings: GenerationSettings, facts: ModelFacts) -> list[Row]:
    """The few lines after a run."""
    rows = [
        ("model", ", ".join(filter(None, (facts.name, facts.architecture, _arithmetic(facts), _threads(facts))))),
        ("sampling", _sampling(settings)),
    ]
    ignored = _ignored_suggestions(settings, facts)
    if ignored:
        rows.append(("checkpoint", f"suggests {ignored}; --checkpoint-sampling uses that"))
    rows += [
        ("tokens", f"{summary.prompt_tokens:,} prompt ({facts.mode}), {len(summary.ids):,} new"),
        ("finished", _finish(summary, settings)),
    ]
    if summary.ttft is not None:
        rows.append(("speed", _speed(summary)))
    peak = "" if summary.peak_memory is None else f"peak {human_bytes(summary.peak_memory)}, "
    cache = human_bytes(summary.cache_bytes) if settings.use_cache else "off"
    rows.append(("memory", f"{peak}cache {cache}"))
    return rows


def explain_rows(
    settings: GenerationSettings, facts: ModelFacts, asked: PromptRequest, prompt_ids: tuple[int, ...]
) -> list[Row]:
    """Every effective setting with its origin."""
    given = {
        "device": facts.device,
        "dtype": facts.dtype,
        "threads": facts.threads,
    }
    rows = [
        ("model", facts.folder),
        ("architecture", f"{facts.architecture}, {facts.parameters:,} parameters, context {facts.context:,} tokens"),
        ("prompt", f"{facts.mode}, {len(prompt_ids):,} tokens: {_some_ids(prompt_ids)}"),
        *_prompt_settings(asked, facts.mode),
        *((name, f"{value} ({facts.origins[name]})") for name, value in given.items()),
        ("weights", f"{facts.weights}, {human_bytes(facts.weight_bytes)} ({facts.origins['weights']})"),
        *_processes(facts),
        ("operations", f"{facts.operations}: {facts.operations_reason}"),
        *([("decode", facts.decode)] if facts.decode else []),
    ]
    for name in ("do_sample", "temperature", "top_k", "top_p", "seed"):
        value = getattr(settings, name)
        is_unused = not (settings.do_sample or name == "do_sample" or value is None)
        rows.append((name, f"{_value(value)} ({settings.origin(name)}{', unused' * is_unused})"))
    for name in ("max_new_tokens", "eos_token_ids", "pad_token_id", "stop", "max_time", "use_cache"):
        rows.append((name, f"{_value(getattr(settings, name))} ({settings.origin(name)})"))
    if facts.suggested_sampling:
        rows.append(("checkpoint", f"suggests {_pairs(facts.suggested_sampling)}"))
    return rows


def _prompt_settings(asked: PromptRequest, mode: str) -> list[Row]:
    if mode == TOKEN_IDS:
        return []
    parses = mode == PLAIN_TEXT if asked.parse_special is None else asked.parse_special
    origin = Origin.DEFAULT if asked.parse_special is None else Origin.FLAG
    system = () if asked.system is None else (("system", f"{asked.system!r} ({Origin.FLAG})"),)
    return [*system, ("parse_special", f"{_value(parses)} ({origin})")]


def _processes(facts: ModelFacts) -> list[Row]:
    if facts.processes == 1:
        return []
    return [("tensor_parallel", f"{facts.processes} processes, each with a part of weights and cache ({Origin.FLAG})")]


def _arithmetic(facts: ModelFacts) -> str:
    why = " (auto)" if facts.origins["dtype"] is Origin.DEFAULT else ""
    weights = "" if facts.weights == facts.dtype else f"{facts.weights} weights, "
    return f"{weights}{facts.dtype} arithmetic{why} on {facts.device}"


def _threads(facts: ModelFacts) -> str:
    if facts.device != "cpu":
        return ""
    return f"{facts.threads} thread{'s' * (facts.threads != 1)}"


def _sampling(settings: GenerationSettings) -> str:
    if not settings.do_sample:
        return f"greedy ({settings.origin('do_sample')})"
    names = ["temperature", *(name for name in ("top_k", "top_p") if getattr(settings, name) is not None), "seed"]
    return ", ".join(
        f"{name.replace('_', '-')} {_value(getattr(settings, name))} ({settings.origin(name)})" for name in names
    )


def _ignored_suggestions(settings: GenerationSettings, facts: ModelFacts) -> str:
    if Origin.CHECKPOINT in {settings.origin(name) for name in ("do_sample", "temperature", "top_k", "top_p")}:
        return ""
    return _pairs(facts.suggested_sampling)


def _finish(summary: "Summary", settings: GenerationSettings) -> str:
    reason = str(summary.finish_reason)
    if summary.limit == "max_new_tokens":
        origin = settings.origin("max_new_tokens")
        return f"{reason}: the limit of {settings.max_new_tokens:,} new tokens ({origin}); -n N sets another"
    if summary.limit == "max_time":
        return f"{reason}: the limit of {settings.max_time:g} seconds (--max-time)"
    if reason == "eos":
        return f"{reason}: the model ended its text (token {summary.ids[-1]}, {settings.origin('eos_token_ids')})"
    return reason


def _speed(summary: "Summary") -> str:
    parts = [f"first token {summary.ttft:.2f} s"]
    parts += [
        f"{name} {value:,.1f} tokens/s"
        for name, value in (("prefill", summary.prefill_tps), ("decode", summary.decode_tps))
        if value is not None
    ]
    return ", ".join(parts)


def _value(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(repr(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())


def _some_ids(ids: tuple[int, ...]) -> str:
    most = 32
    return ",".join(map(str, ids[:most])) + (f",... ({len(ids) - most:,} more)" if len(ids) > most else "")
