"""What a run of genx bench needs before its first point: the model, the machine, the text, and an earlier report."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from genx.bench.environment import describe_machine, hash_model, package_version
from genx.bench.jobs import PEER_PACKAGES, Survey
from genx.bench.limits import Rates
from genx.bench.plan import Plan
from genx.bench.process import WorkerFailure, survey
from genx.bench.records import Report, read_report
from genx.bench.sweep import Workload, sweep
from genx.checkpoint import read_config_json, read_generation_defaults
from genx.cli.bench_request import BenchRequest
from genx.cli.loading import find_model, load_tokenizer
from genx.cli.prompt import read_prompt
from genx.cli.requests import PromptRequest
from genx.cli.terminal import Terminal
from genx.engine.settings import GenerationSettings, resolve_settings
from genx.errors import GenxError, UsageError

Show = Callable[[str, int, int | None], None]

_COMPARABLE = ("model_hash", "cpu", "torch")  # without one of them equal, figures do not belong into one report


@dataclass(frozen=True)
class Prepared:
    """A plan, where it is measured, and what was measured of it before."""

    plan: Plan
    env: dict[str, Any]
    known: Report


@dataclass(frozen=True)
class _Text:
    """The ids of a prompt file, and the name under which records know it."""

    ids: tuple[int, ...]
    name: str


def prepare(terminal: Terminal, request: BenchRequest, show: Show) -> Prepared:
    """Look at everything that points have in common.

    Raises:
        GenxError: something is missing or damaged.
    """
    folder = find_model(request.model, terminal)
    read_config_json(folder)  # so that a folder that is no model fails before anything is timed
    known = Report({}, ()) if request.resume is None else read_report(Path(request.resume))
    text = None if request.prompt_file is None else _read_text(terminal, folder, request.prompt_file)
    show("measuring the machine", 0, None)
    surveys = _surveys(folder, request)
    first = next(iter(surveys.values()))
    rates: dict[int | None, Rates] = {found.rates.threads: found.rates for found in surveys.values()}
    settings = resolve_settings(request.settings, read_generation_defaults(folder), lambda: secrets.randbits(32))
    plan = Plan(
        model=str(folder),
        context=first.context,
        vocab_size=first.vocab_size,
        device=first.device,
        points=tuple(
            sweep(
                prompt_tokens=_prompts(request, text),
                new_tokens=request.new_tokens,
                batch=request.batch,
                depth=request.depth,
                arithmetic=first.arithmetic,
                threads=tuple(rates),
            )
        ),
        workload=_workload(request, settings, text),
        rates=rates,
        repeats=request.repeats,
        warmup=request.warmup,
        seed=secrets.randbits(32) if request.settings.seed is None else request.settings.seed,
        peers=request.peers,
        gguf=request.gguf,
        gguf_format="gguf" if request.gguf is None else _gguf_format(Path(request.gguf)),
        text=None if text is None else text.ids,
    )
    hashed = hash_model(folder, lambda done, total: show("hashing the weights", done, total))
    env = _environment(request, plan, first, hashed)
    _check_known(known, env, request.resume)
    return Prepared(plan, env, known)


def _surveys(folder: Path, request: BenchRequest) -> dict[int | None, Survey]:
    try:
        return {
            threads: survey(str(folder), request.device, threads, request.dtypes, request.quantize, request.kernels)
            for threads in request.threads or (None,)
        }
    except WorkerFailure as failure:
        raise GenxError(str(failure)) from failure


def _workload(request: BenchRequest, settings: GenerationSettings, text: _Text | None) -> Workload:
    return Workload(
        cache=request.use_cache,
        forward_only=request.forward_only,
        do_sample=settings.do_sample,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        kernels=request.kernels,
        prompt="random" if text is None else text.name,
    )


def _read_text(terminal: Terminal, folder: Path, file: str) -> _Text:
    text = read_prompt(PromptRequest(file=file), terminal)
    tokenizer = load_tokenizer(folder, required=True)
    assert tokenizer is not None
    ids = tuple(tokenizer.encode(text, add_special_tokens=False, parse_special=False))
    if not ids:
        raise UsageError(f"the prompt file {file} has no tokens; give some text")
    return _Text(ids, f"file:{sha256(text.encode()).hexdigest()[:16]}")


def _prompts(request: BenchRequest, text: _Text | None) -> tuple[int, ...]:
    if request.prompt_tokens is not None:
        return request.prompt_tokens
    assert text is not None
    return (len(text.ids),)


def _environment(request: BenchRequest, plan: Plan, found: Survey, model_hash: str) -> dict[str, Any]:
    machine = describe_machine()
    best = max(plan.rates.values(), key=lambda rates: rates.threads)
    return {
        "genx": machine.pop("genx"),
        "torch": found.torch,
        **machine,
        "device": found.device if found.device == found.device_name else f"{found.device} ({found.device_name})",
        "model": plan.model,
        "model_hash": model_hash,
        "command": request.command,
        "seed": plan.seed,
        "eos": "ignored",
        "peers": {PEER_PACKAGES[peer]: package_version(PEER_PACKAGES[peer]) for peer in plan.peers},
        "read_GB_s": best.read_gb_s,
        "matmul_GFLOP_s": best.matmul_gflop_s["float32"],
        "rates": [
            {"threads": each.threads, "read_GB_s": each.read_gb_s, "matmul_GFLOP_s": each.matmul_gflop_s}
            for each in plan.rates.values()
        ],
    }


def _check_known(known: Report, env: dict[str, Any], file: str | None) -> None:
    for name in _COMPARABLE:
        if known.env and known.env.get(name) != env[name]:
            raise UsageError(
                f"--resume: {file} was measured with {name} {known.env.get(name)}, and here it is {env[name]}; "
                "allowed: the same in both; measure anew without --resume"
            )


def _gguf_format(path: Path) -> str:
    """The element type that most of the weights have, by ggml's name for it."""
    from genx.gguf.header import read_gguf_header

    counts: dict[int, int] = {}
    for tensor in read_gguf_header(path).tensors.values():
        elements = 1
        for size in tensor.shape:
            elements *= size
        counts[tensor.ggml_type] = counts.get(tensor.ggml_type, 0) + elements
    prevailing = max(counts, key=lambda kind: counts[kind], default=-1)
    return _GGML_TYPES.get(prevailing, f"ggml type {prevailing}")


# https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, ggml_type
_GGML_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4",
}  # fmt: skip
