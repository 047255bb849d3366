"""The command line of genx bench, read into what is to be done. Imports no torch and starts nothing."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from genx.bench.jobs import LLAMA_CPP, PEER_PACKAGES
from genx.bench.sweep import LARGEST_BATCH, LARGEST_TOKENS, parse_sweep
from genx.checkpoint import embedded_model
from genx.cli.options import number, whole_number
from genx.engine.arithmetic import check_arithmetic
from genx.engine.device import LARGEST_THREADS, check_device_and_dtype
from genx.engine.settings import RequestedSettings, check_requested
from genx.errors import ArgumentError, UsageError

DEFAULT_PROMPTS = (128, 512)
FORMATS = ("table", "md", "csv", "json", "jsonl")
PLOTS = (".svg", ".png")
_LARGEST_REPEATS = 1000
_FOR_COMPARISONS = ("--compare", "--fail-if-slower", "--output")


@dataclass(frozen=True)
class BenchRequest:
    """One run of genx bench.

    Attributes:
        model: path or name.
        device: auto or a name.
        prompt_tokens: None: the whole prompt file.
        new_tokens: as the next ones, what the sweep goes over.
        batch: rows.
        depth: tokens in the cache.
        dtypes: auto or names.
        threads: None: torch's choice.
        quantize: none or formats.
        repeats: runs that count.
        warmup: runs before them; None: until they are stable.
        use_cache: keep keys and values.
        forward_only: the model alone.
        settings: how tokens are chosen.
        kernels: which operations compute.
        prompt_file: text that prompts are cut from.
        peers: engines beside genx.
        gguf: file of the peer that needs one.
        resume: report whose points are taken over.
        output: format on stdout.
        chart: None: with a table of several contexts.
        plot: file that is drawn.
        quiet: no bar.
        command: as typed.
    """

    model: str
    device: str
    prompt_tokens: tuple[int, ...] | None
    new_tokens: tuple[int, ...]
    batch: tuple[int, ...]
    depth: tuple[int, ...]
    dtypes: tuple[str, ...]
    threads: tuple[int, ...] | None
    quantize: tuple[str, ...]
    repeats: int
    warmup: int | None
    use_cache: bool
    forward_only: bool
    settings: RequestedSettings
    kernels: str
    prompt_file: str | None
    peers: tuple[str, ...]
    gguf: str | None
    resume: str | None
    output: str
    chart: bool | None
    plot: str | None
    quiet: bool
    command: str


@dataclass(frozen=True)
class ComparisonRequest:
    """Two reports, and the share by which the second may be slower; None allows any."""

    base: Path
    other: Path
    tolerance: float | None
    output: str


def read_request(values: Mapping[str, Any], given: Mapping[str, Any]) -> BenchRequest:
    """What is to be measured.

    Args:
        values: the options by the names of genx.cli.bench.
        given: those that were typed, by their flags.

    Raises:
        UsageError: a value, or a combination of them, is not allowed.
    """
    dtypes = _names(values["dtype"])
    quantize = _names(values["quantize"])
    for dtype in dtypes:
        check_device_and_dtype(values["device"], dtype)
        for how in quantize:
            check_arithmetic(values["device"], dtype, how, values["kernels"])
    _each_of("output", [values["output"]], FORMATS)
    settings = RequestedSettings(
        do_sample=values["sample"],
        temperature=number("temperature", values["temperature"]),
        top_k=whole_number("top_k", values["top_k"]),
        top_p=number("top_p", values["top_p"]),
        seed=whole_number("seed", values["seed"]),
    )
    check_requested(settings)
    prompts = values["prompt_tokens"]
    if prompts is None and values["prompt_file"] is None:
        prompt_tokens: tuple[int, ...] | None = DEFAULT_PROMPTS
    else:
        prompt_tokens = None if prompts is None else _tokens("prompt_tokens", prompts, 1)
    request = BenchRequest(
        model=str(embedded_model()) if values["model"] is None else values["model"],
        device=values["device"],
        prompt_tokens=prompt_tokens,
        new_tokens=_tokens("new_tokens", values["new_tokens"], 0),
        batch=parse_sweep("batch_size", values["batch_size"], smallest=1, largest=LARGEST_BATCH),
        depth=_tokens("depth", values["depth"], 0),
        dtypes=dtypes,
        threads=_threads(values["threads"]),
        quantize=quantize,
        repeats=_count("repeats", values["repeats"], 1),
        warmup=None if values["warmup"] is None else _count("warmup", values["warmup"], 0),
        use_cache=values["cache"] is not False,
        forward_only=values["forward_only"],
        settings=settings,
        kernels=values["kernels"],
        prompt_file=values["prompt_file"],
        peers=_each_of("against", list(dict.fromkeys(values["against"] or ())), tuple(PEER_PACKAGES)),
        gguf=values["gguf"],
        resume=values["resume"],
        output=values["output"],
        chart=values["chart"],
        plot=values["plot"],
        quiet=values["quiet"],
        command=command_line(given),
    )
    _check_together(request)
    _check_peers(request)
    _check_plot(request)
    return request


def read_comparison(values: Mapping[str, Any], given: Mapping[str, Any]) -> ComparisonRequest:
    """Which reports are compared.

    Raises:
        UsageError: there are none, or other options are given too.
    """
    if values["compare"] is None:
        raise ArgumentError("{fail_if_slower} is given without {compare}; allowed: both; give {compare} A.json B.json")
    others = [flag for flag in given if flag not in _FOR_COMPARISONS]
    if others:
        raise ArgumentError(
            "{compare} and {other} are both given; allowed with {compare}: {allowed}; drop the rest",
            other=others[0],
            allowed="--fail-if-slower and -o",
        )
    _each_of("output", [values["output"]], FORMATS)
    base, other = values["compare"]
    return ComparisonRequest(Path(base), Path(other), _share(values["fail_if_slower"]), values["output"])


def command_line(given: Mapping[str, Any]) -> str:
    """The command as it could be typed again."""
    words = ["genx", "bench"]
    for flag, value in given.items():
        if isinstance(value, bool):
            words.append(flag)
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [flag, str(each)]
    return shlex.join(words)


def _check_together(request: BenchRequest) -> None:
    if request.forward_only and any(
        getattr(request.settings, name) is not None for name in ("do_sample", "temperature", "top_k", "top_p")
    ):
        raise ArgumentError("{forward_only} chooses no tokens; allowed: without {do_sample} and its kin; drop either")
    if not request.use_cache and any(request.depth):
        raise ArgumentError("{depth} needs the cache that --no-cache switches off; allowed: one of them; drop either")
    if request.gguf is not None and LLAMA_CPP not in request.peers:
        raise ArgumentError("{gguf} is given without {against} llama.cpp; allowed: both; add it")
    if request.chart and request.output != "table":
        raise ArgumentError("{chart} belongs to a table and {output} is {given}; drop either", given=request.output)


def _check_peers(request: BenchRequest) -> None:
    for peer in request.peers:
        if find_spec(PEER_PACKAGES[peer]) is None:
            raise ArgumentError(
                "{against} {peer} needs the package {package}, which is not installed; pip install {package}",
                peer=peer,
                package=PEER_PACKAGES[peer],
            )
    if request.peers and request.forward_only:
        raise ArgumentError("{against} and {forward_only} are both given; a peer cannot leave the choice out; drop one")
    if LLAMA_CPP in request.peers:
        if request.gguf is None:
            raise ArgumentError("{against} llama.cpp needs the same model as a GGUF file; give {gguf} FILE")
        if not request.use_cache:
            raise ArgumentError("{against} llama.cpp and --no-cache are both given; it always has a cache; drop one")


def _check_plot(request: BenchRequest) -> None:
    if request.plot is None:
        return
    if Path(request.plot).suffix.lower() not in PLOTS:
        raise ArgumentError(
            "{plot} is {given!r}; allowed: a name that ends in {allowed}",
            given=request.plot,
            allowed=" or ".join(PLOTS),
        )
    if find_spec("matplotlib") is None:
        raise ArgumentError("{plot} needs matplotlib, which is not installed; pip install 'genx[plot]'")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def _each_of(name: str, given: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    for value in given:
        if value not in allowed:
            raise ArgumentError(
                "{" + name + "} is {given!r}; allowed: {allowed}", given=value, allowed=", ".join(allowed)
            )
    return tuple(given)


def _tokens(name: str, text: str, smallest: int) -> tuple[int, ...]:
    return parse_sweep(name, text, smallest=smallest, largest=LARGEST_TOKENS)


def _threads(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else parse_sweep("threads", text, smallest=1, largest=LARGEST_THREADS)


def _count(name: str, text: str, smallest: int) -> int:
    found = parse_sweep(name, text, smallest=smallest, largest=_LARGEST_REPEATS)
    if len(found) != 1:
        raise ArgumentError("{" + name + "} is {given!r}; allowed: one whole number", given=text)
    return found[0]


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*%", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"--fail-if-slower is {text!r}; allowed: a percentage below 100, such as 5%")
    return float(match[1]) / 100
