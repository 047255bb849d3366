"""What a command line asks of files of prompts, as read from its flags."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from genx.cli.options import whole_number
from genx.cli.ray_option import is_ray_address
from genx.engine.rows.formats import OutputFormat
from genx.engine.rows.records import Separator
from genx.engine.rows.requests import PromptFields
from genx.engine.rows.sources import InputFormat
from genx.engine.rows.template import Template
from genx.errors import ArgumentError
from genx.kv_size.quantities import parse_bytes

_DEFAULT_BATCH_SIZE = 32
_STDOUT = "-"
_FORMATS_BY_SUFFIX = {".csv": OutputFormat.CSV, ".txt": OutputFormat.TEXT}
# Options of one prompt that say nothing about files of prompts.
_OF_ONE_PROMPT = (
    "prompt",
    "file",
    "ids",
    "attention_mask",
    "keep_newline",
    "echo",
    "no_stream",
    "explain",
    "profile",
    "max_time",
    "pad_token_id",
)

Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True)
class RowsRequest:
    """What is asked of files of prompts; `output` None is stdout, `kv_memory` and `samples` None are not given.

    `ray` is the address of a Ray cluster, empty for the usual one; None: this machine alone.
    """

    inputs: tuple[str, ...]
    output: Path | None
    format: OutputFormat
    input_format: InputFormat | None
    fields: PromptFields
    separator: Separator
    batch_size: int
    kv_memory: int | None
    samples: int | None
    verified: int
    batch_invariant: bool
    resume: bool
    retry_errors: bool
    overwrite: bool
    unordered: bool
    count: bool
    ray: str | None


def read_rows_request(values: Mapping[str, Any]) -> RowsRequest:
    """Read the options of files of prompts.

    Args:
        values: all options of genx run by the names of its parameters.

    Raises:
        ArgumentError: a value, or a combination of values, that is not allowed.
    """
    given = next((name for name in _OF_ONE_PROMPT if values[name] not in (None, False)), None)
    if given is not None or values["cache"] is False:
        raise ArgumentError(
            f"{{{given or 'no_cache'}}} and {{input}} are both given; allowed: one of them; drop the other"
        )
    if values["field"] is not None and values["template"] is not None:
        raise ArgumentError("{field} and {template} are both given; allowed: one of them; drop the other")
    output = None if values["output"] in (None, _STDOUT) else Path(values["output"])
    chosen = _choice("format", values["format"], OutputFormat)
    if values.get("json"):
        if chosen not in (None, OutputFormat.JSONL):
            raise ArgumentError("{json} and {format} {given} are both given; drop one of them", given=chosen)
        chosen = OutputFormat.JSONL
    if chosen is None:
        suffix = "" if output is None else output.suffix.lower()
        chosen = _FORMATS_BY_SUFFIX.get(suffix, OutputFormat.JSONL)
    kv_memory = None if values["kv_memory"] is None else parse_bytes(values["kv_memory"], "--kv-memory")
    request = RowsRequest(
        inputs=tuple(values["input"]),
        output=output,
        format=chosen,
        input_format=_choice("input_format", values["input_format"], InputFormat),
        fields=PromptFields(values["field"], None if values["template"] is None else Template(values["template"])),
        separator=Separator.parse(values["separator"]),
        batch_size=_at_least_one("batch_size", values["batch_size"]) or _DEFAULT_BATCH_SIZE,
        kv_memory=kv_memory,
        samples=_at_least_one("samples", values["samples"]),
        verified=_at_least_one("verify_batch", values["verify_batch"]) or 0,
        ray=values["ray"],
        **{name: values[name] for name in _SWITCHES},
    )
    _check_output(request)
    if request.ray is not None:
        _check_ray(request, request.ray)
    return request


_SWITCHES = ("batch_invariant", "resume", "retry_errors", "overwrite", "unordered", "count")


def _check_output(request: RowsRequest) -> None:
    if request.retry_errors and not request.resume:
        raise ArgumentError("{retry_errors} is given without {resume}; give both")
    if request.resume and request.overwrite:
        raise ArgumentError("{resume} and {overwrite} are both given; allowed: one of them; drop the other")
    if request.resume and request.output is None:
        raise ArgumentError("{resume} needs a file that an earlier run has written; give it with {output}")
    if request.resume and request.format is OutputFormat.TEXT:
        raise ArgumentError("{resume} and {format} text are both given; plain text does not say which rows it holds")


def _check_ray(request: RowsRequest, address: str) -> None:
    if address and not is_ray_address(address):
        raise ArgumentError(
            "{ray} is {given!r}; allowed: HOST:PORT of a cluster, auto, local, or nothing", given=address
        )
    for name, given in (("verify_batch", request.verified), ("count", request.count)):
        if given:
            raise ArgumentError(f"{{{name}}} and {{ray}} are both given; it is for this machine alone; drop one")
    from genx.engine.rows.ray_cluster import check_ray_is_there

    check_ray_is_there()


def _choice(name: str, text: str | None, kind: type[Choice]) -> Choice | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        allowed = ", ".join(kind)
        raise ArgumentError("{" + name + "} is {given!r}; allowed: {allowed}", given=text, allowed=allowed) from None


def _at_least_one(name: str, text: str | None) -> int | None:
    number = whole_number(name, text)
    if number is not None and number < 1:
        raise ArgumentError("{" + name + "} is {given}; allowed: a whole number of at least 1", given=number)
    return number
